"""A run folder -> the report with everything that a page shows. Slower than the table alone."""

from collections.abc import Mapping
from typing import Any

import msgspec

from sakiyomi.commands.decide_command import decide_run, with_decision
from sakiyomi.commands.explain_command import explain_run, read_fits, with_explanation
from sakiyomi.commands.why_command import open_why, read_why
from sakiyomi.compare import join_explanations, join_request_lists, join_segments
from sakiyomi.detail import RequestList
from sakiyomi.errors import SakiyomiError
from sakiyomi.models.devices import find_reported
from sakiyomi.models.roofline import Device
from sakiyomi.plan_files import read_scenario
from sakiyomi.record import RunFacts
from sakiyomi.report import why_text
from sakiyomi.request_list import list_requests
from sakiyomi.results import Report
from sakiyomi.segments import find_segments
from sakiyomi.store import RunReader


def fill_report(report: Report, reader: RunReader, *, with_requests: bool = False) -> Report:
    """The report with explanation, decision and segments; for pages with its requests too."""
    explained = explain_run(reader.facts, report, {}, known_device(report), read_fits(reader))
    report = with_explanation(report, *explained)
    if reader.facts.kind == "workload":  # a calibration forces its acceptance: nothing to decide
        report = with_decision(report, decide_run(reader, report, dict(reader.facts.plan.slo)))
    return msgspec.structs.replace(
        report,
        segments=find_segments(reader.facts, reader.records()),
        requests=page_requests(reader) if with_requests else None,
        why=found_why(reader),
        plan_toml=reader.plan_text(),
    )


def fill_comparison(
    report: Report, runs: Mapping[str, tuple[RunReader, Report]], *, with_requests: bool = False
) -> Report:
    """A report of several runs with what each run's own page shows. `runs`: by run id."""
    explained = {
        run: explain_run(reader.facts, own, {}, known_device(own))
        for run, (reader, own) in runs.items()
    }
    report = with_explanation(report, *join_explanations(explained))
    readers = {run: reader for run, (reader, _) in runs.items()}
    requests = {run: page_requests(reader) for run, reader in readers.items() if with_requests}
    return msgspec.structs.replace(
        report,
        segments=join_segments(
            {run: find_segments(one.facts, one.records()) for run, one in readers.items()}
        ),
        requests=join_request_lists(requests),
    )


def found_why(reader: RunReader) -> dict[str, Any] | None:
    """What the pass with logprobs beside a run says; or the run itself, where it is that pass."""
    beside = open_why(reader.folder)
    asked = any(arm.request.get("logprobs") for arm in reader.facts.plan.arms)
    source = beside or (reader if asked else None)
    if source is None:
        return None
    why = read_why(source)
    return {**msgspec.to_builtins(why), "summary": why_text.summary(why)}


def page_requests(reader: RunReader) -> RequestList | None:
    """The requests of a run that a page lists; None for published numbers."""
    if reader.facts.provenance != "measured":
        return None
    return list_requests(reader.facts, reader.records(), asked_prompts(reader.facts))


def known_device(report: Report) -> Device | None:
    """The device that the run was made on, when the table of devices has it."""
    return find_reported(report.environment.get("device"))


def asked_prompts(facts: RunFacts) -> dict[str, dict[str, list[str]]]:
    """User turns by scenario and conversation; a scenario that has changed since is left out."""
    hashes = {scenario.name: scenario.content_hash for scenario in facts.scenarios}
    found: dict[str, dict[str, list[str]]] = {}
    for ref in facts.plan.scenarios:
        try:
            scenario = read_scenario(ref)
        except SakiyomiError:
            continue
        if scenario.content_hash == hashes.get(ref.name):
            found[ref.name] = {c.conversation_id: list(c.turns) for c in scenario.conversations}
    return found
