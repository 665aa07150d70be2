"""How much of a gap in acceptance the entropies of two texts explain. Pure.

A standardization (Kitagawa 1955, JASA 50, 1168-1194): acceptance by bin of entropy, averaged over
both texts, weighted by how differently the texts fill the bins. Intervals: delete-one-conversation
jackknife with Student's t.
"""

import math
from collections.abc import Callable, Sequence

import msgspec

from sakiyomi import intervals, stats
from sakiyomi.stats import Estimate

NUM_BINS = 10
MIN_CONVERSATIONS = 3


class TokenFact(msgspec.Struct, frozen=True):
    """One token that a draft reached. Entropy and surprisal in nats.

    `unlisted`: probability of the alternatives that were not listed. `at_end`: near the end of a
    sentence, where the endings are (だね。 かな？).
    """

    entropy: float
    surprisal: float
    accepted: bool
    unlisted: float = 0.0
    at_end: bool = False


Unit = Sequence[TokenFact]
"""The tokens of one conversation."""


class GapShare(msgspec.Struct, frozen=True, kw_only=True):
    """A gap in acceptance, and how much of it entropy explains.

    Between two scenarios; or, where `scenario` is given, between the inside of its sentences and
    their ends. `gap` and `explained` are differences of acceptance; `share` = explained / gap, None
    where the gap itself is not established.
    """

    arm: str
    higher: str
    lower: str
    gap: Estimate
    explained: Estimate
    share: float | None
    scenario: str | None = None

    @property
    def is_established(self) -> bool:
        """The gap's interval leaves out 0."""
        return self.gap.low is not None and self.gap.low > 0


Side = tuple[str, Sequence[Unit]]


def find_gap(
    arm: str, first: Side, second: Side, *, scenario: str | None = None
) -> GapShare | None:
    """The gap between two sides; None where one has too few conversations.

    With `scenario` the sides are parts of the same conversations, in the same order.
    """
    sides = (first, second) if _rate(first[1]) >= _rate(second[1]) else (second, first)
    (higher, ups), (lower, downs) = sides
    n = min(sum(map(bool, units)) for units in (ups, downs))
    if n < MIN_CONVERSATIONS:
        return None
    edges = _edges([token.entropy for units in (ups, downs) for unit in units for token in unit])
    is_paired = scenario is not None
    gap = _estimate(lambda a, b: _rate(a) - _rate(b), ups, downs, n, is_paired=is_paired)
    explained = _estimate(
        lambda a, b: explained_gap(a, b, edges), ups, downs, n, is_paired=is_paired
    )
    is_clear = gap.low is not None and gap.low > 0
    return GapShare(
        arm=arm,
        higher=higher,
        lower=lower,
        gap=gap,
        explained=explained,
        share=explained.point / gap.point if is_clear else None,
        scenario=scenario,
    )


def explained_gap(higher: Sequence[Unit], lower: Sequence[Unit], edges: Sequence[float]) -> float:
    """Sum over bins of (share of higher - share of lower) x mean acceptance of the bin."""
    one, other = _fill(higher, edges), _fill(lower, edges)
    totals = [sum(n for _, n in side) for side in (one, other)]
    explained = 0.0
    for (a, n), (b, m) in zip(one, other, strict=True):
        rates = [x / k for x, k in ((a, n), (b, m)) if k]
        if rates:
            explained += (n / totals[0] - m / totals[1]) * sum(rates) / len(rates)
    return explained


Statistic = Callable[[Sequence[Unit], Sequence[Unit]], float]


def _estimate(
    statistic: Statistic, ups: Sequence[Unit], downs: Sequence[Unit], n: int, *, is_paired: bool
) -> Estimate:
    point = statistic(ups, downs)
    if is_paired:
        pairs = [(_without(ups, i), _without(downs, i)) for i in range(len(ups))]
        error = intervals.jackknife_error([statistic(a, b) for a, b in pairs if any(a) and any(b)])
    else:
        without_up = [statistic(_without(ups, i), downs) for i in range(len(ups))]
        without_down = [statistic(ups, _without(downs, i)) for i in range(len(downs))]
        error = math.hypot(*map(intervals.jackknife_error, (without_up, without_down)))
    spread = intervals.student_quantile((1 + stats.LEVEL) / 2, n - 1) * error
    return Estimate(point=point, low=point - spread, high=point + spread, n=n)


def _without(units: Sequence[Unit], index: int) -> list[Unit]:
    return [*units[:index], *units[index + 1 :]]


def _fill(units: Sequence[Unit], edges: Sequence[float]) -> list[tuple[int, int]]:
    """(accepted, tokens) by bin."""
    counts = [[0, 0] for _ in range(len(edges) + 1)]
    for unit in units:
        for token in unit:
            place = sum(token.entropy > edge for edge in edges)
            counts[place][0] += token.accepted
            counts[place][1] += 1
    return [(a, n) for a, n in counts]


def _edges(values: Sequence[float]) -> list[float]:
    """Inner edges of bins that hold as many tokens each."""
    ordered = sorted(values)
    return sorted({stats.quantile(ordered, i / NUM_BINS) for i in range(1, NUM_BINS)})


def _rate(units: Sequence[Unit]) -> float:
    num_tokens = sum(len(unit) for unit in units)
    return sum(token.accepted for unit in units for token in unit) / num_tokens if num_tokens else 0
