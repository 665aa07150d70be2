"""From a checkpoint's total size alone: the formats it can hold, and what each would read."""

import itertools

import msgspec

from sakiyomi.models.derived import derive_weights
from sakiyomi.models.formats import BYTES_PER_PARAMETER
from sakiyomi.models.model_shape import ModelShape
from sakiyomi.models.tensors import Role
from sakiyomi.models.weights import distinct_experts

FORMATS = ("nvfp4", "fp8", "bf16")

PARTS: tuple[tuple[str, tuple[Role, ...]], ...] = (
    ("attention", ("attention",)),
    ("linear", ("linear",)),
    ("mlp", ("mlp", "shared")),
    ("experts", ("experts",)),
    ("head", ("head",)),
)
"""Parts that exporters quantize together; embedding, router and tower stay bf16."""


class SizeMatch(msgspec.Struct, frozen=True, kw_only=True):
    """A combination of formats, its size, and how far that is from the size that was seen."""

    formats: dict[str, str]
    has_vision: bool
    resident_bytes: float
    read_bytes: float
    distance_bytes: float


def match_size(
    shape: ModelShape,
    total_bytes: float,
    *,
    vision_parameters: float = 0.0,
    formats: tuple[str, ...] = FORMATS,
) -> tuple[SizeMatch, ...]:
    """All combinations, the nearest first. A draft head is not counted: it is a file of its own.

    `read_bytes` is a plain step's weights, batch 1.
    """
    sizes: dict[Role, float] = {}
    for weight in derive_weights(shape, lambda _name, _role: ("", 0.0)):
        sizes[weight.role] = sizes.get(weight.role, 0) + weight.num_parameters
    sizes = {role: size for role, size in sizes.items() if not role.startswith("draft")}
    parts = [
        (name, sum(sizes.get(role, 0) for role in roles))
        for name, roles in PARTS
        if any(role in sizes for role in roles)
    ]
    plain = BYTES_PER_PARAMETER["bf16"]
    fixed = plain * (sizes.get("embedding", 0) + sizes.get("router", 0))
    always_read = plain * (
        sizes.get("router", 0) + (sizes.get("embedding", 0) if "head" not in sizes else 0)
    )
    towers = (False, True) if vision_parameters else (False,)
    matches = []
    for labels in itertools.product(formats, repeat=len(parts)):
        widths = [BYTES_PER_PARAMETER[label] for label in labels]
        stored = fixed + sum(size * width for (_, size), width in zip(parts, widths, strict=True))
        read = always_read + sum(
            size * width * _read_share(name, shape)
            for (name, size), width in zip(parts, widths, strict=True)
        )
        for has_vision in towers:
            resident = stored + (plain * vision_parameters if has_vision else 0)
            matches.append(
                SizeMatch(
                    formats=dict(zip((name for name, _ in parts), labels, strict=True)),
                    has_vision=has_vision,
                    resident_bytes=resident,
                    read_bytes=read,
                    distance_bytes=abs(resident - total_bytes),
                )
            )
    return tuple(sorted(matches, key=lambda match: match.distance_bytes))


def _read_share(name: str, shape: ModelShape) -> float:
    if name != "experts" or shape.moe is None or not shape.moe.experts_per_token:
        return 1.0
    chosen = distinct_experts(shape.moe.num_experts, shape.moe.experts_per_token, 1)
    return chosen / shape.moe.num_experts
