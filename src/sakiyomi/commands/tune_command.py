"""`run --tune`: measure at the planned draft length, predict the others, confirm the best two."""

import argparse
from collections.abc import Callable
from pathlib import Path

import msgspec

from sakiyomi import terminal
from sakiyomi.commands.decide_command import decide_run, with_decision
from sakiyomi.commands.saved_report import read_report
from sakiyomi.errors import SakiyomiError
from sakiyomi.plan import Plan
from sakiyomi.record import RunFacts
from sakiyomi.report import decision_text
from sakiyomi.report import json as report_json
from sakiyomi.store import RunReader
from sakiyomi.tuning import choose_lengths, confirm, tunable_arm, tuning_plan

RunPlan = Callable[[Plan, argparse.Namespace], tuple[Path, RunFacts]]


def tune(plan: Plan, arguments: argparse.Namespace, run_plan: RunPlan) -> int:
    """Two runs: one to predict from, one that confirms. Raises SakiyomiError without acceptance."""
    arm = tunable_arm(plan)
    first = RunReader(run_plan(plan, arguments)[0])
    paths = [
        path
        for choice in decide_run(first, read_report(first), dict(plan.slo)).choices
        for path in choice.draft_lengths
    ]
    lengths = choose_lengths(paths, arm.name)
    if not lengths:
        raise SakiyomiError(
            f"{arm.name}: no draft length can be predicted: its acceptance or its step cost is "
            "unknown",
            "the baseline must be a plain arm, and the engine must tell acceptance (sakiyomi "
            f"report {first.folder})",
        )
    terminal.warn(f"predicted best draft lengths: {', '.join(map(str, lengths))}; confirming them")
    if arguments.out:
        arguments = argparse.Namespace(**{**vars(arguments), "out": f"{arguments.out}-tune"})
    second = RunReader(run_plan(tuning_plan(plan, arm, lengths), arguments)[0])
    report = read_report(second)
    decision = decide_run(second, report, dict(plan.slo))
    rows = confirm(paths, arm.name, report)
    if arguments.json:
        filled = with_decision(report, decision)
        content = {**(filled.decision or {}), "tuning": msgspec.to_builtins(rows)}
        content["summary"] = [*decision_text.tuning_sentences(rows), *content["summary"]]
        filled = msgspec.structs.replace(filled, decision=content)
        terminal.write(report_json.render(filled).rstrip("\n"))
        return 0
    terminal.write("\n".join(decision_text.tuning_sentences(rows)) + "\n")
    terminal.write(decision_text.render(decision, min(terminal.width(), 100)))
    terminal.write(f"saved: {first.folder.name}, {second.folder.name}")
    return 0
