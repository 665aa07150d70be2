"""Decode speed against draft length, predicted from one arm's acceptance and step cost. Pure.

    S(k) = E(k) / C(k),  E(k) = 1 + sum of P_i,  C(k') = C(k) + slope (k' - k)

The slope is not known from a single k: all of the excess per draft, (C(k) - 1) / k, or only what
bytes predict for a draft. The curve lies between both.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from sakiyomi import drafting
from sakiyomi.detail import CurvePoint, SpeedCurve
from sakiyomi.explain import find_cell
from sakiyomi.results import Cell, Comparison, Report
from sakiyomi.what_if import positions_of


def speed_curves(report: Report) -> list[SpeedCurve]:
    """A curve for every speculative arm with a step cost and an acceptance."""
    found = []
    for comparison in report.comparisons:
        cell = find_cell(report, comparison.scenario, comparison.arm, comparison.load)
        base = find_cell(report, comparison.scenario, comparison.baseline, comparison.load)
        if cell is not None and base is not None:
            curve = _curve(cell, base, comparison, _predicted_cost(report.explanation, comparison))
            if curve is not None:
                found.append(curve)
    return found


def _curve(
    cell: Cell, base: Cell, comparison: Comparison, predicted_cost: float | None
) -> SpeedCurve | None:
    known = positions_of(cell)
    k, cost = cell.num_speculative_tokens, comparison.step_cost
    if known is None or not k or cost is None or base.decode_tokens_per_s is None:
        return None
    positions, origin = known
    excess = cost.point - 1
    slopes = [excess / k]
    if predicted_cost is not None:
        slopes.append(min((predicted_cost - 1) / k, excess / k))
    plain = base.decode_tokens_per_s.point
    points = []
    for other in range(1, len(positions) + 1):
        length = drafting.length_from_positions(positions[:other])
        costs = [1 + excess + slope * (other - k) for slope in slopes]
        speeds = sorted(plain * length / value for value in costs if value > 0)
        if speeds:
            points.append(
                CurvePoint(
                    num_speculative_tokens=other,
                    low_tokens_per_s=speeds[0],
                    high_tokens_per_s=speeds[-1],
                )
            )
    return SpeedCurve(
        scenario=cell.scenario,
        arm=cell.arm,
        load=cell.load,
        plain_tokens_per_s=plain,
        points=points,
        positions="iid" if origin.startswith("iid") else "measured",
    )


def _predicted_cost(explanation: Mapping[str, Any] | None, comparison: Comparison) -> float | None:
    """C(k) by bytes, from an explanation that is filled in."""
    wanted = (comparison.scenario, comparison.arm, msgspec.to_builtins(comparison.load))
    for one in (explanation or {}).get("speculation", []):
        if (one["scenario"], one["arm"], one["load"]) == wanted:
            cost = one.get("predicted_step_cost_overlap")
            return float(cost) if cost is not None else None
    return None
