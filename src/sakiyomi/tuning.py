"""From a run's predictions to a second run that confirms them, and how far they were off. Pure."""

import math
from collections.abc import Sequence

import msgspec

from sakiyomi.engines.engine import with_speculation
from sakiyomi.errors import PlanError
from sakiyomi.path_lengths import PathLength
from sakiyomi.plan import Arm, Plan
from sakiyomi.results import Report
from sakiyomi.stats import Estimate


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """One draft length of one path: predicted by the first run, measured by the second.

    `agrees`: the two intervals overlap; None where one of them is missing.
    """

    scenario: str
    arm: str
    num_speculative_tokens: int
    predicted: Estimate
    measured: Estimate
    error: float
    """Measured over predicted, minus 1."""
    agrees: bool | None


def choose_lengths(paths: Sequence[PathLength], arm: str) -> tuple[int, ...]:
    """The best two draft lengths over all paths: those that lose least in the mean."""
    rows: dict[int, list[float]] = {}
    for path in paths:
        if path.best_k.arm == arm:
            for row in path.best_k.rows:
                rows.setdefault(row.num_speculative_tokens, []).append(row.loss)
    losses = {k: math.fsum(found) / len(found) for k, found in rows.items()}
    return tuple(sorted(sorted(losses, key=lambda k: (losses[k], k))[:2]))


def tunable_arms(plan: Plan) -> list[Arm]:
    """Launched arms with a draft length, which sakiyomi can change between runs."""
    return [
        arm
        for arm in plan.arms
        if arm.url is None and arm.speculation and arm.speculation.num_speculative_tokens
    ]


def tunable_arm(plan: Plan) -> Arm:
    """The tunable arm with the longest drafts. Raises PlanError where there is none."""
    found = tunable_arms(plan)
    if not found:
        raise PlanError(
            f"{plan.name}: --tune: no launched arm has a draft length",
            "sakiyomi changes it between runs: give an arm engine, model and "
            "speculation = { method = ..., num_speculative_tokens = ... }",
        )
    return max(found, key=_length)


def tuning_plan(plan: Plan, arm: Arm, lengths: Sequence[int]) -> Plan:
    """The baseline and the arm at each length, paired on the same scenarios."""
    arms = [
        msgspec.structs.replace(with_speculation(arm, k, {}), name=f"{arm.name}-at-k{k}")
        for k in lengths
    ]
    return msgspec.structs.replace(plan, name=f"{plan.name} tune", arms=(plan.arms[0], *arms))


def confirm(paths: Sequence[PathLength], arm: str, report: Report) -> tuple[Tuned, ...]:
    """Predicted against measured, for every path and length of the second run."""
    lengths = {cell.arm: cell.num_speculative_tokens for cell in report.cells}
    found = []
    for comparison in report.comparisons:
        k = lengths.get(comparison.arm)
        predicted = next(
            (
                row.speedup
                for path in paths
                if path.best_k.arm == arm
                and (path.scenario, path.load) == (comparison.scenario, comparison.load)
                for row in path.best_k.rows
                if row.num_speculative_tokens == k
            ),
            None,
        )
        if predicted is None or comparison.ratio is None or k is None:
            continue
        found.append(
            Tuned(
                scenario=comparison.scenario,
                arm=comparison.arm,
                num_speculative_tokens=k,
                predicted=predicted,
                measured=comparison.ratio,
                error=comparison.ratio.point / predicted.point - 1,
                agrees=_overlap(predicted, comparison.ratio),
            )
        )
    return tuple(found)


def _overlap(one: Estimate, other: Estimate) -> bool | None:
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return None
    return one.low <= other.high and other.low <= one.high


def _length(arm: Arm) -> int:
    return (arm.speculation.num_speculative_tokens or 0) if arm.speculation else 0
