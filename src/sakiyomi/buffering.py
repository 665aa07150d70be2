"""Streams that came in packs: something held events back, so their times tell nothing. Pure."""

from collections.abc import Sequence
from itertools import pairwise

from sakiyomi.record import RequestRecord

FASTEST_TOKENS_PER_S = 5000.0
"""No server decodes one stream faster; what arrives faster was held back and then released."""

MIN_BUFFERED_TOKENS = 10
"""More tokens than this in no time are a released buffer."""

MIN_RELEASED_EVENTS = 12
"""Events at once, again and again: more than drafts of usual length bring in one step."""

MIN_PAUSE_S = 0.05

ONE_READ_S = 0.0005
"""No engine makes two decode steps in less: what arrives closer was held back."""

MIN_RELEASED_STEPS = 3.0
"""Steps in a pack, on average, from which on something held them back; a busy client merges two."""

MIN_STEPS = 8

OUTRUN = 1.25
"""A server's decode time above this multiple of the arrivals' span: the first ones waited."""


def buffering(
    event_at_s: Sequence[float],
    num_tokens: int,
    step_mark: Sequence[float | None] = (),
    event_tokens: Sequence[int | None] = (),
) -> str | None:
    """How the events show that something between held them back; None when they do not.

    All at once: more than 10 tokens, faster than any server. Several decode steps at once, where
    the server tells which events are steps. Or released in packs: a dozen events and more at a
    time, of much the same number, with pauses between. Packs that the server's own step marks
    explain are long drafts, not a buffer.
    """
    span_s = event_at_s[-1] - event_at_s[0]
    num_tokens = max(num_tokens, len(event_at_s))
    if num_tokens > MIN_BUFFERED_TOKENS and num_tokens - 1 > FASTEST_TOKENS_PER_S * span_s:
        return f"{num_tokens} tokens within {span_s * 1000:.1f} ms"
    steps_at_s = _step_arrivals(event_at_s, step_mark, event_tokens)
    return _packs_of_steps(steps_at_s) or _packs_of_events(event_at_s, step_mark)


def outran_server(record: RequestRecord) -> str | None:
    """Tokens that arrived in less time than the server took to decode them."""
    timings = record.evidence.get("timings")
    milliseconds = timings.get("predicted_ms") if isinstance(timings, dict) else None
    if not isinstance(milliseconds, int | float) or len(record.event_at_s) < MIN_STEPS:
        return None
    span_s = record.event_at_s[-1] - record.event_at_s[0]
    if milliseconds / 1000 < OUTRUN * span_s + MIN_PAUSE_S:
        return None
    return f"decoded in {milliseconds:.0f} ms, arrived within {span_s * 1000:.0f} ms"


def _packs_of_steps(steps_at_s: Sequence[float]) -> str | None:
    """Several decode steps at once, then a pause, again and again."""
    gaps = [after - before for before, after in pairwise(steps_at_s)]
    pauses = [index for index, gap in enumerate(gaps) if gap >= ONE_READ_S]
    num_packs = 1 + len(pauses)
    if not pauses or len(steps_at_s) < max(MIN_STEPS, MIN_RELEASED_STEPS * num_packs):
        return None
    median_s = sorted(gaps[index] for index in pauses)[len(pauses) // 2]
    fewest = MIN_STEPS if num_packs == 2 else MIN_RELEASED_STEPS
    if median_s < MIN_PAUSE_S or pauses[0] + 1 < fewest:
        return None  # a client that was busy for a moment
    return f"{len(steps_at_s)} decode steps in {num_packs} packs"


def _packs_of_events(event_at_s: Sequence[float], step_mark: Sequence[float | None]) -> str | None:
    """A dozen events and more at a time; where there are two packs only, two dozen."""
    span_s = event_at_s[-1] - event_at_s[0]
    gaps = [after - before for before, after in pairwise(event_at_s)]
    pauses = [index for index, gap in enumerate(gaps) if gap >= MIN_PAUSE_S]
    sizes = [after - before for before, after in pairwise([-1, *pauses])]
    within_s = sum(gap for gap in gaps if gap < MIN_PAUSE_S)
    mean = sum(sizes) / len(sizes) if sizes else 0.0
    fewest = MIN_RELEASED_EVENTS if len(pauses) > 1 else 2 * MIN_RELEASED_EVENTS
    if mean < fewest or within_s > 0.05 * span_s:
        return None
    if max(sizes) - min(sizes) > max(4.0, 0.5 * mean):
        return None
    marks = list(step_mark)[: pauses[0] + 1]
    if marks and None not in marks and len(set(marks)) == 1 and pauses[0] > 0:
        return None
    pause_s = sorted(gaps[index] for index in pauses)[len(pauses) // 2]
    return f"packs of {mean:.0f} events every {pause_s:.2f} s"


def _step_arrivals(
    event_at_s: Sequence[float],
    step_mark: Sequence[float | None],
    event_tokens: Sequence[int | None],
) -> list[float]:
    """When each decode step arrived, by its mark or as an event of several tokens; else nothing."""
    if any(mark is not None for mark in step_mark):
        marks = [None, *step_mark]
        return [
            at_s
            for at_s, (before, mark) in zip(event_at_s, pairwise(marks), strict=True)
            if mark is not None and mark != before
        ]
    return list(event_at_s) if max((n or 0 for n in event_tokens), default=0) > 1 else []
