"""How drafts fared: counter differences, per-request evidence, steps. Counts in, counts out.

Ratios are formed from sums and never clamped: an impossible value is a data error and is said.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from sakiyomi import steps as step_counts
from sakiyomi.record import (
    EngineMetrics,
    RequestRecord,
    SeriesCounters,
    SpecDecodeCounters,
    Step,
)

TOLERANCE = 1e-6
"""Slack of the invariants: counts are whole numbers, sums of them may round."""

MAX_FOREIGN_SHARE = 0.05
"""Tokens of others on the server up to this share are the engine's own rounding (over-run steps
after a stop, the client's aborted requests); above it the counters are not the run's own."""

PLAIN_FIELDS = (
    "num_generated_tokens",
    "num_decode_steps",
    "num_requests_finished",
    "prefix_cache_queries",
    "prefix_cache_hits",
)
SPEC_FIELDS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_steps")


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """What the counters grew by between two pages, summed over series.

    `resets`: series that fell or whose process restarted; their after value is counted, a lower
    bound. `missing_series` vanished and count nothing. Either voids the window as a measurement:
    `lower_bound`. A `new_series` started at 0.
    """

    counters: SeriesCounters
    resets: tuple[str, ...] = ()
    new_series: tuple[str, ...] = ()
    missing_series: tuple[str, ...] = ()
    lower_bound: bool = False


def delta(before: EngineMetrics, after: EngineMetrics) -> Delta:
    """Difference per series, then the sum. Nothing to read gives None fields, never 0."""
    restarted = (
        before.process_start_s is not None
        and after.process_start_s is not None
        and before.process_start_s != after.process_start_s
    )
    parts: list[SeriesCounters] = []
    resets: list[str] = []
    for key, now in after.series.items():
        then = before.series.get(key)
        if then is None:
            parts.append(now)
        elif restarted or _fell(then, now):
            resets.append(key)
            parts.append(now)
        else:
            parts.append(_combine(now, then, _minus))
    missing = tuple(key for key in before.series if key not in after.series)
    return Delta(
        counters=total(parts),
        resets=tuple(resets),
        new_series=tuple(key for key in after.series if key not in before.series),
        missing_series=missing,
        lower_bound=bool(resets or missing),
    )


def add(first: Delta, second: Delta) -> Delta:
    """Two neighbouring windows as one: delta(a, b) + delta(b, c) = delta(a, c) without resets."""
    return Delta(
        counters=total([first.counters, second.counters]),
        resets=tuple(dict.fromkeys(first.resets + second.resets)),
        new_series=tuple(dict.fromkeys(first.new_series + second.new_series)),
        missing_series=tuple(dict.fromkeys(first.missing_series + second.missing_series)),
        lower_bound=first.lower_bound or second.lower_bound,
    )


def total(parts: Iterable[SeriesCounters]) -> SeriesCounters:
    """Field by field sum; a field that no part has stays None."""
    result = SeriesCounters()
    for part in parts:
        result = _combine(result, part, _plus)
    return result


def total_speculation(parts: Iterable[SpecDecodeCounters]) -> SpecDecodeCounters:
    """Field by field sum; a field that any part lacks is None: a sum must not mix coverage."""
    known = list(parts)
    if not known:
        return SpecDecodeCounters()
    positions: tuple[float, ...] | None = ()
    for part in known:
        if positions is not None:
            positions = (
                None
                if part.accepted_per_position is None
                else _plus_positions(positions, part.accepted_per_position)
            )
    return SpecDecodeCounters(
        accepted_per_position=positions,
        **{
            field: None
            if any(getattr(part, field) is None for part in known)
            else math.fsum(getattr(part, field) for part in known)
            for field in SPEC_FIELDS
        },
    )


def draft_acceptance_rate(counters: SpecDecodeCounters) -> float | None:
    """Accepted / proposed draft tokens. The bonus token is in neither."""
    return _ratio(counters.num_accepted_tokens, counters.num_draft_tokens)


def mean_acceptance_length(counters: SpecDecodeCounters) -> float | None:
    """1 + accepted / drafts, the bonus token included."""
    accepted = _ratio(counters.num_accepted_tokens, counters.num_drafts)
    return None if accepted is None else 1.0 + accepted


def position_rates(counters: SpecDecodeCounters) -> tuple[float, ...] | None:
    """Share of drafts in which at least i+1 draft tokens were accepted."""
    if counters.accepted_per_position is None or not counters.num_drafts:
        return None
    return tuple(count / counters.num_drafts for count in counters.accepted_per_position)


def draft_coverage(counters: SpecDecodeCounters) -> float | None:
    """Drafts / decode steps: below 1 where some steps have no draft (n-gram, suffix)."""
    return _ratio(counters.num_drafts, counters.num_steps)


def tokens_per_step(steps: Sequence[Step]) -> float | None:
    """Delivered tokens / decode steps, from per-step evidence."""
    return sum(step.num_tokens for step in steps) / len(steps) if steps else None


def counted_tokens_per_step(counters: SeriesCounters) -> float | None:
    """(generated - first tokens) / decode steps: a request's first token is prefill's.

    Steps: the engine's own count, or drafts + steps without a draft where it tells them.
    """
    spec = counters.speculation
    num_steps = counters.num_decode_steps or (spec.num_steps if spec else None)
    generated = counters.num_generated_tokens
    if not num_steps or generated is None:
        return None
    return (generated - (counters.num_requests_finished or 0.0)) / num_steps


def output_tokens_per_draft(num_output_tokens: float, num_drafts: float) -> float | None:
    """The output's view of a short reply: tokens after the first / verify steps.

    Drafts accepted beyond the end of the reply were never delivered, so it may lie far below the
    drafter's `mean_acceptance_length`. Neither is to be subtracted from the other.
    """
    return _ratio(num_output_tokens - 1.0, num_drafts) if num_output_tokens >= 1 else None


def foreign_share(own: float | None, server: float | None) -> float | None:
    """Share of the server's count (tokens, requests) that this run did not cause; 0 if none."""
    if own is None or not server:
        return None
    return max(0.0, (server - own) / server)


def check(counters: SpecDecodeCounters, num_speculative_tokens: int | None = None) -> list[str]:
    """What cannot be in these counts. Data errors in words, with their numbers; empty when sound.

    Chain drafts only: trees accept along one path and may break the position rules.
    """
    wrong: list[str] = []
    drafts, drafted = counters.num_drafts, counters.num_draft_tokens
    accepted, positions = counters.num_accepted_tokens, counters.accepted_per_position
    for name in SPEC_FIELDS:
        value = getattr(counters, name)
        if value is not None and value < 0:
            wrong.append(f"{name} is negative: {value:g}")
    if accepted is not None and drafted is not None and accepted > drafted + TOLERANCE:
        share = f" ({accepted / drafted:.0%})" if drafted else ""
        wrong.append(f"more accepted than proposed: {accepted:g} of {drafted:g}{share}")
    if accepted is not None and drafts is not None:
        length = mean_acceptance_length(counters)
        if length is None and accepted > 0:
            wrong.append(f"{accepted:g} accepted tokens without a draft")
        k = num_speculative_tokens
        if length is not None and k is not None and length > k + 1 + TOLERANCE:
            wrong.append(f"mean acceptance length {length:.2f} above k + 1 = {k + 1}")
    if positions is not None:
        wrong += _wrong_positions(positions, drafts, accepted)
    return wrong


def agree(
    one: SpecDecodeCounters,
    other: SpecDecodeCounters,
    num_requests: int,
    num_speculative_tokens: int | None = None,
) -> str | None:
    """Why two sources of the same requests disagree, or None when truncation explains it.

    An engine counts a step's drafts before EOS, `max_tokens` or a stop string cuts its tokens, so
    sources may differ by one step: a draft, k proposed and k accepted tokens a request.
    """
    k = num_speculative_tokens or max(
        (len(c.accepted_per_position or ()) for c in (one, other)), default=0
    )
    for field, slack in (
        ("num_drafts", 1.0),
        ("num_draft_tokens", float(k)),
        ("num_accepted_tokens", float(k)),
    ):
        mine, theirs = getattr(one, field), getattr(other, field)
        if mine is None or theirs is None:
            continue
        if abs(mine - theirs) > slack * num_requests + TOLERANCE:
            return (
                f"{field}: {mine:g} against {theirs:g}, more apart than the last step of "
                f"{num_requests} requests explains ({slack * num_requests:g})"
            )
    return None


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Counts per conversation, and of how many requests. `num_silent` had no evidence."""

    by_conversation: Mapping[str, SpecDecodeCounters]
    num_requests: int
    num_silent: int


def from_requests(
    records: Iterable[RequestRecord],
    read: Callable[[RequestRecord], SpecDecodeCounters | None],
) -> Evidence:
    """The engine's own per-request counts, summed by conversation. Failed and warm-up are out."""
    found: dict[str, list[SpecDecodeCounters]] = {}
    num_requests = num_silent = 0
    for record in records:
        if record.error is not None or record.key.warmup:
            continue
        counts = read(record)
        if counts is None:
            num_silent += 1
            continue
        num_requests += 1
        found.setdefault(record.key.conversation_id, []).append(counts)
    return Evidence(
        by_conversation={key: total_speculation(parts) for key, parts in found.items()},
        num_requests=num_requests,
        num_silent=num_silent,
    )


def from_steps(
    records: Iterable[RequestRecord],
    group: Callable[[RequestRecord], list[Step] | None],
    num_speculative_tokens: int | None = None,
    every_step_drafts: bool = False,
) -> Evidence:
    """Counts from decode steps, summed by conversation. Delivered tokens: after truncation."""

    def read(record: RequestRecord) -> SpecDecodeCounters | None:
        steps = group(record)
        if not steps:
            return None
        return step_counts.count(steps, num_speculative_tokens, every_step_drafts)

    return from_requests(records, read)


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _wrong_positions(
    positions: tuple[float, ...], drafts: float | None, accepted: float | None
) -> list[str]:
    wrong = []
    if drafts is not None and positions and positions[0] > drafts + TOLERANCE:
        wrong.append(f"position 0 accepted in {positions[0]:g} of {drafts:g} drafts")
    wrong += [
        f"position {index} accepted more often ({deep:g}) than position {index - 1} ({shallow:g})"
        for index, (shallow, deep) in enumerate(itertools.pairwise(positions), start=1)
        if deep > shallow + TOLERANCE
    ]
    summed = math.fsum(positions)
    if accepted is not None and abs(summed - accepted) > TOLERANCE * max(1.0, accepted):
        wrong.append(f"positions sum to {summed:g}, accepted is {accepted:g}")
    return wrong


def _fell(then: SeriesCounters, now: SeriesCounters) -> bool:
    """Whether any counter of a series is smaller than before."""
    pairs = [(getattr(then, f), getattr(now, f)) for f in PLAIN_FIELDS]
    if then.speculation is not None and now.speculation is not None:
        pairs += [(getattr(then.speculation, f), getattr(now.speculation, f)) for f in SPEC_FIELDS]
        pairs += zip(
            then.speculation.accepted_per_position or (),
            now.speculation.accepted_per_position or (),
            strict=False,
        )
    return any(a is not None and b is not None and b < a for a, b in pairs)


_Fold = Callable[[float | None, float | None], float | None]


def _plus(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else one + other


def _minus(now: float | None, then: float | None) -> float | None:
    """A counter that was not there before started at 0."""
    return now if now is None or then is None else now - then


def _combine(one: SeriesCounters, other: SeriesCounters, fold: _Fold) -> SeriesCounters:
    fields = {name: fold(getattr(one, name), getattr(other, name)) for name in PLAIN_FIELDS}
    a, b = one.speculation, other.speculation
    speculation = a if b is None else a or (b if fold is _plus else None)
    if a is not None and b is not None:
        speculation = SpecDecodeCounters(
            accepted_per_position=_combine_positions(
                a.accepted_per_position, b.accepted_per_position, fold
            ),
            **{name: fold(getattr(a, name), getattr(b, name)) for name in SPEC_FIELDS},
        )
    return SeriesCounters(speculation=speculation, **fields)


def _combine_positions(
    one: tuple[float, ...] | None, other: tuple[float, ...] | None, fold: _Fold
) -> tuple[float, ...] | None:
    if one is None or other is None:
        return other if one is None and fold is _plus else one
    length = max(len(one), len(other))
    padded = ((*t, *(0.0,) * (length - len(t))) for t in (one, other))
    return tuple(fold(a, b) or 0.0 for a, b in zip(*padded, strict=True))


def _plus_positions(one: tuple[float, ...], other: tuple[float, ...]) -> tuple[float, ...]:
    return _combine_positions(one, other, _plus) or ()
