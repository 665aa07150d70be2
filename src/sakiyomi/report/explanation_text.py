"""The explanation for people: a table of steps, then sentences. Formats; computes nothing new.

Sentences take the language that says them; the table is for terminals.
"""

import math
import re
import textwrap
from collections.abc import Sequence

from sakiyomi.explain import (
    Explanation,
    ModelComparison,
    SpeculationExplanation,
    StepExplanation,
)
from sakiyomi.explained_calibration import ExplainedCalibration
from sakiyomi.models.roofline import Device
from sakiyomi.report.decision_text import calibration_sentence
from sakiyomi.report.format import number
from sakiyomi.report.language import EN, Language
from sakiyomi.report.lever_text import lever_sentences
from sakiyomi.stats import Estimate
from sakiyomi.what_if import WhatIf

WEIGHT_FACTORS = ("active parameters", "bytes per parameter", "head")


def render(explanation: Explanation, levers: Sequence[WhatIf], width: int = 80) -> str:
    """The whole explanation as text."""
    lines: list[str] = []
    for paragraph in [_device(explanation.device), *unknown_sentences(explanation)]:
        lines += [*textwrap.wrap(paragraph, width), ""]
    if explanation.steps:
        lines += [*_table(explanation.steps), ""]
    for paragraph in sentences(explanation):
        lines += [*textwrap.wrap(paragraph, width, break_on_hyphens=False), ""]
    for paragraph in lever_sentences(levers):
        mark = "  " if paragraph.startswith("-") else ""
        if not mark:
            lines.append("")
        lines += textwrap.wrap(paragraph, width, subsequent_indent=mark, break_on_hyphens=False)
    return "\n".join(lines).rstrip() + "\n"


def render_costs(explanation: Explanation, width: int = 80) -> str:
    """What a speculative step costs and where it breaks even: for the end of a run.

    Left to `explain` where the break-even could be anything from 0 to 100 %.
    """
    lines: list[str] = []
    for one in explanation.speculation:
        if one.break_even_rate is None or is_anything(one.break_even_rate):
            continue
        lines += [*textwrap.wrap(_speculation(one, EN), width, break_on_hyphens=False), ""]
    return "\n".join(lines)


def is_anything(rate: Estimate) -> bool:
    """Whether the interval of a rate holds all from 0 to 1."""
    return rate.low is not None and rate.high is not None and rate.low <= 0 and rate.high >= 1


def summary(explanation: Explanation, levers: Sequence[WhatIf]) -> list[str]:
    """The sentences that stand alone, in Markdown too."""
    return sentences(explanation) + lever_sentences(levers)


def sentences(explanation: Explanation, say: Language = EN) -> list[str]:
    """What was measured and what bytes say of it."""
    texts = [_reads(step, say) for step in _one_per_arm(explanation.steps)]
    texts += [_calibration(one, say) for one in explanation.calibrations]
    texts += [_speculation(one, say) for one in explanation.speculation]
    texts += [_models(one, say) for one in explanation.models]
    texts += above_ceiling(explanation, say)
    return texts


def above_ceiling(explanation: Explanation, say: Language = EN) -> list[str]:
    """A measured speed above a ceiling is a defect of bytes or bandwidth, and said."""
    return [
        say(
            "above_ceiling",
            scenario=step.scenario,
            arm=step.arm,
            share=f"{getattr(step, f'attained_{step.above_ceiling}'):.0%}",
            basis=say(f"basis_{step.above_ceiling}"),
        )
        for step in explanation.steps
        if step.above_ceiling is not None
    ]


def unknown_sentences(explanation: Explanation, say: Language = EN) -> list[str]:
    """Arms whose model is not known."""
    return [say("unknown", arm=arm, reason=why) for arm, why in explanation.unknown.items()]


def _device(device: Device | None) -> str:
    if device is None:
        return "No device is known: no ceilings. Name it (--device NAME) or measure it (--measure)."
    parts = []
    if device.nominal_bytes_per_s:
        parts.append(f"{number(device.nominal_bytes_per_s / 1e9)} GB/s nominal")
    if device.measured_bytes_per_s:
        parts.append(
            f"{number(device.measured_bytes_per_s / 1e9)} GB/s measured ({device.measured_kind})"
        )
    return f"{device.name}: {', '.join(parts) or 'no bandwidth known: measure it (--measure)'}."


def _table(steps: Sequence[StepExplanation]) -> list[str]:
    rows = [("scenario", "arm", "step ms", "tok/step", "reads GB", "GB/s", "ceiling", "attained")]
    for step in steps:
        basis = "measured" if step.attained_measured is not None else "nominal"
        ceiling = getattr(step, f"ceiling_{basis}_tokens_per_s")
        attained = getattr(step, f"attained_{basis}")
        if step.attained_nominal is not None:
            ceiling, attained = step.ceiling_nominal_tokens_per_s, step.attained_nominal
        shares = f"{attained:.0%}" if attained is not None else "-"
        if step.attained_nominal is not None and step.attained_measured is not None:
            shares += f" ({step.attained_measured:.0%} of measured)"
        rows.append(
            (
                step.scenario,
                step.arm,
                number(step.step_s * 1000),
                number(step.tokens_per_step),
                number(step.read_bytes / 1e9),
                number(step.bytes_per_s / 1e9),
                number(ceiling) if ceiling is not None else "-",
                shares,
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(text.ljust(widths[i]) for i, text in enumerate(row)).rstrip() for row in rows]


def _one_per_arm(steps: Sequence[StepExplanation]) -> list[StepExplanation]:
    return list({(step.arm, step.load): step for step in reversed(steps)}.values())[::-1]


def _reads(step: StepExplanation, say: Language) -> str:
    parts = sorted(step.parts, key=lambda part: -part.share)
    k = step.num_speculative_tokens
    return say(
        "reads",
        arm=step.arm,
        model=step.model,
        drafts=say("with_k", k=k) if k else "",
        parts=say.join(
            say(
                "part",
                name=say.name(part.name),
                size=number(part.num_bytes / 1e9),
                share=f"{part.share:.0%}",
            )
            for part in parts
            if part.share >= 0.005
        ),
    )


def _speculation(one: SpeculationExplanation, say: Language) -> str:
    text = say(
        "step_cost",
        scenario=one.scenario,
        arm=one.arm,
        k=one.num_speculative_tokens or "k",
        cost=say.estimate(one.step_cost),
        step_ms=number(one.speculative_step_s * 1000),
        plain_ms=number(one.plain_step_s * 1000),
    )
    if one.predicted_step_cost_overlap is not None and one.explained_s is not None:
        text += say("by_bytes", cost=number(one.predicted_step_cost_overlap))
        if one.predicted_step_cost != one.predicted_step_cost_overlap:
            text += say("independent", cost=number(one.predicted_step_cost or 0))
        if one.excess_s < 0:
            text += say("excess_below", ms=number(-one.excess_s * 1000))
        else:
            text += say(
                "excess",
                excess_ms=number(one.excess_s * 1000),
                explained_ms=number(one.explained_s * 1000),
                rest_ms=number((one.unexplained_s or 0) * 1000),
            )
            if one.explained_at_device_s:
                text += say("at_device", ms=number(one.explained_at_device_s * 1000))
        text += say("stop")
    if one.calibrated_step_cost is not None:
        agreement = say(f"calibrated_{'agrees' if one.agrees_with_calibration else 'parts'}")
        text += say(
            "calibrated",
            cost=say.estimate(one.calibrated_step_cost),
            run=one.calibration,
            agreement=agreement,
        )
    if one.break_even_rate is not None:
        text += say("sentence_gap") + say.break_even_clause(one.break_even_rate)
        is_rate = 0 <= one.break_even_rate.point <= 1
        side = one.side if is_rate or one.side != "contains" else None
        if one.draft_acceptance_rate is not None and side:
            rate = say.percent(one.draft_acceptance_rate)
            text += say("rate_and_side", rate=rate, side=say(f"side_{side}"))
        text += say("stop")
    return text


def _calibration(one: ExplainedCalibration, say: Language) -> str:
    """The fit, and beside it what bytes alone say."""
    at = {step.num_speculative_tokens: step for step in one.at}
    text = calibration_sentence(one, say)
    if one.predicted_fixed is None or one.predicted_per_draft is None:
        return text
    return text + say(
        "calibration_bytes",
        fixed=number(round(one.predicted_fixed, 4) + 0.0),  # no noise of a fit, no minus zero
        per_draft=number(one.predicted_per_draft),
        at=say.join(f"C({k}) = {number(step.predicted or 0)}" for k, step in at.items()),
        rest=number(one.per_draft.point - one.predicted_per_draft),
    )


def _models(one: ModelComparison, say: Language) -> str:
    ratio = one.ratio
    named = [_named_parameters(name) for name in (ratio.first, ratio.second)]
    names = speed = ""
    if all(named):
        first, second = (value or 1.0 for value in named)
        names = say(
            "models_named",
            first=number(first),
            second=number(second),
            ratio=number(first / second),
        )
    if ratio.time_ratio and ratio.attainment:
        speed = say(
            "models_speed",
            ratio=number(ratio.time_ratio),
            first=one.first,
            second=one.second,
            attainment=number(1 / ratio.attainment),
        )
    weights = math.prod(factor.ratio for factor in ratio.factors if factor.name in WEIGHT_FACTORS)
    factors = [
        say("factor", name=say.name(factor.name), ratio=number(factor.ratio))
        for factor in ratio.factors
        if abs(factor.ratio - 1) > 0.0005
    ]
    return say(
        "models",
        scenario=one.scenario,
        first=one.first,
        second=one.second,
        named=names,
        weights=number(weights),
        bytes=number(ratio.bytes_ratio),
        factors=say.join(factors, "times"),
        speed=speed,
    )


def _named_parameters(name: str) -> float | None:
    """Billions of active parameters as a model's name has them: `35B-A3B` is 3."""
    active = re.search(r"-A(\d+(?:\.\d+)?)B", name)
    total = re.search(r"(\d+(?:\.\d+)?)B", name)
    found = active or total
    return float(found.group(1)) if found else None
