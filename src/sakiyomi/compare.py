"""Several runs side by side: the first is the baseline. Pure."""

import math
from collections.abc import Sequence

import msgspec

from sakiyomi import stats
from sakiyomi.analyse import reduce_records
from sakiyomi.engines import find_engine
from sakiyomi.errors import NotComparable
from sakiyomi.measured import Measured
from sakiyomi.pairing import pair
from sakiyomi.record import RequestRecord, RunFacts
from sakiyomi.results import Comparison, Report


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One run: its facts, its own report, and its requests by (scenario, arm, load)."""

    facts: RunFacts
    report: Report
    requests: dict[tuple[str, str, str], list[Measured]]


def read_side(facts: RunFacts, report: Report, records: Sequence[RequestRecord]) -> Side:
    """Reduce a run's records for pairing."""
    arms = {arm.name: arm for arm in facts.arms}
    engines = {arm.name: find_engine(arm.engine) for arm in facts.arms}
    return Side(facts=facts, report=report, requests=reduce_records(facts, records, arms, engines))


def differences(one: RunFacts, other: RunFacts) -> list[str]:
    """The fields that matter and differ, each with both values."""
    found = [] if one.kind == other.kind else [f"kind: {one.kind} against {other.kind}"]
    for field in ("device", "driver", "cpu"):
        mine, theirs = getattr(one.environment, field), getattr(other.environment, field)
        if mine != theirs:
            found.append(f"environment.{field}: {mine} against {theirs}")
    theirs_by_name = {arm.name: arm for arm in other.arms}
    for arm in one.arms:
        twin = theirs_by_name.get(arm.name)
        if twin and arm.engine_version != twin.engine_version:
            found.append(
                f"arms.{arm.name}.engine_version: {arm.engine_version} against "
                f"{twin.engine_version}"
            )
    scenarios = {scenario.name: scenario for scenario in other.scenarios}
    shared = [scenario for scenario in one.scenarios if scenario.name in scenarios]
    if not shared:
        found.append("scenarios: the runs have none in common")
    for scenario in shared:
        twin_scenario = scenarios[scenario.name]
        if scenario.sampling != twin_scenario.sampling:
            found.append(f"scenarios.{scenario.name}.sampling")
        elif scenario.content_hash != twin_scenario.content_hash:
            found.append(
                f"scenarios.{scenario.name}: {scenario.content_hash} against "
                f"{twin_scenario.content_hash}"
            )
    return found


def compare_runs(sides: Sequence[Side], *, force: bool = False) -> Report:
    """One report of several runs; arms are named `run/arm`.

    Each arm is compared with the arm of the same name in the first run, else with its baseline.
    Raises NotComparable that names the fields, unless forced.
    """
    first = sides[0]
    for other in sides[1:]:
        problems = differences(first.facts, other.facts)
        if problems and not force:
            raise NotComparable(
                f"{first.facts.run_id} and {other.facts.run_id} differ in " + "; ".join(problems),
                "measure both on the same machine and version, or: --force",
            )
    comparisons = [c for other in sides[1:] for c in _against(first, other)]
    cells = [
        msgspec.structs.replace(cell, arm=f"{side.facts.run_id}/{cell.arm}")
        for side in sides
        for cell in side.report.cells
    ]
    order = {ref.name: index for index, ref in enumerate(first.facts.plan.scenarios)}
    cells.sort(key=lambda cell: order.get(cell.scenario, len(order)))
    return msgspec.structs.replace(
        first.report,
        name=" against ".join(side.facts.run_id for side in sides),
        baseline=f"{first.facts.run_id}/{first.report.baseline}",
        arms=[
            {**arm, "name": f"{side.facts.run_id}/{arm['name']}"}
            for side in sides
            for arm in side.report.arms
        ],
        cells=cells,
        comparisons=comparisons,
        cautions=[caution for side in sides for caution in side.report.cautions],
    )


def _against(first: Side, other: Side) -> list[Comparison]:
    found = []
    for (scenario, arm, load), requests in other.requests.items():
        twin = arm if (scenario, arm, load) in first.requests else first.report.baseline
        base = first.requests.get((scenario, twin, load))
        if base is None:
            continue
        ratio = stats.compare([unit.log_ratios for unit in pair(requests, base)])
        if ratio is None or not math.isfinite(ratio.point):
            continue
        cell = next(
            c
            for c in other.report.cells
            if (c.scenario, c.arm, c.load.label) == (scenario, arm, load)
        )
        found.append(
            Comparison(
                scenario=scenario,
                arm=f"{other.facts.run_id}/{arm}",
                baseline=f"{first.facts.run_id}/{twin}",
                load=cell.load,
                metric="decode_tokens_per_s",
                ratio=ratio,
                verdict=stats.verdict(ratio, first.facts.plan.min_gain),
            )
        )
    return found
