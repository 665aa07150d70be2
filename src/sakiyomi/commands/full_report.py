"""A run folder -> the report with everything that a page shows. Slower than the table alone."""

import msgspec

from sakiyomi import store
from sakiyomi.commands.decide_command import decide_run, with_decision
from sakiyomi.commands.explain_command import explain_run, with_explanation
from sakiyomi.errors import CheckpointError, SakiyomiError
from sakiyomi.models.devices import find_device
from sakiyomi.models.roofline import Device
from sakiyomi.record import RunFacts
from sakiyomi.request_list import list_requests
from sakiyomi.results import Report
from sakiyomi.segments import find_segments
from sakiyomi.store import RunReader


def fill_report(report: Report, reader: RunReader, *, with_requests: bool = False) -> Report:
    """The report with explanation, decision and segments; for pages with its requests too."""
    report = with_explanation(report, *explain_run(reader.facts, report, {}, known_device(report)))
    report = with_decision(report, decide_run(reader, report, dict(reader.facts.plan.slo)))
    requests = None
    if with_requests and reader.facts.provenance == "measured":
        requests = list_requests(reader.facts, reader.records(), asked_prompts(reader.facts))
    return msgspec.structs.replace(
        report,
        segments=find_segments(reader.facts, reader.records()),
        requests=requests,
        plan_toml=reader.plan_text(),
    )


def known_device(report: Report) -> Device | None:
    """The device that the run was made on, when the table of devices has it."""
    name = report.environment.get("device")
    try:
        return find_device(str(name)) if name else None
    except CheckpointError:
        return None


def asked_prompts(facts: RunFacts) -> dict[str, dict[str, list[str]]]:
    """User turns by scenario and conversation; a scenario that has changed since is left out."""
    hashes = {scenario.name: scenario.content_hash for scenario in facts.scenarios}
    found: dict[str, dict[str, list[str]]] = {}
    for ref in facts.plan.scenarios:
        try:
            scenario = store.read_scenario(ref)
        except SakiyomiError:
            continue
        if scenario.content_hash == hashes.get(ref.name):
            found[ref.name] = {c.conversation_id: list(c.turns) for c in scenario.conversations}
    return found
