"""A calibration beside the bytes: c0 and c as measured without text, and as bytes alone say. Pure.

C(k) of a step cannot depend on the text: what a scenario shows and what the calibration shows must
agree. Where they part, one of the two runs was disturbed.
"""

from collections.abc import Mapping, Sequence

import msgspec

from sakiyomi.calibration import Calibration, find_fit
from sakiyomi.cost_models import line_through
from sakiyomi.plan import Load
from sakiyomi.record import ArmFacts
from sakiyomi.stats import Estimate

TOLERANCE = 0.03
"""Step costs of one engine that differ by less agree, whatever their intervals."""

Fits = Mapping[tuple[str, str], Calibration]
"""The fit of an arm under a load, by (arm, label of the load)."""


class CalibratedStep(msgspec.Struct, frozen=True, kw_only=True):
    """C(k) of one draft length: measured without text, and by bytes where the model is known."""

    num_speculative_tokens: int
    measured: Estimate
    predicted: float | None


class ExplainedCalibration(msgspec.Struct, frozen=True, kw_only=True):
    """A fit C(k) = 1 + c0 + c k beside the line through the bytes' C(k) at the same k.

    `arms`: the arms of the explained run that draft like it.
    """

    run: str
    engine: str
    model: str | None
    method: str | None
    load: str
    arms: tuple[str, ...]
    fixed: Estimate
    per_draft: Estimate
    predicted_fixed: float | None
    predicted_per_draft: float | None
    at: tuple[CalibratedStep, ...]


def fits_of_arms(
    arms: Sequence[ArmFacts], loads: Sequence[Load], fits: Sequence[Calibration]
) -> Fits:
    """The fit of each drafting arm under each load."""
    return {
        (arm.name, load.label): fit
        for arm in arms
        if arm.num_speculative_tokens
        for load in loads
        for fit in [
            find_fit(
                fits,
                engine=arm.engine,
                model=arm.model,
                method=arm.speculative_method,
                load=load.label,
            )
        ]
        if fit is not None
    }


def explain_fit(
    fit: Calibration, arms: Sequence[str], predicted: Mapping[int, float]
) -> ExplainedCalibration:
    """A fit beside C(k) by bytes at the same k; without those where the model is not known."""
    line = line_through(predicted) if predicted else None
    return ExplainedCalibration(
        run=fit.run,
        engine=fit.engine,
        model=fit.model,
        method=fit.method,
        load=fit.load,
        arms=tuple(arms),
        fixed=fit.fixed,
        per_draft=fit.per_draft,
        predicted_fixed=line.fixed if line else None,
        predicted_per_draft=line.per_draft if line else None,
        at=tuple(
            CalibratedStep(num_speculative_tokens=k, measured=cost, predicted=predicted.get(k))
            for k, cost in sorted(fit.at.items())
        ),
    )


def agree(one: Estimate, other: Estimate) -> bool:
    """Whether two step costs can be the same: their intervals meet, or they differ by little."""
    if abs(one.point / other.point - 1) <= TOLERANCE:
        return True
    ends = [
        (cost.low if cost.low is not None else cost.point, cost.high or cost.point)
        for cost in (one, other)
    ]
    return max(low for low, _ in ends) <= min(high for _, high in ends)
