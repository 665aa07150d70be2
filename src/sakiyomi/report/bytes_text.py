"""Read bytes and ceilings as 80 columns of text. Formats; computes no byte."""

import textwrap
from collections.abc import Iterable, Sequence

from sakiyomi.models.ratio import ModelRatio
from sakiyomi.models.roofline import Ceiling, Device, Prediction
from sakiyomi.models.weights import ReadBytes
from sakiyomi.report.format import number

WIDTH = 80
ROLE_NOTES = {
    "embedding": "one row read",
    "vision": "not read in text decode",
    "audio": "not read in text decode",
    "experts": "those chosen",
    "draft": "per draft",
    "draft_experts": "per draft, those chosen",
    "draft_head": "per draft",
    "draft_embedding": "one row read",
    "other": "unknown, counted as read",
}
ROLE_NAMES = {
    "attention": "full attention",
    "linear": "linear attention",
    "mlp": "MLP",
    "experts": "routed experts",
    "shared": "shared experts",
    "norm": "norms",
    "head": "output head",
    "vision": "vision tower",
    "audio": "audio tower",
    "draft": "draft layer",
    "draft_layer": "draft layer",
    "draft_experts": "draft experts",
    "draft_head": "draft reads head",
    "draft_embedding": "draft embedding",
    "draft_kv": "draft KV cache",
    "draft_state": "draft state",
    "kv": "KV cache",
    "state": "recurrent state",
}


def render_bytes(
    read: ReadBytes, predictions: Sequence[Prediction], device: Device | None, *, kv_bits: float
) -> str:
    """One model: what is stored, what a step reads, what each k costs, the ceilings."""
    lines = [*_head(read), "", *_groups(read)]
    if predictions:
        plain = predictions[0]
        lines += ["", *_plain_step(read, plain, kv_bits)]
        if len(predictions) > 1:
            lines += ["", *_steps(read, predictions)]
        lines += ["", *_ceilings(device, predictions)] if device else []
    else:
        missing = "; ".join(read.missing)
        lines += ["", *_wrap(f"! the bytes of a step cannot be told: {missing}")]
    for caution in read.cautions:
        lines += _wrap(f"! {caution}")
    return "\n".join(lines) + "\n"


def render_ratio(ratio: ModelRatio) -> str:
    """Two models side by side: the ratio of their read bytes as a product."""
    lines = _wrap(f"{ratio.first} reads {number(ratio.bytes_ratio)} times what {ratio.second} does")
    lines.append("")
    for factor in ratio.factors:
        values = f"{number(factor.first)} / {number(factor.second)} {factor.unit}"
        lines.append(f"  {factor.name:<22}{values:<40}x {factor.ratio:.3f}")
    lines.append(f"  {'read bytes':<62}= {ratio.bytes_ratio:.3f}")
    if ratio.attainment is not None and ratio.time_ratio is not None:
        lines.append(f"  {'attainment (share of the ceiling)':<62}x {ratio.attainment:.3f}")
        lines.append(f"  {'measured time per token':<62}= {ratio.time_ratio:.3f}")
    return "\n".join(lines) + "\n"


def size(num_bytes: float) -> str:
    """`16.24 GB`, `96.6 MB`; GB = 1e9 bytes."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= scale:
            digits = 2 if num_bytes >= 1e9 else 1
            return f"{num_bytes / scale:.{digits}f} {unit}"
    return f"{num_bytes:.0f} B"


def count(num_parameters: float) -> str:
    """`26.89e9` parameters as people write them: `26.9 B`, `134.5 M`."""
    for unit, scale in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if num_parameters >= scale:
            return f"{num_parameters / scale:.4g} {unit}"
    return f"{num_parameters:.0f}"


def _head(read: ReadBytes) -> list[str]:
    bits = 8 * read.resident_bytes / read.num_parameters if read.num_parameters else 0
    derived = "derived" in read.source
    lines = _wrap(f"{read.name} · {read.source}", continued="  ")
    stored = f"{size(read.resident_bytes)} {'(derived)' if derived else 'stored'}"
    if not derived:
        stored += f" ({read.resident_bytes:,.0f} bytes)"
    lines += _wrap(
        f"{stored} · {count(read.num_parameters)} parameters, {bits:.2f} bits each", continued="  "
    )
    return lines


def _groups(read: ReadBytes) -> list[str]:
    lines = [f"{'group':<17}{'format':<16}{'stored':>10}{'params':>10}  read in a step"]
    for group in sorted(read.groups, key=lambda group: -group.num_bytes):
        note = ROLE_NOTES.get(group.role, "all")
        if group.role == "embedding" and read.head_tied:
            note = "all: it is the head"
        if group.role == "experts" and read.experts:
            note = " and ".join(
                f"{experts.experts_per_token or '?'} of {experts.num_experts}"
                for experts in read.experts
            )
        name = (
            "draft head" if group.role == "draft_head" else ROLE_NAMES.get(group.role, group.role)
        )
        label = group.format if len(group.format) < 16 else group.format[:14] + "~"
        lines.append(
            f"{name:<17}{label:<16}{size(group.num_bytes):>10}{count(group.num_parameters):>10}"
            f"  {note}"
        )
    return lines


def _plain_step(read: ReadBytes, plain: Prediction, kv_bits: float) -> list[str]:
    title = (
        f"a plain step reads {size(plain.plain_bytes)} (context {plain.context:,.0f}, "
        f"batch {plain.batch}, KV {kv_bits:g} bit; {count(read.active_parameters)} active "
        "parameters)"
    )
    lines = _wrap(title, continued="  ")
    parts = sorted(plain.plain_parts, key=lambda part: -part.num_bytes)
    lines += [
        f"  {ROLE_NAMES.get(part.name, part.name):<18}{size(part.num_bytes):>10}"
        f"{part.num_bytes / plain.plain_bytes:>8.1%}"
        for part in parts
    ]
    return lines


def _steps(read: ReadBytes, predictions: Sequence[Prediction]) -> list[str]:
    first = predictions[1]
    is_moe = bool(read.experts)
    if first.has_draft_model:
        share = first.draft_bytes / first.plain_bytes
        what = "its own head" if read.draft and read.draft.has_own_head else "the target's head"
        title = f"one draft reads {size(first.draft_bytes)} ({share:.1%} of a step; {what})"
    else:
        title = "no draft model is stored: verification only (n-gram drafts cost no bytes)"
    lines = _wrap(title, continued="  ")
    if all(step.step_cost == 1 for step in predictions):
        return [
            *lines,
            "by bytes alone C(k) = 1 at every k: verification reads what a plain step does",
        ]
    names = f"{'k':>3}{'verify':>12}{'k drafts':>12}{'step':>12}{'C(k)':>8}{'break-even':>12}"
    lines.append(names + (f"{'C(k) overlap':>14}" if is_moe else ""))
    for step in predictions[1:]:
        row = (
            f"{step.k:>3}{size(step.verify_bytes):>12}{size(step.k * step.draft_bytes):>12}"
            f"{size(step.step_bytes):>12}{step.step_cost:>8.3f}"
            f"{_break_even(step):>12}"
        )
        lines.append(row + (f"{step.step_cost_overlap:>14.3f}" if is_moe else ""))
    if is_moe:
        lines += _wrap(
            "C(k): experts routed independently, an upper bound; overlap: x 0.69 on the distinct "
            "experts, as measured at 4 tokens of one sequence",
            continued="  ",
        )
    return lines


def _break_even(step: Prediction) -> str:
    """The accepted share at which a step pays nothing; no share is above 100 %."""
    rate = (step.step_cost - 1) / step.k
    return f"{rate:.1%}" if rate <= 1 else "above 100%"


def _ceilings(device: Device | None, predictions: Sequence[Prediction]) -> list[str]:
    plain = predictions[0]
    if device is None or not plain.ceilings:
        return _wrap(f"{device.name}: its bandwidth is not known; {device.note}") if device else []
    lines = _wrap(f"ceilings on {device.name}, tok/s of the whole batch", continued="  ")
    lines.append(f"{'bandwidth':<38}{'plain':>8}" + _columns(predictions))
    for ceiling in plain.ceilings:
        lines.append(
            f"{_basis(ceiling, device):<38}{number(ceiling.plain_tokens_per_s):>8}"
            + _row(ceiling, predictions)
        )
    if len(predictions) > 1:
        lines += _wrap("k columns: every draft accepted, so k + 1 tokens a step", continued="  ")
    if device.note:
        lines += _wrap(f"note: {device.note}", continued="  ")
    return lines


def _shown(predictions: Sequence[Prediction]) -> list[Prediction]:
    speculative = list(predictions[1:])
    return speculative if len(speculative) <= 3 else [speculative[index] for index in (0, 2, -1)]


def _columns(predictions: Sequence[Prediction]) -> str:
    return "".join(f"{f'k={step.k}':>8}" for step in _shown(predictions))


def _row(ceiling: Ceiling, predictions: Sequence[Prediction]) -> str:
    return "".join(
        f"{number(found.max_tokens_per_s):>8}"
        for step in _shown(predictions)
        for found in step.ceilings
        if found.basis == ceiling.basis
    )


def _basis(ceiling: Ceiling, device: Device) -> str:
    """Where a rate is from; what another decode step or a GEMM reached bounds nothing."""
    rate = f"{number(ceiling.bytes_per_s / 1e9)} GB/s"
    known = "measured" if device.measures_memory else "reached"
    name = "nominal" if ceiling.basis == "nominal" else f"{known}: {ceiling.kind}"
    return f"{rate} {name}"[:37]


def _wrap(text: str, *, continued: str = "  ") -> list[str]:
    return textwrap.wrap(
        text, WIDTH, subsequent_indent=continued, break_long_words=False, break_on_hyphens=False
    )


def join_blocks(blocks: Iterable[str]) -> str:
    """Blocks of text with a blank line between them."""
    return "\n".join(blocks)
