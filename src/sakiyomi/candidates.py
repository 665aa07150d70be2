"""The arms of a path as candidates: speedup, limits, and what rules an arm out. Pure."""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from sakiyomi import slo, stats, verdicts
from sakiyomi.lossless import TextCheck
from sakiyomi.measured import Measured
from sakiyomi.pairing import pair
from sakiyomi.plan import Load, Slo
from sakiyomi.record import ArmFacts
from sakiyomi.results import Cell, Comparison, Report
from sakiyomi.slo import LimitCheck, Standing
from sakiyomi.stats import Estimate
from sakiyomi.verdicts import Verdict

Requests = Mapping[tuple[str, str, str], Sequence[Measured]]
Exclusion = Literal["forced_acceptance", "lossy_acceptance", "text_differs", "all_failed"]
Outcome = Literal["reference", "wins", "no_gain", "open"]


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One arm on one path. `ratio` is its speedup over the path's reference arm.

    `outcome`: `wins` by an established gain of at least min_gain; `no_gain` when that is settled
    the other way; `open` when the interval says neither. `standing`: the path's limits.
    """

    arm: str
    model: str | None
    num_speculative_tokens: int | None
    decode_tokens_per_s: Estimate | None
    ratio: Estimate | None
    verdict: Verdict | None
    outcome: Outcome
    standing: Standing
    limits: tuple[LimitCheck, ...]
    excluded: Exclusion | None
    acceptance_rate: Estimate | None
    tokens_per_step: Estimate | None
    step_cost: Estimate | None
    break_even_rate: Estimate | None
    num_failed: int
    cautions: tuple[str, ...]


def find_candidates(
    place: tuple[str, Load],
    report: Report,
    requests: Requests,
    arms: Mapping[str, ArmFacts],
    limits: Slo | None,
    texts: Sequence[TextCheck],
) -> tuple[Candidate, ...]:
    """Every arm of a path and load, in the order of the plan; speedups over the baseline."""
    scenario, load = place
    found = []
    for cell in report.cells:
        if (cell.scenario, cell.load) != (scenario, load) or cell.arm not in arms:
            continue
        mine = requests.get((scenario, cell.arm, load.label), ())
        checks = (
            slo.check_limits(limits, mine)
            if mine
            else slo.check_points(limits, _point(cell.decode_tokens_per_s))
        )
        compared = _comparison(report, cell)
        text = next(
            (t for t in texts if (t.scenario, t.arm, t.load) == (scenario, cell.arm, load.label)),
            None,
        )
        found.append(
            Candidate(
                arm=cell.arm,
                model=arms[cell.arm].model,
                num_speculative_tokens=cell.num_speculative_tokens,
                decode_tokens_per_s=cell.decode_tokens_per_s,
                ratio=compared.ratio if compared else None,
                verdict=compared.verdict if compared else None,
                outcome="reference",
                standing=slo.standing_of(checks),
                limits=checks,
                excluded=_exclusion(cell, arms[cell.arm], text),
                acceptance_rate=cell.acceptance.draft_acceptance_rate if cell.acceptance else None,
                tokens_per_step=cell.tokens_per_step,
                step_cost=compared.step_cost if compared else None,
                break_even_rate=compared.break_even_rate if compared else None,
                num_failed=cell.num_failed,
                cautions=tuple(dict.fromkeys(caution.kind for caution in cell.cautions)),
            )
        )
    return tuple(found)


def against(
    candidate: Candidate,
    reference: Candidate,
    place: tuple[str, str],
    requests: Requests,
    *,
    baseline: str,
    min_gain: float,
) -> Candidate:
    """The candidate with its outcome against the reference, paired anew if that is no baseline."""
    if candidate.arm == reference.arm:
        return msgspec.structs.replace(candidate, ratio=None, verdict=None, outcome="reference")
    ratio = candidate.ratio
    if reference.arm != baseline:
        mine = requests.get((place[0], candidate.arm, place[1]))
        base = requests.get((place[0], reference.arm, place[1]))
        ratio = (
            stats.compare([unit.log_ratios for unit in pair(mine, base)])
            if mine and base
            else _ratio_of_points(candidate, reference)
        )
    verdict = verdicts.verdict(ratio, min_gain)
    return msgspec.structs.replace(
        candidate, ratio=ratio, verdict=verdict, outcome=outcome_of(ratio, verdict, min_gain)
    )


def outcome_of(ratio: Estimate | None, verdict: Verdict, min_gain: float) -> Outcome:
    """`wins`: established and at least min_gain. What is established otherwise is no gain."""
    if ratio is None or verdict == "not_established":
        return "open"
    return "wins" if verdict == "faster" and ratio.point >= 1 + min_gain else "no_gain"


def _ratio_of_points(candidate: Candidate, reference: Candidate) -> Estimate | None:
    mine, base = candidate.decode_tokens_per_s, reference.decode_tokens_per_s
    if mine is None or base is None:
        return None
    return Estimate(point=mine.point / base.point, low=None, high=None, n=0)


def _exclusion(cell: Cell, arm: ArmFacts, text: TextCheck | None) -> Exclusion | None:
    if arm.forced_acceptance:
        return "forced_acceptance"
    if arm.lossy_acceptance:
        return "lossy_acceptance"
    if cell.num_requests and cell.num_failed == cell.num_requests:
        return "all_failed"
    return "text_differs" if text is not None and text.verdict == "differs" else None


def _comparison(report: Report, cell: Cell) -> Comparison | None:
    return next(
        (
            c
            for c in report.comparisons
            if (c.scenario, c.arm, c.load) == (cell.scenario, cell.arm, cell.load)
        ),
        None,
    )


def _point(estimate: Estimate | None) -> float | None:
    return estimate.point if estimate else None
