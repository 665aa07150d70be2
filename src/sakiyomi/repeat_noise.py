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

from sakiyomi.intervals import normal_quantile, student_quantile


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


def shared_half_width(
    variance: float, num_repeats: int, level: float, *, hopeful: bool = False
) -> float:
    """Half-width on the log scale that the shared effect adds, to be combined in quadrature.

    `hopeful`: the variance is taken for known, not for seen in so few repeats.
    """
    if variance <= 0 or num_repeats < 2:
        return 0.0
    share = (1 + level) / 2
    quantile = normal_quantile(share) if hopeful else student_quantile(share, num_repeats - 1)
    return quantile * math.sqrt(variance / num_repeats)


def variance_left(
    log_ratios: Sequence[Sequence[float]], num_repeats: int, *, hopeful: bool = False
) -> float:
    """Variance of the conversation means after `num_repeats`, over that now; 0 < share <= 1.

    Repeats average the noise of a conversation away, not what conversations differ by. After a
    single repeat the two cannot be told apart: nothing is promised, or `hopeful` all is noise.
    """
    units = [unit for unit in log_ratios if unit]
    now = math.fsum(map(len, units)) / max(len(units), 1)
    if len(units) < 2 or num_repeats <= now:
        return 1.0
    if now < 2:
        return now / num_repeats if hopeful else 1.0
    means = [math.fsum(unit) / len(unit) for unit in units]
    centre = math.fsum(means) / len(means)
    between = math.fsum((mean - centre) ** 2 for mean in means) / (len(means) - 1)
    if between == 0:
        return 1.0
    squares = math.fsum((v - m) ** 2 for unit, m in zip(units, means, strict=True) for v in unit)
    noise = squares / max(math.fsum(len(unit) - 1 for unit in units), 1.0)
    gone = noise / now - noise / num_repeats
    return min(max(1 - gone / between, now / num_repeats), 1.0)


def num_repeats_of(log_ratios: Sequence[Sequence[float]]) -> int:
    """Repeats of the conversations that have the most of them."""
    return max(map(len, log_ratios), default=0)


def _complete(log_ratios: Sequence[Sequence[float]]) -> list[Sequence[float]]:
    """Conversations that were answered by both arms in every repeat."""
    num_repeats = num_repeats_of(log_ratios)
    return [row for row in log_ratios if len(row) == num_repeats and row]
