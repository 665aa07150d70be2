"""Spearman's rank correlation and its interval over independent pairs."""

import math
from collections.abc import Sequence

from sakiyomi.intervals import MIN_UNITS, Interval, jackknife_error, student_quantile


def rank_correlation(units: Sequence[tuple[float, float]]) -> float | None:
    """Spearman's: Pearson's correlation of the ranks, ties at their mean rank; None if constant."""
    first = _centred_ranks([x for x, _ in units])
    second = _centred_ranks([y for _, y in units])
    spread = math.sqrt(sum(x * x for x in first) * sum(y * y for y in second))
    if not spread:
        return None
    product = sum(x * y for x, y in zip(first, second, strict=True))
    return min(max(product / spread, -1.0), 1.0)


def _centred_ranks(values: Sequence[float]) -> list[float]:
    """Ranks minus their mean; halves are exact in binary, so are the sums."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for place in order[start:end]:
            ranks[place] = (start + end - len(order)) / 2
        start = end
    return ranks


def correlation_interval(
    units: Sequence[tuple[float, float]], correlation: float, level: float
) -> Interval | None:
    """Interval of a rank correlation over independent pairs.

    Delete-one jackknife on Fisher's scale atanh(r) with Student's t: holds its level where the
    usual 1 / (n - 3) does not, as with heavy tails that come together. A perfect order is kept
    half a step of Spearman's statistic away from 1, with Fisher's error. None below 4 pairs, or
    where a single pair makes the correlation.
    """
    n = len(units)
    if n < MIN_UNITS + 1:
        return None
    most = 1 - 6 / (n * (n * n - 1))  # the sum of squared rank differences moves in steps of 2
    scores = []
    for number in range(n):
        left = rank_correlation([*units[:number], *units[number + 1 :]])
        if left is None:
            return None
        scores.append(math.atanh(min(max(left, -most), most)))
    centre = math.atanh(min(max(correlation, -most), most))
    error = jackknife_error(scores) or 1 / math.sqrt(n - 3)
    spread = student_quantile((1 + level) / 2, n - 1) * error
    low, high = math.tanh(centre - spread), math.tanh(centre + spread)
    return min(low, correlation), max(high, correlation)
