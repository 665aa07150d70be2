"""The best draft length of a path: tokens per step E(k) over step cost C(k), each with interval.

E(k) = 1 + (accepted at positions 1..k) / steps, from one run at a larger K. It is conservative
for smaller k: acceptance at the first positions falls slightly as k grows (analytics, section 5).
Beyond K the last position's conditional acceptance is carried on, which flatters the tail.

C(k) = 1 + c0 + c k from a calibration or from several measured k; else two hypotheses bound it
(`cost_models`), and the k that is advised loses least against the best k of whichever is true.

The speedup at k is what a run at k would print: divided within each conversation, then the median
over them. The pooled E over the median C is another figure: long answers that are easy to draft
weigh more in it, and it lies several per cent above the speedup of a skewed path. It stands in only
where no conversation tells its own.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Literal

import msgspec

from sakiyomi import drafting, stats
from sakiyomi.cost_models import CostModel
from sakiyomi.drafting import StepCost
from sakiyomi.intervals import combined_half_width
from sakiyomi.measured import Measured
from sakiyomi.results import Acceptance
from sakiyomi.stats import Estimate

EXTRAPOLATED = 3
"""How far beyond the measured draft length a prediction goes."""
EQUAL_GAIN = 0.02
"""Predictions closer than this are equal: the shorter draft is taken."""

CostSource = Literal["calibration", "several_k", "one_k"]


class PredictedK(msgspec.Struct, frozen=True, kw_only=True):
    """One draft length: S(k) = E(k) / C(k) over hypotheses. `speedup` spans all of them.

    `by_hypothesis`: the points. `loss`: how much slower than the best k of its hypothesis it is at
    worst. `measured`: an arm ran at this k. `extrapolated`: beyond the positions that were seen.
    """

    num_speculative_tokens: int
    tokens_per_step: Estimate
    speedup: Estimate
    by_hypothesis: dict[str, float]
    loss: float
    measured: bool = False
    extrapolated: bool = False


class BestK(msgspec.Struct, frozen=True, kw_only=True):
    """The draft lengths of one path and load, the best of them, and the cost of being one off.

    `best_by_hypothesis`: its own optimum. `one_shorter`, `one_longer`: predicted speed over the
    best's, minus 1, at worst over the hypotheses; None where there is no such k.
    """

    arm: str
    method: str | None
    source: CostSource
    costs: dict[str, StepCost]
    rows: tuple[PredictedK, ...]
    best: int
    best_by_hypothesis: dict[str, int]
    one_shorter: float | None
    one_longer: float | None
    positions: Literal["measured", "iid"]


class Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """E(k) for k = 1, 2, ... with intervals; the first `num_seen` of them rest on what was seen.

    `own`: E(k) of each conversation, where they tell it.
    """

    estimates: tuple[Estimate, ...]
    num_seen: int
    positions: Literal["measured", "iid"]
    own: Mapping[str, tuple[float, ...]] = {}


def lengths_from_requests(requests: Sequence[Measured], k: int, seed: int) -> Lengths | None:
    """E(1..K + 3) from each conversation's counts by position; None where positions are unknown.

    Steps without a draft count: a path on which few steps draft gains little from long ones.
    """
    units: dict[str, list[float]] = {}
    for request in requests:
        counts = request.response or request.steps
        if request.error is not None or counts is None:
            continue
        if counts.accepted_per_position is None:
            counts = request.steps
        if counts is None or counts.accepted_per_position is None or not counts.num_drafts:
            continue
        unit = units.setdefault(request.key.conversation_id, [0.0] * (k + 1))
        unit[0] += max(counts.num_steps or 0.0, counts.num_drafts)
        for position, accepted in enumerate(counts.accepted_per_position[:k], start=1):
            unit[position] += accepted
    return lengths_from_counts({name: unit for name, unit in units.items() if unit[0] > 0}, seed)


def lengths_from_counts(units: Mapping[str, Sequence[float]], seed: int) -> Lengths | None:
    """E(1..K + 3); a unit is a conversation's (steps > 0, accepted at position 1, ..., at K)."""
    if not units:
        return None
    k = len(next(iter(units.values()))) - 1
    estimates = []
    for length in range(1, k + 1):
        pairs = [(math.fsum(unit[1 : length + 1]), unit[0]) for unit in units.values()]
        found = stats.estimate_mean_acceptance_length(pairs, seed, k=length)
        assert found is not None
        estimates.append(found)
    own = own_lengths(units, _last_rate(estimates))
    return Lengths(estimates=_carry_on(estimates), num_seen=k, positions="measured", own=own)


def own_lengths(
    units: Mapping[str, Sequence[float]], last_rate: float
) -> dict[str, tuple[float, ...]]:
    """E(1..K + 3) of each conversation; `last_rate`: conditional acceptance beyond position K."""
    own = {}
    for name, (steps, *accepted) in units.items():
        beyond = [accepted[-1] * last_rate**position for position in range(1, EXTRAPOLATED + 1)]
        own[name] = tuple(1 + total / steps for total in accumulate([*accepted, *beyond]))
    return own


def lengths_from_cell(acceptance: Acceptance | None, k: int | None) -> Lengths | None:
    """E(k) from a cell's sums: its positions, or the iid model where only the rate is known.

    The interval of E(K) is carried over to the other k in proportion to E - 1.
    """
    if acceptance is None or not k or acceptance.mean_acceptance_length is None:
        return None
    whole = acceptance.mean_acceptance_length
    known = acceptance.per_position
    if known and len(known) >= k:
        positions = tuple(known[:k])
    elif acceptance.draft_acceptance_rate is not None:
        rate = min(max(acceptance.draft_acceptance_rate.point, 0.0), 1.0)
        positions = drafting.iid_positions(drafting.acceptance_from_rate(rate, k), k)
    else:
        return None
    estimates = []
    for length in range(1, k + 1):
        share = math.fsum(positions[:length]) / max(whole.point - 1, 1e-12)
        estimates.append(stats.transform(whole, _scaled(share)))
    return Lengths(
        estimates=_carry_on(estimates),
        num_seen=k,
        positions="measured" if known and len(known) >= k else "iid",
    )


def find_best_k(
    lengths: Lengths,
    models: Sequence[CostModel],
    *,
    arm: str,
    method: str | None,
    source: CostSource,
    measured: frozenset[int],
) -> BestK:
    """Predict every k under every cost model and take the one that loses least."""
    estimates = {
        model.name: [predict(lengths, model, k + 1) for k in range(len(lengths.estimates))]
        for model in models
    }
    speeds = {name: [found.point for found in row] for name, row in estimates.items()}
    best_of = {name: max(1.0, *values) for name, values in speeds.items()}
    rows = []
    for k, length in enumerate(lengths.estimates, start=1):
        points = {name: values[k - 1] for name, values in speeds.items()}
        rows.append(
            PredictedK(
                num_speculative_tokens=k,
                tokens_per_step=length,
                speedup=_span([row[k - 1] for row in estimates.values()]),
                by_hypothesis=points,
                loss=max(1 - points[name] / best_of[name] for name in points),
                measured=k in measured,
                extrapolated=k > lengths.num_seen,
            )
        )
    plain_loss = max(1 - 1 / best for best in best_of.values())
    least = min(plain_loss, *(row.loss for row in rows))
    if plain_loss <= least + EQUAL_GAIN:
        best = 0
    else:
        best = next(
            row.num_speculative_tokens for row in rows if row.loss <= least + EQUAL_GAIN / 4
        )
    at = [dict.fromkeys(speeds, 1.0), *(row.by_hypothesis for row in rows)]
    return BestK(
        arm=arm,
        method=method,
        source=source,
        costs={model.name: model.cost for model in models},
        rows=tuple(rows),
        best=best,
        best_by_hypothesis={
            name: values.index(max(values)) + 1 if max(values) > 1 else 0
            for name, values in speeds.items()
        },
        one_shorter=_off(at[best - 1], at[best]) if best >= 1 else None,
        one_longer=_off(at[best + 1], at[best]) if best + 1 < len(at) else None,
        positions=lengths.positions,
    )


def predict(lengths: Lengths, model: CostModel, k: int) -> Estimate:
    """The speedup at k under one cost model.

    Costs of the same conversations: as the speedup of a run, repeats included (`stats.compare`).
    Costs of others (a calibration): the median of E(k) over C(k), whose errors are independent.
    """
    logs = {name: math.log(length[k - 1]) for name, length in lengths.own.items()}
    paired = [
        [logs[name] - math.log(cost.at(k)) for cost in costs]
        for name, costs in model.own.items()
        if name in logs
    ]
    speedup = stats.compare(paired)
    if speedup is not None:
        return speedup
    length = stats.compare([[log] for log in logs.values()])
    return _quotient(length or lengths.estimates[k - 1], model.estimate(k))


def _off(other: Mapping[str, float], best: Mapping[str, float]) -> float:
    return min(other[name] / best[name] for name in best) - 1


def _scaled(share: float) -> "_Scaled":
    return _Scaled(share)


class _Scaled(msgspec.Struct, frozen=True):
    """E -> 1 + (E - 1) x share."""

    share: float

    def __call__(self, length: float) -> float:
        return 1 + max(length - 1, 0.0) * self.share


def _last_rate(estimates: Sequence[Estimate]) -> float:
    """Conditional acceptance at the last position that was seen."""
    points = [0.0, 1.0, *(estimate.point for estimate in estimates)]
    *_, before, last = (after - before for before, after in pairwise(points))
    return min(max(last / before if before > 0 else 0.0, 0.0), 1.0)


def _carry_on(estimates: Sequence[Estimate]) -> tuple[Estimate, ...]:
    """Lengthen E by up to three positions with the last conditional acceptance."""
    known = list(estimates)
    base, rate = known[-1], _last_rate(estimates)
    last = base.point - (known[-2].point if len(known) > 1 else 1.0)
    added = 0.0
    for _ in range(EXTRAPOLATED):
        last *= rate
        added += last
        share = 1 + added / max(base.point - 1, 1e-12)
        known.append(stats.transform(base, _scaled(share)))
    return tuple(known)


def _quotient(length: Estimate, cost: Estimate) -> Estimate:
    """E / C of other units: their relative errors are independent, and combine on the log scale."""
    point = length.point / cost.point
    n = min(length.n, cost.n) if cost.n else length.n
    if length.low is None or length.high is None or length.low <= 0:
        return Estimate(point=point, low=None, high=None, n=n)
    below = [(math.log(length.point / length.low), length.n)]
    above = [(math.log(length.high / length.point), length.n)]
    if cost.low is not None and cost.high is not None and cost.low > 0:
        below.append((math.log(cost.high / cost.point), cost.n))
        above.append((math.log(cost.point / cost.low), cost.n))
    low, high = (combined_half_width(parts, length.level) for parts in (below, above))
    return Estimate(point=point, low=point * math.exp(-low), high=point * math.exp(high), n=n)


def _span(estimates: Sequence[Estimate]) -> Estimate:
    """The middle of the hypotheses' points (geometric), with the ends of all their intervals."""
    point = math.exp(math.fsum(math.log(e.point) for e in estimates) / len(estimates))
    lows = [e.low for e in estimates]
    highs = [e.high for e in estimates]
    known = None not in lows and None not in highs
    return Estimate(
        point=point,
        low=min(low for low in lows if low is not None) if known else None,
        high=max(high for high in highs if high is not None) if known else None,
        n=min(e.n for e in estimates),
    )
