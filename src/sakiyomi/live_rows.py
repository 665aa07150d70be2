"""What a reading of running servers is shown as: a row a server, engine and model. Pure."""

from collections.abc import Iterable, Mapping

import msgspec

from sakiyomi import acceptance, stats
from sakiyomi.engines import find_engine
from sakiyomi.engines.engine import Engine
from sakiyomi.readings import NUM_BELOW, Growth, PageReading, Subject, Track, Tracks
from sakiyomi.record import EngineMetrics, Quality, SpecDecodeCounters
from sakiyomi.results import Source
from sakiyomi.stats import Estimate

SEED = 1


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Acceptance and speed over a time; None: not counted, or nothing was drafted."""

    seconds: float
    source: Source = "counters"
    quality: Quality
    num_drafts: float | None = None
    num_draft_tokens: float | None = None
    num_accepted_tokens: float | None = None
    draft_acceptance_rate: Estimate | None = None
    mean_acceptance_length: Estimate | None = None
    per_position: tuple[float, ...] | None = None
    tokens_per_step: float | None = None
    """Of engines that count steps and not drafts: steps without a draft are in it."""
    drafts_per_s: float | None = None
    generated_tokens_per_s: float | None = None


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A server's line of a reading. `problem`: why its page told nothing this time."""

    server: str
    page: str
    engine: str | None = None
    model: str | None = None
    problem: str | None = None
    note: str | None = None
    """What is odd about this reading: why there is no interval, which series are missing."""
    notes: tuple[str, ...] = ()
    """What the page cannot tell, and how its numbers move: the same in every reading."""
    interval: Rates | None = None
    since_start: Rates | None = None
    num_requests_running: float | None = None
    num_requests_waiting: float | None = None
    kv_cache_usage: float | None = None
    num_readings: int = 0
    num_missed: int = 0
    num_void: int = 0
    last_void: str | None = None
    """How many intervals are in no sum, and why the latest of them."""
    unit: str = "reading"
    readings_per_unit: int = 1
    break_even_rate: tuple[float, float] | None = None
    """Least and most of a run's arm, over its scenarios and loads, their intervals included."""
    below_break_even: bool | None = None


def rows(
    tracks: Tracks,
    readings: Iterable[PageReading],
    break_even_rates: Mapping[str, tuple[float, float]] | None = None,
) -> list[Row]:
    """A row a subject, and one for every page that never told anything. Rates by server name."""
    found = []
    for reading in readings:
        mine = [s for s in tracks if (s.server, s.page) == (reading.server, reading.page)]
        if not mine:
            found.append(Row(server=reading.server, page=reading.page, problem=reading.problem))
        for subject in mine:
            limits = (break_even_rates or {}).get(subject.server)
            found.append(_row(subject, tracks[subject], reading, limits))
    return found


def _row(
    subject: Subject,
    track: Track,
    reading: PageReading,
    break_even: tuple[float, float] | None,
) -> Row:
    engine, last = find_engine(subject.engine), track.last
    seen = reading.found.get(subject)
    interval = _rates(track.interval, (), engine, last) if track.interval else None
    rates = track.latest_rates
    below = break_even is not None and all(rate < break_even[0] for rate in rates)
    return Row(
        server=subject.server,
        page=subject.page,
        engine=engine.title,
        model=subject.model,
        problem=reading.problem,
        note=track.note or None,
        notes=tuple(_notes(engine, last)),
        interval=_with_gauge(interval, last, engine),
        since_start=_rates(track.since_start, track.units, engine, last)
        if track.since_start.seconds
        else None,
        num_requests_running=seen.num_requests_running if seen else None,
        num_requests_waiting=seen.num_requests_waiting if seen else None,
        kv_cache_usage=seen.kv_cache_usage if seen else None,
        num_readings=track.num_readings,
        num_missed=track.num_missed,
        num_void=track.num_void,
        last_void=track.last_void,
        readings_per_unit=track.readings_per_unit,
        break_even_rate=break_even,
        below_break_even=below if break_even and len(rates) == NUM_BELOW else None,
    )


def _notes(engine: Engine, metrics: EngineMetrics) -> Iterable[str]:
    """What this page cannot tell, and how its numbers move."""
    yield from metrics.notes
    specs = [s.speculation for s in metrics.series.values() if s.speculation is not None]
    if not specs and metrics.gauge is not None:
        yield "~ a running average of the engine, not of this interval: it counts no drafts"
    elif not specs:
        yield (
            f"no draft counters: speculation is off, or {engine.title} does not count it there; "
            f"it can tell {engine.evidence}"
        )
    elif all(spec.num_draft_tokens is None for spec in specs):
        yield f"{engine.title} does not count proposed drafts: no acceptance rate"
        if all(spec.num_drafts is None for spec in specs):
            yield "nor drafts: the length is tokens per step, steps without a draft included"
    if specs and engine.counters_at_request_end:
        yield f"{engine.title} counts a request when it ends: an interval has what ended in it"


def _rates(
    growth: Growth,
    units: tuple[SpecDecodeCounters, ...],
    engine: Engine,
    metrics: EngineMetrics,
) -> Rates:
    """Ratios of sums; intervals over `units`, which are the growth itself where there are none."""
    spec = growth.counters.speculation or SpecDecodeCounters()
    parts = units or (spec,)
    proposed = [
        (p.num_accepted_tokens or 0.0, p.num_draft_tokens) for p in parts if p.num_draft_tokens
    ]
    drafts = [(p.num_accepted_tokens or 0.0, p.num_drafts) for p in parts if p.num_drafts]
    k = metrics.num_speculative_tokens
    return Rates(
        seconds=growth.seconds,
        quality=engine.qualities["counters"],
        num_drafts=spec.num_drafts,
        num_draft_tokens=spec.num_draft_tokens,
        num_accepted_tokens=spec.num_accepted_tokens,
        draft_acceptance_rate=stats.estimate_ratio(proposed, SEED, upper=1.0),
        mean_acceptance_length=stats.estimate_mean_acceptance_length(drafts, SEED, k=k),
        per_position=acceptance.position_rates(spec),
        tokens_per_step=1 + (spec.num_accepted_tokens or 0.0) / spec.num_steps
        if spec.num_drafts is None and spec.num_steps
        else None,
        drafts_per_s=_per_second(spec.num_drafts, growth),
        generated_tokens_per_s=_per_second(growth.counters.num_generated_tokens, growth),
    )


def _per_second(count: float | None, growth: Growth) -> float | None:
    return None if count is None or not growth.seconds else count / growth.seconds


def _with_gauge(interval: Rates | None, metrics: EngineMetrics, engine: Engine) -> Rates | None:
    """A running average where nothing else tells acceptance: an estimate of the recent past."""
    gauge = metrics.gauge
    if interval is None or gauge is None or interval.num_drafts is not None:
        return interval

    def point(value: float | None) -> Estimate | None:
        return None if value is None else Estimate(point=value, low=None, high=None, n=0)

    return msgspec.structs.replace(
        interval,
        source="gauge",
        quality=engine.qualities["gauge"],
        draft_acceptance_rate=point(gauge.draft_acceptance_rate),
        mean_acceptance_length=point(gauge.mean_acceptance_length),
    )
