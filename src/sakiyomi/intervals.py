"""Confidence intervals over independent units. Numbers in, (low, high) or None out.

None where the units are too few. Two-sided; each end may miss with (1 - level) / 2.
"""

import math
import random
from collections.abc import Sequence
from functools import lru_cache
from operator import itemgetter
from statistics import NormalDist

Interval = tuple[float, float]

MIN_UNITS = 3  # contract: below, an interval cannot be formed
MIN_UNITS_ORDER_STATISTICS = 6  # below, the extremes hold less than 95 %
MIN_UNITS_BOOTSTRAP = 8  # below, too many resamples are copies of one unit
NUM_RESAMPLES = 999  # (999 + 1) x 0.025 is whole: Davison & Hinkley 1997, section 5.2
LEAST_RESAMPLED_ERROR = 0.25  # of the sample's: resamples of equal units have none at all
SMALL_SAMPLE_MEDIAN = 1.2  # SE of a normal median / SE of the mean: 1.16, 1.09, 1.20 for 3, 4, 5


@lru_cache(maxsize=1024)
def student_quantile(share: float, num_degrees: int) -> float:
    """Quantile of Student's t for share > 1/2 and whole degrees of freedom.

    Bisection on the finite series of Abramowitz & Stegun 26.7.3 and 26.7.4.
    """
    low, high = 0.0, math.pi / 2  # the angle atan(t / sqrt(degrees))
    for _ in range(80):
        middle = (low + high) / 2
        if 0.5 + _student_central_share(middle, num_degrees) / 2 < share:
            low = middle
        else:
            high = middle
    return math.tan(low) * math.sqrt(num_degrees)


def _student_central_share(angle: float, num_degrees: int) -> float:
    """P(|T| < t) with angle = atan(t / sqrt(degrees))."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = num_degrees % 2
    term = cosine if odd else 1.0
    total = term if num_degrees > 1 else 0.0
    for j in range(3 if odd else 2, num_degrees - 1, 2):
        term *= cosine * cosine * (j - 1) / j
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def median_interval(ordered: Sequence[float], level: float) -> Interval | None:
    """Interval of the median of the population from which the ordered values are independent.

    The number of values below that median is binomial(n, 1/2) whatever the distribution, so the
    k-th values from both ends hold it with a known probability; between k and k + 1 by the
    interpolation of Hettmansperger & Sheather 1986 (Statistics & Probability Letters 4, 75-79).
    Where not even the extremes reach 95 % (n = 3 to 5): Student's t, widened to the spread of a
    normal median. None where a higher level cannot be reached.
    """
    n = len(ordered)
    if n < MIN_UNITS:
        return None
    if ordered[0] == ordered[-1]:
        return ordered[0], ordered[0]
    if n < MIN_UNITS_ORDER_STATISTICS:
        return _student_median_interval(ordered, level)
    ranks = _median_ranks(n, level)
    if ranks is None:
        return None
    k, weight = ranks
    return (
        _between(ordered[k - 1], ordered[k], weight),
        _between(ordered[n - k], ordered[n - k - 1], weight),
    )


def smallest_miss(num_units: int) -> float:
    """Smallest 1 - level that an order-statistic interval of the median can have: all agree."""
    return 2.0 ** (1 - num_units)


@lru_cache(maxsize=1024)
def _median_ranks(n: int, level: float) -> tuple[int, float] | None:
    """Rank k from either end and the weight of the next value inwards."""
    miss = 1 - level
    # the k-th values from both ends fail with 2 P(binomial(n, 1/2) < k), in whole numbers exact
    k, num_tails, num_all = 1, 2, 2**n
    if num_tails / num_all > miss:
        return None
    while (num_next := num_tails + 2 * math.comb(n, k)) / num_all <= miss:
        k, num_tails = k + 1, num_next
    part = (miss - num_tails / num_all) / ((num_next - num_tails) / num_all)
    return k, (n - k) * part / (k + (n - 2 * k) * part)


def _between(outer: float, inner: float, weight: float) -> float:
    """The point `weight` of the way inwards; exact where both are equal."""
    return outer if outer == inner else (1 - weight) * outer + weight * inner


def _student_median_interval(ordered: Sequence[float], level: float) -> Interval:
    n = len(ordered)
    middle = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    mean = math.fsum(ordered) / n
    variance = math.fsum((value - mean) ** 2 for value in ordered) / (n - 1)
    half_width = student_quantile((1 + level) / 2, n - 1) * math.sqrt(variance / n)
    return middle - SMALL_SAMPLE_MEDIAN * half_width, middle + SMALL_SAMPLE_MEDIAN * half_width


def ratio_interval(
    units: Sequence[tuple[float, float]], *, upper: float | None, level: float, seed: int
) -> Interval | None:
    """Interval of a ratio of sums over units (numerator >= 0, denominator > 0), at most `upper`.

    Bootstrap-t (Efron 1981; Hall 1988, Annals of Statistics 16, 927-953): units are resampled, the
    distance of the resampled ratio is measured in its own standard error, and the quantiles of
    that are laid round the ratio in the standard error of the sample. Inside a resample the
    standard error is the infinitesimal jackknife's (linearization, known to be low), outside the
    delete-one jackknife's (known to be high: Efron & Stein 1981): without this the interval of
    skewed units is still too narrow. Where a few units hold most of the sum (uncapped lengths,
    lognormal with sd 1, that also decide the rate) it holds 92 to 93 % instead of 95. With fewer
    than 8 units: Student's t on the logit scale (log scale without an upper limit).
    """
    n = len(units)
    if n < MIN_UNITS:
        return None
    ordered = sorted(units)  # the order of conversations must not matter
    ratio = math.fsum(a for a, _ in ordered) / math.fsum(b for _, b in ordered)
    standard_error = _jackknife_ratio_error(ordered)
    if standard_error <= 1e-12 * ratio:
        return ratio, ratio
    if n < MIN_UNITS_BOOTSTRAP:
        low, high = _student_ratio_interval(ratio, standard_error, upper, level, n)
    else:
        draws = _studentized_ratios(ordered, ratio, seed)
        tail = (1 - level) / 2
        low = ratio - _tail_quantile(draws, 1 - tail) * standard_error
        high = ratio - _tail_quantile(draws, tail) * standard_error
    if upper is not None:
        high = min(high, float(upper))
    return min(max(low, 0.0), ratio), max(high, ratio)


def _jackknife_ratio_error(units: Sequence[tuple[float, float]]) -> float:
    total_a = math.fsum(a for a, _ in units)
    total_b = math.fsum(b for _, b in units)
    without = [(total_a - a) / (total_b - b) for a, b in units]
    return jackknife_error(without)


def jackknife_error(without: Sequence[float]) -> float:
    """Standard error from the figures that leave out one unit each (Tukey 1958)."""
    n = len(without)
    mean = math.fsum(without) / n
    return math.sqrt((n - 1) / n * math.fsum((value - mean) ** 2 for value in without))


def _student_ratio_interval(
    ratio: float, standard_error: float, upper: float | None, level: float, n: int
) -> Interval:
    spread = student_quantile((1 + level) / 2, n - 1) * standard_error
    if upper is None:
        factor = math.exp(spread / ratio)
        return ratio / factor, ratio * factor
    rest = upper - ratio  # odds = ratio / rest; d ln(odds) = d ratio x upper / (ratio x rest)
    factor = math.exp(min(spread * upper / (ratio * rest), 700.0))
    return upper * ratio / (ratio + rest * factor), upper * ratio / (ratio + rest / factor)


def _studentized_ratios(
    units: Sequence[tuple[float, float]], ratio: float, seed: int
) -> list[float]:
    """(resampled ratio - ratio) / its standard error, sorted."""
    rng = random.Random(seed)
    n = len(units)
    b = [unit[1] for unit in units]
    # residuals against the sample's ratio keep the sums of squares free of cancellation
    e = [x - ratio * y for x, y in units]
    ee = [x * x for x in e]
    eb = [x * y for x, y in zip(e, b, strict=True)]
    bb = [y * y for y in b]
    least = LEAST_RESAMPLED_ERROR**2 * math.fsum(ee)
    draws = []
    for _ in range(NUM_RESAMPLES):
        pick = itemgetter(*[int(n * rng.random()) for _ in range(n)])
        sum_b = sum(pick(b))
        shift = sum(pick(e)) / sum_b  # resampled ratio - ratio
        squares = sum(pick(ee)) - 2 * shift * sum(pick(eb)) + shift * shift * sum(pick(bb))
        draws.append(shift * sum_b / math.sqrt(max(squares, least)))
    return sorted(draws)


def _tail_quantile(ordered: Sequence[float], share: float) -> float:
    """The (R + 1) x share-th smallest of R draws, linear between neighbours."""
    at = min(max(share * (len(ordered) + 1) - 1, 0.0), len(ordered) - 1.0)
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (at - below) * (ordered[above] - ordered[below])


def combined_half_width(parts: Sequence[tuple[float, int]], level: float) -> float:
    """Half-width of a sum of independent errors; a part is (its own half-width, its units).

    Each half-width is Student's t times a standard error. Of the sum of the errors' squares the
    degrees of freedom are Welch's (1947, Biometrika 34, 28-35): adding the half-widths in
    quadrature gives 98 % instead of 95 where one of them comes from four units.
    """
    share = (1 + level) / 2
    squares = [
        ((half_width / student_quantile(share, num_units - 1)) ** 2, num_units - 1)
        for half_width, num_units in parts
        if half_width > 0
    ]
    variance = math.fsum(square for square, _ in squares)
    if not variance:
        return 0.0
    num_degrees = variance**2 / math.fsum(square**2 / degrees for square, degrees in squares)
    # the sum has at least the degrees of its worst part, rounding aside
    return student_quantile(share, math.floor(num_degrees + 1e-9)) * math.sqrt(variance)


def normal_quantile(share: float) -> float:
    """Quantile of the standard normal distribution."""
    return NormalDist().inv_cdf(share)
