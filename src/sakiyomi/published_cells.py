"""Published numbers -> cells and comparisons, with what intervals their counts allow. Pure."""

from collections.abc import Mapping

from sakiyomi import drafting, stats, verdicts
from sakiyomi.plan import ClosedLoad
from sakiyomi.record import ArmFacts, Caution, PublishedCell, RunFacts
from sakiyomi.results import Acceptance, Cell, Comparison
from sakiyomi.stats import Estimate

NO_SPREAD = Caution(
    "published",
    "published numbers, not measured here: medians without their spread. Intervals of acceptance "
    "are an approximation from the number of drafts and too narrow for correlated ones",
)


def published_cells(facts: RunFacts) -> tuple[list[Cell], list[Comparison]]:
    """The report's rows from published points and counts."""
    arms = {arm.name: arm for arm in facts.arms}
    cells = [_cell(row, arms[row.arm]) for row in facts.published]
    baseline = facts.plan.arms[0].name
    comparisons = [
        comparison
        for row in facts.published
        if row.arm != baseline
        for base in facts.published
        if base.arm == baseline and base.scenario == row.scenario
        for comparison in [_compare(row, base, arms, facts.plan.min_gain)]
    ]
    return cells, comparisons


def length_estimate(row: PublishedCell, k: int | None) -> Estimate | None:
    """E = 1 + accepted / drafts, its interval from the drafts alone.

    The acceptance of each position is taken as iid (analytics: sd of about 1.15 accepted tokens a
    draft at k = 3).
    """
    if not k or not row.num_draft_tokens or row.num_accepted_tokens is None:
        return None
    num_drafts = row.num_draft_tokens / k
    rate = row.num_accepted_tokens / row.num_draft_tokens
    positions = drafting.iid_positions(drafting.acceptance_from_rate(rate, k), k)
    half = drafting.length_half_width(positions, num_drafts)
    point = 1 + row.num_accepted_tokens / num_drafts
    return Estimate(point=point, low=point - half, high=point + half, n=round(num_drafts))


def _cell(row: PublishedCell, arm: ArmFacts) -> Cell:
    k = arm.num_speculative_tokens
    length = length_estimate(row, k)
    plain_step = Estimate(point=1.0, low=None, high=None, n=0) if not k else None
    return Cell(
        scenario=row.scenario,
        arm=row.arm,
        load=ClosedLoad(),
        num_requests=0,
        num_failed=0,
        num_repeats=1,
        num_conversations=0,
        ttft_s=None,
        time_to_answer_s=None,
        time_to_first_sentence_s=None,
        decode_tokens_per_s=Estimate(point=row.decode_tokens_per_s, low=None, high=None, n=0),
        tpot_s=Estimate(point=1 / row.decode_tokens_per_s, low=None, high=None, n=0),
        inter_event_s=None,
        tokens_per_event=None,
        tokens_per_step=length or plain_step,
        e2e_s=None,
        speech_margin_s=None,
        output_tokens_per_s=None,
        num_output_tokens=0,
        num_without_decode_rate=0,
        finish_reasons={},
        cached_prompt_share=None,
        tokens="server",
        acceptance=_acceptance(row, length, k),
        num_speculative_tokens=k,
        context_tokens=None,
        repeats=[],
        cautions=[],
    )


def _acceptance(row: PublishedCell, length: Estimate | None, k: int | None) -> Acceptance | None:
    if length is None or not k or not row.num_draft_tokens:
        return None
    return Acceptance(
        source="counters",
        quality="derived",
        num_drafts=row.num_draft_tokens / k,
        num_draft_tokens=row.num_draft_tokens,
        num_accepted_tokens=row.num_accepted_tokens,
        draft_acceptance_rate=stats.transform(length, lambda value: (value - 1) / k),
        mean_acceptance_length=length,
        per_position=None,
        unit="draft",
    )


def _compare(
    row: PublishedCell, base: PublishedCell, arms: Mapping[str, ArmFacts], min_gain: float
) -> Comparison:
    """Speedup of two published medians. Its interval is that of E over the step cost C = E / S."""
    k = arms[row.arm].num_speculative_tokens
    length = length_estimate(row, k)
    point = row.decode_tokens_per_s / base.decode_tokens_per_s
    ratio = Estimate(point=point, low=None, high=None, n=0)
    cost = None
    if length is not None and arms[row.arm].model == arms[base.arm].model:
        cost_point = length.point / point
        cost = Estimate(point=cost_point, low=None, high=None, n=0)
        ratio = stats.transform(length, lambda value: value / cost_point)
    return Comparison(
        scenario=row.scenario,
        arm=row.arm,
        baseline=base.arm,
        load=ClosedLoad(),
        metric="decode_tokens_per_s",
        ratio=ratio,
        verdict=verdicts.verdict(ratio, min_gain),
        step_cost=cost,
        break_even_rate=stats.break_even_rate(cost, k) if cost and k else None,
    )
