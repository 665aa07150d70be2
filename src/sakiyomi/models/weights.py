"""Weights and a shape to read bytes: what one decode step must move from device memory.

Resident is not read: a text decode step reads one row of the embedding table, no vision or audio
tower, only the experts that were chosen, and the draft head only when it drafts.
"""

from collections.abc import Sequence

import msgspec

from sakiyomi.models.kv_cache import KvGroup, kv_groups, state_bytes
from sakiyomi.models.model_shape import ModelShape
from sakiyomi.models.tensors import Role, Weight

ALWAYS_READ: tuple[Role, ...] = (
    "attention",
    "linear",
    "mlp",
    "shared",
    "router",
    "norm",
    "other",
)
DEFAULT_KV_ELEMENT_BYTES = 2.0
"""fp16 or bf16: what engines cache unless a checkpoint or a flag says otherwise."""

MAX_BITS_PER_PARAMETER = 16.1
"""Stored bits of a logical parameter above this mean unpacking went wrong, or an fp32 file."""


class TensorGroup(msgspec.Struct, frozen=True, kw_only=True):
    """All weights of one role and their formats, the largest first."""

    role: Role
    format: str
    num_bytes: float
    num_parameters: float
    num_tensors: int


class ExpertGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Routed experts of all layers that have the same number of them."""

    num_experts: int
    experts_per_token: int | None
    num_bytes: float
    num_parameters: float


class DraftBytes(msgspec.Struct, frozen=True, kw_only=True):
    """What drafts. A pass reads `always_bytes`, chosen experts, a head and its own KV cache."""

    always_bytes: float
    experts: tuple[ExpertGroup, ...]
    head_bytes: float
    has_own_head: bool
    resident_bytes: float
    num_parameters: float
    num_modules: int
    kv: tuple[KvGroup, ...] = ()
    state_bytes: float = 0.0


class ReadBytes(msgspec.Struct, frozen=True, kw_only=True):
    """A model as a decode step sees it. Bytes; `source` says whether headers or shapes gave them.

    `resident_bytes` is everything stored. `always_bytes` is read by every step whatever the batch
    (attention, linear, MLP, shared experts, router, norms, unknown names); `head_bytes` once more
    (the embedding table itself where they are tied); `state_bytes` is one sequence's recurrent
    state. `missing` names what is not known, and so what cannot be computed.
    """

    name: str
    source: str
    groups: tuple[TensorGroup, ...]
    resident_bytes: float
    num_parameters: float
    always_bytes: float
    always_parameters: float
    experts: tuple[ExpertGroup, ...]
    head_bytes: float
    head_parameters: float
    head_tied: bool
    draft: DraftBytes | None
    kv: tuple[KvGroup, ...]
    kv_element_bytes: float
    state_bytes: float
    rules: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()

    @property
    def active_parameters(self) -> float:
        """Parameters of one token's step: with the head, without the embedding table."""
        chosen = sum(
            (group.experts_per_token or 0) / group.num_experts * group.num_parameters
            for group in self.experts
        )
        return self.always_parameters + chosen + self.head_parameters

    @property
    def embedding_bytes(self) -> float:
        """The table of which a step reads one row per token; 0 where it is the head as well."""
        stored = sum(group.num_bytes for group in self.groups if group.role == "embedding")
        return 0.0 if self.head_tied else stored


def distinct_experts(num_experts: int, experts_per_token: int, num_tokens: float) -> float:
    """Expected distinct experts under independent, even routing: an upper bound. N(1) = K."""
    missed: float = (1 - experts_per_token / num_experts) ** num_tokens
    return num_experts * (1 - missed)


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where weights come from, and what was noticed while reading them."""

    name: str
    source: str
    kv_element_bytes: float | None = None
    num_draft_modules: int = 1
    cautions: tuple[str, ...] = ()


def read_bytes(weights: Sequence[Weight], shape: ModelShape | None, origin: Origin) -> ReadBytes:
    """Group the weights and join them with what the shape says about cache and state."""
    by_role: dict[Role, list[Weight]] = {}
    for weight in weights:
        by_role.setdefault(weight.role, []).append(weight)
    always = [weight for role in ALWAYS_READ for weight in by_role.get(role, [])]
    head = by_role.get("head", [])
    is_tied = not head and bool(by_role.get("embedding"))
    head = head or _tied_table(by_role.get("embedding", []))
    head_bytes = sum(weight.num_bytes for weight in head)
    kv = kv_groups(shape.layers, shape) if shape else ()
    return ReadBytes(
        name=origin.name,
        source=origin.source,
        groups=tuple(_group(role, members) for role, members in by_role.items()),
        resident_bytes=sum(weight.num_bytes for weight in weights),
        num_parameters=sum(weight.num_parameters for weight in weights),
        always_bytes=sum(weight.num_bytes for weight in always),
        always_parameters=sum(weight.num_parameters for weight in always),
        experts=_expert_groups(by_role.get("experts", []), shape),
        head_bytes=head_bytes,
        head_parameters=sum(weight.num_parameters for weight in head),
        head_tied=is_tied,
        draft=_draft(by_role, shape, head_bytes, origin.num_draft_modules),
        kv=kv,
        kv_element_bytes=origin.kv_element_bytes or DEFAULT_KV_ELEMENT_BYTES,
        state_bytes=state_bytes(shape) if shape else 0.0,
        rules=shape.rules if shape else (),
        missing=_missing(shape, by_role),
        cautions=(*origin.cautions, *_cautions(by_role, shape, is_tied=is_tied)),
    )


def _tied_table(tables: Sequence[Weight]) -> list[Weight]:
    """The embedding table that serves as head: the largest, beside tables that stand per layer."""
    named = [table for table in tables if "per_layer" not in table.name]
    return [max(named, key=lambda table: table.num_parameters)] if named else []


def _group(role: Role, members: Sequence[Weight]) -> TensorGroup:
    bytes_by_format: dict[str, float] = {}
    for weight in members:
        label = weight.format
        bytes_by_format[label] = bytes_by_format.get(label, 0) + weight.num_bytes
    total = sum(bytes_by_format.values())
    ranked = sorted(bytes_by_format, key=lambda label: -bytes_by_format[label])
    shown = [label for label in ranked if bytes_by_format[label] >= 0.01 * total] or ranked[:1]
    return TensorGroup(
        role=role,
        format="+".join(shown),
        num_bytes=total,
        num_parameters=sum(weight.num_parameters for weight in members),
        num_tensors=sum(weight.num_tensors for weight in members),
    )


def _expert_groups(experts: Sequence[Weight], shape: ModelShape | None) -> tuple[ExpertGroup, ...]:
    """Join layers with the same number of experts. The tensors count them, the config chooses."""
    by_layer: dict[int | None, list[Weight]] = {}
    for weight in experts:
        by_layer.setdefault(weight.layer, []).append(weight)
    sums: dict[int, tuple[float, float]] = {}
    for members in by_layer.values():
        stacked = max(weight.num_experts for weight in members)
        names = {weight.name.rpartition(".experts.")[2].split(".")[0] for weight in members}
        num_experts = stacked if stacked > 1 else len(names)
        num_bytes, num_parameters = sums.get(num_experts, (0.0, 0.0))
        sums[num_experts] = (
            num_bytes + sum(weight.num_bytes for weight in members),
            num_parameters + sum(weight.num_parameters for weight in members),
        )
    chosen = shape.moe.experts_per_token if shape and shape.moe else None
    return tuple(
        ExpertGroup(
            num_experts=num_experts,
            experts_per_token=min(chosen, num_experts) if chosen else None,
            num_bytes=num_bytes,
            num_parameters=num_parameters,
        )
        for num_experts, (num_bytes, num_parameters) in sums.items()
    )


def _draft(
    by_role: dict[Role, list[Weight]],
    shape: ModelShape | None,
    target_head_bytes: float,
    num_modules: int,
) -> DraftBytes | None:
    always = by_role.get("draft", [])
    experts = by_role.get("draft_experts", [])
    if not always and not experts:
        return None
    head = by_role.get("draft_head", [])
    every = [*always, *experts, *head, *by_role.get("draft_embedding", [])]
    attending = (
        [layer for layer in shape.layers if layer.attention in ("full", "mla")] if shape else []
    )
    own_head_bytes = sum(weight.num_bytes for weight in head) / num_modules
    return DraftBytes(
        always_bytes=sum(weight.num_bytes for weight in always) / num_modules,
        experts=tuple(
            msgspec.structs.replace(
                group,
                num_bytes=group.num_bytes / num_modules,
                num_parameters=group.num_parameters / num_modules,
            )
            for group in _expert_groups(experts, shape)
        ),
        head_bytes=own_head_bytes or target_head_bytes,
        has_own_head=bool(head),
        resident_bytes=sum(weight.num_bytes for weight in every),
        num_parameters=sum(weight.num_parameters for weight in every),
        num_modules=num_modules,
        kv=kv_groups(attending[-1:], shape) if shape else (),
    )


def _missing(shape: ModelShape | None, by_role: dict[Role, list[Weight]]) -> tuple[str, ...]:
    missing = [*shape.missing] if shape else ["the model's config: KV cache, state and experts"]
    if not by_role.get("head") and not by_role.get("embedding") and "draft" not in by_role:
        missing.append("an output head: neither a head nor an embedding table is in the files")
    if by_role.get("experts") and (shape is None or not shape.moe):
        missing.append("experts per token: the files hold experts, the config names none")
    return tuple(missing)


def _cautions(
    by_role: dict[Role, list[Weight]], shape: ModelShape | None, *, is_tied: bool
) -> list[str]:
    cautions = []
    unknown = by_role.get("other", [])
    if unknown:
        size = sum(weight.num_bytes for weight in unknown)
        names = ", ".join(weight.name for weight in unknown[:4])
        more = f" and {len(unknown) - 4} more" if len(unknown) > 4 else ""
        cautions.append(f"names that are not known, counted as read ({size:,.0f} B): {names}{more}")
    if is_tied and shape is not None and shape.tied is False:
        cautions.append("the config denies tied embeddings, yet no head is stored: taken as tied")
    if shape is not None and shape.num_draft_layers and "draft" not in by_role:
        cautions.append(
            "the config claims a draft head (multi-token prediction), no tensor of it is stored"
        )
    every = [weight for members in by_role.values() for weight in members]
    num_bytes = sum(weight.num_bytes for weight in every)
    num_parameters = sum(weight.num_parameters for weight in every)
    is_fp32 = sum(weight.num_bytes for weight in every if weight.format == "fp32") > num_bytes / 2
    if num_parameters and 8 * num_bytes / num_parameters > MAX_BITS_PER_PARAMETER and not is_fp32:
        cautions.append(
            f"{8 * num_bytes / num_parameters:.1f} bits per parameter: "
            "more than any 16-bit format takes; the count of parameters is too low"
        )
    return cautions


def attach_draft(target: ReadBytes, drafter: ReadBytes) -> ReadBytes:
    """Give a target the drafter of another checkpoint: an EAGLE head, or a whole small model.

    A head without a vocabulary of its own borrows the target's.
    """
    own = drafter.draft
    if own is None or drafter.always_bytes:  # a whole model, whatever draft head it has
        own = DraftBytes(
            always_bytes=drafter.always_bytes,
            experts=drafter.experts,
            head_bytes=drafter.head_bytes,
            has_own_head=True,
            resident_bytes=drafter.resident_bytes,
            num_parameters=drafter.num_parameters,
            num_modules=1,
            kv=drafter.kv,
            state_bytes=drafter.state_bytes,
        )
    elif not own.has_own_head:
        own = msgspec.structs.replace(own, head_bytes=target.head_bytes)
    return msgspec.structs.replace(
        target,
        draft=own,
        name=f"{target.name} + {drafter.name}",
        resident_bytes=target.resident_bytes + drafter.resident_bytes,
        num_parameters=target.num_parameters + drafter.num_parameters,
        cautions=(*target.cautions, *drafter.cautions),
    )
