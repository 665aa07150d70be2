"""Run facts, records and snapshots -> a report. Pure: works from the folder, anywhere."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from sakiyomi import stats
from sakiyomi.cells import make_cell
from sakiyomi.counter_windows import Window, read_windows
from sakiyomi.differences import Difference, difference_cautions, find_differences
from sakiyomi.engines import find_engine
from sakiyomi.engines.engine import Engine
from sakiyomi.measured import (
    Measured,
    is_speculative,
    measure_request,
    with_buffering,
    with_burst_steps,
)
from sakiyomi.pairing import compare_arms
from sakiyomi.plan import Load
from sakiyomi.published_cells import NO_SPREAD, published_cells
from sakiyomi.record import ArmFacts, Caution, RequestRecord, RunFacts, Snapshot
from sakiyomi.report_cautions import (
    known_suspects,
    step_costs_differ,
    with_more_needed,
    with_server_changes,
)
from sakiyomi.results import SCHEMA, Cell, Report


def analyse(
    facts: RunFacts,
    records: Iterable[RequestRecord],
    snapshots: Iterable[Snapshot],
    logs: Mapping[str, str] | None = None,
) -> Report:
    """The report of a run. `logs`: texts of launched engines' logs, searched for known defects."""
    arms = {arm.name: arm for arm in facts.arms}
    engines = {arm.name: find_engine(arm.engine) for arm in facts.arms}
    windows = read_windows(snapshots, arms, engines)
    arms = {name: _with_counted_k(arm, windows.values()) for name, arm in arms.items()}
    arms = {name: _with_seen_drafts(arm, windows.values()) for name, arm in arms.items()}
    requests = reduce_records(facts, records, arms, engines)
    arms = {name: _with_drafted_k(arm, requests) for name, arm in arms.items()}
    plan = facts.plan
    cells = _cells(facts, arms, requests, list(windows.values()))
    cells = with_server_changes(cells, requests, windows)
    comparisons = compare_arms(plan, arms, requests, cells, facts.looks)
    if facts.provenance == "published":
        cells, comparisons = published_cells(facts)
        different: dict[str, list[Difference]] = {}
    else:
        different = _differences(facts, arms, windows.values())
        barred = [] if facts.forced else [n for n, d in different.items() if d and d[0].forbids]
        comparisons = [
            msgspec.structs.replace(c, verdict="not_established") if c.arm in barred else c
            for c in comparisons
        ]
        cells = [c if c.arm in barred else with_more_needed(c, comparisons) for c in cells]
    return Report(
        schema=SCHEMA,
        run=facts.run_id,
        name=plan.name,
        created=facts.created,
        baseline=plan.arms[0].name,
        environment=_environment(facts),
        arms=[
            {**msgspec.to_builtins(arm), **_device_state(windows.values(), arm.name)}
            for arm in arms.values()
        ],
        scenarios=[msgspec.to_builtins(scenario) for scenario in facts.scenarios],
        cells=cells,
        comparisons=comparisons,
        explanation=None,
        decision=None,
        cautions=[
            *([NO_SPREAD] if facts.published else []),
            *facts.cautions,
            *_arms_differ(facts, arms, different),
            *step_costs_differ(comparisons, cells),
            *known_suspects(facts, logs or {}),
        ],
        provenance=facts.provenance,
        num_repeats=max((cell.num_repeats for cell in cells), default=0),
    )


def _arms_differ(
    facts: RunFacts, arms: Mapping[str, ArmFacts], different: Mapping[str, list[Difference]]
) -> list[Caution]:
    """What arms differ in beside speculation, each against the baseline."""
    baseline = facts.plan.arms[0].name
    return [
        caution
        for name, found in different.items()
        for caution in difference_cautions(arms[baseline], arms[name], found, forced=facts.forced)
    ]


def _cells(
    facts: RunFacts,
    arms: Mapping[str, ArmFacts],
    requests: Mapping[tuple[str, str, str], list[Measured]],
    windows: Sequence[Window],
) -> list[Cell]:
    """One cell for each scenario, load and arm that has requests, in the plan's order."""
    plan = facts.plan
    return [
        _cell(
            facts,
            arms[arm.name],
            load,
            requests[ref.name, arm.name, load.label],
            [window for window in windows if _of(window, ref.name, arm.name, load.label)],
        )
        for ref in plan.scenarios
        for load in plan.loads
        for arm in plan.arms
        if arm.name in arms and (ref.name, arm.name, load.label) in requests
    ]


def reduce_records(
    facts: RunFacts,
    records: Iterable[RequestRecord],
    arms: Mapping[str, ArmFacts],
    engines: Mapping[str, Engine],
) -> dict[tuple[str, str, str], list[Measured]]:
    """Measured requests by (scenario, arm, load); of a repeated request the last one counts."""
    languages = {scenario.name: scenario.language for scenario in facts.scenarios}
    paces = {name: slo.speech_characters_per_s for name, slo in facts.plan.slo.items()}
    last: dict[str, Measured] = {}
    for record in records:
        if record.key.warmup or record.key.arm not in engines:
            continue
        last[record.key.request_id] = measure_request(
            record,
            engines[record.key.arm],
            arms[record.key.arm],
            language=languages.get(record.key.scenario),
            characters_per_s=paces.get(record.key.scenario),
        )
    grouped: dict[tuple[str, str, str], list[Measured]] = {}
    for request in last.values():
        key = request.key
        if request.error is None or request.error.kind != "cancelled":
            grouped.setdefault((key.scenario, key.arm, key.load), []).append(request)
    return {
        key: with_burst_steps(with_buffering(mine), arms[key[1]]) for key, mine in grouped.items()
    }


def _differences(
    facts: RunFacts, arms: Mapping[str, ArmFacts], windows: Collection[Window]
) -> dict[str, list[Difference]]:
    """What each arm differs in from the baseline, besides speculation."""
    baseline = arms.get(facts.plan.arms[0].name)
    if baseline is None:
        return {}
    plans = {arm.name: arm for arm in facts.plan.arms}
    states = {name: _device_state(windows, name) for name in arms}
    clocks = {n: s["gpu_clock_mhz"] for n, s in states.items() if "gpu_clock_mhz" in s}
    return {
        name: find_differences(baseline, arm, plans, clocks)
        for name, arm in arms.items()
        if arm is not baseline
    }


def _device_state(windows: Iterable[Window], arm: str) -> dict[str, float]:
    """Median clock and power of the device at the ends of an arm's passes, where it tells."""
    mine = [window for window in windows if window.arm == arm]
    clocks = [value for window in mine for value in window.clocks_mhz]
    powers = [value for window in mine for value in window.powers_w]
    return {
        **({"gpu_clock_mhz": stats.median(clocks)} if clocks else {}),
        **({"gpu_power_w": stats.median(powers)} if powers else {}),
    }


def _cell(
    facts: RunFacts, arm: ArmFacts, load: Load, requests: list[Measured], windows: list[Window]
) -> Cell:
    return make_cell(facts, arm, load, requests, windows, find_engine(arm.engine).qualities)


def _with_counted_k(arm: ArmFacts, windows: Iterable[Window]) -> ArmFacts:
    """The draft length from the metrics pages, where nothing said it before.

    Several engines show the labels of the positions only after the first draft.
    """
    if arm.num_speculative_tokens is not None:
        return arm
    pages = [page for w in windows if w.arm == arm.name for page in w.after.values()]
    k = max((page.num_speculative_tokens or 0 for page in pages), default=0)
    return msgspec.structs.replace(arm, num_speculative_tokens=k or None)


def _with_seen_drafts(arm: ArmFacts, windows: Iterable[Window]) -> ArmFacts:
    """The arm as one that drafts where its counters accepted drafts and nothing names the method.

    TGI tells no k and no method: without this no burst of arrivals is looked for, and no C(k).
    """
    if is_speculative(arm):
        return arm
    counts = [window.counters.speculation for window in windows if window.arm == arm.name]
    drafts = any(told is not None and told.num_accepted_tokens for told in counts)
    return msgspec.structs.replace(arm, speculative_method="unknown") if drafts else arm


def _with_drafted_k(
    arm: ArmFacts, requests: Mapping[tuple[str, str, str], list[Measured]]
) -> ArmFacts:
    """The draft length as the largest draft seen, where nothing said it before."""
    if arm.num_speculative_tokens is not None:
        return arm
    mine = [request for key, group in requests.items() if key[1] == arm.name for request in group]
    k = max((request.largest_draft for request in mine), default=0)
    return msgspec.structs.replace(arm, num_speculative_tokens=k or None)


def _of(window: Window, scenario: str, arm: str, load: str) -> bool:
    return (window.scenario, window.arm, window.load) == (scenario, arm, load)


def _environment(facts: RunFacts) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(facts.environment)
    if facts.arms:
        first = facts.arms[0]
        found.setdefault("engine", find_engine(first.engine).title)
        found.setdefault("engine_version", first.engine_version)
        if first.device:
            found["device"] = first.device
    return found
