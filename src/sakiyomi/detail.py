"""What a page shows beyond the table, as types: requests, answers, segments."""

from typing import Literal

import msgspec

from sakiyomi.stats import Estimate

Mark = Literal["first", "accepted", "bonus", "corrected", "plain", "step", "unknown"]
"""How tokens came. `first`: prefill's. `accepted`: a draft token. `bonus`: the target's own after
a draft accepted whole. `corrected`: its own after a rejection. `plain`: of a step without a draft.
`step`: a whole step in one piece, accepted drafts first. `unknown`: several steps in one event."""


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """A stretch of an answer that came together. Encoded as an array: answers have thousands.

    `after_ms`: arrival after the request was sent. `position`: of the accepted draft token in its
    draft, from 1. `num_draft_tokens` is None where the engine does not tell.
    """

    text: str
    mark: Mark
    step: int
    after_ms: float
    num_tokens: int
    position: int | None
    num_accepted_tokens: int | None
    num_draft_tokens: int | None
    kind: str


class RequestRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request of the page. `at_s`: sent, after the first request of its pass.

    `pieces` or `text` hold the answer where it fitted into the page.
    """

    scenario: str
    arm: str
    load: str
    conversation_id: str
    turn: int
    repeat: int
    at_s: float
    num_tokens: int
    warmup: bool = False
    prompt_tokens: int | None = None
    ttft_s: float | None = None
    decode_tokens_per_s: float | None = None
    e2e_s: float | None = None
    num_accepted_tokens: float | None = None
    num_draft_tokens: float | None = None
    finish_reason: str | None = None
    error: str | None = None
    looped: bool = False
    text: str | None = None
    pieces: list[Piece] | None = None


class RequestList(msgspec.Struct, frozen=True, kw_only=True):
    """The requests behind the numbers, as many as a page holds.

    `num_requests`: how many there are; `num_answers`: how many rows have their answer.
    `prompts`: user turns by scenario and conversation, where the scenario is still the one asked.
    """

    rows: list[RequestRow]
    num_requests: int
    num_answers: int
    prompts: dict[str, dict[str, list[str]]] = {}


class SegmentRate(msgspec.Struct, frozen=True, kw_only=True):
    """Acceptance of the decode steps that fall into one segment of the answers.

    `difference`: rate here minus rate in all other steps of the dimension, in the same cell.
    """

    scenario: str
    arm: str
    load: str
    dimension: str
    segment: str
    num_steps: int
    rate: Estimate
    difference: Estimate | None


class SegmentReport(msgspec.Struct, frozen=True, kw_only=True):
    """All segments; `largest`: indices of the three largest differences whose interval is not 0.

    `num_compared` differences were looked at: some intervals miss by chance.
    """

    rates: list[SegmentRate]
    largest: list[int]
    num_compared: int
    summary: list[str]
