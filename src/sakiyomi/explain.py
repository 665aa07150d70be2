"""Where the time goes: bytes, ceilings, the cost of a step, and what stays unexplained. Pure.

    T_plain = 1 / decode_tokens_per_s of the plain arm      T_step = tokens_per_step / decode rate
    excess  = T_step - T_plain = (C(k) - 1) T_plain
    bytes   = (C_bytes(k) - 1) T_plain                      at the plain step's own bytes per second
    unexplained = excess - bytes

The last line is printed whatever its sign: a negative one says that drafts move their bytes faster
than the plain step does.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from sakiyomi import stats
from sakiyomi.calibration import cost_model
from sakiyomi.explained_calibration import ExplainedCalibration, Fits, agree, explain_fit
from sakiyomi.models.ratio import ModelRatio, compare_reads
from sakiyomi.models.roofline import Device, Prediction, predict
from sakiyomi.models.weights import ReadBytes
from sakiyomi.plan import ClosedLoad, Load
from sakiyomi.results import Cell, Comparison, Report
from sakiyomi.stats import Estimate

Side = Literal["above", "below", "contains"]
Basis = Literal["nominal", "measured"]


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What a step reads for one purpose, over all draft passes. `share` is of the step's bytes."""

    name: str
    num_bytes: float
    share: float


class StepExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """One cell's decode step. Attained shares are against the ceiling of this very step."""

    scenario: str
    arm: str
    load: Load
    model: str
    context_tokens: float
    batch: int
    num_speculative_tokens: int
    tokens_per_step: float
    step_s: float
    read_bytes: float
    parts: tuple[Part, ...]
    bytes_per_s: float
    """What the step moved per second: read bytes / step time."""
    ceiling_nominal_tokens_per_s: float | None
    ceiling_measured_tokens_per_s: float | None
    attained_nominal: float | None
    attained_measured: float | None
    above_ceiling: Basis | None = None
    """The bandwidth that this step would have had to exceed: something here is wrong."""


class SpeculationExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """A speculative arm against its plain baseline. Times of one step, seconds."""

    scenario: str
    arm: str
    load: Load
    num_speculative_tokens: int
    step_cost: Estimate
    predicted_step_cost: float | None
    predicted_step_cost_overlap: float | None
    plain_step_s: float
    speculative_step_s: float
    excess_s: float
    explained_s: float | None
    unexplained_s: float | None
    explained_share: float | None
    explained_at_device_s: float | None
    """The extra bytes at the device's measured bandwidth, when that is known."""
    break_even_rate: Estimate | None
    draft_acceptance_rate: Estimate | None
    side: Side | None
    """On which side of the break-even rate, its interval included, that of the acceptance lies."""
    calibrated_step_cost: Estimate | None = None
    """C(k) of a calibration of this way of drafting: measured without text."""
    calibrated_per_draft: float | None = None
    calibration: str | None = None
    """The calibration run."""
    agrees_with_calibration: bool | None = None


class ModelComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two plain arms with different models, from parameters to bytes to speed."""

    scenario: str
    first: str
    second: str
    ratio: ModelRatio


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that bytes explain of a run. `unknown`: arms whose model is not known, and why."""

    device: Device | None
    steps: tuple[StepExplanation, ...]
    speculation: tuple[SpeculationExplanation, ...]
    models: tuple[ModelComparison, ...]
    unknown: dict[str, str] = {}
    calibrations: tuple[ExplainedCalibration, ...] = ()


def explain(
    report: Report,
    models: Mapping[str, ReadBytes],
    device: Device | None,
    unknown: Mapping[str, str] | None = None,
    fits: Fits | None = None,
) -> Explanation:
    """Explain each cell whose model is known. `models` are by arm, without drafts that are off.

    `fits`: calibrations of the drafting arms.
    """
    steps = tuple(
        step
        for cell in report.cells
        if cell.arm in models
        for step in [_step(cell, models[cell.arm], device)]
        if step is not None
    )
    speculation = tuple(
        found
        for comparison in report.comparisons
        for found in [_speculation(report, comparison, models, device, fits or {})]
        if found is not None
    )
    return Explanation(
        device=device,
        steps=steps,
        speculation=speculation,
        models=_model_comparisons(report, models),
        unknown=dict(unknown or {}),
        calibrations=_calibrations(report, models, fits or {}),
    )


def find_cell(report: Report, scenario: str, arm: str, load: Load) -> Cell | None:
    """The cell of a scenario, an arm and a load."""
    return next(
        (c for c in report.cells if (c.scenario, c.arm, c.load) == (scenario, arm, load)), None
    )


def predict_cell(cell: Cell, read: ReadBytes, device: Device | None, k: int) -> Prediction:
    """What bytes predict for a cell's context and batch at draft length k."""
    batch = cell.load.max_concurrency if isinstance(cell.load, ClosedLoad) else 1
    return predict(read, device, context=cell.context_tokens or 0.0, batch=batch, k=k)


def _step(cell: Cell, read: ReadBytes, device: Device | None) -> StepExplanation | None:
    if cell.decode_tokens_per_s is None:
        return None
    k = cell.num_speculative_tokens or 0
    per_step = cell.tokens_per_step.point if cell.tokens_per_step else (1.0 if not k else None)
    if per_step is None:
        return None
    predicted = predict_cell(cell, read, device, k)
    rate = cell.decode_tokens_per_s.point
    ceilings = {
        ceiling.basis: ceiling.steps_per_s * per_step for ceiling in predicted.ceilings
    }  # of one sequence, as the measured rate is
    attained = {basis: rate / ceiling for basis, ceiling in ceilings.items()}
    return StepExplanation(
        scenario=cell.scenario,
        arm=cell.arm,
        load=cell.load,
        model=read.name,
        context_tokens=predicted.context,
        batch=predicted.batch,
        num_speculative_tokens=k,
        tokens_per_step=per_step,
        step_s=per_step / rate,
        read_bytes=predicted.step_bytes_overlap,
        parts=tuple(
            Part(name=p.name, num_bytes=p.num_bytes, share=p.num_bytes / predicted.step_bytes)
            for p in predicted.parts
        ),
        bytes_per_s=predicted.step_bytes_overlap * rate / per_step,
        ceiling_nominal_tokens_per_s=ceilings.get("nominal"),
        ceiling_measured_tokens_per_s=ceilings.get("measured"),
        attained_nominal=attained.get("nominal"),
        attained_measured=attained.get("measured"),
        above_ceiling=_above(attained, device),
    )


def _above(attained: Mapping[Basis, float], device: Device | None) -> Basis | None:
    """Which ceiling was passed, of those that bound a step."""
    if attained.get("nominal", 0.0) > 1:
        return "nominal"
    bounds = device is not None and device.measures_memory
    return "measured" if bounds and attained.get("measured", 0.0) > 1 else None


def _speculation(
    report: Report,
    comparison: Comparison,
    models: Mapping[str, ReadBytes],
    device: Device | None,
    fits: Fits,
) -> SpeculationExplanation | None:
    cell = find_cell(report, comparison.scenario, comparison.arm, comparison.load)
    base = find_cell(report, comparison.scenario, comparison.baseline, comparison.load)
    cost = comparison.step_cost
    if cell is None or base is None or cost is None or base.decode_tokens_per_s is None:
        return None
    k = cell.num_speculative_tokens or 0
    plain_s = 1 / base.decode_tokens_per_s.point
    excess_s = (cost.point - 1) * plain_s
    read = models.get(cell.arm)
    predicted = predict_cell(cell, read, device, k) if read else None
    explained_s = (predicted.step_cost_overlap - 1) * plain_s if predicted else None
    rate = cell.acceptance.draft_acceptance_rate if cell.acceptance else None
    measured = device.measured_bytes_per_s if device else None
    fit = fits.get((cell.arm, cell.load.label))
    if fit is not None and fit.run == report.run:  # a calibration does not check itself
        fit = None
    calibrated = cost_model(fit).estimate(k) if fit else None
    return SpeculationExplanation(
        scenario=cell.scenario,
        arm=cell.arm,
        load=cell.load,
        num_speculative_tokens=k,
        step_cost=cost,
        predicted_step_cost=predicted.step_cost if predicted else None,
        predicted_step_cost_overlap=predicted.step_cost_overlap if predicted else None,
        plain_step_s=plain_s,
        speculative_step_s=cost.point * plain_s,
        excess_s=excess_s,
        explained_s=explained_s,
        unexplained_s=excess_s - explained_s if explained_s is not None else None,
        explained_share=explained_s / excess_s if explained_s is not None and excess_s else None,
        explained_at_device_s=(predicted.step_bytes_overlap - predicted.plain_bytes) / measured
        if predicted and measured
        else None,
        break_even_rate=comparison.break_even_rate,
        draft_acceptance_rate=rate,
        side=_side(rate, comparison.break_even_rate),
        calibrated_step_cost=calibrated,
        calibrated_per_draft=fit.per_draft.point if fit else None,
        calibration=fit.run if fit else None,
        agrees_with_calibration=agree(cost, calibrated) if calibrated else None,
    )


def _calibrations(
    report: Report, models: Mapping[str, ReadBytes], fits: Fits
) -> tuple[ExplainedCalibration, ...]:
    """Each fit beside the bytes of the first arm that drafts like it."""
    found = []
    for fit in {id(fit): fit for fit in fits.values()}.values():
        cells = [cell for cell in report.cells if fits.get((cell.arm, cell.load.label)) is fit]
        known = [cell for cell in cells if cell.arm in models][:1]
        predicted = {
            k: predict_cell(cell, models[cell.arm], None, k).step_cost_overlap
            for cell in known
            for k in fit.at
        }
        found.append(explain_fit(fit, [*dict.fromkeys(cell.arm for cell in cells)], predicted))
    return tuple(found)


def _side(rate: Estimate | None, break_even: Estimate | None) -> Side | None:
    if rate is None or break_even is None or rate.low is None or rate.high is None:
        return None
    most = break_even.point if break_even.high is None else break_even.high
    least = break_even.point if break_even.low is None else break_even.low
    if rate.low > most:
        return "above"
    return "below" if rate.high < least else "contains"


def _model_comparisons(
    report: Report, models: Mapping[str, ReadBytes]
) -> tuple[ModelComparison, ...]:
    """The baseline's plain step against every plain arm with another model."""
    found = []
    for cell in report.cells:
        base = find_cell(report, cell.scenario, report.baseline, cell.load)
        if base is None or cell.num_speculative_tokens or base.num_speculative_tokens:
            continue
        mine, theirs = models.get(report.baseline), models.get(cell.arm)
        if mine is None or theirs is None or mine.name == theirs.name:
            continue
        if base.decode_tokens_per_s is None or cell.decode_tokens_per_s is None:
            continue
        contexts = [c.context_tokens for c in (base, cell) if c.context_tokens]
        ratio = compare_reads(
            mine,
            theirs,
            context=stats.median(contexts) if contexts else 0.0,
            batch=cell.load.max_concurrency if isinstance(cell.load, ClosedLoad) else 1,
            tokens_per_s=(base.decode_tokens_per_s.point, cell.decode_tokens_per_s.point),
        )
        found.append(
            ModelComparison(
                scenario=cell.scenario, first=report.baseline, second=cell.arm, ratio=ratio
            )
        )
    return tuple(found)
