"""What every source says of a cell's acceptance, the best first, and whether they agree. Pure."""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from sakiyomi import acceptance, counter_growth
from sakiyomi.acceptance import MAX_FOREIGN_SHARE
from sakiyomi.counter_windows import Window
from sakiyomi.measured import Measured, drafts_every_step, is_speculative
from sakiyomi.record import ArmFacts, Quality, SpecDecodeCounters, SpecDecodeGauge
from sakiyomi.results import Source

MIN_COVERAGE = 0.8
"""Share of requests that must have the engine's own record before a cell rests on it."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One source's counts: `units` are conversations, or repeats where only counters exist.

    A running average has no counts: its `gauge` is all there is.
    """

    source: Source
    quality: Quality
    units: list[SpecDecodeCounters]
    unit: Literal["conversation", "repeat"] = "conversation"
    gauge: SpecDecodeGauge | None = None

    @property
    def total(self) -> SpecDecodeCounters:
        """The sums over units."""
        return counter_growth.total_speculation(self.units)


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What every source says of a cell, the best first, and what is wrong with them."""

    found: list[Found]
    disagreement: str | None
    impossible: list[str]
    foreign_share: float | None
    resets: tuple[str, ...]
    lower_bound: bool
    silent_share: float
    can_tell: bool = True
    """Some source would have shown a draft if there had been one."""
    bursts_refused: str | None = None
    num_steps: float | None = None
    """Decode steps with and without a draft, where the events or the server tell them."""

    @property
    def agrees(self) -> bool:
        """The sources agree, and the counters are not shared with others."""
        return self.disagreement is None and (self.foreign_share or 0.0) <= MAX_FOREIGN_SHARE


def gather(
    requests: Sequence[Measured],
    windows: Sequence[Window],
    facts: ArmFacts,
    qualities: Mapping[str, Quality],
) -> Evidence:
    """Look at each source; the best stands first, estimates and those without drafts last.

    Counters miss the requests of a pass that was killed or whose page did not come. Like is held
    against like: where counters stand first, those requests are left out, and said.
    """
    void = {window.number for window in windows if window.delta is None}
    if not 0 < len(void) < len(windows):
        return _gather(requests, windows, facts, qualities)
    counted = [request for request in requests if request.key.window not in void]
    kept = [window for window in windows if window.number not in void]
    inside = _gather(counted, kept, facts, qualities)
    if not inside.found or inside.found[0].source == "counters":
        return inside
    return msgspec.structs.replace(
        _gather(requests, [], facts, qualities),
        disagreement=inside.disagreement,
        foreign_share=inside.foreign_share,
        resets=inside.resets,
        lower_bound=inside.lower_bound,
        can_tell=inside.can_tell,
    )


def _gather(
    requests: Sequence[Measured],
    windows: Sequence[Window],
    facts: ArmFacts,
    qualities: Mapping[str, Quality],
) -> Evidence:
    good = [request for request in requests if request.error is None]
    answered = [request for request in good if request.response is not None]
    silent_share = 1 - len(answered) / len(good) if good else 0.0
    by_request = Found(
        source="per_request",
        quality=qualities["per_request"],
        units=_by_conversation(answered, "response"),
    )
    counters, foreign, resets, lower_bound = _from_counters(requests, windows, qualities)
    server_steps = _server_steps(windows)
    stepped = [r for r in good if r.steps is not None and r.steps_from == "events"]
    events = _from_events(stepped, facts, qualities)
    k = facts.num_speculative_tokens
    if counters.quality != "estimated":
        if _partial_drafts(counters.total, server_steps, events.total, len(good), k):
            events = _without_assumed_drafts(events)
        else:
            events = _with_confirmed_drafts(events, counters.total, len(good), k, qualities)
    guessed = _by_conversation([r for r in good if r.steps_from == "bursts"], "steps")
    bursts = Found(source="bursts", quality="estimated", units=guessed)
    covered = bool(good) and silent_share <= 1 - MIN_COVERAGE
    found = _ranked(
        [
            *([by_request] if covered else []),
            counters,
            *((events, bursts) if is_speculative(facts) else ()),
        ]
    )
    gauge = _last_gauge(windows)
    if not found and gauge is not None:
        found = [Found(source="gauge", quality=qualities["gauge"], units=[], gauge=gauge)]
    return Evidence(
        found=found,
        disagreement=_disagreement(found, foreign, len(good), k),
        impossible=[
            f"{one.source}: {problem}"
            for one in found[:1]
            for problem in _impossible(one, answered, k)
        ],
        foreign_share=foreign,
        resets=resets,
        lower_bound=lower_bound,
        silent_share=silent_share,
        can_tell=bool(answered) or any(_tells(window) for window in windows),
        bursts_refused=next((r.bursts_refused for r in good if r.bursts_refused), None),
        num_steps=events.total.num_steps if len(stepped) == len(good) else server_steps,
    )


def _impossible(found: Found, answered: Sequence[Measured], k: int | None) -> list[str]:
    """What cannot be in a source's counts. More accepted than answered tokens: not of one request.

    A step's drafts are counted before the end of the answer cuts them: k a request of slack.
    """
    wrong = acceptance.check(found.total, k)
    tokens = sum(request.num_tokens for request in answered)
    accepted = found.total.num_accepted_tokens or 0.0
    if found.source == "per_request" and accepted > tokens + (k or 0) * len(answered):
        wrong.append(f"{accepted:g} accepted of {tokens} answered tokens")
    return wrong


def _ranked(sources: Sequence[Found]) -> list[Found]:
    """Sources that saw drafts; estimates last, and those that do not count drafts behind."""
    found = [one for one in sources if _drafted(one)]
    return sorted(found, key=lambda one: (one.quality == "estimated", not _counts_drafts(one)))


def _from_events(
    stepped: Sequence[Measured], facts: ArmFacts, qualities: Mapping[str, Quality]
) -> Found:
    """Steps of the stream. Chunk sizes tell drafts only where every step has one of length k."""
    told = bool(stepped) and all(r.largest_draft or not r.num_step_tokens for r in stepped)
    sure = told or drafts_every_step(facts)
    merged = any(request.num_merged_steps for request in stepped)
    return Found(
        source="events",
        quality=qualities["events"] if sure and not merged else "estimated",
        units=_by_conversation(stepped, "steps"),
    )


def _partial_drafts(
    counters: SpecDecodeCounters,
    server_steps: float | None,
    events: SpecDecodeCounters,
    num_requests: int,
    k: int | None,
) -> bool:
    """Whether the server says that some steps had no draft, or a short one.

    A request's last step may be counted and not delivered, hence one step a request of slack.
    """
    drafts, drafted = counters.num_drafts, counters.num_draft_tokens
    steps = server_steps if server_steps is not None else events.num_steps
    if drafts is None or steps is None:
        return False
    short = drafted is not None and k is not None and drafted + k * num_requests < k * drafts
    return short or drafts + num_requests < steps


def _with_confirmed_drafts(
    events: Found,
    counters: SpecDecodeCounters,
    num_requests: int,
    k: int | None,
    qualities: Mapping[str, Quality],
) -> Found:
    """The events' steps as drafts of k, where the server's own counts say that all of them are.

    It gives conversations as units where the counters alone would have repeats.
    """
    drafts, drafted, steps = counters.num_drafts, counters.num_draft_tokens, events.total.num_steps
    if events.quality != "estimated" or not drafts or not k or not steps:
        return events
    if not steps <= drafts <= steps + num_requests or drafted != k * drafts:
        return events
    units = [
        msgspec.structs.replace(
            unit, num_drafts=unit.num_steps, num_draft_tokens=k * (unit.num_steps or 0.0)
        )
        for unit in events.units
    ]
    return msgspec.structs.replace(events, units=units, quality=qualities["events"])


def _without_assumed_drafts(events: Found) -> Found:
    """The events' steps and accepted tokens alone: their drafts were an assumption."""
    units = [
        msgspec.structs.replace(unit, num_drafts=None, num_draft_tokens=None)
        for unit in events.units
    ]
    return msgspec.structs.replace(events, units=units, quality="estimated")


def _disagreement(
    found: Sequence[Found], foreign: float | None, num_requests: int, k: int | None
) -> str | None:
    """Where the two best counted sources differ by more than truncation explains."""
    counted = [one for one in found if one.source not in ("bursts", "gauge")]
    if len(counted) < 2 or foreign is None or foreign > MAX_FOREIGN_SHARE:
        return None
    one, other = counted[:2]
    problem = acceptance.agree(one.total, other.total, num_requests, k)
    return f"{one.source} against {other.source}: {problem}" if problem else None


def _server_steps(windows: Sequence[Window]) -> float | None:
    """Decode steps by the server's own count; None where any window does not tell."""
    counts = [window.counters.num_decode_steps for window in windows]
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _tells(window: Window) -> bool:
    """The metrics pages of a window are of an engine that counts tokens or drafts."""
    counts = window.counters
    return counts.speculation is not None or counts.num_generated_tokens is not None


def _last_gauge(windows: Sequence[Window]) -> SpecDecodeGauge | None:
    """The newest running average: the server's recent past, which need not be this scenario."""
    pages = [page for window in windows for page in window.after.values()]
    return next((page.gauge for page in reversed(pages) if page.gauge is not None), None)


def _counts_drafts(found: Found) -> bool:
    total = found.total
    return total.num_drafts is not None or total.num_draft_tokens is not None


def _by_conversation(requests: Sequence[Measured], field: str) -> list[SpecDecodeCounters]:
    """Counts summed by conversation, turns and repeats together."""
    grouped: dict[str, list[SpecDecodeCounters]] = {}
    for request in requests:
        counts = getattr(request, field)
        grouped.setdefault(request.key.conversation_id, []).append(counts)
    return [counter_growth.total_speculation(parts) for parts in grouped.values()]


def _from_counters(
    requests: Sequence[Measured], windows: Sequence[Window], qualities: Mapping[str, Quality]
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
    counts = [delta.counters.num_generated_tokens for _, delta in known]
    generated = [count for count in counts if count is not None]
    server = sum(generated) if generated else None
    complete = len(known) == len(windows) and not resets
    foreign = acceptance.foreign_share(own, server) if complete else None
    shared = (foreign or 0.0) > MAX_FOREIGN_SHARE
    lower_bound = any(delta.lower_bound for _, delta in known) or (
        complete and _counted_fewer(own, server, len(requests))
    )
    found = Found(
        source="counters",
        quality="estimated" if shared or lower_bound else qualities["counters"],
        units=[counter_growth.total_speculation(parts) for parts in by_repeat.values()],
        unit="repeat",
    )
    return found, foreign, resets, lower_bound


def _counted_fewer(own: float | None, server: float | None, num_requests: int) -> bool:
    """The server's counters miss tokens that came (two a request are a matter of counting)."""
    if own is None or server is None:
        return False
    return own - server > max(MAX_FOREIGN_SHARE * own, 2.0 * num_requests)


def _drafted(found: Found) -> bool:
    """Whether a source saw any draft, or any accepted token where it cannot count drafts."""
    total = found.total if found.units else SpecDecodeCounters()
    return bool(total.num_draft_tokens or total.num_drafts or 0) or (
        total.num_drafts is None and bool(total.num_accepted_tokens)
    )
