"""Arms side by side: paired by conversation and repeat, speedups and step costs. Pure."""

import math
from collections.abc import Mapping, Sequence

import msgspec

from sakiyomi import sequential, stats, verdicts
from sakiyomi.measured import Measured, is_speculative
from sakiyomi.plan import Plan
from sakiyomi.record import ArmFacts, Looks
from sakiyomi.repeat_noise import repeat_means
from sakiyomi.results import Cell, Comparison

PLAIN_STEP = 0.02
"""A baseline whose tokens per step lie within this of 1 is a plain one."""


class Paired(msgspec.Struct, frozen=True):
    """One conversation in both arms: ln(arm / baseline) by repeat, and the arm's step counts."""

    conversation_id: str
    log_ratios: list[float]
    num_step_tokens: float
    num_steps: float


def pair(arm: Sequence[Measured], baseline: Sequence[Measured]) -> list[Paired]:
    """Pair decode rates by conversation and repeat: same prompt, alternating arms.

    A conversation's rate in a repeat is its decoded tokens over its decoding time, all turns
    together. Steps are left out where events of the cell hold several and nobody tells how many:
    the others then may hold several too.
    """
    ours, theirs = _rates(arm), _rates(baseline)
    steps: dict[str, list[float]] = {}
    merged = any(r.num_merged_steps and r.num_told_steps is None for r in arm)
    for request in [] if merged else arm:
        if request.error is None and request.decoding is not None:
            unit = steps.setdefault(request.key.conversation_id, [0.0, 0.0])
            unit[0] += request.decoding[0]
            unit[1] += request.decoding[1]
    paired: dict[str, list[float]] = {}
    for (conversation_id, repeat), rate in sorted(ours.items()):
        other = theirs.get((conversation_id, repeat))
        if other:
            paired.setdefault(conversation_id, []).append(math.log(rate / other))
    return [Paired(name, ratios, *steps.get(name, [0.0, 0.0])) for name, ratios in paired.items()]


def _rates(requests: Sequence[Measured]) -> dict[tuple[str, int], float]:
    sums: dict[tuple[str, int], list[float]] = {}
    for request in requests:
        rate = request.latency.decode_tokens_per_s
        if request.error is None and rate:
            tokens = request.num_tokens - (request.latency.first_event_tokens or 1)
            unit = sums.setdefault((request.key.conversation_id, request.key.repeat), [0.0, 0.0])
            unit[0] += tokens
            unit[1] += tokens / rate
    return {key: tokens / seconds for key, (tokens, seconds) in sums.items() if seconds > 0}


def compare_arms(
    plan: Plan,
    arms: Mapping[str, ArmFacts],
    requests: Mapping[tuple[str, str, str], list[Measured]],
    cells: Sequence[Cell],
    looks: Looks | None = None,
) -> list[Comparison]:
    """Every cell against the baseline's cell of the same scenario and load.

    `looks`: the run looked as it went, so that the interval is that of its last look.
    """
    baseline = plan.arms[0].name
    found = []
    for cell in cells:
        base = requests.get((cell.scenario, baseline, cell.load.label))
        if cell.arm == baseline or not base:
            continue
        units = pair(requests[cell.scenario, cell.arm, cell.load.label], base)
        log_ratios = [unit.log_ratios for unit in units]
        ratio = (
            sequential.sequential_estimate(log_ratios, looks.look, looks.max_looks)
            if looks
            else stats.compare(log_ratios)
        )
        cost = None
        base_cell = next(
            c for c in cells if (c.scenario, c.arm, c.load) == (cell.scenario, baseline, cell.load)
        )
        if cell.tokens_per_step and _is_plain(base_cell, arms[baseline]):
            cost = stats.estimate_step_cost(
                [(u.num_step_tokens, u.num_steps, u.log_ratios) for u in units if u.num_steps]
            )
        proposed = proposed_per_step(cell)
        found.append(
            Comparison(
                scenario=cell.scenario,
                arm=cell.arm,
                baseline=baseline,
                load=cell.load,
                metric="decode_tokens_per_s",
                ratio=ratio,
                verdict=verdicts.verdict(ratio, plan.min_gain),
                step_cost=cost,
                break_even_rate=stats.break_even_rate(cost, proposed)
                if cost and proposed
                else None,
                repeat_ratios=[math.exp(mean) for mean in repeat_means(log_ratios)],
                limited_by_repeats=stats.is_limited_by_repeats(log_ratios),
            )
        )
    return found


def _is_plain(cell: Cell, facts: ArmFacts) -> bool:
    """A step cost is against a plain step: the baseline must not speculate."""
    if cell.tokens_per_step is None:
        return not is_speculative(facts)
    return abs(cell.tokens_per_step.point - 1) <= PLAIN_STEP


FULL_COVERAGE = 0.98
"""Share of steps with a draft above which every step counts as one of length k."""


def drafts_fully(cell: Cell) -> bool:
    """Whether every decode step of the cell had a draft, as far as is known."""
    coverage = cell.acceptance.draft_coverage if cell.acceptance else None
    return coverage is None or coverage >= FULL_COVERAGE


def proposed_per_step(cell: Cell) -> float | None:
    """Draft tokens proposed per decode step: k, or fewer where some steps have no draft.

    An n-gram drafter that finds something in one step of five pays its step cost back only with a
    fifth of k tokens to accept; the break-even rate may then lie above 1: it cannot pay.
    """
    found = cell.acceptance
    if found is None or found.draft_coverage is None or drafts_fully(cell):
        return cell.num_speculative_tokens
    if not found.num_drafts or not found.num_draft_tokens:
        return None
    return found.draft_coverage * found.num_draft_tokens / found.num_drafts
