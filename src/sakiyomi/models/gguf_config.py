"""From GGUF metadata to a model's shape (`{arch}.*` keys, one value for all layers or one each).

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md and `gguf.constants.Keys`.
"""

from collections.abc import Mapping
from typing import Any

from sakiyomi.models.model_shape import (
    LayerShape,
    LinearShape,
    MlaShape,
    MlpKind,
    ModelShape,
    MoeShape,
)

SLIDING_PERIOD = {"gemma2": 2, "gemma3": 6, "gpt-oss": 2, "llama4": 4, "cohere2": 4, "gemma3n": 5}
"""Every n-th layer attends to all where the file has no pattern of its own (llama.cpp,
`llama-model.cpp`, `set_swa_pattern`); gpt-oss and gemma2 begin with a sliding layer."""

DEFAULT_INTERVAL = 4
"""Qwen3-Next and Qwen3.5: every 4th layer has full attention (`full_attention_interval`)."""


class _Keys:
    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.metadata = metadata
        self.architecture = str(metadata.get("general.architecture", ""))
        self.missing: list[str] = []

    def find(self, *names: str) -> Any:
        for name in names:
            value = self.metadata.get(f"{self.architecture}.{name}")
            if value is not None:
                return value
        return None

    def number(self, *names: str, default: int | None = None) -> int:
        value = self.find(*names)
        if isinstance(value, list):
            value = max(value, default=None)
        if isinstance(value, int | float):
            return int(value)
        if default is None:
            tried = ", ".join(f"{self.architecture}.{name}" for name in names)
            self.missing.append(f"{names[0]} (looked for {tried})")
        return default or 0

    def per_layer(self, name: str, layer: int, default: int) -> int:
        value = self.find(name)
        if isinstance(value, list):
            return int(value[layer]) if layer < len(value) else default
        return int(value) if isinstance(value, int | float) else default


def shape_of_gguf(
    metadata: Mapping[str, Any],
    array_lengths: Mapping[str, int],
    linear_layers: frozenset[int] = frozenset(),
) -> ModelShape:
    """Read the shape. `linear_layers` are those whose tensors are recurrent (`tensor_roles`)."""
    keys = _Keys(metadata)
    num_draft = keys.number("nextn_predict_layers", default=0)
    num_layers = max(0, keys.number("block_count") - num_draft)
    mla = _mla(keys)
    moe = _moe(keys)
    recurrent = linear_layers or _interval_layers(keys, num_layers)
    return ModelShape(
        model_type=keys.architecture,
        hidden=keys.number("embedding_length"),
        vocab=keys.number("vocab_size", default=array_lengths.get("tokenizer.ggml.tokens", 0)),
        layers=tuple(
            _layer(keys, layer, mla, moe, is_linear=layer in recurrent)
            for layer in range(num_layers)
        ),
        tied=None,
        intermediate=keys.number("feed_forward_length", default=0),
        mla=mla,
        linear=_linear(keys) if recurrent else None,
        moe=moe,
        num_draft_layers=num_draft,
        rules=(_rule(keys, mla),),
        missing=tuple(keys.missing),
    )


def _rule(keys: _Keys, mla: MlaShape | None) -> str:
    if mla is not None:
        return "KV cache: one latent of kv_lora_rank + rope.dimension_count per token"
    per_layer = isinstance(keys.find("attention.head_count_kv"), list)
    return "KV cache: key_length, head_count_kv" + (" per layer" if per_layer else "")


def _interval_layers(keys: _Keys, num_layers: int) -> frozenset[int]:
    if keys.find("ssm.state_size") is None or keys.find("attention.head_count") is None:
        return frozenset()
    interval = keys.number("full_attention_interval", default=DEFAULT_INTERVAL)
    return frozenset(layer for layer in range(num_layers) if (layer + 1) % interval)


def _layer(
    keys: _Keys, layer: int, mla: MlaShape | None, moe: MoeShape | None, *, is_linear: bool
) -> LayerShape:
    leading = keys.number("leading_dense_block_count", default=0)
    has_experts = moe is not None and layer >= leading
    mlp: MlpKind = "moe" if has_experts else "dense"
    num_heads = keys.per_layer("attention.head_count", layer, 0)
    num_kv_heads = keys.per_layer("attention.head_count_kv", layer, num_heads)
    # A hybrid marks its recurrent layers by a count of zero.
    if is_linear or (keys.find("ssm.state_size") is not None and not num_kv_heads):
        return LayerShape(attention="linear", mlp=mlp)
    window = keys.number("attention.sliding_window", default=0)
    slides = bool(window) and _slides(keys, layer)
    suffix = "_swa" if slides else ""
    hidden = keys.number("embedding_length", default=0)
    fallback = hidden // num_heads if num_heads else 0
    key_dim = keys.number(f"attention.key_length{suffix}", "attention.key_length", default=fallback)
    value_dim = keys.number(
        f"attention.value_length{suffix}", "attention.value_length", default=key_dim
    )
    if mla is not None:
        top = keys.number("attention.indexer.top_k", default=0)
        return LayerShape(
            attention="mla", mlp=mlp, num_heads=num_heads, num_kv_heads=1, window=top or None
        )
    return LayerShape(
        attention="sliding" if slides else ("full" if num_kv_heads else "none"),
        mlp=mlp,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=key_dim,
        value_head_dim=value_dim,
        window=window if slides else None,
    )


def _slides(keys: _Keys, layer: int) -> bool:
    pattern = keys.find("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        return layer < len(pattern) and bool(pattern[layer])
    period = pattern if isinstance(pattern, int) else SLIDING_PERIOD.get(keys.architecture, 1)
    return period <= 1 or (layer + 1) % period != 0


def _mla(keys: _Keys) -> MlaShape | None:
    rank = keys.number("attention.kv_lora_rank", default=0)
    if not rank:
        return None
    rope = keys.number("rope.dimension_count")
    return MlaShape(
        q_rank=keys.number("attention.q_lora_rank", default=0) or None,
        kv_rank=rank,
        nope_dim=max(0, keys.number("attention.key_length_mla", default=0) - rope),
        rope_dim=rope,
        value_dim=keys.number("attention.value_length_mla", default=0),
        index_dim=keys.number("attention.indexer.key_length", default=0),
    )


def _linear(keys: _Keys) -> LinearShape:
    """GDN and Mamba share the ssm keys: inner = value heads x value dim, group = key heads."""
    kda_dim = keys.number("kda.head_dim", default=0)
    if kda_dim:
        heads = keys.number("attention.head_count")
        return LinearShape(
            kind="kda",
            num_key_heads=heads,
            num_value_heads=heads,
            key_dim=kda_dim,
            value_dim=kda_dim,
        )
    inner = keys.number("ssm.inner_size")
    heads = keys.number("ssm.time_step_rank")
    return LinearShape(
        kind="gdn" if keys.architecture.startswith("qwen") else "mamba2",
        num_key_heads=keys.number("ssm.group_count", default=1),
        num_value_heads=heads,
        key_dim=keys.number("ssm.state_size"),
        value_dim=inner // heads if heads else 0,
    )


def _moe(keys: _Keys) -> MoeShape | None:
    num_experts = keys.number("expert_count", default=0)
    if num_experts <= 1:
        return None
    return MoeShape(
        num_experts=num_experts,
        experts_per_token=keys.number("expert_used_count") or None,
        intermediate=keys.number("expert_feed_forward_length", default=0),
        shared_intermediate=keys.number("expert_shared_feed_forward_length", default=0),
    )
