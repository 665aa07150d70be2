"""One arm, one server: restarts and replicas within an arm are said beside its numbers."""

import asyncio
import contextlib

import pytest
from measured_run import fake, make_job, report_of, run_engines

from sakiyomi.drive import measure
from sakiyomi.fake_engine import serve
from sakiyomi.plan import Arm, Plan, ScenarioRef


def changed(report):
    return [c for cell in report.cells for c in cell.cautions if c.kind == "server_changed"]


@pytest.mark.parametrize("dialect", ["vllm", "llama.cpp", "mlx-lm"])
def test_two_replicas_behind_one_address(tmp_path, dialect):
    report, _ = run_engines(tmp_path, {"a": fake(dialect, faults=("other_replica=2",))})
    (caution,) = changed(report)
    assert caution.detail["field"] == "system_fingerprint"
    mine, other = caution.detail["values"]
    assert mine in caution.message
    assert other in caution.message
    assert sum(caution.detail["counts"].values()) == report.cells[0].num_requests
    assert "replicas behind one address" in caution.message


def test_one_server_is_no_change(tmp_path):
    configs = {"a": fake("vllm"), "b": fake("llama.cpp", k=2), "c": fake("sglang", k=3)}
    report, _ = run_engines(tmp_path, configs)
    assert changed(report) == []


def run_with_restart(folder, dialect, scenarios, repeats, restart_after):
    """A run whose attached server is restarted after a repeat."""

    async def main():
        async with serve(fake(dialect, k=3)) as server:
            plan = Plan(
                name="run",
                arms=(Arm(name="a", url=server.url),),
                scenarios=tuple(ScenarioRef(name=name) for name in scenarios),
                repeats=repeats,
            )

            def after_repeat(repeat):
                if repeat == restart_after:
                    server.state.restart()
                return False

            job = make_job(plan, folder, after_repeat=after_repeat)
            with contextlib.closing(job.writer):
                await measure(job)

    asyncio.run(main())
    return report_of(folder)


@pytest.mark.parametrize(
    ("dialect", "field", "words"),
    [
        ("vllm", "process_start_s", "processes that began at"),
        ("llama.cpp", "counters", "its counters began anew"),
    ],
)
def test_a_restart_between_repeats(tmp_path, dialect, field, words):
    report = run_with_restart(tmp_path, dialect, ["one", "two"], 3, restart_after=0)
    cautions = changed(report)
    assert len(cautions) == 2  # both scenarios were asked on both sides of it
    assert {caution.detail["field"] for caution in cautions} == {field}
    assert all(words in caution.message for caution in cautions)
    assert all("a restart" in caution.message for caution in cautions)
    if field == "process_start_s":
        first, second = cautions[0].detail["values"]
        assert first < second
    # no window saw a counter fall: the counts themselves are whole
    assert not any(c.kind == "counter_reset" for cell in report.cells for c in cell.cautions)
    assert report.cells[0].acceptance.quality == "exact"
