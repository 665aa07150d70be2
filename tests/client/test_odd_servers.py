"""Servers with another name for the cap, none at all, or another worker's metrics page."""

import asyncio
import contextlib

import pytest
from measured_run import fake, make_job, report_of, run_engines, scenario

from sakiyomi import asking
from sakiyomi.drive import measure
from sakiyomi.fake_engine import serve
from sakiyomi.plan import Arm, Plan, ScenarioRef
from sakiyomi.terminal import Progress


@pytest.mark.parametrize("dialect", ["vllm", "openai"])
def test_f30_the_name_of_the_cap_that_is_taken(tmp_path, dialect):
    config = fake(dialect, faults=("max_completion_tokens_only",))
    report, logs = run_engines(tmp_path, {"a": config}, repeats=1)
    assert report.cells[0].num_failed == 0
    for entry in logs["a"][-4:]:
        assert entry.body["max_completion_tokens"] == 40
        assert "max_tokens" not in entry.body
        assert entry.completion_tokens == 40


def test_f30_a_cap_that_is_ignored_is_said(tmp_path):
    config = fake("vllm", num_tokens=90, faults=("ignore_max_tokens",))
    report, _ = run_engines(tmp_path, {"a": config}, repeats=1)
    (cell,) = report.cells
    (found,) = [c for c in cell.cautions if c.kind == "cap_ignored"]
    assert found.detail == {"num_longer": 4, "num_tokens": 90, "max_tokens": 40}
    assert cell.finish_reasons == {"stop": 4}


def test_a_refusal_for_another_reason_keeps_its_words(tmp_path):
    config = fake("openai", faults=("http_status=400",))
    with pytest.raises(Exception, match="scripted status 400"):
        run_engines(tmp_path, {"a": config}, repeats=1)


def test_f49_counters_of_another_worker_are_no_evidence(tmp_path):
    async def main():
        async with serve(fake("vllm", k=3)) as server, serve(fake("vllm", k=3)) as other:
            arm = Arm(name="a", url=server.url, metrics_urls=(f"{other.url}/metrics",))
            refs = (ScenarioRef(name="mine"),)
            plan = Plan(name="run", arms=(arm,), scenarios=refs, repeats=1)
            job = make_job(plan, tmp_path, {"mine": scenario()})
            with contextlib.closing(job.writer):
                await measure(job)
            return [step for entry in server.log[-4:] for step in entry.steps[1:]]

    steps = asyncio.run(main())
    (cell,) = report_of(tmp_path).cells
    assert "counters_short" in {caution.kind for caution in cell.cautions}
    assert cell.acceptance.source == "events"
    assert cell.acceptance.num_drafts == len(steps)


def test_a_server_that_is_never_idle_is_waited_for_once(tmp_path, monkeypatch):
    waits = []
    monkeypatch.setattr(asking, "IDLE_TIMEOUT_S", 0.5)
    monkeypatch.setattr(asking, "IDLE_TIMEOUT_AGAIN_S", 0.1)
    monkeypatch.setattr(asking, "IDLE_SILENT_S", 0.2)
    monkeypatch.setattr(Progress, "say", lambda _, text: waits.append(text))
    report, _ = run_engines(tmp_path, {"a": fake("vllm", faults=("other_running=1",))}, repeats=2)
    assert sum("waiting for their end" in text for text in waits) == 1
    (said,) = [c for c in report.cautions if c.kind == "other_traffic"]
    assert said.detail["num_requests"] == 1
