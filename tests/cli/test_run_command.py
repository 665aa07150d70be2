import json
import signal
import subprocess
import sys
import time

import pytest

QUICK = ("--requests", "4", "--max-tokens", "40")
FAST = ("--step", "0.006", "--ttft", "0.01")


def read(folder, name):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_two_servers_one_command(sakiyomi, fake_engine, home):
    plain = fake_engine("--dialect", "vllm", *FAST)
    mtp = fake_engine("--dialect", "vllm", "--k", "3", "--script", "3", *FAST)
    done = sakiyomi(
        "run",
        "--url",
        f"plain={plain}",
        "--url",
        f"mtp={mtp}/v1/",
        "--scenario",
        "ja_chat",
        "--scenario",
        "en_chat",
        "--name",
        "two",
        *QUICK,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("two · vLLM")
    assert all(len(line) <= 80 for line in lines)
    assert "100%" in done.stdout  # every draft accepted
    assert "acceptance: exact, from its counters" in done.stdout
    assert "saved: two" in done.stdout
    report = json.loads(sakiyomi("report", "two", "--json").stdout)
    assert report["schema"] == "sakiyomi.report/1"
    assert len(report["cells"]) == 4
    for cell in report["cells"]:
        assert cell["num_requests"] == 12  # four a repeat, three repeats
        assert cell["num_failed"] == 0
        assert cell["decode_tokens_per_s"]["low"] <= cell["decode_tokens_per_s"]["point"]
        if cell["arm"] == "mtp":
            assert cell["num_speculative_tokens"] == 3
            assert cell["acceptance"]["draft_acceptance_rate"]["point"] == 1.0
            assert cell["acceptance"]["mean_acceptance_length"]["point"] == 4.0
            assert cell["acceptance"]["per_position"] == [1, 1, 1]
    kinds = {caution["kind"] for cell in report["cells"] for caution in cell["cautions"]}
    assert "acceptance_one" in kinds
    assert {c["verdict"] for c in report["comparisons"]} == {"faster"}
    assert sorted(path.name for path in (home / "runs" / "two").iterdir()) == [
        "plan.toml",
        "requests.jsonl",
        "run.json",
        "snapshots.jsonl",
    ]
    assert len(read(home / "runs" / "two", "snapshots.jsonl")) == 24
    assert "two" in sakiyomi("history").stdout


def test_json_is_the_report_and_nothing_else(sakiyomi, fake_engine):
    url = fake_engine(*FAST)
    done = sakiyomi(
        "run", "--url", url, "--scenario", "en_chat", "--repeats", "1", "--json", *QUICK
    )
    report = json.loads(done.stdout)
    assert report["baseline"] == "server"
    assert report["comparisons"] == []
    assert "NaN" not in done.stdout


def test_a_killed_run_is_resumed_without_repeating(sakiyomi, fake_engine, home):
    url = fake_engine("--step", "0.01")
    command = [
        sys.executable,
        "-m",
        "sakiyomi.cli",
        "run",
        "--url",
        url,
        "--scenario",
        "en_chat",
        "--name",
        "cut",
        "--requests",
        "6",
        "--max-tokens",
        "24",
        "--repeats",
        "2",
    ]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    path = home / "runs" / "cut" / "requests.jsonl"
    while not path.exists() or path.read_bytes().count(b"\n") < 4:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = [r["key"]["request_id"] for r in read(path.parent, path.name)]
    done = sakiyomi("run", "--resume", "cut")
    assert done.returncode == 0, done.stderr
    records = [r for r in read(path.parent, path.name) if not r["key"].get("warmup")]
    ids = [r["key"]["request_id"] for r in records]
    assert len(set(ids)) == len(ids) == 12
    assert set(kept) <= set(ids) | {r for r in kept if r.startswith("warmup")}
    assert json.loads((path.parent / "run.json").read_text())["finished"] is True
    more = sakiyomi("run", "--resume", "cut", "--repeats", "3")
    assert more.returncode == 0
    assert sum(not r["key"].get("warmup") for r in read(path.parent, path.name)) == 18


def test_ctrl_c_saves_and_reports(sakiyomi, fake_engine, home):
    url = fake_engine("--step", "0.01")
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "sakiyomi.cli",
            "run",
            "--url",
            url,
            "--scenario",
            "en_chat",
            "--name",
            "stopped",
            "--requests",
            "8",
            "--max-tokens",
            "24",
            "--repeats",
            "2",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    path = home / "runs" / "stopped" / "requests.jsonl"
    while not path.exists() or path.read_bytes().count(b"\n") < 3:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 0
    assert "saved: stopped" in out
    assert "sakiyomi run --resume" in err
    assert 0 < path.read_bytes().count(b"\n") < 17
    assert not any(r.get("error") for r in read(path.parent, path.name))
    assert json.loads((path.parent / "run.json").read_text())["interrupted"] is True


def test_a_dry_run_asks_nothing(sakiyomi, home):
    done = sakiyomi("run", "--url", "http://127.0.0.1:1", "--dry-run")
    assert done.returncode == 0
    assert "attach to http://127.0.0.1:1" in done.stdout
    assert not home.exists()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("run", "--url", "http://127.0.0.1:1"), 1, "127.0.0.1:1"),
        (("run", "--url", "::1:8000"), 2, "IPv6 address needs brackets"),
        (("run", "nope.toml"), 2, "nope.toml: no such file"),
        (("run", "--url", "http://h", "--repeats", "0"), 2, "--repeats 0"),
        (("run", "--url", "http://h", "--scenario", "nope"), 2, "'nope' is not built in"),
        (("run", "--url", "http://h", "--api-key-env", "NO_SUCH_KEY"), 2, "NO_SUCH_KEY is empty"),
        (("run", "--resume", "nope"), 2, "no run of this name"),
        (("report", "nope"), 2, "no run of this name"),
        (("report", "founding-case", "-o", "x.docx"), 2, "no report format for '.docx'"),
        (("run", "--frobnicate"), 2, "unrecognized arguments"),
    ],
)
def test_bad_input_has_a_message_a_hint_and_its_status(sakiyomi, arguments, status, message):
    done = sakiyomi(*arguments)
    assert done.returncode == status, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_wrong_model_lists_what_is_served(sakiyomi, fake_engine):
    url = fake_engine("--model", "right-model")
    done = sakiyomi("run", "--url", url, "--model", "wrong-model", *QUICK)
    assert done.returncode == 1
    assert "does not serve 'wrong-model'" in done.stderr
    assert "it serves: right-model" in done.stderr


def test_a_key_is_asked_for_used_and_never_written(sakiyomi, fake_engine, home):
    key = "sk-very-secret-4711"
    url = fake_engine("--api-key", key, *FAST)
    refused = sakiyomi("run", "--url", url, "--scenario", "en_chat", *QUICK)
    assert refused.returncode == 1
    assert "--api-key-env" in refused.stderr
    done = sakiyomi(
        "run",
        "--url",
        url,
        "--scenario",
        "en_chat",
        "--api-key-env",
        "MY_KEY",
        "--name",
        "key",
        *QUICK,
        MY_KEY=key,
    )
    assert done.returncode == 0, done.stderr
    written = b"".join(p.read_bytes() for p in home.rglob("*") if p.is_file())
    assert b"MY_KEY" in written
    for text in (written, done.stdout.encode(), done.stderr.encode()):
        assert key.encode() not in text


def test_every_request_failed_ends_with_1_and_the_reason(sakiyomi, fake_engine):
    url = fake_engine("--fault", "error_after_tokens=3@3-", *FAST)
    done = sakiyomi("run", "--url", url, "--scenario", "en_chat", "--name", "bad", *QUICK)
    assert done.returncode == 1
    assert "every request failed; most often" in done.stderr
    assert "error_in_stream" in done.stderr
    assert "saved: bad" in done.stdout


def test_failures_are_counted_and_never_averaged(sakiyomi, fake_engine):
    url = fake_engine("--fault", "cut_after_tokens=3@4", *FAST)
    done = sakiyomi(
        "run", "--url", url, "--scenario", "en_chat", "--repeats", "1", "--json", *QUICK
    )
    assert done.returncode == 0, done.stderr
    (cell,) = json.loads(done.stdout)["cells"]
    assert (cell["num_requests"], cell["num_failed"]) == (4, 1)
    assert cell["decode_tokens_per_s"]["n"] == 3
    (caution,) = [c for c in cell["cautions"] if c["kind"] == "requests_failed"]
    assert caution["detail"]["reasons"] == {"truncated": 1}


def test_a_strict_server_gets_the_request_that_it_takes(sakiyomi, fake_engine, home):
    url = fake_engine("--dialect", "openai", "--reject-unknown", "--fault", "no_usage", *FAST)
    done = sakiyomi("run", "--url", url, "--scenario", "en_chat", "--name", "strict", *QUICK)
    assert done.returncode == 0, done.stderr
    assert "the server refuses" in done.stdout
    assert "tokens are estimated" in done.stdout
    report = json.loads(sakiyomi("report", "strict", "--json").stdout)
    assert report["cells"][0]["tokens"] == "estimated"


def test_a_console_that_cannot_print_a_sign_gets_another(sakiyomi):
    done = sakiyomi("report", "founding-case", PYTHONIOENCODING="cp932", encoding="cp932")
    assert done.returncode == 0
    assert "founding case: dense 27B" in done.stdout
    done = sakiyomi("report", "founding-case", PYTHONIOENCODING="ascii", encoding="ascii")
    assert done.returncode == 0


def test_prefix_caching_does_not_flatter_a_first_turn(sakiyomi, fake_engine):
    url = fake_engine("--dialect", "vllm", "--prefix-cache", *FAST)
    done = sakiyomi("run", "--url", url, "--scenario", "en_chat", "--json", *QUICK)
    (cell,) = json.loads(done.stdout)["cells"]
    assert "warm_prefix_cache" not in {c["kind"] for c in cell["cautions"]}
