"""The explanation for people: a table of steps, then sentences. Formats; computes nothing new."""

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
from sakiyomi.models.roofline import Device
from sakiyomi.report.format import estimate, number, percent
from sakiyomi.what_if import WhatIf

MAX_LEVERS = 8
WEIGHT_FACTORS = ("active parameters", "bytes per parameter", "head")
SIDE_WORDS = {
    "above": "lies above it: speculation pays",
    "below": "lies below it: speculation costs",
    "contains": "does not part from it: not established",
}
PART_WORDS = {
    "linear": "linear attention",
    "mlp": "MLP",
    "kv": "KV cache",
    "state": "recurrent state",
    "head": "output head",
    "draft_layer": "draft layers",
    "draft_head": "output head for drafts",
    "draft_experts": "draft experts",
    "draft_kv": "draft KV cache",
}


def render(explanation: Explanation, levers: Sequence[WhatIf], width: int = 80) -> str:
    """The whole explanation as text."""
    lines: list[str] = []
    for paragraph in [_device(explanation.device), *_unknown(explanation)]:
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
    """What a speculative step costs, where the model is known: for the end of a run."""
    lines: list[str] = []
    for one in explanation.speculation:
        if one.predicted_step_cost is not None:
            lines += [*textwrap.wrap(_speculation(one), width, break_on_hyphens=False), ""]
    return "\n".join(lines)


def summary(explanation: Explanation, levers: Sequence[WhatIf]) -> list[str]:
    """The sentences that stand alone, in the page and in Markdown too."""
    return sentences(explanation) + lever_sentences(levers)


def sentences(explanation: Explanation) -> list[str]:
    """What was measured and what bytes say of it."""
    texts = [_reads(step) for step in _one_per_arm(explanation.steps)]
    texts += [_speculation(one) for one in explanation.speculation]
    texts += [_models(one) for one in explanation.models]
    texts += above_ceiling(explanation)
    return texts


def above_ceiling(explanation: Explanation) -> list[str]:
    """A measured speed above a measured ceiling is a defect of the model, and said."""
    return [
        f"{step.scenario} x {step.arm}: {step.attained_measured:.0%} of the measured ceiling "
        "cannot be: the bytes counted or the bandwidth measured are wrong. Do not trust this "
        "explanation."
        for step in explanation.steps
        if step.attained_measured is not None and step.attained_measured > 1
    ]


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


def _unknown(explanation: Explanation) -> list[str]:
    return [f"{arm}: {reason}." for arm, reason in explanation.unknown.items()]


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


def _reads(step: StepExplanation) -> str:
    parts = sorted(step.parts, key=lambda part: -part.share)
    named = ", ".join(
        f"{PART_WORDS.get(part.name, part.name)} {number(part.num_bytes / 1e9)} GB "
        f"({part.share:.0%})"
        for part in parts
        if part.share >= 0.005
    )
    k = f" with k = {step.num_speculative_tokens}" if step.num_speculative_tokens else ""
    return f"{step.arm} ({step.model}): a step{k} reads {named}."


def _speculation(one: SpeculationExplanation) -> str:
    k = one.num_speculative_tokens
    text = (
        f"{one.scenario} x {one.arm}: a speculative step costs C({k}) = {estimate(one.step_cost)} "
        f"plain steps, {number(one.speculative_step_s * 1000)} ms against "
        f"{number(one.plain_step_s * 1000)} ms."
    )
    if one.predicted_step_cost_overlap is not None and one.explained_s is not None:
        text += f" By bytes it should cost {number(one.predicted_step_cost_overlap)}"
        if one.predicted_step_cost != one.predicted_step_cost_overlap:
            text += f" ({number(one.predicted_step_cost or 0)} with independent experts)"
        text += (
            f": of {number(one.excess_s * 1000)} ms more, {number(one.explained_s * 1000)} ms "
            "are bytes at the plain step's own speed and "
            f"{number((one.unexplained_s or 0) * 1000)} ms "
            "are unexplained"
        )
        if one.explained_at_device_s is not None:
            text += (
                f" ({number(one.explained_at_device_s * 1000)} ms if the bytes moved at the "
                "device's measured bandwidth)"
            )
        text += "."
    if one.break_even_rate is not None:
        text += f" Speculation breaks even at {percent(one.break_even_rate)} accepted"
        if one.draft_acceptance_rate is not None and one.side:
            text += f"; {percent(one.draft_acceptance_rate)} {SIDE_WORDS[one.side]}"
        text += "."
    return text


def _models(one: ModelComparison) -> str:
    ratio = one.ratio
    named = [_named_parameters(name) for name in (ratio.first, ratio.second)]
    text = f"{one.scenario}, {one.first} against {one.second}: "
    if all(named):
        first, second = (value or 1.0 for value in named)
        text += (
            f"{number(first)} and {number(second)} billion active parameters by their names, "
            f"x{number(first / second)}; "
        )
    weights = math.prod(factor.ratio for factor in ratio.factors if factor.name in WEIGHT_FACTORS)
    text += f"weights read x{number(weights)}, with state and cache x{number(ratio.bytes_ratio)} = "
    text += " times ".join(
        f"{factor.name} {number(factor.ratio)}"
        for factor in ratio.factors
        if abs(factor.ratio - 1) > 0.0005
    )
    if ratio.time_ratio and ratio.attainment:
        text += (
            f"; speed x{number(ratio.time_ratio)}, because {one.first} gets x"
            f"{number(1 / ratio.attainment)} as near to its ceiling as {one.second} does"
        )
    return text + "."


def _named_parameters(name: str) -> float | None:
    """Billions of active parameters as a model's name has them: `35B-A3B` is 3."""
    active = re.search(r"-A(\d+(?:\.\d+)?)B", name)
    total = re.search(r"(\d+(?:\.\d+)?)B", name)
    found = active or total
    return float(found.group(1)) if found else None


def lever_sentences(levers: Sequence[WhatIf]) -> list[str]:
    """Levers that gain, the best first; other hardware last and once a device."""
    texts = []
    for scenario in dict.fromkeys(lever.scenario for lever in levers):
        mine = [lever for lever in levers if lever.scenario == scenario and lever.gain > 0]
        software = [lever for lever in mine if lever.kind != "device"][:MAX_LEVERS]
        hardware = {lever.change: lever for lever in mine if lever.kind == "device"}
        rows = [*software, *hardware.values()]
        if rows:
            texts.append(f"What if, on {scenario} (predicted, not measured):")
            texts += [_lever(row) for row in rows]
    return texts


def _lever(row: WhatIf) -> str:
    gain = f"{row.gain:+.0%}"
    if row.gain_low is not None and round(row.gain_low, 2) != round(row.gain, 2):
        gain = f"{row.gain_low:+.0%} to {row.gain:+.0%}"
    mark = "" if row.lossless else "; changes the model"
    return (
        f"- {row.arm}, {row.change}: {gain}, up to {number(row.tokens_per_s)} tok/s{mark}. "
        f"Assumes {row.assumption}."
    )
