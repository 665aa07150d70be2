"""Models of the step cost: C(k) = 1 + c0 + c k, from what was measured. Pure.

From a single C(K) the two parts cannot be told apart; two hypotheses bound them:

    A   c0 = 0: everything is paid per draft
    B   c from bytes (0 where unknown): the rest is paid once a step

Where conversations tell their own C, each gets its own line: what varies with a conversation, and
with a repeat, then stays together with its acceptance (`best_k`).
"""

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec

from sakiyomi.drafting import StepCost
from sakiyomi.stats import Estimate

LEAST_COST = 0.1
"""Of a plain step. Noise of a short answer, carried on along a line, may ask for less than 0."""

OwnCosts = Mapping[str, Mapping[int, Sequence[float]]]
"""Conversation -> measured k -> C(k) in each repeat."""


class OwnCost(msgspec.Struct, frozen=True, kw_only=True):
    """C(k) of one conversation in one repeat: as measured where it was, else by its line."""

    line: StepCost
    measured: Mapping[int, float]

    def at(self, k: int) -> float:
        """C(k) in plain steps, above 0."""
        return max(self.measured.get(k) or self.line.at(k), LEAST_COST)


class CostModel(msgspec.Struct, frozen=True, kw_only=True):
    """C(k) under one hypothesis.

    `at`: measured C(k). `bounds`: lines through the lower and upper ends of what was measured, for
    all other k. `own`: the same by conversation and repeat, where they tell it.
    """

    name: str
    cost: StepCost
    bounds: tuple[StepCost, StepCost] | None = None
    at: Mapping[int, Estimate] = {}
    own: Mapping[str, tuple[OwnCost, ...]] = {}

    def estimate(self, k: int) -> Estimate:
        """C(k) with an interval, null where none is known."""
        if k in self.at:
            return self.at[k]
        ends = sorted(line.at(k) for line in self.bounds or ())
        return Estimate(
            point=self.cost.at(k),
            low=ends[0] if ends else None,
            high=ends[-1] if ends else None,
            n=min((found.n for found in self.at.values()), default=0),
        )


def one_cost_models(
    step_cost: Estimate, k: int, draft_cost: float | None, own: OwnCosts | None = None
) -> tuple[CostModel, ...]:
    """Hypotheses A and B from one measured C(K); `draft_cost`: c by bytes, in plain steps."""
    excess = step_cost.point - 1
    per_draft = min(max(draft_cost or 0.0, 0.0), max(excess, 0.0) / k)

    def all_per_draft(cost: Mapping[int, float]) -> StepCost:
        return StepCost(per_draft=(cost[k] - 1) / k)

    def rest_per_step(cost: Mapping[int, float]) -> StepCost:
        return StepCost(per_draft=per_draft, fixed=cost[k] - 1 - per_draft * k)

    rest = "B: per draft as bytes say, the rest per step" if draft_cost else "B: all of it once"
    return (
        _model("A: all of it per draft", all_per_draft, {k: step_cost}, own),
        _model(rest, rest_per_step, {k: step_cost}, own),
    )


def several_costs_model(costs: Mapping[int, Estimate], own: OwnCosts | None = None) -> CostModel:
    """A line through C at several measured k: least squares."""
    name = "measured at k = " + ", ".join(str(k) for k in sorted(costs))
    return _model(name, line_through, costs, own)


def line_through(costs: Mapping[int, float]) -> StepCost:
    """C at several k -> c0 and c, by least squares."""
    slope, intercept = fit_line([(float(k), cost) for k, cost in sorted(costs.items())])
    return StepCost(per_draft=slope, fixed=intercept - 1)


def line_bounds(
    costs: Mapping[int, Estimate], line: Callable[[Mapping[int, float]], StepCost]
) -> tuple[StepCost, StepCost] | None:
    """Lines through the lower and through the upper ends; None where an interval is missing."""
    lows = {k: cost.low for k, cost in costs.items() if cost.low is not None}
    highs = {k: cost.high for k, cost in costs.items() if cost.high is not None}
    return (line(lows), line(highs)) if len(lows) == len(highs) == len(costs) else None


def _model(
    name: str,
    line: Callable[[Mapping[int, float]], StepCost],
    costs: Mapping[int, Estimate],
    own: OwnCosts | None,
) -> CostModel:
    """A model whose line is drawn through the points, through their ends, and by conversation."""
    return CostModel(
        name=name,
        cost=line({k: cost.point for k, cost in costs.items()}),
        bounds=line_bounds(costs, line),
        at=dict(costs),
        own={
            conversation_id: tuple(
                OwnCost(line=line(measured), measured=measured)
                for repeat in zip(*by_k.values(), strict=False)
                if (measured := dict(zip(by_k, repeat, strict=True)))
            )
            for conversation_id, by_k in (own or {}).items()
        },
    )


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(slope, value at 0) of the least-squares line; through one point and 1 where k is one."""
    mean_x = math.fsum(x for x, _ in points) / len(points)
    mean_y = math.fsum(y for _, y in points) / len(points)
    spread = math.fsum((x - mean_x) ** 2 for x, _ in points)
    if spread == 0:
        return (mean_y - 1) / mean_x, 1.0
    slope = math.fsum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    return slope, mean_y - slope * mean_x
