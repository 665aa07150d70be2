"""Which layer attends how, and which has experts: the dozen ways in which configs say it."""

from collections.abc import Callable
from typing import Any

from sakiyomi.models.model_shape import AttentionKind, MlpKind

Find = Callable[..., Any]
"""`find(*names)`: the value of the first config field that has one, or None."""

KIND_OF_WORD: dict[str, AttentionKind] = {
    "full_attention": "full",
    "attention": "full",
    "full": "full",
    "global": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "sliding",
    "local": "sliding",
    "linear_attention": "linear",
    "mamba": "linear",
    "mamba2": "linear",
    "kda": "linear",
    "conv": "none",
    "mlp": "none",
    "moe": "none",
}
KIND_OF_LETTER: dict[str, AttentionKind] = {"M": "linear", "*": "full", "-": "none", "E": "none"}
"""Nemotron-H's `hybrid_override_pattern`: a layer is a mixer or an MLP, never both."""


def attention_kinds(find: Find, num_layers: int) -> tuple[tuple[AttentionKind, ...], str]:
    """The kind of each layer and the rule that told it."""
    pattern = find("hybrid_override_pattern")
    if isinstance(pattern, str):
        kinds = tuple(KIND_OF_LETTER.get(letter, "none") for letter in pattern)
        return kinds, "layers: hybrid_override_pattern"
    words = find("layer_types", "layers_block_type")
    if isinstance(words, list) and len(words) >= num_layers:
        kinds = tuple(KIND_OF_WORD.get(str(word), "full") for word in words[:num_layers])
        return kinds, "layers: layer_types"
    for name, marked, kind in (
        ("hybrid_layer_pattern", 1, "sliding"),
        ("attn_type_list", 0, "linear"),
    ):
        marks = find(name)
        if isinstance(marks, list) and len(marks) >= num_layers:
            return _marked(marks[:num_layers], marked, kind), f"layers: {name}"
    return _by_rule(find, num_layers)


def _marked(marks: list[Any], marked: int, kind: Any) -> tuple[AttentionKind, ...]:
    return tuple(kind if mark == marked else "full" for mark in marks)


def _by_rule(find: Find, num_layers: int) -> tuple[tuple[AttentionKind, ...], str]:
    kda = find("linear_attn_config")
    if isinstance(kda, dict) and isinstance(kda.get("kda_layers"), list):
        recurrent = {layer - 1 for layer in kda["kda_layers"]}  # counted from 1
        rule: tuple[str, Period] = ("linear_attn_config", lambda layer: layer not in recurrent)
        return _spread(num_layers, "linear", rule)
    interval = find("full_attention_interval")
    if isinstance(interval, int) and find("linear_num_value_heads") is not None:
        return _spread(num_layers, "linear", ("full_attention_interval", _every(interval)))
    return _spread(num_layers, "sliding", _window_rule(find))


Period = Callable[[int], bool]
"""Does this layer attend in full?"""


def _every(interval: int) -> Period:
    return lambda layer: (layer + 1) % interval == 0


def _spread(
    num_layers: int, other: AttentionKind, rule: tuple[str, Period]
) -> tuple[tuple[AttentionKind, ...], str]:
    name, is_full = rule
    return tuple("full" if is_full(layer) else other for layer in range(num_layers)), (
        f"layers: {name}"
    )


def _window_rule(find: Find) -> tuple[str, Period]:
    window = find("sliding_window", "sliding_window_size")
    pattern = find("sliding_window_pattern", "_sliding_window_pattern")
    if window and isinstance(pattern, int) and pattern > 1:
        return "sliding_window_pattern", _every(pattern)
    model_type = find("model_type")
    if find("attention_chunk_size") and model_type in ("llama4_text", "llama4"):
        # Every fourth layer attends to all (Llama 4: no_rope_layer_interval, default 4).
        return "attention_chunk_size", _every(find("no_rope_layer_interval") or 4)
    if window and find("use_sliding_window"):
        first = find("max_window_layers") or 0
        return "max_window_layers", lambda layer: layer < first
    stated = find("use_sliding_window") is not None
    if window and not stated and model_type in ("mistral", "mixtral", "phi3"):
        return "sliding_window on all", lambda _layer: False
    return "full attention on all", lambda _layer: True


def mlp_kinds(find: Find, num_layers: int, *, has_experts: bool) -> tuple[MlpKind, ...]:
    """Which layers are dense, which have experts, which have both or no MLP."""
    pattern = find("hybrid_override_pattern")
    if isinstance(pattern, str):
        by_letter: dict[str, MlpKind] = {"-": "dense", "E": "moe"}
        return tuple(by_letter.get(letter, "none") for letter in pattern)
    words = find("layers_block_type")
    if isinstance(words, list) and {"moe", "mlp"} & {*words}:
        by_word: dict[str, MlpKind] = {"mlp": "dense", "moe": "moe"}
        return tuple(by_word.get(str(word), "none") for word in words)
    if not has_experts:
        return tuple("dense" for _ in range(num_layers))
    if find("enable_moe_block"):  # Gemma 4: a dense MLP beside the experts
        return tuple("dense+moe" for _ in range(num_layers))
    return tuple("moe" if _has_experts(find, layer) else "dense" for layer in range(num_layers))


def _has_experts(find: Find, layer: int) -> bool:
    frequency = find("moe_layer_freq")
    if isinstance(frequency, list):
        return layer < len(frequency) and bool(frequency[layer])
    listed = find("moe_layers_enum", "moe_layers")
    if isinstance(listed, str):
        listed = [int(part) for part in listed.split(",")]
    if isinstance(listed, list):
        return layer in listed
    start = find("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers") or 0
    end = find("moe_layer_end_index")
    is_after_end = isinstance(end, int) and 0 <= end < layer
    if layer < start or is_after_end or layer in (find("mlp_only_layers") or []):
        return False
    if isinstance(frequency, int):
        return layer % frequency == 0  # DeepSeek counts from the first layer, others to the last
    step = find("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval") or 1
    return bool((layer + 1) % step == 0)
