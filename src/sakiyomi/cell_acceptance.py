"""Which source tells a cell's acceptance, what it says, and whether the others agree."""

from collections.abc import Mapping, Sequence

import msgspec

from sakiyomi import acceptance, stats
from sakiyomi.counter_windows import Window
from sakiyomi.measured import Measured, drafts_every_step, is_speculative
from sakiyomi.record import ArmFacts, SpecDecodeCounters
from sakiyomi.results import Acceptance, Quality, Source

MIN_COVERAGE = 0.8
"""Share of requests that must have the engine's own record before a cell rests on it."""
FOREIGN_SHARE = 0.05
"""Server tokens beyond the own count: above this the counters are shared (faults, F55)."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One source's counts: `units` are conversations, or repeats where only counters exist."""

    source: Source
    quality: Quality
    units: list[SpecDecodeCounters]
    unit: str = "conversation"

    @property
    def total(self) -> SpecDecodeCounters:
        """The sums over units."""
        return acceptance.total_speculation(self.units)


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What every source says of a cell, the best first, and what is wrong with them."""

    found: list[Found]
    disagreement: str | None
    impossible: list[str]
    foreign_share: float | None
    resets: tuple[str, ...]
    lower_bound: bool
    silent_share: float


def gather(requests: Sequence[Measured], windows: Sequence[Window], facts: ArmFacts) -> Evidence:
    """Look at each source in the order of `engines.md` section 8."""
    good = [request for request in requests if request.error is None]
    answered = [request for request in good if request.response is not None]
    silent_share = 1 - len(answered) / len(good) if good else 0.0
    by_request = Found(
        source="per_request", quality="exact", units=_by_conversation(answered, "response")
    )
    stepped = [request for request in good if request.steps is not None]
    merged = sum(request.num_merged_steps for request in stepped)
    events = Found(
        source="events",
        quality="derived" if drafts_every_step(facts) and not merged else "estimated",
        units=_by_conversation(stepped, "steps"),
    )
    counters, foreign, resets, lower_bound = _from_counters(requests, windows)
    found = []
    if good and silent_share <= 1 - MIN_COVERAGE and _drafted(by_request):
        found.append(by_request)
    if _drafted(counters):
        found.append(counters)
    if _drafted(events) and is_speculative(facts):
        found.append(events)
    impossible = [
        f"{one.source}: {problem}"
        for one in found[:1]
        for problem in acceptance.check(one.total, facts.num_speculative_tokens)
    ]
    disagreement = None
    if len(found) > 1 and foreign is not None and foreign <= FOREIGN_SHARE:
        disagreement = acceptance.agree(
            found[0].total, found[1].total, len(good), facts.num_speculative_tokens
        )
        if disagreement:
            disagreement = f"{found[0].source} against {found[1].source}: {disagreement}"
    return Evidence(
        found=found,
        disagreement=disagreement,
        impossible=impossible,
        foreign_share=foreign,
        resets=resets,
        lower_bound=lower_bound,
        silent_share=silent_share,
    )


def report(evidence: Evidence, facts: ArmFacts, seed: int) -> Acceptance | None:
    """The cell's acceptance from its best source; ratios of sums with their intervals."""
    if not evidence.found:
        return None
    best = evidence.found[0]
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
    rate = stats.estimate_ratio(pairs, seed, upper=1.0) if pairs else None
    length = stats.estimate_mean_acceptance_length(lengths, seed, k=k) if lengths else None
    unit = best.unit
    spread = _spread_of(evidence)
    if best.unit == "repeat" and spread is not None:
        again = report(msgspec.structs.replace(evidence, found=[spread]), facts, seed)
        if again and again.draft_acceptance_rate and again.mean_acceptance_length:
            rate = _around(rate, again.draft_acceptance_rate)
            length = _around(length, again.mean_acceptance_length)
            unit = "conversation"
    positions = acceptance.position_rates(total)
    quality = best.quality
    if (evidence.lower_bound and best.source == "counters") or (
        (evidence.foreign_share or 0) > FOREIGN_SHARE and best.source == "counters"
    ):
        quality = "estimated"
    return Acceptance(
        source=best.source,
        quality=quality,
        num_drafts=total.num_drafts,
        num_draft_tokens=total.num_draft_tokens,
        num_accepted_tokens=total.num_accepted_tokens,
        draft_acceptance_rate=rate,
        mean_acceptance_length=length,
        per_position=list(positions) if positions else None,
        unit="repeat" if unit == "repeat" else "conversation",
        cross_check=_cross_check(evidence),
    )


def _spread_of(evidence: Evidence) -> Found | None:
    """The steps of each conversation, when they agree with the counters: they tell the spread."""
    if evidence.disagreement or (evidence.foreign_share or 0.0) > FOREIGN_SHARE:
        return None
    return next(
        (f for f in evidence.found if f.source == "events" and f.quality == "derived"), None
    )


def _around(point: stats.Estimate | None, spread: stats.Estimate) -> stats.Estimate | None:
    """The counters' point with the conversations' interval; the last step of an answer, which
    counters have and the stream has not, may put the point just outside."""
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
        "agrees": evidence.disagreement is None
        and (evidence.foreign_share or 0.0) <= FOREIGN_SHARE,
    }


def _by_conversation(requests: Sequence[Measured], field: str) -> list[SpecDecodeCounters]:
    """Counts summed by conversation, turns and repeats together."""
    grouped: dict[str, list[SpecDecodeCounters]] = {}
    for request in requests:
        counts = getattr(request, field)
        grouped.setdefault(request.key.conversation_id, []).append(counts)
    return [acceptance.total_speculation(parts) for parts in grouped.values()]


def _from_counters(
    requests: Sequence[Measured], windows: Sequence[Window]
) -> tuple[Found, float | None, tuple[str, ...], bool]:
    """Counter growth, a unit per repeat; the share of others' tokens; what was reset."""
    deltas = [(window, window.delta) for window in windows]
    known = [(window, delta) for window, delta in deltas if delta is not None]
    by_repeat: dict[int, list[SpecDecodeCounters]] = {}
    for window, delta in known:
        if delta.counters.speculation is not None:
            by_repeat.setdefault(window.repeat, []).append(delta.counters.speculation)
    resets = tuple(name for _, delta in known for name in (*delta.resets, *delta.missing_series))
    own = float(sum(request.num_tokens for request in requests)) if known else None
    generated = [delta.counters.num_generated_tokens for _, delta in known]
    server = sum(v for v in generated if v is not None) if any(generated) else None
    complete = len(known) == len(windows) and not resets
    foreign = acceptance.foreign_share(own, server) if complete else None
    shared = (foreign or 0.0) > FOREIGN_SHARE
    found = Found(
        source="counters",
        quality="estimated" if shared else "exact",
        units=[acceptance.total_speculation(parts) for parts in by_repeat.values()],
        unit="repeat",
    )
    return found, foreign, resets, any(delta.lower_bound for _, delta in known)


def _drafted(found: Found) -> bool:
    """Whether a source saw any draft, or any accepted token where it cannot count drafts."""
    total = found.total if found.units else SpecDecodeCounters()
    return bool(total.num_draft_tokens or total.num_drafts or 0) or (
        total.num_drafts is None and bool(total.num_accepted_tokens)
    )


def tokens_per_step(
    requests: Sequence[Measured], windows: Mapping[int, Window] | Sequence[Window], seed: int
) -> stats.Estimate | None:
    """Delivered tokens / decode steps: from the events; else from the server's step counter.

    The events are left aside when some carry more than k + 1 tokens (merged chunks).
    """
    good = [r for r in requests if r.error is None and r.steps is not None]
    if good and not any(request.num_merged_steps for request in good):
        units: dict[str, list[float]] = {}
        for request in good:
            unit = units.setdefault(request.key.conversation_id, [0.0, 0.0])
            unit[0] += request.num_step_tokens
            unit[1] += (request.steps.num_steps or 0.0) if request.steps else 0.0
        return stats.estimate_ratio([(a, b) for a, b in units.values()], seed)
    listed = list(windows.values()) if isinstance(windows, Mapping) else list(windows)
    pairs = [
        (counts.num_generated_tokens - counts.num_requests_finished, counts.num_decode_steps)
        for counts in (window.counters for window in listed)
        if counts.num_generated_tokens is not None
        and counts.num_requests_finished is not None
        and counts.num_decode_steps
    ]
    return stats.estimate_ratio(pairs, seed) if pairs else None
