"""What a sequence keeps on the device: KV cache by kind of attention, and recurrent state."""

from collections.abc import Iterable, Sequence

import msgspec

from sakiyomi.models.model_shape import LayerShape, ModelShape


class KvGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Layers with the same KV cache: elements of a position in all of them together.

    `uncapped_elements` are read for the whole context even where a window caps the rest
    (the keys of a sparse attention's indexer).
    """

    kind: str
    num_layers: int
    elements_per_token: int
    window: int | None = None
    uncapped_elements: int = 0


def kv_bytes(kv: Iterable[KvGroup], context: float, element_bytes: float) -> float:
    """Bytes of KV cache that a sequence's step reads at a context of so many tokens."""
    return sum(
        group.elements_per_token * min(context, group.window or context) * element_bytes
        + group.uncapped_elements * context * element_bytes
        for group in kv
    )


def state_bytes(shape: ModelShape) -> float:
    """One sequence's recurrent state: layers x value heads x key dim x value dim, fp32."""
    if shape.linear is None:
        return 0.0
    num_layers = sum(layer.attention == "linear" for layer in shape.layers)
    linear = shape.linear
    elements = linear.num_value_heads * linear.key_dim * linear.value_dim
    return num_layers * elements * shape.state_element_bytes


def kv_groups(layers: Sequence[LayerShape], shape: ModelShape) -> tuple[KvGroup, ...]:
    """Sum the cache per layer: latent for MLA, capped by a window, nothing for linear layers."""
    counts: dict[tuple[str, int, int | None, int], int] = {}
    for layer in layers:
        if layer.attention in ("linear", "none"):
            continue
        index_dim = 0
        elements = layer.num_kv_heads * (layer.head_dim + layer.value_head_dim)
        if layer.attention == "mla" and shape.mla is not None:
            elements = shape.mla.kv_rank + shape.mla.rope_dim
            index_dim = shape.mla.index_dim
        key = (layer.attention, elements, layer.window, index_dim)
        counts[key] = counts.get(key, 0) + 1
    return tuple(
        KvGroup(
            kind=kind,
            num_layers=count,
            elements_per_token=count * elements,
            window=window,
            uncapped_elements=count * index_dim,
        )
        for (kind, elements, window, index_dim), count in counts.items()
    )
