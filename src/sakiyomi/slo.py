"""Whether an arm holds a path's limits: each for a share of its requests, with its interval. Pure.

A limit holds when the whole interval of that share lies at or above `quantile`, fails when it lies
below, and else cannot be told: few conversations in which everything went well are no proof.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from sakiyomi import intervals, stats
from sakiyomi.measured import Measured
from sakiyomi.plan import Slo
from sakiyomi.speech import characters_per_s
from sakiyomi.stats import Estimate

Standing = Literal["holds", "fails", "cannot_tell"]

UPPER_LIMITS = ("ttft_s", "time_to_answer_s", "time_to_first_sentence_s", "tpot_s", "e2e_s")
LOWER_LIMITS = ("decode_tokens_per_s", "speech_margin_s")
RATES = ("tpot_s", "decode_tokens_per_s")
"""Not defined for an answer of one token, which is therefore left out of them."""


class LimitCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One limit of a path against one arm.

    `share`: requests that hold it; `observed`: the quantile at which it must hold, of what was
    measured (for a lower limit the quantile from below).
    """

    limit: str
    value: float
    quantile: float
    share: Estimate | None
    observed: Estimate | None
    standing: Standing


def check_limits(slo: Slo | None, requests: Sequence[Measured]) -> tuple[LimitCheck, ...]:
    """Every limit that the path sets. A failed request holds none of them."""
    return tuple(
        _check(slo, limit, value, requests)
        for limit in (*UPPER_LIMITS, *LOWER_LIMITS)
        if slo is not None and (value := getattr(slo, limit)) is not None
    )


def check_points(slo: Slo | None, tokens_per_s: float | None) -> tuple[LimitCheck, ...]:
    """Limits against a published median: without a distribution none of them can be told."""
    rates = {
        "decode_tokens_per_s": tokens_per_s,
        "tpot_s": 1 / tokens_per_s if tokens_per_s else None,
    }
    return tuple(
        LimitCheck(
            limit=limit,
            value=value,
            quantile=slo.quantile,
            share=None,
            observed=Estimate(point=point, low=None, high=None, n=0)
            if (point := rates.get(limit)) is not None
            else None,
            standing="cannot_tell",
        )
        for limit in (*UPPER_LIMITS, *LOWER_LIMITS)
        if slo is not None and (value := getattr(slo, limit)) is not None
    )


def standing_of(checks: Sequence[LimitCheck]) -> Standing:
    """One failing limit fails the arm; one that cannot be told leaves it open."""
    found = {check.standing for check in checks}
    if "fails" in found:
        return "fails"
    return "cannot_tell" if "cannot_tell" in found else "holds"


def num_needed(quantile: float, *, level: float = stats.LEVEL) -> int:
    """Independent requests, all of which hold, that prove the share: q z^2 / (1 - q) of Wilson."""
    z = intervals.normal_quantile((1 + level) / 2)
    return math.ceil(quantile * z * z / (1 - quantile))


def speech_headroom(tokens_per_s: float, language: str | None) -> float:
    """How many times faster than speech a text grows, one character a token: a lower bound."""
    return tokens_per_s / characters_per_s("", language)


def _check(slo: Slo, limit: str, value: float, requests: Sequence[Measured]) -> LimitCheck:
    below = limit in UPPER_LIMITS
    holds: Callable[[float], bool] = (lambda x: x <= value) if below else (lambda x: x >= value)
    shares: dict[str, list[bool]] = {}
    values: dict[str, list[float]] = {}
    for request in requests:
        name = request.key.conversation_id
        seen = getattr(request.latency, limit)
        if request.error is not None:
            shares.setdefault(name, []).append(False)
        elif seen is not None:
            shares.setdefault(name, []).append(holds(seen))
            values.setdefault(name, []).append(seen)
        elif limit not in RATES or request.num_tokens > 1:
            shares.setdefault(name, []).append(False)  # it never came, or could not be measured
    share = stats.estimate_share(list(shares.values()))
    at = slo.quantile if below else 1 - slo.quantile
    return LimitCheck(
        limit=limit,
        value=value,
        quantile=slo.quantile,
        share=share,
        observed=stats.estimate_quantile(list(values.values()), at),
        standing=_standing(share, slo.quantile),
    )


def _standing(share: Estimate | None, quantile: float) -> Standing:
    if share is None or share.low is None or share.high is None:
        return "cannot_tell"
    if share.low >= quantile:
        return "holds"
    return "fails" if share.high < quantile else "cannot_tell"
