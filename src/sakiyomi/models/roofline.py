"""Read bytes, a device, context, batch and k: bytes of a step, its cost in plain steps, ceilings.

    B_plain(ctx, b)  = always + experts * N(b)/E + head + b * (KV(ctx) + 2 * state)
    B_verify(k)      = the same with N(b * (k + 1)) and state * (k + 2)
    B_draft          = the draft's layer + its N(b) experts + a head + b * (its KV + 2 * its state)
    C(k)             = (B_verify(k) + k * B_draft) / B_plain

The recurrent state is read once and written k + 1 times, one per position, so that a rejection
can roll back (vLLM, `flash_linear_attention/ops/fused_recurrent.py`).
"""

from typing import Literal

import msgspec

from sakiyomi.errors import CheckpointError
from sakiyomi.models.kv_cache import kv_bytes
from sakiyomi.models.weights import ExpertGroup, ReadBytes, distinct_experts

EXPERT_OVERLAP = 0.69
"""Distinct experts of the tokens of one draft over those of independent tokens: 31 % fewer,
measured at 4 tokens (Cohere, April 2026). Below 4 and above it is an extrapolation."""

Routing = Literal["independent", "overlap"]

MAX_DEFAULT_K = 8


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """Memory bandwidth of a device, bytes per second. `measured_kind` says how it was measured."""

    name: str
    memory: str = ""
    nominal_bytes_per_s: float | None = None
    measured_bytes_per_s: float | None = None
    measured_kind: str = ""
    source_nominal: str = ""
    source_measured: str = ""
    note: str = ""

    @property
    def measures_memory(self) -> bool:
        """Whether what was measured bounds a step: a read does, a GEMM or another decode no."""
        return not any(word in self.measured_kind for word in ("GEMM", "decode"))


class StepPart(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a speculative step by what they are read for; `draft_*` over all k passes."""

    name: str
    num_bytes: float


class Ceiling(msgspec.Struct, frozen=True, kw_only=True):
    """Times and rates at one bandwidth. No step can be faster than its bytes take to move.

    Tokens per second of all sequences of the batch; `max_tokens_per_s` accepts every draft.
    """

    basis: Literal["nominal", "measured"]
    kind: str
    bytes_per_s: float
    plain_s: float
    verify_s: float
    draft_s: float
    step_s: float
    plain_tokens_per_s: float
    steps_per_s: float
    max_tokens_per_s: float


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """What bytes alone predict. `draft_bytes` is one pass; `step_bytes` verification and k passes.

    `step_cost` is C(k) with independent routing (an upper bound for experts); for a mixture of
    experts `step_cost_overlap` and `step_bytes_overlap` use the measured overlap.
    """

    model: str
    device: str | None
    context: float
    batch: int
    k: int
    plain_bytes: float
    verify_bytes: float
    draft_bytes: float
    step_bytes: float
    step_cost: float
    step_bytes_overlap: float
    step_cost_overlap: float
    plain_parts: tuple[StepPart, ...]
    parts: tuple[StepPart, ...]
    ceilings: tuple[Ceiling, ...]
    has_draft_model: bool

    @property
    def shares(self) -> dict[str, float]:
        """Share of each part in the step's bytes."""
        return {part.name: part.num_bytes / self.step_bytes for part in self.parts}

    @property
    def head_share(self) -> float:
        """Share of all reads of an output head: one to verify, one per draft."""
        return self.shares.get("head", 0.0) + self.shares.get("draft_head", 0.0)

    def ceiling_tokens_per_s(self, tokens_per_step: float, basis: str = "nominal") -> float | None:
        """Bandwidth / bytes of the step x tokens per step, for the whole batch."""
        for ceiling in self.ceilings:
            if ceiling.basis == basis:
                return ceiling.steps_per_s * tokens_per_step * self.batch
        return None


def predict(
    read: ReadBytes, device: Device | None, *, context: float, batch: int, k: int
) -> Prediction:
    """Predict a step from its bytes. k = 0 is a plain step."""
    check_complete(read)
    plain = _verify_parts(read, context, batch, 0, "independent")
    verify = _verify_parts(read, context, batch, k, "independent")
    draft = _draft_parts(read, context, batch)
    plain_bytes, draft_bytes = _total(plain), _total(draft)
    step_bytes = _total(verify) + k * draft_bytes
    overlap_bytes = _total(_verify_parts(read, context, batch, k, "overlap")) + k * draft_bytes
    drafts = tuple(StepPart(name=part.name, num_bytes=k * part.num_bytes) for part in draft)
    return Prediction(
        model=read.name,
        device=device.name if device else None,
        context=context,
        batch=batch,
        k=k,
        plain_bytes=plain_bytes,
        verify_bytes=_total(verify),
        draft_bytes=draft_bytes,
        step_bytes=step_bytes,
        step_cost=step_bytes / plain_bytes,
        step_bytes_overlap=overlap_bytes,
        step_cost_overlap=overlap_bytes / plain_bytes,
        plain_parts=plain,
        parts=(*verify, *(drafts if k else ())),
        ceilings=_ceilings(device, plain_bytes, _total(verify), draft_bytes, (batch, k)),
        has_draft_model=read.draft is not None,
    )


def check_complete(read: ReadBytes) -> None:
    """Refuse to predict from a model that is not fully known."""
    if read.missing:
        raise CheckpointError(
            f"{read.name}: the bytes of a step cannot be told: {'; '.join(read.missing)}",
            "put the model's own config.json beside its files",
        )
    if not read.always_bytes and read.draft is not None:
        raise CheckpointError(
            f"{read.name} is a drafter: it makes no step of its own",
            "name its target model first and this one as --draft",
        )


def num_distinct(group: ExpertGroup, *, batch: int, k: int, routing: Routing) -> float:
    """Experts that a step of b sequences with k drafts each reads in one layer."""
    chosen = group.experts_per_token or 0
    independent = distinct_experts(group.num_experts, chosen, batch * (k + 1))
    if routing == "independent" or k == 0:
        return independent
    fewest = distinct_experts(group.num_experts, chosen, batch)
    return max(fewest, EXPERT_OVERLAP * independent)


def _verify_parts(
    read: ReadBytes, context: float, batch: int, k: int, routing: Routing
) -> tuple[StepPart, ...]:
    sizes = {str(group.role): group.num_bytes for group in read.groups}
    parts = {
        role: sizes.get(role, 0.0)
        for role in ("attention", "linear", "mlp", "shared", "router", "norm", "other")
    }
    parts["experts"] = sum(
        group.num_bytes * num_distinct(group, batch=batch, k=k, routing=routing) / group.num_experts
        for group in read.experts
    )
    parts["head"] = read.head_bytes
    parts["kv"] = batch * kv_bytes(read.kv, context, read.kv_element_bytes)
    parts["state"] = batch * read.state_bytes * (k + 2)
    return tuple(StepPart(name=name, num_bytes=size) for name, size in parts.items() if size)


def _draft_parts(read: ReadBytes, context: float, batch: int) -> tuple[StepPart, ...]:
    draft = read.draft
    if draft is None:
        return ()
    experts = sum(
        group.num_bytes
        * num_distinct(group, batch=batch, k=0, routing="independent")
        / group.num_experts
        for group in draft.experts
    )
    parts = {
        "draft_layer": draft.always_bytes,
        "draft_experts": experts,
        "draft_head": draft.head_bytes,
        "draft_kv": batch * kv_bytes(draft.kv, context, read.kv_element_bytes),
        "draft_state": batch * 2 * draft.state_bytes,
    }
    return tuple(StepPart(name=name, num_bytes=size) for name, size in parts.items() if size)


def _total(parts: tuple[StepPart, ...]) -> float:
    return sum(part.num_bytes for part in parts)


def _ceilings(
    device: Device | None,
    plain_bytes: float,
    verify_bytes: float,
    draft_bytes: float,
    batch_and_k: tuple[int, int],
) -> tuple[Ceiling, ...]:
    if device is None:
        return ()
    batch, k = batch_and_k
    bases: tuple[tuple[Literal["nominal", "measured"], str, float | None], ...] = (
        ("nominal", "data sheet or bus width x clock", device.nominal_bytes_per_s),
        ("measured", device.measured_kind, device.measured_bytes_per_s),
    )
    return tuple(
        Ceiling(
            basis=basis,
            kind=kind,
            bytes_per_s=rate,
            plain_s=plain_bytes / rate,
            verify_s=verify_bytes / rate,
            draft_s=draft_bytes / rate,
            step_s=(verify_bytes + k * draft_bytes) / rate,
            plain_tokens_per_s=batch * rate / plain_bytes,
            steps_per_s=rate / (verify_bytes + k * draft_bytes),
            max_tokens_per_s=batch * (k + 1) * rate / (verify_bytes + k * draft_bytes),
        )
        for basis, kind, rate in bases
        if rate
    )
