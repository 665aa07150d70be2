"""Models of the step cost: C(k) = 1 + c0 + c k, from what was measured. Pure.

From a single C(K) the two parts cannot be told apart; two hypotheses bound them:

    A   c0 = 0: everything is paid per draft
    B   c from bytes (0 where unknown): the rest is paid once a step
"""

import math
from collections.abc import Mapping, Sequence

import msgspec

from sakiyomi.drafting import StepCost
from sakiyomi.stats import Estimate


class CostModel(msgspec.Struct, frozen=True, kw_only=True):
    """C(k) under one hypothesis; `at` holds the intervals of measured k, `spread` of all others.

    `spread`: relative half-width of C below and above, as factors (low / point, high / point).
    """

    name: str
    cost: StepCost
    spread: tuple[float, float] | None = None
    at: dict[int, Estimate] = {}

    def estimate(self, k: int) -> Estimate:
        """C(k) with an interval, null where none is known."""
        if k in self.at:
            return self.at[k]
        point = self.cost.at(k)
        low, high = self.spread or (None, None)
        return Estimate(
            point=point,
            low=None if low is None else point * low,
            high=None if high is None else point * high,
            n=min((found.n for found in self.at.values()), default=0),
        )


def one_cost_models(step_cost: Estimate, k: int, draft_cost: float | None) -> tuple[CostModel, ...]:
    """Hypotheses A and B from one measured C(K); `draft_cost`: c by bytes, in plain steps."""
    excess = step_cost.point - 1
    per_draft = min(max(draft_cost or 0.0, 0.0), max(excess, 0.0) / k)
    spread = None
    if step_cost.low is not None and step_cost.high is not None:
        spread = step_cost.low / step_cost.point, step_cost.high / step_cost.point
    models = (
        ("A: all of it per draft", StepCost(per_draft=excess / k)),
        (
            "B: per draft as bytes say, the rest per step" if draft_cost else "B: all of it once",
            StepCost(per_draft=per_draft, fixed=excess - per_draft * k),
        ),
    )
    return tuple(
        CostModel(name=name, cost=cost, spread=spread, at={k: step_cost}) for name, cost in models
    )


def several_costs_model(costs: Mapping[int, Estimate]) -> CostModel:
    """A line through C at several measured k: least squares."""
    points = [(float(k), cost.point) for k, cost in sorted(costs.items())]
    slope, intercept = fit_line(points)
    bounded = [c for c in costs.values() if c.low is not None and c.high is not None]
    spread = None
    if bounded:
        lows = [c.low / c.point for c in bounded if c.low is not None]
        highs = [c.high / c.point for c in bounded if c.high is not None]
        spread = min(lows), max(highs)
    return CostModel(
        name="measured at k = " + ", ".join(str(k) for k in sorted(costs)),
        cost=StepCost(per_draft=slope, fixed=intercept - 1),
        spread=spread,
        at=dict(costs),
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
