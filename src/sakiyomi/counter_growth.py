"""Cumulative counters of an engine: what they grew by, and their sums. Counts in, counts out."""

import math
from collections.abc import Callable, Iterable

import msgspec

from sakiyomi.record import EngineMetrics, SeriesCounters, SpecDecodeCounters

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
