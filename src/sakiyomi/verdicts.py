"""What the interval of a ratio establishes, and how many more conversations would settle it."""

import math
from typing import Literal

from sakiyomi.intervals import normal_quantile
from sakiyomi.stats import Estimate

Verdict = Literal["faster", "slower", "same", "not_established"]

MIN_GAIN = 0.03  # contract: the band of `same`, unless the plan says otherwise
MOST_WORTH_ASKING = 300  # conversations; a difference that takes more is not worth them
POWER = 0.8  # the chance that the advised number of conversations settles a verdict
HOPELESS_FACTOR = 1000.0  # more than a thousand times the conversations is no advice


def verdict(ratio: Estimate | None, min_gain: float = MIN_GAIN) -> Verdict:
    """What the interval of a ratio establishes, in the contract's order.

    An interval above 1 is `faster` even inside the band: `same` means that no more than `min_gain`
    is at stake and the direction is open.
    """
    if ratio is None or ratio.low is None or ratio.high is None:
        return "not_established"
    if ratio.low > 1:
        return "faster"
    if ratio.high < 1:
        return "slower"
    if ratio.low > 1 - min_gain and ratio.high < 1 + min_gain:
        return "same"
    return "not_established"


def num_more_units(
    ratio: Estimate | None, min_gain: float = MIN_GAIN, *, power: float = POWER
) -> int | None:
    """About how many more conversations would settle the verdict of a ratio, 0 if it is settled.

    On the log scale the half-width falls as 1 / sqrt(n). The interval must leave 1, or fit into
    1 +- min_gain, whichever comes first, with chance `power` if the point is the truth. None
    without an interval, or where the gain sits on the edge so that no number would do.
    """
    if ratio is None or ratio.low is None or ratio.high is None or ratio.low <= 0:
        return None
    if verdict(ratio, min_gain) != "not_established":
        return 0
    factor = _needed_factor(ratio, min_gain, power)
    if factor > HOPELESS_FACTOR:
        return None
    return max(math.ceil(ratio.n * (factor - 1)), 1)


def is_likely_settled(
    ratio: Estimate | None, min_gain: float = MIN_GAIN, *, power: float = POWER
) -> bool:
    """Whether an interval as wide as this one settles a verdict with chance `power`."""
    if ratio is None or ratio.low is None or ratio.high is None or ratio.low <= 0:
        return False
    return _needed_factor(ratio, min_gain, power) <= 1


def _needed_factor(ratio: Estimate, min_gain: float, power: float) -> float:
    """By how much the variance of a positive ratio with an interval must fall."""
    assert ratio.low is not None
    assert ratio.high is not None
    point, low, high = (math.log(value) for value in (ratio.point, ratio.low, ratio.high))
    quantile_level = normal_quantile((1 + ratio.level) / 2)
    headroom = 1 + normal_quantile(power) / quantile_level
    below, above = headroom * (point - low), headroom * (high - point)
    leave_one = below / point if point > 0 else above / -point if point < 0 else math.inf
    to_bottom, to_top = point - math.log1p(-min_gain), math.log1p(min_gain) - point
    fit_band = max(below / to_bottom, above / to_top) if min(to_bottom, to_top) > 0 else math.inf
    return min(leave_one, fit_band) ** 2
