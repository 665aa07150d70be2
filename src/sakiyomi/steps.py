"""Decode steps of one request from what its events tell. The first event belongs to prefill."""

from collections.abc import Sequence

import msgspec

from sakiyomi.record import RequestRecord, SpecDecodeCounters, Step


def from_event_tokens(record: RequestRecord) -> list[Step] | None:
    """One step an event: engines that send a chunk per decode step (vLLM, SGLang, LMDeploy).

    The first token-bearing event is prefill's and is left out. None when the token count of a
    later event is unknown. A step of more than k+1 tokens is a merged chunk: the caller's check.
    """
    tokens = record.event_tokens[1:]
    if not record.event_tokens or any(number is None for number in tokens):
        return None
    return [Step(num_tokens=number) for number in tokens if number]


class MarkGroup(msgspec.Struct, frozen=True):
    """Neighbouring events with one mark, the last step's; what the running totals grew by.

    A step whose events were all held back (incomplete characters) has no group of its own: its
    tokens and drafts are in the next group's.
    """

    num_tokens: int
    num_draft_tokens: int
    num_accepted_tokens: int


def mark_groups(record: RequestRecord) -> list[MarkGroup] | None:
    """Events grouped by `event_step_mark`; None when there is none or one is missing.

    Totals are missing until the first draft, which then means 0.
    """
    marks = record.event_step_mark
    if not marks or any(mark is None for mark in marks):
        return None
    ends = [*(i for i in range(1, len(marks)) if marks[i] != marks[i - 1]), len(marks)]
    groups, start = [], 0
    for end in ends:
        groups.append(
            MarkGroup(
                sum(_tokens(record, index) for index in range(start, end)),
                _grown(record.event_num_draft_tokens, start, end),
                _grown(record.event_num_accepted_tokens, start, end),
            )
        )
        start = end
    return groups


def from_step_marks(record: RequestRecord) -> list[Step] | None:
    """One step a group of events (llama.cpp: one event a token); the first group is prefill's."""
    groups = mark_groups(record)
    if groups is None:
        return None
    told = any(total is not None for total in record.event_num_draft_tokens)
    return [
        Step(
            num_tokens=group.num_tokens,
            num_draft_tokens=group.num_draft_tokens if told else None,
            num_accepted_tokens=group.num_accepted_tokens if told else None,
        )
        for group in groups[1:]
        if group.num_tokens
    ]


def count(
    steps: Sequence[Step],
    num_speculative_tokens: int | None = None,
    every_step_drafts: bool = False,
) -> SpecDecodeCounters:
    """Sums of steps. Where steps do not tell their drafts, num_tokens - 1 of each was accepted.

    `every_step_drafts` (MTP, EAGLE, a draft model with constant k): drafts = steps, and proposed
    tokens = k x steps. Without it both stay unknown.
    """
    told = bool(steps) and all(step.num_draft_tokens is not None for step in steps)
    if told:
        drafting = [step for step in steps if step.num_draft_tokens]
        accepted = [step.num_accepted_tokens or 0 for step in drafting]
        num_drafts: float | None = float(len(drafting))
        num_draft_tokens: float | None = float(sum(s.num_draft_tokens or 0 for s in drafting))
    else:
        accepted = [step.num_tokens - 1 for step in steps]
        num_drafts = float(len(steps)) if every_step_drafts else None
        num_draft_tokens = (
            float(len(steps) * num_speculative_tokens)
            if every_step_drafts and num_speculative_tokens
            else None
        )
    return SpecDecodeCounters(
        num_drafts=num_drafts,
        num_draft_tokens=num_draft_tokens,
        num_accepted_tokens=float(sum(accepted)),
        accepted_per_position=per_position(accepted, num_speculative_tokens),
        num_steps=float(len(steps)),
    )


def per_position(
    accepted: Sequence[int], num_speculative_tokens: int | None = None
) -> tuple[float, ...]:
    """Element i: steps in which at least i+1 drafts were accepted."""
    depth = max([num_speculative_tokens or 0, *accepted])
    return tuple(float(sum(n > position for n in accepted)) for position in range(depth))


def reversed_cumulative(histogram: Sequence[float]) -> tuple[float, ...]:
    """Steps with exactly j accepted (j = 0..k) -> steps with at least i+1 accepted (i = 0..k-1)."""
    return tuple(float(sum(histogram[position:])) for position in range(1, len(histogram)))


def _tokens(record: RequestRecord, index: int) -> int:
    number = record.event_tokens[index] if index < len(record.event_tokens) else None
    return 1 if number is None else number


def _grown(totals: Sequence[int | None], start: int, end: int) -> int:
    """Growth of a running total over the events start..end-1; 0 where totals are not told."""
    if len(totals) < end:
        return 0
    return (totals[end - 1] or 0) - ((totals[start - 1] or 0) if start else 0)
