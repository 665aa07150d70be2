"""`sakiyomi run`: plan, launch, drive, record, analyse, report."""

import argparse
import asyncio
from collections import Counter
from pathlib import Path
from typing import Literal

import msgspec

from sakiyomi import terminal
from sakiyomi.analyse import analyse
from sakiyomi.calibration import calibration_plan, fit_calibration
from sakiyomi.commands import until_established
from sakiyomi.commands.decide_command import decide_run
from sakiyomi.commands.dry_run import dry_run
from sakiyomi.commands.explain_command import explain_run, with_explanation
from sakiyomi.commands.full_report import known_device
from sakiyomi.commands.run_job import make_job
from sakiyomi.commands.run_plan import (
    RunFlags,
    override,
    plan_from_flags,
    refuse_without_url,
    too_few,
)
from sakiyomi.commands.tune_command import tune
from sakiyomi.commands.why_command import why_pass
from sakiyomi.drive import measure
from sakiyomi.engines import ENGINES, find_engine
from sakiyomi.errors import PlanError, SakiyomiError
from sakiyomi.plan import Plan
from sakiyomi.plan_files import read_plan, read_scenario
from sakiyomi.record import RunFacts
from sakiyomi.redaction import has_hidden, redact_arm
from sakiyomi.report import explanation_text
from sakiyomi.report import json as report_json
from sakiyomi.report import text as report_text
from sakiyomi.report.experiment_text import settle_lines
from sakiyomi.scenario import Scenario
from sakiyomi.store import RunReader, open_run
from sakiyomi.strays import end_strays, find_strays
from sakiyomi.urls import split_url
from sakiyomi.workload import choose_schedule


def run_command(arguments: argparse.Namespace) -> int:
    """Measure, save, and print what came out. Returns the exit status."""
    _report_strays(end=arguments.end_strays)
    reader = open_run(arguments.resume) if arguments.resume else None
    plan = _plan(arguments, reader)
    if arguments.until_established or (reader and reader.facts.looks):
        plan = until_established.prepare(plan, arguments, reader)
    if (arguments.calibrate or plan.calibrate) and reader is None:
        plan = calibration_plan(plan, ENGINES)
    if arguments.dry_run:
        scenarios, schedule = _ready(plan)
        head = f"plan {plan.name}: {_schedule_words(plan, schedule)}"
        terminal.write("\n".join([head, "", *dry_run(plan, scenarios, schedule)]))
        return 0
    if arguments.tune:
        return tune(plan, arguments, run_plan)
    folder, facts = run_plan(plan, arguments, reader)
    status = finish(folder, facts, arguments)
    if arguments.why:
        why_pass(folder, plan, arguments, run_plan)
    return status


def run_plan(
    plan: Plan, arguments: argparse.Namespace, reader: RunReader | None = None
) -> tuple[Path, RunFacts]:
    """Carry out one plan; its run folder and facts."""
    scenarios, schedule = _ready(plan)
    kind: Literal["workload", "calibration"] = "calibration" if plan.calibrate else "workload"
    job = make_job(arguments, plan, scenarios, schedule, reader, kind)
    if arguments.until_established:
        until_established.watch(job, until_established.parse_time(arguments.budget))
    job.progress.say(f"run {job.facts.run_id}: {_schedule_words(plan, schedule)}")
    try:
        facts = asyncio.run(measure(job))
    except SakiyomiError:
        if reader is None:
            job.writer.discard_if_empty()
        raise
    finally:
        job.writer.close()
    return job.writer.folder, facts


def _ready(plan: Plan) -> tuple[dict[str, Scenario], str]:
    for arm in plan.arms:
        find_engine(arm.engine)
        for url in (*([arm.url] if arm.url else []), *arm.metrics_urls):
            split_url(url)
    scenarios = {ref.name: read_scenario(ref) for ref in plan.scenarios}
    for note in too_few(plan, scenarios):
        terminal.warn(note)
    return scenarios, choose_schedule(plan, fits_together=_embedded(plan))


def finish(folder: Path, facts: RunFacts, arguments: argparse.Namespace) -> int:
    """Print the report of a run folder; status 1 when every request failed."""
    reader = RunReader(folder)
    report = analyse(facts, reader.records(), reader.snapshots(), logs=reader.logs())
    explanation, levers = explain_run(facts, report, {}, known_device(report))
    if explanation.steps:
        report = with_explanation(report, explanation, levers)
    if arguments.json:
        terminal.write(report_json.render(report).rstrip("\n"))
    else:
        terminal.write(report_text.render(report, terminal.width()))
        costs = explanation_text.render_costs(explanation, terminal.width())
        if costs:
            terminal.write(costs)
        run = folder.name if not arguments.out else str(folder)
        if facts.kind == "calibration":
            _say_calibration(reader, run)
            return 0
        for line in settle_lines(decide_run(reader, report, dict(facts.plan.slo))):
            terminal.write(line)
        terminal.write(
            f"saved: {run}\nnext: sakiyomi explain {run} · sakiyomi report {run} -o report.html"
        )
    if facts.interrupted:
        terminal.warn(f"interrupted; go on with: sakiyomi run --resume {folder}")
    failures = Counter(
        f"{record.error.kind}: {record.error.message}"
        for record in reader.records()
        if record.error and record.error.kind != "cancelled" and not record.key.warmup
    )
    if failures and not any(cell.num_requests > cell.num_failed for cell in report.cells):
        reason, count = failures.most_common(1)[0]
        raise SakiyomiError(
            f"every request failed; most often ({count} times) {reason}",
            f"the answers as received are in {folder / 'requests.jsonl'}",
        )
    return 0


def _say_calibration(reader: RunReader, run: str) -> None:
    """The fit, and where to use it."""
    from sakiyomi.commands.decide_command import read_requests
    from sakiyomi.report.decision_text import calibration_sentence

    for fit in fit_calibration(reader.facts, read_requests(reader)):
        terminal.write(calibration_sentence(fit) + "\n")
    terminal.write(f"saved: {run}\nnext: sakiyomi decide RUN --calibration {run}")


def _plan(arguments: argparse.Namespace, reader: RunReader | None) -> Plan:
    flags = RunFlags(
        urls=tuple(arguments.url),
        model=arguments.model,
        engine=arguments.engine,
        scenarios=tuple(arguments.scenario),
        max_tokens=arguments.max_tokens,
        num_requests=arguments.requests,
        num_conversations=arguments.conversations,
        repeats=arguments.repeats,
        concurrency=tuple(arguments.concurrency),
        name=arguments.name,
        metrics_urls=tuple(arguments.metrics_url),
        api_key_env=arguments.api_key_env,
    )
    for name, value in (
        ("--repeats", arguments.repeats),
        ("--requests", arguments.requests),
        ("--conversations", arguments.conversations),
        ("--max-tokens", arguments.max_tokens),
        *(("--concurrency", n) for n in arguments.concurrency),
    ):
        if value is not None and value < 1:
            raise PlanError(f"{name} {value}: expected 1 or more")
    for name, value in (
        ("--first-token-timeout", arguments.first_token_timeout),
        ("--silence-timeout", arguments.silence_timeout),
    ):
        if value is not None and not value > 0:
            raise PlanError(f"{name} {value:g}: expected seconds above 0")
    if reader:
        return _resumed(reader, arguments)
    if arguments.plan:
        return override(read_plan(Path(arguments.plan)), flags)
    if flags.urls:
        return plan_from_flags(flags, ())
    refuse_without_url(flags)
    from sakiyomi.embedded import embedded_arms, self_draft_arm

    most = max(arguments.concurrency, default=1)
    plain, ngram = embedded_arms(arguments.model, say=terminal.warn, max_concurrency=most)
    if arguments.calibrate and plain.model:  # looked-up drafts come too seldom to force them
        return plan_from_flags(flags, (plain, self_draft_arm(Path(plain.model))))
    return plan_from_flags(flags, (plain, ngram))


def _resumed(reader: RunReader, arguments: argparse.Namespace) -> Plan:
    """The run's own plan; where it had secrets, which are not kept, the plan file gives them."""
    asked = ("url", "scenario", "concurrency", "requests", "conversations", "max_tokens")
    named = ("name", "model", "engine", "metrics_url", "api_key_env", "out")
    if any(getattr(arguments, flag) for flag in (*asked, *named)):
        raise PlanError("--resume goes on with the run's own plan", "only --repeats can be raised")
    plan = reader.facts.plan
    file_arms = read_plan(Path(arguments.plan)).arms if arguments.plan else ()
    given = {arm.name: arm for arm in file_arms}
    for arm in plan.arms:
        if arm.name in given and redact_arm(given[arm.name]) != arm:
            raise PlanError(
                f"{arguments.plan}: arm {arm.name} is not as it was in {reader.folder.name}",
                "restore the plan, or start a new run",
            )
        if arm.name not in given and has_hidden(arm):
            raise PlanError(
                f"{reader.folder.name}: arm {arm.name} had secrets, which are not kept",
                f"give its plan again: sakiyomi run PLAN.toml --resume {reader.folder.name}",
            )
    return msgspec.structs.replace(
        plan,
        arms=tuple(given.get(arm.name, arm) for arm in plan.arms),
        repeats=max(plan.repeats, arguments.repeats or 0),
    )


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
