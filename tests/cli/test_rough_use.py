"""The command in rough hands: closed pipes, full disks, flags that cannot be meant."""

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import trustme

from sakiyomi.commands.run_plan import RunFlags, plan_from_flags

QUICK = ("--scenario", "en_chat", "--requests", "2", "--max-tokens", "12", "--repeats", "1")
BIGGER = ("--requests", "8", "--max-tokens", "40", "--repeats", "1")
FAST = ("--step", "0.003", "--ttft", "0.01")
SAKIYOMI = (sys.executable, "-m", "sakiyomi.cli")


def shell(script, *arguments):
    """Run a line of bash in which $@ is the command."""
    return subprocess.run(
        ["bash", "-c", script, "bash", *SAKIYOMI, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"},
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("report", "founding-case"),
        ("report", "founding-case", "--json"),
        ("scenarios", "show", "ja_chat"),
        ("fake-engine", "--list-faults"),
    ],
)
@pytest.mark.usefixtures("home")
def test_a_reader_that_goes_away_is_no_error(arguments):
    done = shell('(sleep 0.2; "$@"; echo "status $?" >&2) | true; wait', *arguments)
    assert done.stderr == "status 0\n"


@pytest.mark.usefixtures("home")
def test_closed_and_full_outputs():
    assert shell('"$@" >&-', "report", "founding-case").stderr == ""
    full = shell('"$@" >/dev/full', "report", "founding-case")
    assert full.returncode == 1
    assert full.stderr.startswith("error: standard output: No space left on device\n")


@pytest.mark.parametrize("stderr", ["2>&1 | head -1", "2>&- | cat"])
def test_a_run_does_not_end_because_nobody_reads_its_progress(fake_engine, home, stderr):
    shell(f'"$@" {stderr}', "run", "--url", fake_engine(*FAST), "--name", "r", *QUICK)
    facts = json.loads((home / "runs" / "r" / "run.json").read_text())
    assert facts["finished"]
    assert (home / "runs" / "r" / "requests.jsonl").read_bytes().count(b"\n") == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--first-token-timeout", "-1"), "--first-token-timeout -1: expected seconds above 0"),
        (("--silence-timeout", "0"), "--silence-timeout 0: expected seconds above 0"),
        (("--url", "http://u:secret@h"), "credentials in a URL are not sent"),
        (("--url", "http://::1:1"), "IPv6 address needs brackets"),
        (("--metrics-url", "h:80"), "'h:80' is no http(s) URL"),
        (("--api-key-env", "NO_SUCH_KEY"), "NO_SUCH_KEY is empty or not set"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_a_run_is_made(sakiyomi, home, arguments, message):
    url = () if "--url" in arguments else ("--url", "http://127.0.0.1:1")
    done = sakiyomi("run", *url, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "secret" not in done.stderr
    assert not home.exists()


@pytest.mark.parametrize(
    ("servers", "pages", "found"),
    [
        (["h:1"], ["http://p/a", "http://p/b"], {"server": ("http://p/a", "http://p/b")}),
        (["a=h:1", "b=h:2"], ["b=http://p/b"], {"a": (), "b": ("http://p/b",)}),
        (
            ["a=h:1", "h:2"],
            ["server-2=http://p/b", "a=http://p/a"],
            {"a": ("http://p/a",), "server-2": ("http://p/b",)},
        ),
    ],
)
def test_metrics_pages_go_to_the_server_that_they_name(servers, pages, found):
    plan = plan_from_flags(RunFlags(urls=tuple(servers), metrics_urls=tuple(pages)), ())
    assert {arm.name: arm.metrics_urls for arm in plan.arms} == found


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--url", "a=h:1", "--url", "h:2", "--metrics-url", "http://p/m"),
            "of which server?\nhint: write a=http://p/m or server-2=http://p/m",
        ),
        (("--url", "a=h:1", "--metrics-url", "b=http://p/m"), "no server of this name"),
        (("--metrics-url", "http://p/m"), "--metrics-url needs a server"),
        (("--engine", "vllm"), "--engine needs a server"),
        (("--api-key-env", "HOME"), "--api-key-env needs a server"),
    ],
)
def test_flags_of_a_server_are_never_dropped(sakiyomi, arguments, message):
    done = sakiyomi("run", *arguments, "--dry-run")
    assert done.returncode == 2
    assert message in done.stderr


def test_a_run_that_met_no_server_is_none(sakiyomi, home, tmp_path):
    for out in ((), ("--out", str(tmp_path / "out"))):
        done = sakiyomi("run", "--url", "http://127.0.0.1:1", "--name", "r", *QUICK, *out)
        assert done.returncode == 1
        assert "connection refused" in done.stderr
    assert not list((home / "runs").iterdir())
    assert not (tmp_path / "out").exists()
    assert sakiyomi("history").stdout == "no runs yet: sakiyomi run\n"


def test_an_engine_that_did_not_start_leaves_its_log_alone(sakiyomi, home, tmp_path):
    plan = tmp_path / "p.toml"
    plan.write_text(
        'name = "r"\n[[arms]]\nname = "a"\nmodel = "m"\n'
        'command = ["sh", "-c", "echo no such card; exit 3"]\n[[scenarios]]\nname = "en_chat"\n'
    )
    done = sakiyomi("run", str(plan))
    log = home / "runs" / "r" / "engine-a-1.log"
    assert done.returncode == 1
    assert str(log) in done.stderr
    assert log.read_text() == "no such card\n"
    assert list(log.parent.iterdir()) == [log]
    assert "no runs yet" in sakiyomi("history").stdout


@pytest.mark.parametrize("flag", ["--url", "--model", "--engine", "--metrics-url"])
def test_flags_that_a_plan_would_ignore_are_refused(sakiyomi, tmp_path, flag):
    plan = tmp_path / "p.toml"
    plan.write_text(
        'name = "p"\n[[arms]]\nname = "a"\nurl = "http://h"\n[[scenarios]]\nname = "en_chat"\n'
    )
    done = sakiyomi("run", str(plan), flag, "http://x", "--dry-run")
    assert done.returncode == 2
    assert f"a plan and {flag} exclude each other" in done.stderr


SECRET_PLAN = """
name = "secret"
repeats = 1
[[arms]]
name = "a"
url = "URL"
args = ["--api-key", "sk-args"]
env = {{ HF_TOKEN = "hf_env" }}
request = {{ api_key = "sk-body", seed = {seed} }}
[[scenarios]]
name = "en_chat"
num_requests = 2
max_tokens = 12
"""


def test_secrets_are_not_kept_and_the_plan_gives_them_again(sakiyomi, fake_engine, home, tmp_path):
    url = fake_engine(*FAST)
    plan, other = tmp_path / "p.toml", tmp_path / "other.toml"
    plan.write_text(SECRET_PLAN.format(seed=1).replace("URL", url))
    other.write_text(SECRET_PLAN.format(seed=2).replace("URL", url))
    assert sakiyomi("run", str(plan)).returncode == 0
    written = b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())
    for secret in (b"sk-args", b"hf_env", b"sk-body"):
        assert secret not in written
    refused = sakiyomi("run", "--resume", "secret", "--repeats", "2")
    assert refused.returncode == 2
    assert "sakiyomi run PLAN.toml --resume secret" in refused.stderr
    changed = sakiyomi("run", str(other), "--resume", "secret", "--repeats", "2")
    assert "arm a is not as it was in secret" in changed.stderr
    assert sakiyomi("run", str(plan), "--resume", "secret", "--repeats", "2").returncode == 0
    records = (home / "runs" / "secret" / "requests.jsonl").read_text()
    assert records.count('"repeat":1') == 2


def test_a_resumed_run_takes_no_other_shape(sakiyomi, fake_engine):
    url = fake_engine(*FAST)
    assert sakiyomi("run", "--url", url, "--name", "r", *QUICK).returncode == 0
    for flag in ("--requests", "--max-tokens", "--name", "--model", "--out"):
        done = sakiyomi("run", "--resume", "r", flag, "7")
        assert done.returncode == 2
        assert "only --repeats can be raised" in done.stderr


def test_a_full_disk_keeps_what_was_measured_and_ends_with_1(fake_engine, home):
    url = fake_engine(*FAST)
    done = shell('ulimit -f 10; "$@"', "run", "--url", url, "--name", "r", *QUICK[:2], *BIGGER)
    assert done.returncode == 1
    assert ".jsonl: File too large; everything before it is kept" in done.stderr
    assert done.stderr.count("--resume") == 1
    assert (home / "runs" / "r" / "requests.jsonl").exists()
    assert shell('"$@"', "run", "--resume", "r").returncode == 0


def test_stopping_twice_is_no_failure_and_counts_no_token_of_others(fake_engine, home):
    url = fake_engine("--k", "3", "--step", "0.05")
    process = subprocess.Popen(
        [*SAKIYOMI, "run", "--url", url, "--name", "r", "--concurrency", "4", *QUICK[:2], *BIGGER],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    path = home / "runs" / "r" / "requests.jsonl"
    while not path.exists() or path.read_bytes().count(b"\n") < 2:
        time.sleep(0.02)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
    _, stderr = process.communicate()
    assert process.returncode == 0
    assert "every request failed" not in stderr
    assert "sakiyomi run --resume" in stderr
    assert '"cancelled"' in path.read_text()
    done = shell('"$@"', "run", "--resume", "r", "--json")
    (cell,) = json.loads(done.stdout)["cells"]
    assert (cell["num_requests"], cell["num_failed"]) == (8, 0)
    said = {caution["kind"]: caution["message"] for caution in cell["cautions"]}
    assert not said.keys() & {"other_traffic", "sources_disagree"}
    assert "8 requests are of a pass without a page after it" in said["metrics_incomplete"]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """(certificate of 127.0.0.1 with its key, its private authority), as files."""
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(str(folder / "server.pem"))
    return folder / "server.pem", folder / "ca.pem"


def test_f66_a_self_signed_server(sakiyomi, fake_engine, certificates):
    server, authority = certificates
    url = fake_engine("--tls-certificate", str(server), *FAST)
    untrusted = sakiyomi("run", "--url", url, *QUICK)
    assert untrusted.returncode == 1
    assert "is not trusted: unable to get local issuer certificate" in untrusted.stderr
    assert "--ca-file" in untrusted.stderr
    trusted = sakiyomi("run", "--url", url, "--ca-file", str(authority), "--json", *QUICK)
    assert [c["kind"] for c in json.loads(trusted.stdout)["cautions"]] == []
    unchecked = sakiyomi("run", "--url", url, "--insecure", "--name", "i", "--json", *QUICK)
    for done in (unchecked, sakiyomi("run", "--resume", "i", "--insecure", "--json")):
        assert [c["kind"] for c in json.loads(done.stdout)["cautions"]] == ["tls_not_verified"]
        assert json.loads(done.stdout)["cells"][0]["num_failed"] == 0


def test_a_redirect_names_the_address_to_give(sakiyomi, fake_engine):
    """http to another port, as a gateway does it: a request is not sent on with its times."""
    target = fake_engine()

    class Redirect(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(307)
            self.send_header("Location", target + self.path)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_POST = do_GET  # noqa: N815 - the library's name

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Redirect) as gateway:
        threading.Thread(target=gateway.serve_forever, daemon=True).start()
        done = sakiyomi("run", "--url", f"http://127.0.0.1:{gateway.server_port}", *QUICK)
        gateway.shutdown()
    assert done.returncode == 1
    assert f"307 Temporary Redirect:  (to {target}/v1/chat/completions" in done.stderr
    assert "give --url the address that it redirects to" in done.stderr
