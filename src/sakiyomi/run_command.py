"""`sakiyomi run`: plan, launch, drive, record, analyse, report."""

import argparse
import asyncio
import os
import shlex
from collections import Counter
from pathlib import Path

import msgspec

from sakiyomi import terminal
from sakiyomi.analyse import analyse
from sakiyomi.client import Timeouts
from sakiyomi.drive import Connection, Job, finished_conversations, measure
from sakiyomi.engines import find_engine
from sakiyomi.environment import read_environment
from sakiyomi.errors import PlanError, SakiyomiError
from sakiyomi.launch import end_strays, fill_command, find_strays
from sakiyomi.plan import Arm, Plan
from sakiyomi.record import RUN_FORMAT, Caution, RunFacts, ScenarioFacts
from sakiyomi.report import json as report_json
from sakiyomi.report import text as report_text
from sakiyomi.run_plan import RunFlags, override, plan_from_flags
from sakiyomi.scenario import Scenario
from sakiyomi.store import RunReader, RunWriter, now_text, open_run, read_plan, read_scenario
from sakiyomi.workload import choose_schedule, passes


def run_command(arguments: argparse.Namespace) -> int:
    """Measure, save, and print what came out. Returns the exit status."""
    _report_strays(end=arguments.end_strays)
    reader = open_run(arguments.resume) if arguments.resume else None
    plan = _plan(arguments, reader)
    scenarios = {ref.name: read_scenario(ref) for ref in plan.scenarios}
    schedule = choose_schedule(plan, fits_together=_embedded(plan))
    if arguments.dry_run:
        terminal.write("\n".join(_dry_run(plan, scenarios, schedule)))
        return 0
    job = _job(arguments, plan, scenarios, schedule, reader)
    job.progress.say(f"run {job.facts.run_id}: {_schedule_words(plan, schedule)}")
    try:
        facts = asyncio.run(measure(job))
    finally:
        job.writer.close()
    return finish(job.writer.folder, facts, arguments)


def finish(folder: Path, facts: RunFacts, arguments: argparse.Namespace) -> int:
    """Print the report of a run folder; status 1 when every request failed."""
    reader = RunReader(folder)
    report = analyse(facts, reader.records(), reader.snapshots(), logs=reader.logs())
    if arguments.json:
        terminal.write(report_json.render(report).rstrip("\n"))
    else:
        terminal.write(report_text.render(report, terminal.width()))
        run = folder.name if not arguments.out else str(folder)
        terminal.write(
            f"saved: {run}\nnext: sakiyomi explain {run} · sakiyomi report {run} -o report.html"
        )
    if facts.interrupted:
        terminal.warn(f"interrupted; go on with: sakiyomi run --resume {folder}")
    failures = Counter(
        f"{record.error.kind}: {record.error.message}"
        for record in reader.records()
        if record.error and not record.key.warmup
    )
    if failures and not any(cell.num_requests > cell.num_failed for cell in report.cells):
        reason, count = failures.most_common(1)[0]
        raise SakiyomiError(
            f"every request failed; most often ({count} times) {reason}",
            f"the answers as received are in {folder / 'requests.jsonl'}",
        )
    return 0


def _plan(arguments: argparse.Namespace, reader: RunReader | None) -> Plan:
    flags = RunFlags(
        urls=tuple(arguments.url),
        model=arguments.model,
        engine=arguments.engine,
        scenarios=tuple(arguments.scenario),
        max_tokens=arguments.max_tokens,
        num_requests=arguments.requests,
        repeats=arguments.repeats,
        concurrency=tuple(arguments.concurrency),
        name=arguments.name,
        metrics_urls=tuple(arguments.metrics_url),
        api_key_env=arguments.api_key_env,
    )
    for name, value in (
        ("--repeats", arguments.repeats),
        ("--requests", arguments.requests),
        ("--max-tokens", arguments.max_tokens),
        *(("--concurrency", n) for n in arguments.concurrency),
    ):
        if value is not None and value < 1:
            raise PlanError(f"{name} {value}: expected 1 or more")
    if reader:
        if arguments.plan or flags.urls or flags.scenarios or flags.concurrency:
            raise PlanError(
                "--resume goes on with the run's own plan", "only --repeats can be raised"
            )
        plan = reader.facts.plan
        repeats = max(plan.repeats, arguments.repeats or 0)
        return msgspec.structs.replace(plan, repeats=repeats)
    if arguments.plan:
        return override(read_plan(Path(arguments.plan)), flags)
    if flags.urls:
        return plan_from_flags(flags, ())
    from sakiyomi.embedded import embedded_arms

    return plan_from_flags(flags, embedded_arms(arguments.model, say=terminal.warn))


def _job(
    arguments: argparse.Namespace,
    plan: Plan,
    scenarios: dict[str, Scenario],
    schedule: str,
    reader: RunReader | None,
) -> Job:
    if reader:
        writer = RunWriter(reader.folder)
        facts = msgspec.structs.replace(reader.facts, plan=plan, finished=False, interrupted=False)
        if any(f.content_hash != scenarios[f.name].content_hash for f in facts.scenarios):
            raise PlanError(
                f"{reader.folder.name}: a scenario has changed since the run began",
                "restore the scenario file, or start a new run",
            )
    else:
        writer = RunWriter.create(plan.name, Path(arguments.out) if arguments.out else None)
        facts = RunFacts(
            format=RUN_FORMAT,
            run_id=f"{writer.folder.name}-{os.urandom(3).hex()}",
            created=now_text(),
            plan=plan,
            environment=read_environment(),
            scenarios=tuple(_scenario_facts(scenario) for scenario in scenarios.values()),
            cautions=tuple(_flag_cautions(arguments)),
        )
    writer.write_facts(facts)
    timeouts = Timeouts()
    if arguments.first_token_timeout:
        timeouts = msgspec.structs.replace(timeouts, first_token_s=arguments.first_token_timeout)
    if arguments.silence_timeout:
        timeouts = msgspec.structs.replace(timeouts, silence_s=arguments.silence_timeout)
    return Job(
        plan=plan,
        scenarios=scenarios,
        schedule=schedule,
        facts=facts,
        writer=writer,
        progress=terminal.Progress(quiet=False),
        connection=Connection(
            timeouts=timeouts,
            ca_file=arguments.ca_file,
            insecure=arguments.insecure,
            api_keys={arm.name: _api_key(arm) for arm in plan.arms},
        ),
        finished=finished_conversations(reader.records(), scenarios) if reader else set(),
        first_window=max((r.key.window for r in reader.records()), default=0) if reader else 0,
    )


def _scenario_facts(scenario: Scenario) -> ScenarioFacts:
    return ScenarioFacts(
        name=scenario.name,
        num_conversations=len(scenario.conversations),
        sampling=scenario.sampling,
        content_hash=scenario.content_hash,
        language=scenario.language,
        category=scenario.category,
    )


def _flag_cautions(arguments: argparse.Namespace) -> list[Caution]:
    if not arguments.insecure:
        return []
    return [Caution("tls_not_verified", "TLS certificates were not verified (--insecure)")]


def _api_key(arm: Arm) -> str | None:
    if not arm.api_key_env:
        return None
    key = os.environ.get(arm.api_key_env)
    if not key:
        raise PlanError(
            f"arm {arm.name}: environment variable {arm.api_key_env} is empty or not set",
            f"export {arm.api_key_env}=...",
        )
    return key


def _embedded(plan: Plan) -> bool:
    """The embedded engine's model is small: its arms fit beside each other."""
    return all("sakiyomi.embedded_server" in arm.command for arm in plan.arms)


def _schedule_words(plan: Plan, schedule: str) -> str:
    scenarios = f"{len(plan.scenarios)} scenarios x {len(plan.arms)} arms"
    how = {
        "alternate": "arms alternate in every repeat (A B, B A)",
        "blocks": "one arm is up at a time (A, B, B, A), restarts are part of the repeats",
    }[schedule]
    return f"{scenarios} x {plan.repeats} repeats; {how if len(plan.arms) > 1 else 'one arm'}"


def _dry_run(plan: Plan, scenarios: dict[str, Scenario], schedule: str) -> list[str]:
    """What would be launched and asked, line by line."""
    lines = [f"plan {plan.name}: {_schedule_words(plan, schedule)}", ""]
    for arm in plan.arms:
        engine = find_engine(arm.engine)
        if arm.url:
            lines.append(f"arm {arm.name}: attach to {arm.url} ({engine.title})")
            continue
        command = fill_command(arm, 8000) if arm.command else None
        if command is None and engine.command:
            command = engine.command(arm, 8000)
        lines.append(f"arm {arm.name}: launch {engine.title}, on a free port in place of 8000")
        env = [f"{key}={value}" for key, value in arm.env.items()]
        lines.append("  " + " ".join(shlex.quote(word) for word in [*env, *(command or [])]))
    lines.append("")
    for name, scenario in scenarios.items():
        turns = sum(len(c.turns) for c in scenario.conversations)
        sampling = scenario.sampling
        lines.append(
            f"scenario {name}: {len(scenario.conversations)} conversations, {turns} requests, "
            f"cap {sampling.max_tokens}, temperature {sampling.temperature:g}"
        )
    order = " ".join(f"{p.arm}/{p.scenario}" for p in passes(plan, schedule) if p.repeat < 2)
    return [*lines, "", f"order of the first repeats: {order}"]


def _report_strays(*, end: bool) -> None:
    strays = find_strays()
    if not strays:
        return
    if end:
        end_strays(strays)
        terminal.warn(f"ended {len(strays)} engines that an earlier run left behind")
        return
    for stray in strays:
        terminal.warn(
            f"! an engine of an earlier run is still up: process {stray.pid}, "
            f"{' '.join(stray.argv)[:120]}"
        )
    terminal.warn("  end them with: sakiyomi run --end-strays ...")
