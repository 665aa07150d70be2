"""Acceptance by how uncertain a token was: what a chart of entropy or surprisal shows. Pure."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from sakiyomi import stats
from sakiyomi.explained_gap import TokenFact, Unit
from sakiyomi.stats import Estimate

EDGES_NATS = (0.01, 0.1, 0.5, 1.0, 2.0)
"""The same for every scenario, so that their lines compare; most tokens are nearly certain."""


MIN_TOKENS = 20
"""Of a bin, for an interval."""


class AcceptanceBin(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens between two uncertainties, nats; the last bin has no upper end.

    `rate` has no interval where few tokens fell in, or where all had the same luck.
    """

    low: float
    high: float | None
    num_tokens: int
    rate: Estimate


def acceptance_bins(
    units: Sequence[Unit], field: Literal["entropy", "surprisal"], seed: int
) -> tuple[AcceptanceBin, ...]:
    """Acceptance of the tokens of each bin, with intervals over conversations; empty bins left out.

    A token on an edge belongs to the bin above it.
    """
    found = []
    for low, high in zip((0.0, *EDGES_NATS), (*EDGES_NATS, None), strict=True):

        def inside(token: TokenFact, low: float = low, high: float | None = high) -> bool:
            value = float(getattr(token, field))
            return low <= value and (high is None or value < high)

        kept = [[token.accepted for token in unit if inside(token)] for unit in units]
        pairs = [(float(sum(unit)), float(len(unit))) for unit in kept if unit]
        rate = stats.estimate_ratio(pairs, seed, upper=1.0) if pairs else None
        if rate is not None:
            num_tokens = sum(map(len, kept))
            if num_tokens < MIN_TOKENS or rate.low == rate.high:
                rate = msgspec.structs.replace(rate, low=None, high=None)
            found.append(AcceptanceBin(low=low, high=high, num_tokens=num_tokens, rate=rate))
    return tuple(found)
