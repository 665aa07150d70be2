"""Intervals that stay valid when one looks after every repeat and stops at a verdict.

The conversations stay the same from repeat to repeat, so ln(speedup) of conversation i in repeat r
is mean + own effect of i + noise of (i, r). Repeats average the noise away; the spread of the own
effects stays. As the verdict is about the scenario, not about these very conversations, it rests
on the spread of the conversation means at every look: more repeats cannot narrow it below what the
conversations differ by, only more conversations can (`verdicts.num_more_units`).

Looking again and again at 95 % finds a gain that is not there in 9 to 26 % of experiments with 4 or
8 looks (`benchmarks/sequential.py`). So the 5 % that an interval may miss are allotted to the looks
before the first one (Slud & Wei 1982, JASA 77, 862-868): half to the last, so that it is little
worse than a single look (as Haybittle 1971 and Peto et al. 1976), the rest in equal parts to the
earlier ones, so that a large gain can stop the run at once. The allotments add up to the whole,
hence the bound holds whatever the dependence between looks: no information fraction, no normality.
An order-statistic interval of n conversations cannot miss with less than 2^(1 - n); with few of
them only as many looks are used as can decide, evenly spread, and the others decide nothing.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist

from sakiyomi import intervals, stats, verdicts
from sakiyomi.repeat_noise import variance_left
from sakiyomi.stats import LEVEL, Estimate
from sakiyomi.verdicts import MIN_GAIN, Verdict

LAST_LOOK_SHARE = 0.5  # of the allowed error
MIN_CHANCE = 0.05  # below, a run is not worth continuing


@lru_cache(maxsize=256)
def look_levels(
    num_conversations: int, max_looks: int, level: float = LEVEL
) -> tuple[float | None, ...]:
    """Level of the interval at each look, None where a look decides nothing.

    Whole error: sum of (1 - level) over the deciding looks <= 1 - level.
    """
    miss = 1 - level
    early = (1 - LAST_LOOK_SHARE) * miss
    num_early = min(max_looks - 1, int(early / intervals.smallest_miss(min(num_conversations, 60))))
    if num_early == 0:
        return (*[None] * (max_looks - 1), level)
    deciding = {math.ceil(i * max_looks / (num_early + 1)) for i in range(1, num_early + 1)}
    early_level = 1 - early / num_early
    return (
        *[early_level if look in deciding else None for look in range(1, max_looks)],
        1 - LAST_LOOK_SHARE * miss,
    )


def sequential_estimate(
    log_ratios: Sequence[Sequence[float]], look: int, max_looks: int, *, level: float = LEVEL
) -> Estimate | None:
    """Speedup after look `look` (1 = first) of at most `max_looks`, fixed before the first.

    `log_ratios` as in `stats.compare`: everything measured so far, a conversation without a value
    as an empty list. The intervals of all looks together hold the truth at `level`. No interval at
    a look that decides nothing.
    """
    if not 1 <= look <= max_looks:
        message = f"look {look} of {max_looks}: the number of looks is fixed before the first"
        raise ValueError(message)
    look_level = look_levels(len(log_ratios), max_looks, level)[look - 1]
    estimate = stats.compare(log_ratios, level=level if look_level is None else look_level)
    if estimate is None:
        return None
    silent = look_level is None
    return Estimate(
        point=estimate.point,
        low=None if silent else estimate.low,
        high=None if silent else estimate.high,
        n=estimate.n,
        level=level,
    )


def sequential_verdict(
    log_ratios: Sequence[Sequence[float]],
    look: int,
    max_looks: int,
    *,
    min_gain: float = MIN_GAIN,
    level: float = LEVEL,
) -> Verdict:
    """Verdict at a look; stopping at the first established one keeps the error within 1 - level."""
    return verdicts.verdict(sequential_estimate(log_ratios, look, max_looks, level=level), min_gain)


def can_be_established(
    log_ratios: Sequence[Sequence[float]],
    look: int,
    max_looks: int,
    *,
    min_gain: float = MIN_GAIN,
    level: float = LEVEL,
) -> bool:
    """Whether going on to the last look is worth it: a chance of a verdict of 5 % or more.

    Stopping because it is not never makes a false verdict more likely.
    """
    chance = chance_to_establish(log_ratios, look, max_looks, min_gain=min_gain, level=level)
    return chance >= MIN_CHANCE


def chance_to_establish(
    log_ratios: Sequence[Sequence[float]],
    look: int,
    max_looks: int,
    *,
    min_gain: float = MIN_GAIN,
    level: float = LEVEL,
) -> float:
    """Predicted chance that the last look settles the verdict, given what was seen.

    `log_ratios[i][r]`: conversation i in repeat r, its turns averaged. The estimate moves between
    now and the last look by the variance that repeats still take away (predictive power:
    Spiegelhalter, Freedman & Blackburn 1986, Controlled Clinical Trials 7, 8-17). After a single
    repeat the noise is unknown and the whole spread is taken for noise, which favours going on.
    """
    if look >= max_looks:
        return 0.0
    last_level = look_levels(len(log_ratios), max_looks, level)[-1]
    at_last = stats.after_repeats(log_ratios, max_looks, level=last_level or level, hopeful=True)
    last = _log_interval(at_last)
    now = _log_interval(stats.compare_conversations(log_ratios, level=level))
    if last is None or now is None:
        return 0.0
    low, point, high = last
    error = (now[2] - now[0]) / (2 * intervals.normal_quantile((1 + level) / 2))
    left = variance_left(log_ratios, max_looks, hopeful=True)
    below, above = point - low, high - point
    reached = NormalDist(point, max(error * math.sqrt(1 - left), 1e-12)).cdf
    chance = 1 - reached(below) + reached(-above)
    bottom, top = math.log1p(-min_gain) + below, math.log1p(min_gain) - above
    inside = max(reached(min(top, below)) - reached(max(bottom, -above)), 0.0)
    return chance + inside


def _log_interval(ratio: Estimate | None) -> tuple[float, float, float] | None:
    """Low, point and high on the log scale."""
    if ratio is None or ratio.low is None or ratio.high is None:
        return None
    return math.log(ratio.low), math.log(ratio.point), math.log(ratio.high)
