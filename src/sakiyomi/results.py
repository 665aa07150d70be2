"""The report as types: section 5 of the contract. Computes nothing."""

from typing import Any, Literal

import msgspec

from sakiyomi.detail import RequestList, SegmentReport
from sakiyomi.plan import Load
from sakiyomi.record import Caution, Quality
from sakiyomi.stats import Estimate
from sakiyomi.verdicts import Verdict

SCHEMA = "sakiyomi.report/1"

Source = Literal["per_request", "counters", "events", "bursts", "gauge"]


class Acceptance(msgspec.Struct, frozen=True, kw_only=True):
    """How drafts fared in a cell; ratios of sums, intervals over conversations.

    `unit` says what was resampled: conversations; repeats where only counters exist; nothing but
    the drafts of published counts (an approximation, too narrow).
    """

    source: Source
    quality: Quality
    num_drafts: float | None
    num_draft_tokens: float | None
    num_accepted_tokens: float | None
    draft_acceptance_rate: Estimate | None
    mean_acceptance_length: Estimate | None
    per_position: list[float] | None
    unit: Literal["conversation", "repeat", "draft"] = "conversation"
    cross_check: dict[str, Any] | None = None
    """Another source beside it: {"source", "draft_acceptance_rate", ...}."""
    draft_coverage: float | None = None
    """Share of decode steps that had a draft; None where steps are not told."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """Scenario x arm x load: a row of the results. Times in seconds."""

    scenario: str
    arm: str
    load: Load
    num_requests: int
    num_failed: int
    num_repeats: int
    num_conversations: int
    ttft_s: Estimate | None
    time_to_answer_s: Estimate | None
    time_to_first_sentence_s: Estimate | None
    decode_tokens_per_s: Estimate | None
    tpot_s: Estimate | None
    inter_event_s: Estimate | None
    tokens_per_event: Estimate | None
    tokens_per_step: Estimate | None
    e2e_s: Estimate | None
    speech_margin_s: Estimate | None
    output_tokens_per_s: float | None
    num_output_tokens: int
    num_without_decode_rate: int
    finish_reasons: dict[str, int]
    cached_prompt_share: float | None
    tokens: Literal["server", "estimated"]
    acceptance: Acceptance | None
    num_speculative_tokens: int | None
    context_tokens: float | None
    """Mean over requests of the context in the middle of the answer; None: unknown."""
    repeats: list[dict[str, Any]]
    """Per repeat: {"repeat", "decode_tokens_per_s", "ttft_s"} medians: what drift looks like."""
    cautions: list[Caution]
    starts: list[dict[str, Any]] = []
    """Per start of a launched engine: {"start", "num_requests", "decode_tokens_per_s"}: what a
    restart changes. Empty for an attached one."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """An arm against the baseline, paired by conversation and repeat.

    `step_cost` is C(k) = tokens_per_step / speedup from the same conversations (analytics: C and E
    must come from the same units); `break_even_rate` = (C(k) - 1) / k, with the draft
    tokens proposed per step in place of k where some steps have no draft.
    """

    scenario: str
    arm: str
    baseline: str
    load: Load
    metric: str
    ratio: Estimate | None
    verdict: Verdict
    step_cost: Estimate | None = None
    break_even_rate: Estimate | None = None
    repeat_ratios: list[float] = []
    """The ratio in each repeat, over the conversations that both arms answered in all of them."""
    limited_by_repeats: bool = False
    """What a whole repeat shares widens the interval more than what conversations differ by."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a run says. Renderers read only this."""

    schema: str
    run: str
    name: str
    created: str
    baseline: str
    environment: dict[str, Any]
    arms: list[dict[str, Any]]
    scenarios: list[dict[str, Any]]
    cells: list[Cell]
    comparisons: list[Comparison]
    explanation: dict[str, Any] | None
    decision: dict[str, Any] | None
    cautions: list[Caution]
    provenance: str = "measured"
    num_repeats: int = 1
    requests: RequestList | None = None
    """The requests behind the numbers; for pages only."""
    plan_toml: str | None = None
    segments: SegmentReport | None = None
    why: dict[str, Any] | None = None
    """What entropy says of acceptance, from the `run --why` pass beside the run."""
    runs: list[dict[str, Any]] = []
    """Of a comparison: {"run", "created", "environment"} of each run; empty for a single one."""
