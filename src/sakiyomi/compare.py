"""Several runs side by side: the first is the baseline. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from sakiyomi import stats, verdicts
from sakiyomi.analyse import reduce_records
from sakiyomi.detail import RequestList, RequestRow, SegmentRate, SegmentReport
from sakiyomi.engines import find_engine
from sakiyomi.errors import NotComparable
from sakiyomi.explain import Explanation, SpeculationExplanation, StepExplanation
from sakiyomi.measured import Measured
from sakiyomi.pairing import pair
from sakiyomi.record import Caution, RequestRecord, RunFacts
from sakiyomi.request_list import join_requests
from sakiyomi.results import Comparison, Report
from sakiyomi.segments import NUM_LARGEST, sentence
from sakiyomi.what_if import WhatIf

OfArm = TypeVar("OfArm", StepExplanation, SpeculationExplanation, WhatIf, SegmentRate, RequestRow)


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
    forced = []
    for other in sides[1:]:
        problems = differences(first.facts, other.facts)
        if problems and force:
            forced.append(_forced(first.facts, other.facts, problems))
        elif problems:
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
        cautions=[*forced, *(caution for side in sides for caution in side.report.cautions)],
        num_repeats=max(side.report.num_repeats for side in sides),
        runs=[
            {
                "run": side.facts.run_id,
                "created": side.report.created,
                "environment": side.report.environment,
            }
            for side in sides
        ],
    )


def _forced(one: RunFacts, other: RunFacts, problems: Sequence[str]) -> Caution:
    return Caution(
        "compared_by_force",
        f"{one.run_id} and {other.run_id} differ in {'; '.join(problems)}; compared all the same "
        "(--force): the ratio is of all of it together",
        {"runs": [one.run_id, other.run_id], "differences": list(problems)},
    )


def join_explanations(
    explained: Mapping[str, tuple[Explanation, Sequence[WhatIf]]],
) -> tuple[Explanation, tuple[WhatIf, ...]]:
    """The explanations of several runs, by run, as one."""
    found = {run: explanation for run, (explanation, _) in explained.items()}
    devices = {one.device.name if one.device else "": one.device for one in found.values()}
    return Explanation(
        device=next(iter(devices.values())) if len(devices) == 1 else None,
        steps=tuple(s for run, one in found.items() for s in _named(run, one.steps)),
        speculation=tuple(s for run, one in found.items() for s in _named(run, one.speculation)),
        models=tuple(
            msgspec.structs.replace(m, first=f"{run}/{m.first}", second=f"{run}/{m.second}")
            for run, one in found.items()
            for m in one.models
        ),
        unknown={
            f"{run}/{arm}": why for run, one in found.items() for arm, why in one.unknown.items()
        },
    ), tuple(w for run, (_, levers) in explained.items() for w in _named(run, levers))


def join_segments(found: Mapping[str, SegmentReport | None]) -> SegmentReport | None:
    """The segments of several runs, by run, as one; None where no run has any."""
    rates: list[SegmentRate] = []
    largest: list[int] = []
    for run, one in found.items():
        if one is not None:
            largest += [len(rates) + index for index in one.largest]
            rates += _named(run, one.rates)
    if not rates:
        return None
    sizes = {i: abs(d.point) for i in largest if (d := rates[i].difference) is not None}
    largest = sorted(sizes, key=lambda index: -sizes[index])[:NUM_LARGEST]
    return SegmentReport(
        rates=rates,
        largest=largest,
        num_compared=sum(one.num_compared for one in found.values() if one),
        summary=[sentence(rates[index]) for index in largest],
    )


def join_request_lists(found: Mapping[str, RequestList | None]) -> RequestList | None:
    """The requests of several runs, by run, as one page holds them."""
    lists = [
        msgspec.structs.replace(one, rows=_named(run, one.rows))
        for run, one in found.items()
        if one is not None
    ]
    return join_requests(lists) if lists else None


def _named(run: str, items: Iterable[OfArm]) -> list[OfArm]:
    """Things of an arm, with the arm named `run/arm`."""
    return [msgspec.structs.replace(item, arm=f"{run}/{item.arm}") for item in items]


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
                verdict=verdicts.verdict(ratio, first.facts.plan.min_gain),
            )
        )
    return found
