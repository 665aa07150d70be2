"""Runs that launch their engines: order, starts, config files, and engines that die."""

import asyncio
import itertools
import os
import re
import sys
from pathlib import Path

import pytest
from measured_run import make_job, report_of, scenario

from sakiyomi.drive import measure
from sakiyomi.errors import EngineError
from sakiyomi.job import finished_conversations
from sakiyomi.plan import Arm, Plan, ScenarioRef, Speculation
from sakiyomi.store import RunReader
from sakiyomi.workload import choose_schedule, passes

ENGINE = (sys.executable, "-m", "sakiyomi.fake_engine", "--port", "{port}")
QUICK = ("--ttft", "0.004", "--step", "0.003")


def arm(name, *options, **fields):
    return Arm(name=name, engine="vllm", command=(*ENGINE, *QUICK, *options), **fields)


def plan_of(*arms, **fields):
    return Plan(name="run", arms=arms, scenarios=(ScenarioRef(name="mine"),), **fields)


@pytest.fixture(autouse=True)
def own_ledger(tmp_path, monkeypatch):
    monkeypatch.setenv("SAKIYOMI_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def run(plan, folder, **job):
    made = make_job(plan, folder, {"mine": scenario(num_conversations=2)}, **job)
    try:
        asyncio.run(measure(made))
    finally:
        made.writer.close()
    return RunReader(folder)


def alive(folder):
    """Process ids of fake engines of this test that are still there."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in line:
            found.append(int(entry.name))
    return found


def test_two_launched_engines_take_turns_with_the_fewest_starts(tmp_path):
    order = tmp_path / "order.log"
    marked = ("--log", str(order))
    plan = plan_of(
        arm("plain", *marked, "--model", "m"),
        arm("mtp", *marked, "--model", "m", "--k", "3", "--acceptance", "0.9,0.8,0.7"),
        repeats=4,
    )
    assert choose_schedule(plan, fits_together=False) == "blocks"
    reader = run(plan, tmp_path / "run")
    asked = [r.key for r in reader.records() if not r.key.warmup]
    turns = [key.arm for i, key in enumerate(asked) if i == 0 or asked[i - 1].arm != key.arm]
    assert turns == ["plain", "mtp", "plain", "mtp", "plain"]  # A, B B, A A, B B, A
    logs = {path.name for path in (tmp_path / "run").glob("engine-*.log")}
    assert logs == {
        "engine-plain-1.log",
        "engine-plain-2.log",
        "engine-plain-3.log",
        "engine-mtp-1.log",
        "engine-mtp-2.log",
    }
    assert {f.name: f.num_starts for f in reader.facts.arms} == {"plain": 3, "mtp": 2}
    starts = {(key.arm, key.repeat): key.start for key in asked}
    assert [starts["plain", r] for r in range(4)] == [1, 2, 2, 3]
    assert [starts["mtp", r] for r in range(4)] == [1, 1, 2, 2]
    cells = {cell.arm: cell for cell in report_of(tmp_path / "run").cells}
    assert [row["num_requests"] for row in cells["plain"].starts] == [2, 4, 2]
    assert all(row["decode_tokens_per_s"] > 0 for row in cells["mtp"].starts)
    assert cells["mtp"].acceptance.num_drafts > 0
    assert alive(tmp_path) == []


def test_blocks_need_one_start_more_than_repeats_at_most():
    plan = plan_of(arm("a"), arm("b"), repeats=5)
    order = [one.arm for one in passes(plan, "blocks")]
    num_starts = 1 + sum(one != other for one, other in itertools.pairwise(order))
    assert order == list("abbaabbaab")
    assert num_starts == plan.repeats + 1


def test_a_restart_that_changes_the_speed_is_said(tmp_path):
    flag = tmp_path / "slow"
    script = (
        f"import os, sys; slow = os.path.exists({str(flag)!r}); open({str(flag)!r}, 'w').close(); "
        "step = '0.02' if slow else '0.01'; os.execv(sys.executable, [sys.executable, '-m', "
        "'sakiyomi.fake_engine', '--port', sys.argv[1], '--ttft', '0.004', '--step', step])"
    )
    first = Arm(name="a", engine="vllm", command=(sys.executable, "-c", script, "{port}"))
    run(plan_of(first, arm("b"), repeats=2), tmp_path / "run")
    cell = next(c for c in report_of(tmp_path / "run").cells if c.arm == "a")
    said = {c.kind: c for c in cell.cautions}
    assert "restarts_differ" in said
    assert "drift" not in said
    fast, slow = (row["decode_tokens_per_s"] for row in said["restarts_differ"].detail["starts"])
    assert fast / slow == pytest.approx(2, rel=0.25)


def test_an_engine_that_dies_of_the_first_request(tmp_path):
    """vLLM's real case: an error object in a 200 stream, then a dead server."""
    mortal = arm("mtp", "--fault", "error_before_token", "--fault", "die_after_requests=1")
    with pytest.raises(EngineError) as failure:
        run(plan_of(mortal), tmp_path / "run")
    assert "arm mtp" in failure.value.message
    assert "engine-mtp-1.log" in failure.value.message + failure.value.hint
    assert (tmp_path / "run" / "run.json").exists()


def saying(name, log, *flags):
    """An arm whose engine first writes a real vLLM's log lines, then is the fake engine."""
    script = (
        "import os, pathlib, sys; print(pathlib.Path(sys.argv[2]).read_text(), flush=True); "
        "os.execv(sys.executable, [sys.executable, '-m', 'sakiyomi.fake_engine', '--port', "
        "sys.argv[1], *sys.argv[3:]])"
    )
    path = Path(__file__).parents[1] / "engines" / "golden" / "vllm-0.32" / log
    words = (sys.executable, "-c", script, "{port}", str(path), *flags)
    return Arm(name=name, engine="vllm", command=words)


def test_an_engine_that_fails_and_stays_up_shows_what_its_log_says(tmp_path):
    """vLLM's reason stands in its log alone; its process outlives the answer by seconds."""
    failing = saying("mtp", "log-synthetic-on-cpu.txt", "--fault", "error_before_token")
    with pytest.raises(EngineError) as failure:
        run(plan_of(failing), tmp_path / "run")
    assert "forced acceptance does not exist on CPU" in failure.value.message
    assert "Synthetic acceptance not supported with CPU sampling" in failure.value.message
    assert "engine-mtp-1.log" in failure.value.message
    assert "llama.cpp" in failure.value.hint
    assert alive(tmp_path) == []


def test_an_engine_that_dies_in_the_middle_keeps_what_was_measured(tmp_path):
    # the probe, the warm-up and three measured requests are answered
    mortal = arm("plain", "--fault", "die_after_requests=5")
    with pytest.raises(EngineError) as failure:
        run(plan_of(mortal, repeats=4), tmp_path / "run")
    error = failure.value
    assert "ended" in error.message or "exit" in error.message
    assert "engine-plain-1.log" in error.message + error.hint
    assert "--resume" in error.hint
    reader = RunReader(tmp_path / "run")
    records = [r for r in reader.records() if not r.key.warmup]
    assert sum(r.error is None for r in records) == 3
    assert not reader.facts.finished
    report = report_of(tmp_path / "run")
    assert report.cells[0].decode_tokens_per_s.n == 2
    # what never reached the engine is asked again by --resume
    finished = finished_conversations(records, {"mine": scenario(num_conversations=2)})
    assert len(finished) == sum(r.error is None or r.error.kind != "connect" for r in records)


def test_an_engine_that_dies_of_the_last_request_is_not_done(tmp_path):
    """Its process ends a moment after its connections: the run must not end as if all were well."""
    # the probe, the warm-up and three of four measured requests are answered
    mortal = arm("plain", "--fault", "die_after_requests=5")
    with pytest.raises(EngineError) as failure:
        run(plan_of(mortal, repeats=2), tmp_path / "run")
    assert "the engine ended" in failure.value.message
    assert "engine-plain-1.log" in failure.value.message
    assert "--resume" in failure.value.hint
    reader = RunReader(tmp_path / "run")
    assert not reader.facts.finished
    assert sum(r.error is None for r in reader.records() if not r.key.warmup) == 3


def test_an_engine_without_its_program_names_what_brings_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError) as failure:
        run(plan_of(Arm(name="mtp", engine="vllm", model="m")), tmp_path / "run")
    assert "pip install vllm" in failure.value.hint


def test_config_file_and_environment_reach_the_engine(tmp_path):
    """TensorRT-LLM keeps speculation in a file, Ollama its port in the environment."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name, dialect in (("trtllm-serve", "tensorrt-llm"), ("ollama", "ollama")):
        port = '"$5"' if name == "trtllm-serve" else '"${OLLAMA_HOST##*:}"'
        program = bin_folder / name
        program.write_text(
            f'#!/bin/sh\necho "argv: $@"\ntest -n "$7" && cat "$7"\n'
            f"exec {sys.executable} -m sakiyomi.fake_engine --dialect {dialect} --port {port} "
            "--ttft 0.004 --step 0.003 --model m\n"
        )
        program.chmod(0o755)
    path = {"PATH": f"{bin_folder}:{os.environ['PATH']}"}
    for engine in ("tensorrt-llm", "ollama"):
        speculation = Speculation(method="mtp", num_speculative_tokens=2)
        launched = Arm(name=engine, engine=engine, model="m", speculation=speculation, env=path)
        reader = run(plan_of(launched, repeats=1), tmp_path / engine)
        assert all(r.error is None for r in reader.records())
        assert reader.facts.arms[0].num_speculative_tokens == 2
    config = (tmp_path / "tensorrt-llm" / "engine-tensorrt-llm-1.config").read_text()
    assert '"decoding_type":"MTP"' in config.replace(" ", "")
    log = (tmp_path / "tensorrt-llm" / "engine-tensorrt-llm-1.log").read_text()
    assert config.strip() in log
    assert re.search(r"argv: m .*--config \S*engine-tensorrt-llm-1\.config", log)


def test_better_evidence_is_named(tmp_path):
    speculation = Speculation(method="mtp", num_speculative_tokens=3)
    launched = arm("mtp", "--k", "3", speculation=speculation)
    reader = run(plan_of(launched, repeats=1), tmp_path / "run")
    advice = next(c for c in reader.facts.cautions if c.kind == "better_evidence")
    assert advice.detail["args"] == ["--per-request-spec-decode-metrics", "summary"]


def test_arms_that_differ_by_their_engines_own_logs(tmp_path):
    """No page tells it: vLLM without its development mode, with real lines of its log."""
    flags = ("--ttft", "0.004", "--step", "0.003", "--no-server-info")
    arms = (
        saying("plain", "log-config-plain.txt", *flags),
        saying("b", "log-config-prefix-caching.txt", *flags),
    )
    reader = run(plan_of(*arms, repeats=1), tmp_path / "run")
    told = {facts.name: facts.settings for facts in reader.facts.arms}
    assert told["plain"]["cache_config"]["enable_prefix_caching"] is False
    assert told["b"]["cache_config"]["enable_prefix_caching"] is True
    said = next(c for c in report_of(tmp_path / "run").cautions if c.kind == "arms_differ")
    assert {d["field"]: (d["baseline"], d["arm"]) for d in said.detail["differences"]} == {
        "model_config.dtype": ("bfloat16", "float32"),
        "model_config.enforce_eager": (True, False),
        "cache_config.enable_prefix_caching": (False, True),
    }
