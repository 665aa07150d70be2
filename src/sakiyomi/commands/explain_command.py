"""`sakiyomi explain`: models and device for a saved run, then the explanation."""

import argparse
from pathlib import Path

import msgspec

from sakiyomi import store, terminal
from sakiyomi.calibration import Calibration, fit_calibration
from sakiyomi.commands.decide_command import read_calibration, read_requests
from sakiyomi.commands.saved_report import read_report
from sakiyomi.errors import CheckpointError, NotComparable, PlanError
from sakiyomi.explain import Explanation, explain
from sakiyomi.explained_calibration import fits_of_arms
from sakiyomi.measured import is_speculative
from sakiyomi.models import bandwidth
from sakiyomi.models.checkpoint import open_checkpoint
from sakiyomi.models.devices import find_device, find_reported, known_devices, read_machine
from sakiyomi.models.published import published_model
from sakiyomi.models.roofline import Device
from sakiyomi.models.weights import ReadBytes, attach_draft
from sakiyomi.record import ArmFacts, RunFacts
from sakiyomi.report import explanation_text
from sakiyomi.report import json as report_json
from sakiyomi.results import Report
from sakiyomi.store import RunReader
from sakiyomi.what_if import OTHER_DEVICES, WhatIf, what_if, without_draft

DRAFTLESS = ("ngram", "suffix", "lookup")
"""Methods that draft from the text and read no weights for it."""


def explain_command(arguments: argparse.Namespace) -> int:
    """Explain a run, as text or as the report with `explanation` filled in."""
    reader = store.open_run(arguments.run)
    report = read_report(reader)
    given = _given_models(arguments.model_dir)
    device = _device(arguments, report)
    fits = read_fits(reader, arguments.calibration)
    explanation, levers = explain_run(reader.facts, report, given, device, fits)
    if arguments.json:
        filled = with_explanation(report, explanation, levers)
        terminal.write(report_json.render(filled).rstrip("\n"))
    else:
        text = explanation_text.render(explanation, levers, terminal.width())
        terminal.write(text.rstrip("\n"))
    return 0


def read_fits(reader: RunReader, calibration: str | None = None) -> tuple[Calibration, ...]:
    """The fits of the calibration run that is named, else of the run itself if it is one."""
    if calibration:
        return read_calibration(calibration)
    if reader.facts.kind != "calibration":
        return ()
    try:
        return fit_calibration(reader.facts, read_requests(reader))
    except NotComparable:  # not finished: its steps can be explained all the same
        return ()


def explain_run(
    facts: RunFacts,
    report: Report,
    given: dict[str, str],
    device: Device | None,
    fits: tuple[Calibration, ...] = (),
) -> tuple[Explanation, tuple[WhatIf, ...]]:
    """Explain with the models that can be found; arms without one are named with the reason."""
    models: dict[str, ReadBytes] = {}
    unknown: dict[str, str] = {}
    for arm in facts.arms:
        try:
            models[arm.name] = arm_model(facts, arm, given.get(arm.name) or given.get(""))
        except CheckpointError as error:
            unknown[arm.name] = f"{error.message}; {error.hint or 'name it with --model-dir'}"
    mine = fits_of_arms(facts.arms, facts.plan.loads, fits)
    unused = {fit.run: fit for fit in fits if fit not in mine.values()}
    for run, fit in unused.items():
        terminal.warn(
            f"{run}: no arm here drafts like it ({fit.engine}, {fit.model}, {fit.method}, "
            f"{fit.load}): not used"
        )
    explanation = explain(report, models, device, unknown, mine)
    if facts.kind == "calibration":  # forced acceptance: nothing to be gained
        return explanation, ()
    others = [d for d in known_devices() if d.name in OTHER_DEVICES]
    return explanation, what_if(report, explanation, models, others)


def arm_model(facts: RunFacts, arm: ArmFacts, given: str | None) -> ReadBytes:
    """Read bytes of an arm's model: from the path given, the path it ran from, or published.

    The draft that is off, or that reads no weights, is left out.
    """
    path = given or arm.model_path
    if path and (given or Path(path).exists()):
        read = open_checkpoint(path)
    else:
        read = published_model(arm.model or arm.name)
    planned = next((a for a in facts.plan.arms if a.name == arm.name), None)
    speculation = planned.speculation if planned else None
    method = arm.speculative_method or ""
    if not is_speculative(arm) or any(word in method for word in DRAFTLESS):
        return without_draft(read)
    if speculation and speculation.draft_model and Path(speculation.draft_model).exists():
        return attach_draft(read, open_checkpoint(speculation.draft_model))
    return read


def with_explanation(
    report: Report, explanation: Explanation, levers: tuple[WhatIf, ...]
) -> Report:
    """The report with `explanation` filled in, its sentences included."""
    content = msgspec.to_builtins(explanation)
    content["what_if"] = msgspec.to_builtins(levers)
    content["summary"] = explanation_text.summary(explanation, levers)
    return msgspec.structs.replace(report, explanation=content)


def _given_models(options: list[str]) -> dict[str, str]:
    """`ARM=PATH` by arm; a bare PATH (under "") is every arm's model."""
    given = {}
    for option in options:
        arm, equals, path = option.partition("=")
        given[arm if equals else ""] = path if equals else option
        if not Path(path or option).exists():
            raise PlanError(f"--model-dir {option}: no such file or folder", "give its path")
    return given


def _device(arguments: argparse.Namespace, report: Report) -> Device | None:
    """The device asked for, else the one that the run was made on, when it is known."""
    if arguments.measure:
        terminal.warn("measuring this machine's read bandwidth")
        return bandwidth.measure(read_machine())
    if arguments.device:
        return find_device(arguments.device)
    return find_reported(report.environment.get("device"))
