"""`sakiyomi decide`: a saved run, its limits, what is known beside it, then the verdicts."""

import argparse
from pathlib import Path

import msgspec

from sakiyomi import handover, store, terminal
from sakiyomi.analyse import reduce_records
from sakiyomi.calibration import Calibration, fit_calibration
from sakiyomi.commands.saved_report import read_report
from sakiyomi.commands.why_command import open_why, read_texts
from sakiyomi.compare import compare_runs, read_side
from sakiyomi.decide import Known, decide, judge_regression, with_regression
from sakiyomi.decision import Decision
from sakiyomi.engines import find_engine
from sakiyomi.errors import CheckpointError, PlanError, SakiyomiError
from sakiyomi.lossless import TextCheck, settle_texts
from sakiyomi.measured import Measured, is_speculative
from sakiyomi.next_experiment import Source
from sakiyomi.plan import Arm, Slo
from sakiyomi.plan_files import read_scenario, read_slo
from sakiyomi.record import RunFacts
from sakiyomi.redaction import has_hidden
from sakiyomi.report import decision_text
from sakiyomi.report import json as report_json
from sakiyomi.results import Report
from sakiyomi.start_command import fill_command
from sakiyomi.store import RunReader
from sakiyomi.tuning import tunable_arms

GATE_STATUS = {"yes": 0, "no": 3, "cannot_tell": 4}
Requests = dict[tuple[str, str, str], list[Measured]]


def decide_command(arguments: argparse.Namespace) -> int:
    """Decide, print, export. Status 3 or 4 only with --gate."""
    reader = store.open_run(arguments.run)
    report = read_report(reader)
    fits = read_calibration(arguments.calibration) if arguments.calibration else ()
    decision = decide_run(reader, report, read_limits(reader.facts, arguments.slo), fits)
    if arguments.baseline:
        decision = _regression(decision, reader, arguments)
    if arguments.export:
        _export(Path(arguments.export), decision, reader.facts)
    if arguments.json:
        filled = with_decision(report, decision)
        terminal.write(report_json.render(filled).rstrip("\n"))
    else:
        terminal.write(decision_text.render(decision, min(terminal.width(), 100)).rstrip("\n"))
    return GATE_STATUS[decision.answer] if arguments.gate else 0


def decide_run(
    reader: RunReader, report: Report, slo: dict[str, Slo], fits: tuple[Calibration, ...] = ()
) -> Decision:
    """The decision of a run folder."""
    facts = reader.facts
    requests = read_requests(reader)
    known = Known(
        texts=_texts(reader),
        calibrations=fits,
        draft_costs=_draft_costs(facts, report),
        source=_source(reader),
    )
    return decide(facts, report, requests, slo, known)


def _texts(reader: RunReader) -> tuple[TextCheck, ...]:
    """Whether arms wrote the same, by the run and by its pass with logprobs where there is one."""
    beside = open_why(reader.folder)
    told = read_texts(beside) if beside else ()
    return settle_texts(read_texts(reader), told, [load.label for load in reader.facts.plan.loads])


def read_requests(reader: RunReader) -> Requests:
    """Measured requests of a run folder by (scenario, arm, load)."""
    arms = {arm.name: arm for arm in reader.facts.arms}
    engines = {arm.name: find_engine(arm.engine) for arm in reader.facts.arms}
    return reduce_records(reader.facts, reader.records(), arms, engines)


def read_calibration(run: str) -> tuple[Calibration, ...]:
    """The fits of a calibration run; refused when it is a workload."""
    reader = store.open_run(run)
    return fit_calibration(reader.facts, read_requests(reader))


def read_limits(facts: RunFacts, path: str | None) -> dict[str, Slo]:
    """The limits of `--slo`, else the plan's own. Raises PlanError on a path that was not run."""
    if path is None:
        return dict(facts.plan.slo)
    limits = read_slo(Path(path))
    known = [ref.name for ref in facts.plan.scenarios]
    for scenario in limits:
        if scenario not in known:
            raise PlanError(
                f"{path}: {scenario}: the run has no scenario of this name",
                "it has " + ", ".join(known),
            )
    return limits


def with_decision(report: Report, decision: Decision) -> Report:
    """The report with `decision` filled in, its sentences included."""
    content = msgspec.to_builtins(decision, str_keys=True)
    content["summary"] = decision_text.summary(decision)
    return msgspec.structs.replace(report, decision=content)


def _regression(decision: Decision, reader: RunReader, arguments: argparse.Namespace) -> Decision:
    """Compare with an earlier run; refused where they are not comparable, unless forced."""
    earlier = store.open_run(arguments.baseline)
    sides = [
        read_side(side.facts, read_report(side), list(side.records())) for side in (earlier, reader)
    ]
    compared = compare_runs(sides, force=arguments.force)
    return with_regression(
        decision,
        judge_regression(reader.facts.run_id, earlier.facts.run_id, compared.comparisons),
    )


def _draft_costs(facts: RunFacts, report: Report) -> dict[str, float]:
    """c by bytes, in plain steps, of each arm whose model is known; silent about the others."""
    from sakiyomi.commands.explain_command import arm_model
    from sakiyomi.explain import find_cell, predict_cell

    costs = {}
    for arm in facts.arms:
        if not is_speculative(arm):
            continue
        cell = next((c for c in report.cells if c.arm == arm.name), None)
        try:
            read = arm_model(facts, arm, None)
        except (CheckpointError, SakiyomiError):
            continue
        if cell is not None and find_cell(report, cell.scenario, arm.name, cell.load):
            predicted = predict_cell(cell, read, None, 1)
            costs[arm.name] = predicted.draft_bytes / predicted.plain_bytes
    return costs


def _source(reader: RunReader) -> Source:
    """How to run it again, and how many conversations its scenarios have."""
    available = {}
    for ref in reader.facts.plan.scenarios:
        everything = msgspec.structs.replace(ref, num_conversations=None, num_requests=None)
        try:
            available[ref.name] = len(read_scenario(everything).conversations)
        except SakiyomiError:
            continue
    folder = reader.folder
    run = folder.name if folder.parent == store.home() / "runs" else str(folder)
    is_whole = not any(has_hidden(arm) for arm in reader.facts.plan.arms)
    return Source(
        run=run,
        plan=str(folder / "plan.toml") if is_whole else "PLAN.toml",
        plan_is_kept=is_whole,
        num_available=available,
        is_published=reader.facts.provenance == "published",
        can_resume=reader.facts.looks is None,
        can_tune=bool(tunable_arms(reader.facts.plan)),
    )


def _export(folder: Path, decision: Decision, facts: RunFacts) -> None:
    """Write what the decision hands over, and say which files these are."""
    for name, text in handover.files(decision, facts, _argv).items():
        store.write_text(folder / name, text)
        terminal.warn(f"wrote {folder / name}")


def _argv(arm: Arm, port: int) -> list[str] | None:
    """The argv of a launched arm."""
    engine = find_engine(arm.engine)
    if arm.command:
        return fill_command(arm, port)
    return engine.command(arm, port) if engine.command else None
