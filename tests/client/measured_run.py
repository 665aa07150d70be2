"""A whole run against fake engines, in process: plan, drive, analyse, and the servers' truth."""

import asyncio
import contextlib
from pathlib import Path

from sakiyomi.analyse import analyse
from sakiyomi.drive import measure
from sakiyomi.environment import read_environment
from sakiyomi.fake_engine import FakeEngine, serve
from sakiyomi.job import Job, ServerAccess
from sakiyomi.plan import Arm, Plan, ScenarioRef
from sakiyomi.record import RUN_FORMAT, RunFacts, ScenarioFacts
from sakiyomi.run_writer import RunWriter
from sakiyomi.scenario import parse_scenario
from sakiyomi.store import RunReader
from sakiyomi.terminal import Progress
from sakiyomi.workload import choose_schedule

QUICK = {"ttft_s": 0.004, "step_s": 0.003}


def scenario(num_conversations=4, max_tokens=40, name="mine"):
    head = f'{{"scenario": {{"name": "{name}", "sampling": {{"max_tokens": {max_tokens}}}}}}}'
    lines = [
        f'{{"id": "c{i}", "turns": ["Tell me at length about number {i}, please."]}}'
        for i in range(num_conversations)
    ]
    return parse_scenario([head, *lines], name, name)


def make_job(plan, folder, scenarios=None, *, forced=False, **job):
    """A job as `sakiyomi run` would make it, without its command line."""
    asked = scenarios or {ref.name: scenario(name=ref.name) for ref in plan.scenarios}
    facts = RunFacts(
        format=RUN_FORMAT,
        run_id="run",
        created="2026-12-01T00:00:00Z",
        plan=plan,
        environment=read_environment(),
        forced=forced,
        scenarios=tuple(
            ScenarioFacts(
                name=one.name,
                num_conversations=len(one.conversations),
                sampling=one.sampling,
                content_hash=one.content_hash,
            )
            for one in asked.values()
        ),
    )
    folder.mkdir(parents=True, exist_ok=True)
    return Job(
        plan=plan,
        scenarios=asked,
        schedule=choose_schedule(plan, fits_together=False),
        facts=facts,
        writer=RunWriter(folder),
        progress=Progress(quiet=True),
        access=ServerAccess(api_keys={arm.name: None for arm in plan.arms}),
        **job,
    )


def report_of(folder):
    reader = RunReader(Path(folder))
    return analyse(reader.facts, reader.records(), reader.snapshots(), logs=reader.logs())


def run_engines(folder, configs, *, arms=None, repeats=2, scenarios=None, forced=False, **plan):
    """(report, servers' logs by arm) of a run over attached fake engines, `configs` by arm."""

    async def main():
        async with contextlib.AsyncExitStack() as stack:
            servers = {
                name: await stack.enter_async_context(serve(config))
                for name, config in configs.items()
            }
            extra = arms or {}
            intended = Plan(
                name="run",
                arms=tuple(
                    Arm(name=name, url=server.url, **extra.get(name, {}))
                    for name, server in servers.items()
                ),
                scenarios=(ScenarioRef(name="mine"),),
                repeats=repeats,
                **plan,
            )
            job = make_job(intended, folder, scenarios, forced=forced)
            try:
                await measure(job)
            finally:
                job.writer.close()
            return {name: list(server.log) for name, server in servers.items()}

    logs = asyncio.run(main())
    return report_of(folder), logs


def measured(log, arm_requests=None):
    """The measured requests of a server's log: those with the scenario's cap, not the warm-up."""
    seen = [entry for entry in log if "Tell me at length" in str(entry.body.get("messages"))]
    return seen[1:] if arm_requests is None else seen[-arm_requests:]


def fake(dialect, **fields):
    return FakeEngine(dialect=dialect, **{**QUICK, **fields})
