"""`sakiyomi decide`, and `run --calibrate`, `--tune`, `--until-established`, over real sockets."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from fake_llama import FIXED, PER_DRAFT

STEP = ("--step", "0.01", "--ttft", "0.01")
"""Long enough for a busy machine to add little to it."""
REPO_FAKE = Path(__file__).with_name("fake_llama.py")

PLAN = """
name = "{name}"
repeats = 2
schedule = "alternate"

[[arms]]
name = "plain"
engine = "llama.cpp"
model = "M"
command = ["{python}", "{script}", "{{args}}"]

[[arms]]
name = "draft"
engine = "llama.cpp"
model = "M"
command = ["{python}", "{script}", "{{args}}"]
speculation = {{ method = "draft_model", num_speculative_tokens = {k} }}

[[scenarios]]
name = "ja_chat"
num_requests = 6
max_tokens = 32
"""
CALIBRATE = """
[calibrate]
num_conversations = 4
max_tokens = 24
"""


def plan_file(folder, name="mine", k=4, extra=""):
    text = PLAN.format(name=name, python=sys.executable, script=REPO_FAKE, k=k)
    path = folder / f"{name}.toml"
    path.write_text(text + extra)
    return str(path)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Runs that several tests read: made once."""
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def pair(sakiyomi, fake_engine, home, tmp_path, kept):
    """A run of a plain server and of one whose drafts gain about 2.4 times."""

    path = tmp_path / "greedy.jsonl"
    lines = [f'{{"id": "c{i}", "turns": ["Tell me about number {i}."]}}' for i in range(8)]
    path.write_text("\n".join(lines))

    def make(name="pair", *flags, gain=True):
        if (kept / name).is_dir():
            shutil.copytree(kept / name, home / "runs" / name)
            return None
        plain = fake_engine("--dialect", "vllm", *STEP)
        drafts = (
            ("--script", "2,3", "--step-cost", "1.4")
            if gain
            else ("--script", "0", "--step-cost", "1.8")
        )
        drafting = fake_engine("--dialect", "vllm", "--k", "3", *drafts, *STEP)
        urls = ("--url", f"plain={plain}", "--url", f"mtp={drafting}")
        done = sakiyomi(
            "run",
            *urls,
            "--scenario",
            str(path),
            "--requests",
            "8",
            "--max-tokens",
            "32",
            "--name",
            name,
            *flags,
        )
        assert done.returncode == 0, done.stderr
        if not flags:
            shutil.copytree(home / "runs" / name, kept / name)
        return done

    return make


def test_a_gain_is_decided_and_handed_over(pair, sakiyomi, tmp_path):
    pair()
    done = sakiyomi("decide", "pair", "--gate", "--export", str(tmp_path / "out"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("greedy: use mtp. It is ")
    long = [line for line in done.stdout.splitlines() if len(line) > 80]
    assert not [line for line in long if "plan.toml" not in line]  # a path is never broken
    assert "mtp and plain wrote the same text in 100%" in " ".join(done.stdout.split())
    assert "Best k:" in done.stdout
    rules = yaml.safe_load((tmp_path / "out" / "alerts.yaml").read_text())
    (rule,) = rules["groups"][0]["rules"]
    # C(3) = 1.4: break-even 0.133
    assert float(rule["expr"].rsplit("<", 1)[1]) == pytest.approx(0.133, abs=0.05)
    assert "already served at" in (tmp_path / "out" / "launch.sh").read_text()


def test_the_report_is_filled(pair, sakiyomi):
    pair()
    report = json.loads(sakiyomi("decide", "pair", "--json").stdout)
    decision = report["decision"]
    assert decision["answer"] == "yes"
    assert decision["choices"][0]["arm"] == "mtp"
    assert decision["texts"][0]["verdict"] == "same"
    assert decision["summary"][0].startswith("greedy: use mtp.")
    assert report["schema"] == "sakiyomi.report/1"


def test_limits_from_a_file_shut_the_gate(pair, sakiyomi, tmp_path):
    pair()
    slo = tmp_path / "slo.toml"
    slo.write_text("[greedy]\nttft_s = 0.001\n")
    done = sakiyomi("decide", "pair", "--slo", str(slo), "--gate")
    assert done.returncode == 3
    assert "no arm will do" in done.stdout
    assert sakiyomi("decide", "pair", "--slo", str(slo)).returncode == 0
    slo.write_text("[greedy]\nttft_s = 30\n")  # eight conversations cannot prove nine in ten
    done = sakiyomi("decide", "pair", "--slo", str(slo), "--gate")
    assert done.returncode == 4
    assert "Next: about" in done.stdout
    slo.write_text("[code_agent]\nttft_s = 0.3\n")
    done = sakiyomi("decide", "pair", "--slo", str(slo))
    assert done.returncode == 2
    assert "no scenario of this name" in done.stderr
    slo.write_text("[greedy]\nttft = 0.3\n")
    done = sakiyomi("decide", "pair", "--slo", str(slo))
    assert done.returncode == 2
    assert "greedy: ttft: unknown key" in done.stderr


def test_a_loss_keeps_the_baseline(pair, sakiyomi):
    pair("loss", gain=False)
    done = sakiyomi("decide", "loss", "--gate")
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("greedy: use plain. No other arm is worth it: mtp is ")


def test_a_regression_between_runs_shuts_the_gate(sakiyomi, fake_engine, home):
    def run(name, step, *flags):
        url = fake_engine("--dialect", "vllm", "--step", step, "--ttft", "0.01")
        done = sakiyomi(
            "run",
            "--url",
            f"server={url}",
            "--scenario",
            "ja_chat",
            "--requests",
            "8",
            "--max-tokens",
            "32",
            "--name",
            name,
            *flags,
        )
        assert done.returncode == 0, done.stderr

    run("old", "0.005")
    run("new", "0.010")
    done = sakiyomi("decide", "new", "--baseline", "old", "--gate")
    assert done.returncode == 3
    assert "an arm became slower" in " ".join(done.stdout.split())
    run("warm", "0.005", "--max-tokens", "20")
    done = sakiyomi("decide", "warm", "--baseline", "old")
    assert done.returncode == 2
    assert "scenarios.ja_chat.sampling" in done.stderr
    assert sakiyomi("decide", "warm", "--baseline", "old", "--force").returncode == 0


def test_the_founding_case_decides(sakiyomi):
    done = sakiyomi("decide", "founding-case", "--gate")
    assert done.returncode == 4
    text = " ".join(done.stdout.split())
    assert (
        "ja_chat: keep plain for now. Not established: mtp-k3 is 12% faster (-1% to +25%)" in text
    )
    assert "code_agent: use mtp-k3. It is 85% faster" in text
    assert "Best k: 2 (" in text


def test_a_calibration_finds_the_costs_and_is_no_workload(sakiyomi, home, tmp_path):
    plan = plan_file(tmp_path)
    dry = sakiyomi("run", plan, "--calibrate", "--dry-run")
    assert "arm draft-k3-all: launch llama.cpp" in dry.stdout
    done = sakiyomi("run", plan_file(tmp_path, "costs", extra=CALIBRATE))
    assert done.returncode == 0, done.stderr
    assert "per draft on top of" in " ".join(done.stdout.split())
    facts = json.loads((home / "runs" / "costs-calibration" / "run.json").read_text())
    assert facts["kind"] == "calibration"
    assert [arm.get("forced_acceptance", False) for arm in facts["arms"]] == [False] + [True] * 4
    refused = sakiyomi("decide", "costs-calibration")
    assert refused.returncode == 2
    assert "kind is calibration" in refused.stderr
    assert "hint: decide on a workload" in refused.stderr

    assert sakiyomi("run", plan, "--name", "work").returncode == 0
    done = sakiyomi("decide", "work", "--calibration", "costs-calibration", "--json")
    decision = json.loads(done.stdout)["decision"]
    (fit,) = decision["calibrations"]
    assert fit["per_draft"]["point"] == pytest.approx(PER_DRAFT, abs=0.08)
    assert fit["fixed"]["point"] == pytest.approx(FIXED, abs=0.2)
    best = decision["choices"][0]["draft_lengths"][0]["best_k"]
    assert best["source"] == "calibration"
    # E(2) / C(2) = 2.7 / 1.5 beats 1.9 / 1.3 and 2.75 / 1.7
    assert best["best"] == 2
    assert decision["choices"][0]["advised_k"] == 2
    assert "--tune" in decision["choices"][0]["next_experiment"]["command"]

    swapped = sakiyomi("decide", "work", "--calibration", "work")
    assert swapped.returncode == 2
    assert "kind is workload" in swapped.stderr
    refused = sakiyomi("decide", "work", "--baseline", "costs-calibration")
    assert refused.returncode == 2
    assert "kind: calibration against workload" in refused.stderr


def test_tuning_confirms_the_best_two_on_the_engine(sakiyomi, home, tmp_path):
    done = sakiyomi("run", plan_file(tmp_path), "--tune", "--json")
    assert done.returncode == 0, done.stderr
    decision = json.loads(done.stdout)["decision"]
    rows = decision["tuning"]
    assert {row["num_speculative_tokens"] for row in rows} >= {2}
    (at_two,) = [row for row in rows if row["num_speculative_tokens"] == 2]
    assert at_two["measured"]["point"] == pytest.approx(2.7 / 1.5, rel=0.15)
    assert decision["choices"][0]["arm"].startswith("draft-at-k")
    assert (home / "runs" / "mine").is_dir()
    assert (home / "runs" / "mine-tune").is_dir()


def test_a_clear_gain_ends_the_run_by_itself(pair, sakiyomi, home):
    done = pair("until", "--until-established", "--budget", "60s", "--repeats", "6")
    assert "look 1 of " in done.stderr
    assert "every verdict is established" in done.stderr
    facts = json.loads((home / "runs" / "until" / "run.json").read_text())
    assert facts["finished"]
    looks = facts["looks"]
    assert 1 <= looks["look"] <= looks["max_looks"] <= 5
    assert facts["plan"]["repeats"] == looks["look"] + 1
    report = json.loads(sakiyomi("report", "until", "--json").stdout)
    assert report["comparisons"][0]["verdict"] == "faster"
    assert "looked_after_every_repeat" in [c["kind"] for c in report["cautions"]]
    more = sakiyomi("run", "--resume", "until", "--repeats", "9")
    assert more.returncode == 2
    assert "looks fixed before the first one" in more.stderr


def test_a_budget_that_holds_one_repeat_still_ends(pair, sakiyomi, home):
    pair("short", "--until-established", "--budget", "1s")
    facts = json.loads((home / "runs" / "short" / "run.json").read_text())
    assert facts["looks"] == {"look": 1, "max_looks": 1}
    assert facts["plan"]["repeats"] == 1


def test_one_arm_cannot_be_established(sakiyomi, fake_engine):
    url = fake_engine(*STEP)
    done = sakiyomi("run", "--url", url, "--until-established")
    assert done.returncode == 2
    assert "nothing to be compared with" in done.stderr
