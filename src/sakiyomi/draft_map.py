"""A map of an answer: how each stretch of it came, from per-step evidence. Pure.

Engines that send an event per token with step marks (llama.cpp) give one piece a token; engines
that send a chunk per step (vLLM) give one piece a step, because a chunk's text cannot be split.
"""

from collections.abc import Sequence

from sakiyomi import steps
from sakiyomi.detail import Mark, Piece
from sakiyomi.engines.engine import Engine
from sakiyomi.measured import drafts_every_step, is_speculative
from sakiyomi.record import ArmFacts, RequestRecord, Step


def map_answer(record: RequestRecord, engine: Engine, facts: ArmFacts) -> list[Piece] | None:
    """Pieces in order; None for an arm that does not draft, or events that do not tell steps."""
    if not is_speculative(facts) or not record.event_at_s:
        return None
    marks = steps.mark_groups(record)
    if marks is not None:
        return _from_marks(record, marks)
    found = engine.group_steps(record)
    return None if found is None else _from_chunks(record, found, facts)


def _from_marks(record: RequestRecord, marks: Sequence[steps.MarkGroup]) -> list[Piece]:
    """Events of one mark are a step: its i-th is the i-th draft token, the last one its own.

    Where text was held back a step has fewer events than tokens: they are marked as a whole.
    """
    pieces: list[Piece] = []
    events = _events_by_group(record.event_step_mark)
    for number, (indices, told) in enumerate(zip(events, marks, strict=True)):
        is_prefill = number == 0 and told.num_draft_tokens == 0
        one_each = len(indices) == told.num_tokens
        for place, index in enumerate(indices, start=1):
            mark: Mark = "first" if is_prefill else _mark(told, place if one_each else None)
            pieces.append(
                Piece(
                    record.event_text[index],
                    mark,
                    number,
                    _after_ms(record, index),
                    1 if one_each else told.num_tokens * (place == 1),
                    place if mark == "accepted" else None,
                    None if is_prefill or mark == "unknown" else told.num_accepted_tokens,
                    None if is_prefill or mark == "unknown" else told.num_draft_tokens,
                    record.event_kind[index],
                )
            )
    return pieces


def _events_by_group(step_mark: Sequence[float | None]) -> list[list[int]]:
    groups: list[list[int]] = []
    for index, mark in enumerate(step_mark):
        if index == 0 or mark != step_mark[index - 1]:
            groups.append([])
        groups[-1].append(index)
    return groups


def _mark(told: steps.MarkGroup, place: int | None) -> Mark:
    """How the token at `place` of a step came; None: its events are not its tokens one by one."""
    if told.num_draft_tokens == 0:
        return "plain"
    if told.num_tokens > told.num_accepted_tokens + 1:
        return "unknown"  # tokens of a step that was held back are among them
    if place is None:
        return "step"
    if place <= told.num_accepted_tokens:
        return "accepted"
    return "bonus" if told.num_accepted_tokens == told.num_draft_tokens else "corrected"


def _from_chunks(record: RequestRecord, found: Sequence[Step], facts: ArmFacts) -> list[Piece]:
    """One event a step: `n` tokens are n - 1 accepted drafts and the target's own token."""
    k = facts.num_speculative_tokens
    pieces: list[Piece] = []
    remaining = iter(found)
    for index, tokens in enumerate(record.event_tokens):
        if index == 0:
            pieces.append(_chunk(record, 0, "first", 0, None))
            continue
        step = next(remaining, None) if tokens else None
        if step is None:
            mark: Mark = "unknown"
        elif k and step.num_tokens > k + 1:
            mark, step = "unknown", None
        elif step.num_draft_tokens == 0:
            mark = "plain"
        elif step.num_tokens == 1 and (step.num_draft_tokens or drafts_every_step(facts)):
            mark = "corrected"
        else:
            mark = "step"
        pieces.append(_chunk(record, index, mark, index, step))
    return pieces


def _chunk(record: RequestRecord, index: int, mark: Mark, number: int, step: Step | None) -> Piece:
    accepted = None
    if step is not None:
        accepted = step.num_accepted_tokens
        accepted = max(0, step.num_tokens - 1) if accepted is None else accepted
    return Piece(
        record.event_text[index],
        mark,
        number,
        _after_ms(record, index),
        record.event_tokens[index] or 0,
        None,
        accepted,
        step.num_draft_tokens if step else None,
        record.event_kind[index],
    )


def _after_ms(record: RequestRecord, index: int) -> float:
    return round((record.event_at_s[index] - record.sent_at_s) * 1000, 1)
