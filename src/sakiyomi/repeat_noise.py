"""What all conversations of a repeat share: clocks, heat, other work on the machine. Pure.

ln(speedup) of conversation i in repeat t is mean + own effect of i + shared effect of t + noise of
(i, t): two crossed random effects. The spread over conversations shows the first and the last; it
is blind to the second, however many conversations there are: the more of them, the less often an
interval from conversations alone holds the truth (`benchmarks/coverage.py`). Repeats are few, so
what they show is taken with Student's t; with two that agree by chance it is still too little, and
with one there is nothing to see.

Moment estimates of crossed effects: Searle, Casella & McCulloch 1992, "Variance Components",
chapter 4. Two-way clustered errors: Cameron, Gelbach & Miller 2011, JBES 29, 238-249.
"""

import math
from collections.abc import Sequence

from sakiyomi.intervals import student_quantile


def repeat_means(log_ratios: Sequence[Sequence[float]]) -> list[float]:
    """Mean of each repeat over the conversations that have all repeats."""
    table = _complete(log_ratios)
    return [math.fsum(column) / len(table) for column in zip(*table, strict=True)]


def repeat_variance(log_ratios: Sequence[Sequence[float]]) -> float:
    """Variance of the effect that the conversations of a repeat share; 0 where none is seen.

    `log_ratios[i][t]`: conversation i in repeat t. Mean squares: between repeats less residual.
    """
    table = _complete(log_ratios)
    num_repeats = len(table[0]) if table else 0
    if num_repeats < 2 or len(table) < 2:
        return 0.0
    rows = [math.fsum(row) / num_repeats for row in table]
    columns = repeat_means(table)
    middle = math.fsum(columns) / num_repeats
    between = math.fsum((column - middle) ** 2 for column in columns) / (num_repeats - 1)
    residual = math.fsum(
        (value - row - column + middle) ** 2
        for values, row in zip(table, rows, strict=True)
        for value, column in zip(values, columns, strict=True)
    ) / ((len(table) - 1) * (num_repeats - 1))
    return max(between - residual / len(table), 0.0)


def shared_half_width(variance: float, num_repeats: int, level: float) -> float:
    """Half-width on the log scale that the shared effect adds, to be combined in quadrature."""
    if variance <= 0 or num_repeats < 2:
        return 0.0
    return student_quantile((1 + level) / 2, num_repeats - 1) * math.sqrt(variance / num_repeats)


def num_repeats_of(log_ratios: Sequence[Sequence[float]]) -> int:
    """Repeats of the conversations that have the most of them."""
    return max(map(len, log_ratios), default=0)


def _complete(log_ratios: Sequence[Sequence[float]]) -> list[Sequence[float]]:
    """Conversations that were answered by both arms in every repeat."""
    num_repeats = num_repeats_of(log_ratios)
    return [row for row in log_ratios if len(row) == num_repeats and row]
