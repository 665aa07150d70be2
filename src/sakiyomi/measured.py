"""A record -> the few numbers of it that cells are made of. Keeps memory flat."""

from array import array
from collections.abc import Sequence
from typing import Literal

import msgspec

from sakiyomi import steps as step_counts
from sakiyomi.bursts import from_bursts
from sakiyomi.engines.engine import Engine
from sakiyomi.latency import RequestLatency, held_back, measure
from sakiyomi.record import ArmFacts, RequestError, RequestKey, RequestRecord, SpecDecodeCounters
from sakiyomi.stats import median

EVERY_STEP_DRAFTS = ("mtp", "eagle", "eagle3", "draft_model", "dflash", "nextn", "standalone")
"""Methods whose every decode step has a draft of constant length (engines, section 1.6)."""

MAX_UNCOUNTED_SHARE = 0.05
"""Tokens that no event shows (incomplete characters, an end token) up to this share are ignored."""

LOOP_CHARACTERS = 160
"""A tail this long that repeats itself at least this often is a loop, not an answer."""
LOOP_TIMES = 4
LOOP_PERIOD = 120


class KeptArrivals(msgspec.Struct, frozen=True, kw_only=True):
    """The arrivals of one answer, 9 bytes an event. A token count above 255 counts as 255."""

    sent_at_s: float
    closed_at_s: float
    event_at_s: Sequence[float]
    event_tokens: Sequence[int]


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One request, reduced. `gap_s`: its median gap between events. `steps`: counts of its steps.

    `num_step_tokens`: tokens of its decode steps. `num_merged_steps`: events that carried more than
    k + 1 tokens, so more than one step. `largest_draft`: proposed tokens of its largest draft,
    where the engine tells them. `arrivals` are kept until the steps of a whole cell are read from
    them; `bursts_refused` is the reason why they could not be.
    """

    key: RequestKey
    error: RequestError | None
    latency: RequestLatency
    gap_s: float | None
    response: SpecDecodeCounters | None
    steps: SpecDecodeCounters | None
    num_step_tokens: int
    num_merged_steps: int
    finish_reason: str | None
    prompt_tokens: int | None
    cached_prompt_tokens: int | None
    num_tokens: int
    looped: bool
    has_answer: bool
    sent_at_s: float
    closed_at_s: float
    max_tokens: int | None
    steps_from: Literal["events", "bursts"] = "events"
    largest_draft: int = 0
    arrivals: KeptArrivals | None = None
    bursts_refused: str | None = None
    system_fingerprint: str | None = None
    served_model: str | None = None

    @property
    def num_told_steps(self) -> float | None:
        """Decode steps by the server's own count."""
        return self.response.num_steps if self.response else None

    @property
    def decoding(self) -> tuple[float, float] | None:
        """(tokens, steps) of its decoding; None where no step is known.

        Where the server counts more steps than the stream shows, events hold several: characters
        that take two tokens, a client that was busy.
        """
        shown, told = self.steps.num_steps if self.steps else None, self.num_told_steps
        if told is not None and (shown is None or shown < told):
            return self.num_tokens - 1, told
        return None if shown is None else (self.num_step_tokens, shown)


def measure_request(
    record: RequestRecord,
    engine: Engine,
    facts: ArmFacts | None,
    *,
    language: str | None,
    characters_per_s: float | None = None,
) -> Measured:
    """Reduce one record with the engine's own readers."""
    latency = measure(record, language=language, characters_per_s=characters_per_s)
    k = facts.num_speculative_tokens if facts else None
    grouped = engine.group_steps(record)
    steps = None
    merged = tokens = 0
    if grouped is not None:
        steps = step_counts.count(grouped, k, every_step_drafts=drafts_every_step(facts))
        tokens = sum(step.num_tokens for step in grouped)
        longest = _longest_step(engine, facts)
        merged = sum(step.num_tokens > longest for step in grouped) if longest else 0
    elif engine.event_is_step:
        steps, tokens = _steps_by_events(record, facts)
    response = engine.read_response(record)
    drafts = [step.num_draft_tokens for step in grouped or ()]
    told = [draft for draft in drafts if draft is not None]
    if response is None and drafts and len(told) == len(drafts) and not any(told):
        response = steps  # an engine that tells drafts with every event, and had none
    guess = steps is None and facts is not None and is_speculative(facts)
    return Measured(
        key=record.key,
        error=record.error,
        latency=msgspec.structs.replace(latency, inter_event_s=[]),
        gap_s=median(latency.inter_event_s) if latency.inter_event_s else None,
        response=response,
        steps=steps,
        num_step_tokens=tokens,
        num_merged_steps=merged,
        finish_reason=record.finish_reason,
        prompt_tokens=record.prompt_tokens,
        cached_prompt_tokens=record.cached_prompt_tokens,
        num_tokens=latency.num_tokens or 0,
        has_answer="answer" in record.event_kind,
        looped=is_looped("".join(record.event_text)),
        sent_at_s=record.sent_at_s,
        closed_at_s=record.closed_at_s,
        max_tokens=record.max_tokens,
        largest_draft=max([*told, _draft_length(response)]),
        arrivals=_keep_arrivals(record) if guess and record.error is None else None,
        system_fingerprint=record.system_fingerprint,
        served_model=record.model,
    )


def _longest_step(engine: Engine, facts: ArmFacts | None) -> int | None:
    """Most tokens of a chunk that is one step: k + 1, or 1 where no speculation shows.

    Engines that send a token an event mark their steps: nothing is merged there.
    """
    if facts is None or engine.tokens_per_event is not None:
        return None
    if facts.num_speculative_tokens:
        return facts.num_speculative_tokens + 1
    return 1 if facts.metrics_urls and not is_speculative(facts) else None


def with_buffering(requests: Sequence[Measured]) -> list[Measured]:
    """The requests of one cell: where half of the answers came in packs, all of them are spoiled.

    One buffer stands before all of them; an answer of few packs only does not show it.
    """
    good = [request for request in requests if request.error is None]
    num_held = sum(request.latency.buffered for request in good)
    if not num_held or 2 * num_held < len(good):
        return list(requests)
    how = f"as {num_held} of {len(good)} answers show"
    return [
        request
        if request.latency.buffered
        else msgspec.structs.replace(request, latency=held_back(request.latency, how), gap_s=None)
        for request in requests
    ]


def with_burst_steps(requests: Sequence[Measured], facts: ArmFacts) -> list[Measured]:
    """The requests of one cell, with steps from their arrival bursts where nothing better tells.

    One threshold for all of them: a single answer has too few gaps. Where the bursts are ambiguous
    no steps are given, and the reason stays with each request.
    """
    kept = [(i, request.arrivals) for i, request in enumerate(requests) if request.arrivals]
    result = list(requests)
    if not kept:
        return result
    k = facts.num_speculative_tokens
    found = (
        _uncounted(requests)
        or _buffered(requests)
        or from_bursts([arrivals for _, arrivals in kept], k)
    )
    for position, (index, _) in enumerate(kept):
        changes: dict[str, object] = {"arrivals": None}
        if isinstance(found, str):
            changes["bursts_refused"] = found
        else:
            grouped = found.steps[position]
            changes |= {
                "steps": step_counts.count(grouped, k, every_step_drafts=drafts_every_step(facts)),
                "steps_from": "bursts",
                "num_step_tokens": sum(step.num_tokens for step in grouped),
            }
        result[index] = msgspec.structs.replace(requests[index], **changes)
    return result


def _uncounted(requests: Sequence[Measured]) -> str | None:
    """Why bursts cannot be counted: events must be tokens, or say how many they carry."""
    told = [r for r in requests if r.arrivals and r.latency.tokens == "server"]
    events = sum(sum(r.arrivals.event_tokens) for r in told if r.arrivals)
    tokens = sum(r.num_tokens for r in told)
    if events >= (1 - MAX_UNCOUNTED_SHARE) * tokens:
        return None
    return (
        f"{tokens - events} of {tokens} tokens came in events that carry several without saying "
        "how many"
    )


def _buffered(requests: Sequence[Measured]) -> str | None:
    """Why bursts cannot be counted: they may be a proxy's."""
    held = sum(request.latency.buffered for request in requests)
    return f"something buffers the stream ({held} of {len(requests)} answers)" if held else None


def _steps_by_events(
    record: RequestRecord, facts: ArmFacts | None
) -> tuple[SpecDecodeCounters | None, int]:
    """An event is about a step and does not say its tokens: sums alone, no positions."""
    num_steps = len(record.event_at_s) - 1
    if num_steps < 0 or not record.completion_tokens:
        return None, 0
    num_tokens = record.completion_tokens - 1
    k = facts.num_speculative_tokens if facts else None
    sure = drafts_every_step(facts)
    return SpecDecodeCounters(
        num_drafts=float(num_steps) if sure else None,
        num_draft_tokens=float(k * num_steps) if sure and k else None,
        num_accepted_tokens=float(max(0, num_tokens - num_steps)),
        num_steps=float(num_steps),
    ), num_tokens


def _keep_arrivals(record: RequestRecord) -> KeptArrivals:
    tokens = (1 if number is None else min(number, 255) for number in record.event_tokens)
    return KeptArrivals(
        sent_at_s=record.sent_at_s,
        closed_at_s=record.closed_at_s,
        event_at_s=array("d", record.event_at_s),
        event_tokens=array("B", tokens),
    )


def _draft_length(counts: SpecDecodeCounters | None) -> int:
    """Proposed tokens a draft, where a request's counts tell both and every draft has as many."""
    if counts is None or not counts.num_drafts or counts.num_draft_tokens is None:
        return 0
    length = counts.num_draft_tokens / counts.num_drafts
    return int(length) if length == int(length) else 0


def drafts_every_step(facts: ArmFacts | None) -> bool:
    """Whether each decode step of this arm verifies a draft of constant length."""
    method = (facts.speculative_method or "") if facts else ""
    return any(word in method.lower() for word in EVERY_STEP_DRAFTS)


def is_speculative(facts: ArmFacts) -> bool:
    """Whether the arm is known to draft."""
    return bool(facts.num_speculative_tokens or facts.speculative_method not in (None, "none"))


def is_looped(text: str) -> bool:
    """Whether the end of a text repeats itself: looped text fakes acceptance.

    The smallest period p <= 120 characters for which the last max(160, 4 p) characters repeat.
    """
    text = text.rstrip()
    if len(text) < LOOP_CHARACTERS:
        return False
    for period in range(1, LOOP_PERIOD + 1):
        length = max(LOOP_CHARACTERS, LOOP_TIMES * period)
        if length > len(text):
            return False
        tail = text[-length:]
        if tail[period:] == tail[:-period]:
            return True
    return False
