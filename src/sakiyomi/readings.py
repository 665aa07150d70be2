"""Metrics pages of running servers, read again and again -> what happened since. Pure.

An interval lies between two readings of one page. It is void, and in no sum, where a counter fell,
a series vanished or came back, or the counts cannot be: its traffic is partly unknown. The units of
the intervals of confidence are the readings that saw drafts; neighbours are merged when they are
many (batch means), which also takes away what a long request makes them share.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from sakiyomi import acceptance, counter_growth
from sakiyomi.record import EngineMetrics, SeriesCounters, SpecDecodeCounters

MAX_UNITS = 64
"""More units are merged in pairs: an interval then costs the same after an hour and after a day."""
NUM_BELOW = 3
"""Readings in a row below the break-even rate before it is said: one may be a single odd prompt."""
COUNTERS = msgspec.structs.fields(SeriesCounters)


class Subject(NamedTuple):
    """What a row is about. `model`: None where the page names none."""

    server: str
    page: str
    engine: str
    model: str | None


class PageReading(msgspec.Struct, frozen=True, kw_only=True):
    """One page of one server at one instant: what each engine and model on it says, or a problem.

    `page` is empty while no metrics page of the server is known.
    """

    server: str
    page: str
    at_s: float = 0.0
    found: Mapping[Subject, EngineMetrics] = {}
    problem: str | None = None


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """What the counters grew by in so many seconds."""

    seconds: float = 0.0
    counters: SeriesCounters = SeriesCounters()


class Track(msgspec.Struct, frozen=True, kw_only=True):
    """One subject from its first reading on. `interval`: None where the latest one is void."""

    last: EngineMetrics
    last_at_s: float
    known: frozenset[tuple[str, str]]
    """(series, counter) pairs that were ever on the page."""
    interval: Growth | None = None
    since_start: Growth = Growth()
    units: tuple[SpecDecodeCounters, ...] = ()
    readings_per_unit: int = 1
    num_in_last_unit: int = 0
    latest_rates: tuple[float, ...] = ()
    num_readings: int = 1
    num_missed: int = 0
    num_void: int = 0
    last_void: str | None = None
    before_fall: EngineMetrics | None = None
    """The page before counters fell: whoever shows as much again is another process's page."""
    note: str = "first reading: rates need a second one"


Tracks = Mapping[Subject, Track]


def advance(tracks: Tracks, readings: Iterable[PageReading]) -> dict[Subject, Track]:
    """The tracks after one more reading of every page."""
    after = dict(tracks)
    for reading in readings:
        for subject in tracks:
            if (subject.server, subject.page) == (reading.server, reading.page):
                after[subject] = _missed(tracks[subject], reading)
        for subject, metrics in reading.found.items():
            after[subject] = _followed(tracks.get(subject), metrics, reading.at_s)
    return after


def _missed(track: Track, reading: PageReading) -> Track:
    """A reading without this subject; what it counts meanwhile is in the next interval."""
    note = "" if reading.problem else "its series vanished from the page"
    return msgspec.structs.replace(track, interval=None, num_missed=track.num_missed + 1, note=note)


def _followed(track: Track | None, metrics: EngineMetrics, at_s: float) -> Track:
    """One more reading of a subject."""
    names = _counter_names(metrics)
    if track is None:
        return Track(last=metrics, last_at_s=at_s, known=names)
    grown = counter_growth.delta(track.last, metrics)
    before_fall = track.last if grown.resets else track.before_fall
    rose = (
        not grown.resets and before_fall and not counter_growth.delta(before_fall, metrics).resets
    )
    void = "counters fell and rose again: several processes answer in turn" if rose else ""
    void = void or _void(track, grown, metrics)
    after = msgspec.structs.replace(
        track,
        last=metrics,
        last_at_s=at_s,
        known=track.known | names,
        num_readings=track.num_readings + 1,
        interval=None,
        num_void=track.num_void + bool(void),
        last_void=void or track.last_void,
        before_fall=None if rose else before_fall,
        note=f"no rates: {void}" if void else _missing(track.known - names),
    )
    if void:
        return after
    return _added(after, Growth(seconds=at_s - track.last_at_s, counters=grown.counters))


def _added(track: Track, growth: Growth) -> Track:
    """The track with one more interval in its sums."""
    total = Growth(
        seconds=track.since_start.seconds + growth.seconds,
        counters=counter_growth.total([track.since_start.counters, growth.counters]),
    )
    track = msgspec.structs.replace(track, interval=growth, since_start=total)
    spec = growth.counters.speculation
    if spec is None or not (spec.num_drafts or spec.num_draft_tokens):
        return track
    rate = acceptance.draft_acceptance_rate(spec)
    rates = track.latest_rates if rate is None else (*track.latest_rates, rate)[-NUM_BELOW:]
    return msgspec.structs.replace(_with_unit(track, spec), latest_rates=rates)


def _with_unit(track: Track, spec: SpecDecodeCounters) -> Track:
    """One more reading that saw drafts, in the last unit while that has room."""
    units, size, num_in_last = track.units, track.readings_per_unit, track.num_in_last_unit
    if units and num_in_last < size:
        merged = counter_growth.total_speculation([units[-1], spec])
        return msgspec.structs.replace(
            track, units=(*units[:-1], merged), num_in_last_unit=num_in_last + 1
        )
    if len(units) == MAX_UNITS:
        pairs = zip(units[::2], units[1::2], strict=True)
        units, size = tuple(counter_growth.total_speculation(pair) for pair in pairs), 2 * size
    return msgspec.structs.replace(
        track, units=(*units, spec), readings_per_unit=size, num_in_last_unit=1
    )


def _void(track: Track, grown: counter_growth.Delta, metrics: EngineMetrics) -> str:
    """Why an interval's counts are not what happened in it; empty when they are."""
    if grown.resets:
        return f"counters fell{_of(grown.resets)}: the server restarted"
    names, before = _counter_names(metrics), _counter_names(track.last)
    if gone := before - names:
        return _missing(gone)
    if back := (names - before) & track.known:
        return f"series are back: {_series(back)}"
    if grown.counters.speculation is None:
        return ""
    wrong = acceptance.check(grown.counters.speculation, metrics.num_speculative_tokens)
    return f"impossible counts: {'; '.join(wrong)}" if wrong else ""


def _counter_names(metrics: EngineMetrics) -> frozenset[tuple[str, str]]:
    return frozenset(
        (key, field.name)
        for key, series in metrics.series.items()
        for field in COUNTERS
        if getattr(series, field.name) is not None
    )


def _missing(names: Iterable[tuple[str, str]]) -> str:
    return f"series vanished: {_series(names)}" if names else ""


def _series(names: Iterable[tuple[str, str]]) -> str:
    """`engine=1`, or the counter's name where the page has one series."""
    return ", ".join(sorted({key or name for key, name in names}))


def _of(keys: Iterable[str]) -> str:
    named = ", ".join(key for key in keys if key)
    return f" ({named})" if named else ""
