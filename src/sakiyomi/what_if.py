"""What would change the speed, each with its assumption, ranked by predicted gain. Pure.

A lever saves bytes of a step; at a stated bandwidth that is time; tokens per step stay as measured
unless the lever changes k.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from sakiyomi import drafting
from sakiyomi.explain import Explanation, SpeculationExplanation, find_cell, predict_cell
from sakiyomi.models.kv_cache import kv_bytes
from sakiyomi.models.roofline import MAX_DEFAULT_K, Device
from sakiyomi.models.weights import ReadBytes
from sakiyomi.pairing import drafts_fully
from sakiyomi.results import Cell, Report

FP8_BYTES = 1.0
NVFP4_BYTES = 0.5625
"""4 bits and an fp8 scale for each 16 (analytics, section 2)."""
NVFP4_BYTES_PER_S = 0.736
"""NVFP4 kernels move bytes at about this share of what bf16 GEMMs reach: 1.10 of 1.495 TB/s on an
RTX PRO 6000 (aiconfigurator 0.12 op database)."""
LONG_CONTEXT_TOKENS = 32_768
OTHER_DEVICES = ("RTX PRO 6000 Blackwell Workstation 96GB", "H100 SXM 80GB", "B200 SXM 180GB")


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """One change. `gain` is relative to the arm as measured; `lossless`: the text stays the same.

    `gain_low` is the gain under the less favourable of two assumptions, where there are two.
    `detail`: the values in `change` and `assumption`, for sentences in other languages.
    """

    scenario: str
    arm: str
    change: str
    assumption: str
    tokens_per_s: float
    gain: float
    gain_low: float | None = None
    lossless: bool = True
    kind: Literal["draft_length", "format", "context", "device", "draft_head"]
    detail: dict[str, Any] = {}


def what_if(
    report: Report,
    explanation: Explanation,
    models: Mapping[str, ReadBytes],
    devices: Sequence[Device] = (),
) -> tuple[WhatIf, ...]:
    """Every lever of every speculative arm, the largest predicted gain first within a scenario."""
    found: list[WhatIf] = []
    for one in explanation.speculation:
        cell = find_cell(report, one.scenario, one.arm, one.load)
        if cell is None or cell.tokens_per_step is None or cell.decode_tokens_per_s is None:
            continue
        found += _other_k(cell, one, models.get(cell.arm))
        read = models.get(cell.arm)
        if read is not None:
            found += _head_formats(cell, one, read, explanation.device)
            found += _body_formats(cell, one, read)
            found += _long_context(cell, one, read)
    for cell in report.cells:
        read = models.get(cell.arm)
        if read is not None and cell.decode_tokens_per_s is not None:
            found += _other_devices(cell, explanation.device, devices)
            if read.draft is not None and not cell.num_speculative_tokens:
                found += _own_draft_head(report, cell, read)
    order = {ref: index for index, ref in enumerate(c.scenario for c in report.cells)}
    return tuple(sorted(found, key=lambda item: (order.get(item.scenario, 0), -item.gain)))


def positions_of(cell: Cell) -> tuple[tuple[float, ...], str] | None:
    """Acceptance by position and where it is from: measured, or iid from the rate."""
    found = cell.acceptance
    if found is None or not cell.num_speculative_tokens:
        return None
    if found.per_position:
        return tuple(found.per_position), "measured by position"
    if found.draft_acceptance_rate is None:
        return None
    k = cell.num_speculative_tokens
    acceptance = drafting.acceptance_from_rate(found.draft_acceptance_rate.point, k)
    return drafting.iid_positions(acceptance, MAX_DEFAULT_K), "iid from the rate"


def _other_k(cell: Cell, one: SpeculationExplanation, read: ReadBytes | None) -> list[WhatIf]:
    """Speed at other k by the calibrated cost per draft, else by two splits of the measured cost.

    The two: all of it per draft, or its bytes per draft and the rest once a step.
    """
    known = positions_of(cell)
    k = one.num_speculative_tokens
    if known is None or not k or one.step_cost.point <= 1 or not drafts_fully(cell):
        return []  # other draft lengths would be found more or less often too
    positions, origin = known
    excess = one.step_cost.point - 1
    slopes = [excess / k]
    if one.calibrated_per_draft is not None:
        slopes = [one.calibrated_per_draft]
    elif read is not None and read.draft is not None:
        by_bytes = [predict_cell(cell, read, None, n).step_cost_overlap for n in (k, k + 1)]
        slopes.append(min(by_bytes[1] - by_bytes[0], excess / k))
    now = drafting.length_from_positions(positions[:k]) / one.step_cost.point
    plain = 1 / one.plain_step_s
    rows = []
    for other in range(1, len(positions) + 1):
        if other == k:
            continue
        length = drafting.length_from_positions(positions[:other])
        speeds = [length / (1 + excess + slope * (other - k)) for slope in slopes]
        gains = sorted(speed / now - 1 for speed in speeds)
        rows.append(
            WhatIf(
                scenario=cell.scenario,
                arm=cell.arm,
                change=f"k = {other} in place of {k}",
                assumption=f"acceptance {origin}; cost per draft "
                + " or ".join(f"{slope:.3f}" for slope in slopes)
                + " plain steps (all of the excess; or its bytes, the rest fixed)"
                * (len(slopes) > 1)
                + " plain steps, as calibrated" * (one.calibrated_per_draft is not None),
                tokens_per_s=plain * max(speeds),
                gain=gains[-1],
                gain_low=gains[0],
                kind="draft_length",
                detail={"k": other, "instead_of": k, "origin": origin, "costs": slopes},
            )
        )
    return rows


def _head_formats(
    cell: Cell, one: SpeculationExplanation, read: ReadBytes, device: Device | None
) -> list[WhatIf]:
    """The output head in fewer bytes: for drafts only (lossless), or everywhere."""
    k = one.num_speculative_tokens
    draft = read.draft
    if draft is None or not k or not read.head_parameters:
        return []
    bytes_per_s, basis = _bandwidth(one, cell, read, device)
    per_parameter = read.head_bytes / read.head_parameters
    draft_head = draft.head_bytes
    rows: list[tuple[str, str, float]] = []
    if per_parameter > FP8_BYTES:
        saved = 1 - FP8_BYTES / per_parameter
        rows.append(("fp8", "head for the drafts only", k * draft_head * saved / bytes_per_s))
        whole = (read.head_bytes + k * draft_head) * saved / bytes_per_s
        rows.append(("fp8", "head everywhere", whole))
    if per_parameter > NVFP4_BYTES:
        now = (read.head_bytes + k * draft_head) / bytes_per_s
        then = now * NVFP4_BYTES / per_parameter / NVFP4_BYTES_PER_S
        rows.append(("NVFP4", "head everywhere", now - then))
    return [
        _row(
            cell,
            one,
            (name, part),
            f"head reads saved at {basis}",
            one.speculative_step_s - saved_s,
            bytes_per_s=bytes_per_s,
        )
        for name, part, saved_s in rows
        if saved_s < one.speculative_step_s
    ]


def _body_formats(cell: Cell, one: SpeculationExplanation, read: ReadBytes) -> list[WhatIf]:
    """The body in another format: the step's bytes at the same bytes per second."""
    k = one.num_speculative_tokens
    body_parameters = read.active_parameters - read.head_parameters
    predicted = predict_cell(cell, read, None, k)
    body = sum(
        p.num_bytes
        for p in predicted.parts
        if p.name in ("attention", "linear", "mlp", "experts", "shared")
    )
    if not body or not body_parameters:
        return []
    now = body / body_parameters
    found = []
    for name, per_parameter in (("fp8", FP8_BYTES), ("NVFP4", NVFP4_BYTES)):
        if per_parameter > 0.9 * now:
            continue
        scale = 1 - body * (1 - per_parameter / now) / predicted.step_bytes
        step_s = one.speculative_step_s * scale
        assumption = "the same bytes per second and the same acceptance"
        found.append(_row(cell, one, (name, "body"), assumption, step_s))
    return found


def _long_context(cell: Cell, one: SpeculationExplanation, read: ReadBytes) -> list[WhatIf]:
    """KV reads grow with context; drafts share them out over more tokens."""
    predicted = predict_cell(cell, read, None, one.num_speculative_tokens)
    if predicted.context >= LONG_CONTEXT_TOKENS:
        return []
    more = kv_bytes(read.kv, LONG_CONTEXT_TOKENS, read.kv_element_bytes) - kv_bytes(
        read.kv, predicted.context, read.kv_element_bytes
    )
    step_s = one.speculative_step_s * (1 + predicted.batch * more / predicted.step_bytes)
    assumption = "the same acceptance and bytes per second"
    lever = _row(cell, one, ("", f"context of {LONG_CONTEXT_TOKENS} tokens"), assumption, step_s)
    detail = {"num_tokens": LONG_CONTEXT_TOKENS}
    return [msgspec.structs.replace(lever, kind="context", lossless=True, detail=detail)]


def _other_devices(cell: Cell, device: Device | None, devices: Sequence[Device]) -> list[WhatIf]:
    """The same attained share of the nominal bandwidth on another device."""
    here = device.nominal_bytes_per_s if device else None
    if not here or device is None or cell.decode_tokens_per_s is None:
        return []
    found = []
    for other in devices:
        if other.name == device.name or not other.nominal_bytes_per_s:
            continue
        scale = other.nominal_bytes_per_s / here
        found.append(
            WhatIf(
                scenario=cell.scenario,
                arm=cell.arm,
                change=f"on {other.name}",
                assumption="the same share of the nominal bandwidth",
                tokens_per_s=cell.decode_tokens_per_s.point * scale,
                gain=scale - 1,
                kind="device",
                detail={"device": other.name},
            )
        )
    return found


def _own_draft_head(report: Report, cell: Cell, read: ReadBytes) -> list[WhatIf]:
    """A plain arm whose model has a draft head: k = 1 at the acceptance seen beside it."""
    seen = [
        c.acceptance.draft_acceptance_rate.point
        for c in report.cells
        if c.scenario == cell.scenario and c.acceptance and c.acceptance.draft_acceptance_rate
    ]
    if not seen or cell.decode_tokens_per_s is None:
        return []
    if any(c.num_speculative_tokens for c in report.cells if _same_model(report, c, cell)):
        return []
    predicted = predict_cell(cell, read, None, 1)
    gain = (1 + max(seen)) / predicted.step_cost_overlap - 1
    return [
        WhatIf(
            scenario=cell.scenario,
            arm=cell.arm,
            change="its own draft head with k = 1",
            assumption=f"{max(seen):.0%} accepted as beside it, cost by bytes alone "
            f"(C(1) = {predicted.step_cost_overlap:.2f})",
            tokens_per_s=cell.decode_tokens_per_s.point * (1 + gain),
            gain=gain,
            kind="draft_head",
            detail={"acceptance": max(seen), "step_cost": predicted.step_cost_overlap},
        )
    ]


def _same_model(report: Report, one: Cell, other: Cell) -> bool:
    models = {arm["name"]: arm.get("model") for arm in report.arms}
    return models.get(one.arm) == models.get(other.arm)


def _row(
    cell: Cell,
    one: SpeculationExplanation,
    change: tuple[str, str],
    assumption: str,
    step_s: float,
    **detail: float,
) -> WhatIf:
    """Another format of a part; only the drafts' own head leaves the text as it is."""
    per_step = cell.tokens_per_step.point if cell.tokens_per_step else 1.0
    name, part = change
    return WhatIf(
        scenario=cell.scenario,
        arm=cell.arm,
        change=f"{name} {part}".strip(),
        assumption=assumption,
        tokens_per_s=per_step / step_s,
        gain=one.speculative_step_s / step_s - 1,
        lossless=part == "head for the drafts only",
        kind="format",
        detail={"format": name, "part": part, **detail},
    )


def _bandwidth(
    one: SpeculationExplanation, cell: Cell, read: ReadBytes, device: Device | None
) -> tuple[float, str]:
    """The device's measured bandwidth; else what the plain step reached."""
    if device and device.measured_bytes_per_s:
        return (
            device.measured_bytes_per_s,
            f"{device.measured_bytes_per_s / 1e9:.0f} GB/s ({device.measured_kind})",
        )
    plain = predict_cell(cell, read, None, 0).plain_bytes / one.plain_step_s
    return plain, f"{plain / 1e9:.3g} GB/s, as the plain step reached"


def without_draft(read: ReadBytes) -> ReadBytes:
    """The model with its draft head left alone: plain arms and draftless methods."""
    return msgspec.structs.replace(read, draft=None)
