"""A record -> the few numbers of it that cells are made of. Keeps memory flat."""

import msgspec

from sakiyomi import steps as step_counts
from sakiyomi.engines.engine import Engine
from sakiyomi.latency import RequestLatency, measure
from sakiyomi.record import ArmFacts, RequestError, RequestKey, RequestRecord, SpecDecodeCounters
from sakiyomi.stats import median

EVERY_STEP_DRAFTS = ("mtp", "eagle", "eagle3", "draft_model", "dflash", "nextn", "standalone")
"""Methods whose every decode step has a draft of constant length (engines, section 1.6)."""

LOOP_CHARACTERS = 160
"""A tail this long that repeats itself at least this often is a loop, not an answer."""
LOOP_TIMES = 4
LOOP_PERIOD = 120


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One request, reduced. `gap_s`: its median gap between events. `steps`: counts of its steps.

    `num_step_tokens`: tokens of its decode steps. `num_merged_steps`: events that carried more than
    k + 1 tokens, so more than one step.
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
    sent_at_s: float
    closed_at_s: float
    max_tokens: int | None


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
        merged = sum(step.num_tokens > k + 1 for step in grouped) if k else 0
    response = engine.read_response(record)
    if response is None and steps is not None and steps.num_draft_tokens == 0:
        response = steps  # an engine that tells drafts with every event, and had none
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
        looped=is_looped("".join(record.event_text)),
        sent_at_s=record.sent_at_s,
        closed_at_s=record.closed_at_s,
        max_tokens=record.max_tokens,
    )


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
