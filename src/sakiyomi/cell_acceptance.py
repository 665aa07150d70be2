"""A cell's acceptance from its best source: ratios of sums with their intervals. Pure."""

import msgspec

from sakiyomi import acceptance, stats
from sakiyomi.acceptance_evidence import Evidence, Found
from sakiyomi.record import ArmFacts, SpecDecodeCounters, SpecDecodeGauge
from sakiyomi.results import Acceptance


def report(evidence: Evidence, facts: ArmFacts, seed: int) -> Acceptance | None:
    """The cell's acceptance from its best source; ratios of sums with their intervals."""
    if not evidence.found:
        return None
    best = evidence.found[0]
    if best.gauge is not None:
        return _from_gauge(best, best.gauge)
    k = facts.num_speculative_tokens
    total = best.total
    pairs = [
        (unit.num_accepted_tokens or 0.0, unit.num_draft_tokens)
        for unit in best.units
        if unit.num_draft_tokens is not None
    ]
    lengths = [
        (unit.num_accepted_tokens or 0.0, unit.num_drafts)
        for unit in best.units
        if unit.num_drafts is not None
    ]
    rate = stats.estimate_ratio(pairs, seed, upper=1.0)
    length = stats.estimate_mean_acceptance_length(lengths, seed, k=k)
    unit = best.unit
    spread = _spread_of(evidence)
    if best.unit == "repeat" and spread is not None:
        again = report(msgspec.structs.replace(evidence, found=[spread]), facts, seed)
        if again and again.draft_acceptance_rate and again.mean_acceptance_length:
            rate = _around(rate, again.draft_acceptance_rate)
            length = _around(length, again.mean_acceptance_length)
            unit = "conversation"
    positions = acceptance.position_rates(total)
    return Acceptance(
        source=best.source,
        quality=best.quality,
        num_drafts=total.num_drafts,
        num_draft_tokens=total.num_draft_tokens,
        num_accepted_tokens=total.num_accepted_tokens,
        draft_acceptance_rate=rate,
        mean_acceptance_length=length,
        per_position=list(positions) if positions else None,
        unit=unit,
        cross_check=_cross_check(evidence),
        draft_coverage=_coverage(evidence, total),
    )


def _from_gauge(found: Found, gauge: SpecDecodeGauge) -> Acceptance:
    """A running average as it was last seen: points without counts or intervals."""

    def point(value: float | None) -> stats.Estimate | None:
        return None if value is None else stats.Estimate(point=value, low=None, high=None, n=0)

    return Acceptance(
        source=found.source,
        quality=found.quality,
        num_drafts=None,
        num_draft_tokens=None,
        num_accepted_tokens=None,
        draft_acceptance_rate=point(gauge.draft_acceptance_rate),
        mean_acceptance_length=point(gauge.mean_acceptance_length),
        per_position=None,
        unit="repeat",
    )


def _coverage(evidence: Evidence, total: SpecDecodeCounters) -> float | None:
    """Share of decode steps that had a draft; below 1 tokens per step is not 1 + accepted/drafts.

    An engine may count the last step of an answer that it did not deliver: never above 1.
    """
    if not evidence.num_steps or total.num_drafts is None:
        return None
    return min(1.0, total.num_drafts / evidence.num_steps)


def _spread_of(evidence: Evidence) -> Found | None:
    """The steps of each conversation, when they agree with the counters: they tell the spread."""
    if not evidence.agrees:
        return None
    return next(
        (f for f in evidence.found if f.source == "events" and f.quality != "estimated"), None
    )


def _around(point: stats.Estimate | None, spread: stats.Estimate) -> stats.Estimate | None:
    """The counters' point with the conversations' interval, widened to hold it.

    The last step of an answer, which counters have and the stream has not, may put it outside.
    """
    if point is None or spread.low is None or spread.high is None:
        return point
    return msgspec.structs.replace(
        spread,
        point=point.point,
        low=min(spread.low, point.point),
        high=max(spread.high, point.point),
    )


def _cross_check(evidence: Evidence) -> dict[str, object] | None:
    if len(evidence.found) < 2:
        return None
    other = evidence.found[1]
    return {
        "source": other.source,
        "num_draft_tokens": other.total.num_draft_tokens,
        "num_accepted_tokens": other.total.num_accepted_tokens,
        "draft_acceptance_rate": acceptance.draft_acceptance_rate(other.total),
        "agrees": evidence.agrees,
    }
