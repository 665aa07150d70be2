"""Estimates with intervals. The unit is the conversation, with all its turns and repeats.

Requests, events and tokens of one conversation are correlated, so none of them is ever drawn on
its own. A percentile bootstrap over few conversations is too narrow (Hesterberg 2015, "What
Teachers Should Know about the Bootstrap", arXiv 1411.5279), so each kind of figure has a method
that holds its level from 16 conversations on (`benchmarks/coverage.py` prints the table):

    median, speedup, step cost    order statistics of the conversations, interpolated
    ratio of sums                 bootstrap-t over conversations, jackknife standard error
    share of requests             Wilson's interval at the effective number of requests
    quantile of requests          sorted requests, by their effective number (Woodruff 1952)
    rank correlation              delete-one-conversation jackknife on Fisher's scale

All rest on the conversations that were seen: no method knows of a kind that did not occur.
"""

import math
from collections.abc import Callable, Iterable, Sequence

import msgspec

from sakiyomi import correlations, intervals, shares
from sakiyomi.repeat_noise import (
    num_repeats_of,
    repeat_variance,
    shared_half_width,
    variance_left,
)

LEVEL = 0.95


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A figure with its interval at `level` over `n` units (conversations unless said otherwise).

    `low` and `high` are null together, when no interval can be formed.
    """

    point: float
    low: float | None
    high: float | None
    n: int
    level: float = LEVEL


def median(values: Iterable[float]) -> float:
    """Middle of the sorted values; the mean of the two middle ones of an even number."""
    return quantile(sorted(values), 0.5)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Value below which `share` of the ordered values lie, linear between neighbours.

    Definition 7 of Hyndman & Fan 1996, the default of R and numpy.
    """
    at = share * (len(ordered) - 1)
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    weight = at - below
    if ordered[below] == ordered[above]:
        return ordered[below]
    return ordered[below] * (1 - weight) + ordered[above] * weight


def estimate_median(
    units: Sequence[Sequence[float]], *, signed: bool = False, level: float = LEVEL
) -> Estimate | None:
    """Median over conversations of each one's median over its turns and repeats.

    The interval (`intervals.median_interval`) assumes no distribution and draws nothing at random.
    Values rounded by a coarse clock make it hold more than its level, not less. Conversations
    without a value are left out; None without any. `signed`: the figure can be negative (a
    margin), not only by the width of an interval of 3 to 5 conversations.
    """
    _refuse_not_finite(units)
    estimate = _median_of(sorted(median(unit) for unit in units if unit), level)
    if estimate is None or estimate.low is None or signed or estimate.point < 0:
        return estimate
    return msgspec.structs.replace(estimate, low=max(estimate.low, 0.0))


def compare(log_ratios: Sequence[Sequence[float]], *, level: float = LEVEL) -> Estimate | None:
    """Speedup of an arm over the baseline; above 1 the arm is faster.

    `log_ratios[i]` holds ln(arm / baseline) of conversation i for each repeat that both arms
    answered. They combine as the mean on the log scale, conversations as the median, so that
    swapping the arms gives the inverse. The interval holds what conversations differ by and what
    the conversations of a repeat share (`repeat_noise`), in quadrature.
    """
    return after_repeats(log_ratios, num_repeats_of(log_ratios), level=level)


def compare_conversations(
    log_ratios: Sequence[Sequence[float]], *, level: float = LEVEL
) -> Estimate | None:
    """As `compare`, with what conversations differ by alone: as if no repeat shared anything."""
    estimate = _log_ratio(log_ratios, level)
    return None if estimate is None else transform(estimate, math.exp)


def after_repeats(
    log_ratios: Sequence[Sequence[float]],
    num_repeats: int,
    *,
    level: float = LEVEL,
    hopeful: bool = False,
) -> Estimate | None:
    """`compare` as it would be after `num_repeats` repeats, if all stays as it was seen.

    `hopeful`: what few repeats cannot tell is taken for the better (is going on worth it?).
    """
    estimate = _log_ratio(log_ratios, level)
    if estimate is None or estimate.low is None or estimate.high is None:
        return None if estimate is None else transform(estimate, math.exp)
    left = math.sqrt(variance_left(log_ratios, num_repeats, hopeful=hopeful))
    variance = repeat_variance(log_ratios)
    shared = shared_half_width(variance, num_repeats, level, hopeful=hopeful)
    below = math.hypot(left * (estimate.point - estimate.low), shared)
    above = math.hypot(left * (estimate.high - estimate.point), shared)
    ends = (estimate.point - below, estimate.point + above)
    return transform(_estimate(estimate.point, ends, estimate.n, level), math.exp)


def _log_ratio(log_ratios: Sequence[Sequence[float]], level: float) -> Estimate | None:
    _refuse_not_finite(log_ratios)
    return _median_of(sorted(math.fsum(unit) / len(unit) for unit in log_ratios if unit), level)


def is_limited_by_repeats(log_ratios: Sequence[Sequence[float]]) -> bool:
    """Whether what repeats share widens a speedup's interval more than conversations do."""
    own, both = compare_conversations(log_ratios), compare(log_ratios)
    if own is None or both is None or own.low is None or both.low is None:
        return False
    return math.log(own.point / both.low) > math.sqrt(2) * math.log(own.point / own.low)


def estimate_step_cost(
    units: Sequence[tuple[float, float, Sequence[float]]], *, level: float = LEVEL
) -> Estimate | None:
    """C(k) = tokens_per_step / speedup; a unit is a conversation's (tokens, steps, [ln speedup]).

    Divided within each conversation, then the median over them: the luck of a conversation's
    acceptance is in its tokens per step and in its speedup alike and cancels. What is left is the
    time of a speculative step over that of a plain one. A pooled acceptance over a median speed is
    not a step cost (they weigh conversations differently). Conversations without steps or tokens
    are left out.
    """
    return compare(
        [
            [math.log(tokens / steps) - log_speedup for log_speedup in log_speedups]
            for tokens, steps, log_speedups in units
            if tokens > 0 and steps > 0
        ],
        level=level,
    )


def break_even_rate(step_cost: Estimate, k: float) -> Estimate:
    """(C(k) - 1) / k: the acceptance rate at which speculation pays nothing."""
    return transform(step_cost, lambda cost: (cost - 1) / k)


def estimate_ratio(
    units: Sequence[tuple[float, float]],
    seed: int,
    *,
    upper: float | None = None,
    level: float = LEVEL,
) -> Estimate | None:
    """Ratio of sums; a unit is (numerator, denominator) of a conversation, both >= 0.

    `upper`: what the ratio cannot exceed (1 for accepted over proposed, k for accepted over
    drafts). Units without a denominator are left out; None without any. Equal units give an
    interval of no width: they show no spread. Method: `intervals.ratio_interval`.
    """
    _refuse_not_finite(units)
    kept = [(a, b) for a, b in units if b > 0]
    if not kept:
        return None
    point = math.fsum(a for a, _ in kept) / math.fsum(b for _, b in kept)
    interval = intervals.ratio_interval(kept, upper=upper, level=level, seed=seed)
    return _estimate(point, interval, len(kept), level)


def estimate_mean_acceptance_length(
    units: Sequence[tuple[float, float]], seed: int, *, k: int | None = None, level: float = LEVEL
) -> Estimate | None:
    """1 + accepted / drafts; a unit is (accepted tokens, drafts) of a conversation."""
    per_draft = estimate_ratio(units, seed, upper=k, level=level)
    return None if per_draft is None else transform(per_draft, lambda accepted: 1 + accepted)


def estimate_share(units: Sequence[Sequence[bool]], *, level: float = LEVEL) -> Estimate | None:
    """Share of requests that hold (a limit, say); a unit is a conversation's requests.

    A failed request holds no limit: pass False for it. Method: `shares.share_interval`.
    """
    counts = [(sum(unit), len(unit)) for unit in units if unit]
    if not counts:
        return None
    point = sum(hold for hold, _ in counts) / sum(requests for _, requests in counts)
    return _estimate(point, shares.share_interval(counts, point, level), len(counts), level)


def estimate_quantile(
    units: Sequence[Sequence[float]], share: float, *, level: float = LEVEL
) -> Estimate | None:
    """Quantile over all requests, 0 < share < 1; a unit is a conversation's values.

    Interval: the requests at `shares.quantile_shares`; null where even the extreme requests do
    not bound the quantile.
    """
    _refuse_not_finite(units)
    kept = [unit for unit in units if unit]
    if not kept:
        return None
    ordered = sorted(value for unit in kept for value in unit)
    point = quantile(ordered, share)
    below = [(sum(value <= point for value in unit), len(unit)) for unit in kept]
    limits = shares.quantile_shares(below, share, level)
    if limits is not None:
        limits = quantile(ordered, limits[0]), quantile(ordered, limits[1])
    return _estimate(point, limits, len(kept), level)


def estimate_correlation(
    units: Sequence[tuple[float, float]], *, level: float = LEVEL
) -> Estimate | None:
    """Spearman's rank correlation; a unit is a conversation's pair. None if either is constant.

    Interval: `correlations.correlation_interval`.
    """
    _refuse_not_finite(units)
    ordered = sorted(units)
    point = correlations.rank_correlation(ordered)
    if point is None:
        return None
    interval = correlations.correlation_interval(ordered, point, level)
    return _estimate(point, interval, len(units), level)


def transform(estimate: Estimate, function: Callable[[float], float]) -> Estimate:
    """The estimate of a monotone function of the figure; a falling one swaps the ends."""
    if estimate.low is None or estimate.high is None:
        return _estimate(function(estimate.point), None, estimate.n, estimate.level)
    ends = sorted((function(estimate.low), function(estimate.high)))
    return _estimate(function(estimate.point), (ends[0], ends[1]), estimate.n, estimate.level)


def _median_of(ordered: Sequence[float], level: float) -> Estimate | None:
    if not ordered:
        return None
    interval = intervals.median_interval(ordered, level)
    return _estimate(quantile(ordered, 0.5), interval, len(ordered), level)


def _estimate(point: float, interval: intervals.Interval | None, n: int, level: float) -> Estimate:
    low, high = interval or (None, None)
    return Estimate(point=point, low=low, high=high, n=n, level=level)


def _refuse_not_finite(units: Sequence[Sequence[float]]) -> None:
    for number, unit in enumerate(units):
        for value in unit:
            if not math.isfinite(value):
                message = f"conversation {number} has the value {value}: leave it out and count it"
                raise ValueError(message)
