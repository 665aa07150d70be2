"""Draft lengths of a run's paths: which arm tells, what steps cost, k by concurrency. Pure."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

from sakiyomi import best_k
from sakiyomi.best_k import BestK, CostSource
from sakiyomi.calibration import Calibration, cost_model, find_fit
from sakiyomi.candidates import Requests
from sakiyomi.cost_models import CostModel, OwnCosts, one_cost_models, several_costs_model
from sakiyomi.measured import is_speculative
from sakiyomi.pairing import pair
from sakiyomi.plan import ClosedLoad, Load
from sakiyomi.record import ArmFacts
from sakiyomi.results import Cell, Report
from sakiyomi.stats import Estimate


class PathLength(msgspec.Struct, frozen=True, kw_only=True):
    """The best draft length of a path at a load. `speedup_measured`: at the arm's own k."""

    scenario: str
    load: Load
    best_k: BestK
    speedup_measured: Estimate | None


class BatchLengths(msgspec.Struct, frozen=True, kw_only=True):
    """k by concurrency for one path: `ranges` are (from, to, k), the last one open-ended in use.

    `stops_paying_at`: concurrency at which the measured speedup falls to 1, between two loads on
    the logarithm of concurrency; None when it pays, or does not pay, at every load.
    """

    scenario: str
    arm: str
    ranges: tuple[tuple[int, int, int], ...]
    stops_paying_at: float | None
    pays_at: dict[int, bool]


def path_lengths(
    report: Report,
    requests: Requests,
    arms: Mapping[str, ArmFacts],
    fits: Sequence[Calibration],
    draft_costs: Mapping[str, float],
    seed: int,
) -> tuple[PathLength, ...]:
    """One per path, load and way of drafting, from its arm with the longest drafts."""
    found = []
    for cell in report.cells:
        arm = arms.get(cell.arm)
        if arm is None or arm.forced_acceptance or not is_speculative(arm):
            continue
        k = cell.num_speculative_tokens
        family = [c for c in report.cells if _same_family(c, cell, arms)]
        if not k or any((c.num_speculative_tokens or 0) > k for c in family):
            continue
        mine = requests.get((cell.scenario, cell.arm, cell.load.label), ())
        lengths = best_k.lengths_from_requests(mine, k, seed)
        lengths = lengths or best_k.lengths_from_cell(cell.acceptance, k)
        measured = {c.num_speculative_tokens: c for c in family if c.num_speculative_tokens}
        fit = find_fit(
            fits,
            engine=arm.engine,
            model=arm.model,
            method=arm.speculative_method,
            load=cell.load.label,
        )
        models: tuple[CostModel, ...]
        source: CostSource
        if fit is not None:
            models, source = (cost_model(fit),), "calibration"
        else:
            models, source = _measured_costs(report, requests, measured, draft_costs.get(cell.arm))
        if lengths is None or not models:
            continue
        found.append(
            PathLength(
                scenario=cell.scenario,
                load=cell.load,
                best_k=best_k.find_best_k(
                    lengths,
                    models,
                    arm=cell.arm,
                    method=arm.speculative_method,
                    source=source,
                    measured=frozenset(measured),
                ),
                speedup_measured=_speedup(report, cell),
            )
        )
    return tuple(found)


def batch_lengths(paths: Sequence[PathLength]) -> tuple[BatchLengths, ...]:
    """k by concurrency, for paths that ran under several closed loads."""
    groups: dict[tuple[str, str], list[PathLength]] = {}
    for path in paths:
        if isinstance(path.load, ClosedLoad):
            groups.setdefault((path.scenario, path.best_k.arm), []).append(path)
    return tuple(
        _batch(scenario, arm, sorted(group, key=_concurrency))
        for (scenario, arm), group in groups.items()
        if len(group) > 1
    )


def _concurrency(path: PathLength) -> int:
    return path.load.max_concurrency if isinstance(path.load, ClosedLoad) else 1


def _batch(scenario: str, arm: str, group: Sequence[PathLength]) -> BatchLengths:
    """Ranges meet at the geometric middle of two loads; equal neighbours are joined."""
    ranges: list[tuple[int, int, int]] = []
    start = 1
    for index, path in enumerate(group):
        here = _concurrency(path)
        last = index + 1 == len(group)
        end = here if last else math.isqrt(here * _concurrency(group[index + 1]))
        if ranges and ranges[-1][2] == path.best_k.best:
            ranges[-1] = (ranges[-1][0], end, path.best_k.best)
        else:
            ranges.append((start, end, path.best_k.best))
        start = end + 1
    speeds = {
        _concurrency(path): path.speedup_measured.point for path in group if path.speedup_measured
    }
    return BatchLengths(
        scenario=scenario,
        arm=arm,
        ranges=tuple(ranges),
        stops_paying_at=_crossing(speeds),
        pays_at={concurrency: speed > 1 for concurrency, speed in speeds.items()},
    )


def _crossing(speeds: Mapping[int, float]) -> float | None:
    for (low, before), (high, after) in pairwise(sorted(speeds.items())):
        if before > 1 >= after:
            share = (before - 1) / (before - after)
            return float(low * (high / low) ** share)
    return None


def _same_family(one: Cell, other: Cell, arms: Mapping[str, ArmFacts]) -> bool:
    """Same path and load, and the same way of drafting for the same model."""
    if (one.scenario, one.load) != (other.scenario, other.load) or one.arm not in arms:
        return False
    mine, theirs = arms[one.arm], arms[other.arm]
    return not mine.forced_acceptance and (
        mine.engine,
        mine.model,
        mine.speculative_method,
    ) == (theirs.engine, theirs.model, theirs.speculative_method)


def _measured_costs(
    report: Report, requests: Requests, cells: Mapping[int, Cell], draft_cost: float | None
) -> tuple[tuple[CostModel, ...], CostSource]:
    """A line through several measured k, else the two hypotheses of one; `cells` by k."""
    costs = {k: cost for k, cell in cells.items() if (cost := _step_cost(report, cell)) is not None}
    own = _own_costs({k: cells[k] for k in costs}, requests, report.baseline)
    if len(costs) > 1:
        return (several_costs_model(costs, own),), "several_k"
    longest = max(cells)
    if longest not in costs:
        return (), "one_k"
    return one_cost_models(costs[longest], longest, draft_cost, own), "one_k"


def _own_costs(cells: Mapping[int, Cell], requests: Requests, baseline: str) -> OwnCosts:
    """C(k) by repeat of the conversations that every one of these cells and the baseline have."""
    own: dict[str, dict[int, list[float]]] = {}
    for k, cell in cells.items():
        mine, base = (
            requests.get((cell.scenario, arm, cell.load.label), ()) for arm in (cell.arm, baseline)
        )
        for unit in pair(mine, base):
            if unit.num_steps > 0 and unit.num_step_tokens > 0:
                tokens_per_step = unit.num_step_tokens / unit.num_steps
                found = [tokens_per_step / math.exp(ratio) for ratio in unit.log_ratios]
                own.setdefault(unit.conversation_id, {})[k] = found
    return {name: by_k for name, by_k in own.items() if len(by_k) == len(cells)}


def _step_cost(report: Report, cell: Cell) -> Estimate | None:
    return next(
        (
            c.step_cost
            for c in report.comparisons
            if (c.scenario, c.arm, c.load) == (cell.scenario, cell.arm, cell.load)
        ),
        None,
    )


def _speedup(report: Report, cell: Cell) -> Estimate | None:
    return next(
        (
            c.ratio
            for c in report.comparisons
            if (c.scenario, c.arm, c.load) == (cell.scenario, cell.arm, cell.load)
        ),
        None,
    )
