"""llama.cpp's decode steps from its events, also where text was held back.

An event is sent when a token completes a character. Japanese in byte pairs, or a parser, holds
tokens back: an event then stands for several tokens, and a step whose tokens were all held back
has no event. Its tokens and drafts are in the running totals of the next one (seen with b11549).
Every step emits its accepted drafts and one token, which tells how many steps there were.
"""

import msgspec

from sakiyomi import steps
from sakiyomi.engines.engine import whole
from sakiyomi.record import RequestRecord, Step

MAX_TAIL_TOKENS = 8
"""Tokens after the last event: an answer cut inside a character, one step at most."""


class StepGroup(msgspec.Struct, frozen=True):
    """One step, or several that cannot be told apart, with what they drafted together."""

    num_steps: int
    num_draft_tokens: int
    num_accepted_tokens: int


def find_groups(record: RequestRecord) -> list[StepGroup] | None:
    """The request's decode steps; None where the events do not add up to its tokens.

    Needs the number of tokens up to each event (`timings.predicted_n`).
    """
    marks = steps.mark_groups(record)
    if marks is None:
        return None
    told = sum(mark.num_tokens for mark in marks)
    total = record.completion_tokens or told
    if not 0 <= total - told <= MAX_TAIL_TOKENS:
        return None
    found: list[StepGroup] = []
    produced, seen = 1, 0  # tokens of complete steps, prefill's among them; tokens up to here
    drafted = accepted = 0
    for mark in marks:
        seen += mark.num_tokens
        drafted += mark.num_draft_tokens
        accepted += mark.num_accepted_tokens
        num_steps = max(0, seen - produced - mark.num_accepted_tokens)
        if not found and num_steps == 0 and mark.num_draft_tokens == 0:
            continue  # prefill's own token
        num_steps = max(1, num_steps)
        produced += num_steps + mark.num_accepted_tokens
        found.append(StepGroup(num_steps, mark.num_draft_tokens, mark.num_accepted_tokens))
    rest = _rest(record, total - produced, drafted, accepted)
    return [*found, rest] if rest else found


def steps_of(groups: list[StepGroup]) -> list[Step]:
    """Groups as steps. Drafts are told only of a step that stands alone."""
    found: list[Step] = []
    for group in groups:
        if group.num_steps == 1:
            found.append(
                Step(
                    num_tokens=1 + group.num_accepted_tokens,
                    num_draft_tokens=group.num_draft_tokens,
                    num_accepted_tokens=group.num_accepted_tokens,
                )
            )
            continue
        each, more = divmod(group.num_accepted_tokens, group.num_steps)
        plain = 0 if group.num_draft_tokens == 0 else None
        found += [
            Step(
                num_tokens=1 + each + (index < more),
                num_draft_tokens=plain,
                num_accepted_tokens=plain,
            )
            for index in range(group.num_steps)
        ]
    return found


def num_drafts(groups: list[StepGroup]) -> int:
    """Steps that had a draft.

    Of steps that cannot be told apart: all, where every step that stands alone drafts (a draft
    model, MTP); else the fewest that hold the tokens drafted (n-gram drafts are rare). An answer's
    last step says nothing of the others: for a single token up to the cap nothing is drafted.
    """
    alone = [group.num_draft_tokens for group in groups if group.num_steps == 1]
    early = [group.num_draft_tokens for group in groups[:-1] if group.num_steps == 1]
    together = [group for group in groups if group.num_steps > 1 and group.num_draft_tokens]
    found = sum(drafted > 0 for drafted in alone)
    if 0 not in early:
        return found + sum(group.num_steps for group in together)
    k = max(alone)
    return found + sum(
        min(-(-group.num_draft_tokens // k), group.num_steps) if k else 1 for group in together
    )


def _rest(record: RequestRecord, missing: int, drafted: int, accepted: int) -> StepGroup | None:
    """Steps after the last event: the final timings know their drafts."""
    timings = record.evidence.get("timings")
    timings = timings if isinstance(timings, dict) else {}
    more_drafted = max(0, (whole(timings.get("draft_n")) or drafted) - drafted)
    more_accepted = max(0, (whole(timings.get("draft_n_accepted")) or accepted) - accepted)
    num_steps = missing - more_accepted
    return StepGroup(num_steps, more_drafted, more_accepted) if num_steps > 0 else None
