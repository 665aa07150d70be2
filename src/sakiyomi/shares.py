"""Intervals of a share of requests and of a quantile over requests, which conversations cluster."""

import math
from collections.abc import Sequence

from sakiyomi.intervals import MIN_UNITS, Interval, student_quantile

PSEUDO_UNITS = 0.5  # units whose requests all agree, added to what a share's units show
MIN_UNITS_BEYOND = 3  # conversations expected beyond a quantile


def share_interval(units: Sequence[tuple[int, int]], share: float, level: float) -> Interval | None:
    """Interval of a share of requests; a unit is (requests that hold, requests > 0).

    Wilson's score interval with Student's t at the effective number of requests (Korn & Graubard
    1998; compared in Dean & Pagano 2015, Journal of Survey Statistics and Methodology 3, 484-503).
    Where few units hold the rarer outcome, what they show of the clustering is worth little: the
    design effect is drawn towards its worst value, at which a unit's requests all agree, as if
    half a unit more had shown that. At 0 and at 1 units count, not requests.
    """
    n = len(units)
    if n < MIN_UNITS:
        return None
    num_effective = num_effective_requests(units, share)
    spread = student_quantile((1 + level) / 2, n - 1) ** 2 / num_effective
    middle = share + spread / 2
    half_width = math.sqrt(spread * share * (1 - share) + spread * spread / 4)
    low = max((middle - half_width) / (1 + spread), 0.0)
    high = min((middle + half_width) / (1 + spread), 1.0)
    return min(low, share), max(high, share)


def quantile_shares(
    units: Sequence[tuple[int, int]], share: float, level: float
) -> Interval | None:
    """Shares of the sorted requests between which the quantile at `share` lies.

    Woodruff 1952 (JASA 47, 635-646) with the effective number of requests; a unit is (requests at
    or below the estimated quantile, requests > 0). If `share` is the truth, the share seen below
    the true quantile scatters round it with sqrt(share (1 - share) / effective number). None where
    that leaves (0, 1): a 0.9 quantile needs about 40 independent requests. None too where fewer
    than three conversations are expected beyond it: an interval of 16 to 24 conversations was
    formed only by the luck of a small design effect, and held the truth in 40 to 83 % then.
    """
    n = len(units)
    if n < MIN_UNITS or n * min(share, 1 - share) < MIN_UNITS_BEYOND - 1e-9:
        return None
    num_effective = num_effective_requests(units, share)
    error = math.sqrt(share * (1 - share) / num_effective)
    spread = student_quantile((1 + level) / 2, n - 1) * error
    return (share - spread, share + spread) if spread < min(share, 1 - share) else None


def num_effective_requests(units: Sequence[tuple[int, int]], share: float) -> float:
    """Independent requests that would tell as much about the share as these clustered ones."""
    n = len(units)
    num_requests = sum(requests for _, requests in units)
    worst = sum(requests**2 for _, requests in units) / num_requests
    num_mixed = min(
        sum(hold < requests for hold, requests in units), sum(hold > 0 for hold, _ in units)
    )
    design_effect = worst
    if num_mixed:
        squares = math.fsum((hold - share * requests) ** 2 for hold, requests in units)
        seen = n / (n - 1) * squares / (num_requests * share * (1 - share))
        weight = num_mixed + PSEUDO_UNITS
        design_effect = (num_mixed * max(seen, 1.0) + PSEUDO_UNITS * worst) / weight
    return num_requests / design_effect
