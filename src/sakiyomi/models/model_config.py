"""From a Hugging Face `config.json` to a model's shape. The language sub-config wins.

Nothing is guessed: a field that is not there is listed in `missing` with the paths tried.
Field names as in the configs themselves; the traps are those of nested configs, of experts that
go by five names and of head sizes that are not hidden / heads.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from sakiyomi.models.layer_kinds import attention_kinds, mlp_kinds
from sakiyomi.models.model_shape import (
    AttentionKind,
    LayerShape,
    LinearShape,
    MlaShape,
    MlpKind,
    ModelShape,
    MoeShape,
)

LANGUAGE_PATHS = (
    ("text_config",),
    ("thinker_config", "text_config"),
    ("llm_config",),
    ("language_config",),
    ("language_model",),
    ("text_model",),
    (),
)
DRAFT_FIELDS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
GATED_ATTENTION = ("qwen3_next", "qwen3_5")
"""How model types begin whose query projection holds an output gate, whether a field says so or
not (transformers, `Qwen3NextAttention`)."""

UNGATED_ACTIVATIONS = ("relu2", "gelu", "relu")


class Fields:
    """A config's fields: looked up in the language sub-config, then at the top."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.top = config
        self.text, self.path = _language_config(config)
        self.missing: list[str] = []

    def find(self, *names: str) -> Any:
        """The first of `names` that has a value, or None."""
        for scope in (self.text, self.top):
            for name in names:
                if scope.get(name) is not None:
                    return scope[name]
        return None

    def number(self, *names: str, default: int | None = None) -> int:
        """A whole number. Without a default, its absence is noted and 0 returned."""
        value = self.find(*names)
        if isinstance(value, list) and value and len({*map(str, value)}) == 1:
            value = value[0]  # ERNIE-VL states one count per modality
        if isinstance(value, list) and value:
            value = value[0]
        if isinstance(value, int | float) and not isinstance(value, bool):
            return int(value)
        if default is not None:
            return default
        prefix = ".".join([*self.path, ""])
        tried = [prefix + name for name in names] + ([*names] if prefix else [])
        self.missing.append(f"{names[0]} (looked for {', '.join(tried)})")
        return 0


def _language_config(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    for path in LANGUAGE_PATHS:
        scope: Any = config
        for step in path:
            scope = scope.get(step) if isinstance(scope, Mapping) else None
        if isinstance(scope, Mapping) and (
            "hidden_size" in scope or "n_embd" in scope or "num_hidden_layers" in scope
        ):
            return scope, path
    return config, ()


def shape_of_config(config: Mapping[str, Any]) -> ModelShape:
    """Read the shape. Missing fields are listed in the result, not invented."""
    fields = Fields(config)
    hidden = fields.number("hidden_size", "n_embd", "d_model")
    listed = fields.find("layers_block_type", "layer_types")
    num_layers = fields.number(
        "num_hidden_layers", "n_layer", "num_layers", default=len(listed) if listed else None
    )
    attention, rule = attention_kinds(fields.find, num_layers)
    moe = _moe(fields)
    mlps = mlp_kinds(fields.find, num_layers, has_experts=moe is not None)
    mla = _mla(fields)
    if mla is not None:
        attention = tuple("mla" if kind == "full" else kind for kind in attention)
    layers = _layers(fields, hidden, attention, mlps, mla)
    tied = fields.find("tie_word_embeddings")
    return ModelShape(
        model_type=str(fields.find("model_type") or ""),
        hidden=hidden,
        vocab=fields.number("vocab_size"),
        layers=layers,
        tied=tied if isinstance(tied, bool) else None,
        intermediate=_dense_intermediate(fields, mlps),
        gated_mlp=fields.find("mlp_hidden_act", "hidden_activation") not in UNGATED_ACTIVATIONS
        or fields.find("hidden_activation") is not None,
        attention_gate=_attention_gate(fields),
        mla=mla,
        linear=_linear(fields, attention),
        moe=moe,
        num_draft_layers=num_draft_layers(fields),
        rules=(rule, *_kv_rules(fields, mla)),
        missing=tuple(fields.missing),
    )


def num_draft_layers(fields: Fields) -> int:
    """What the config claims; the tensors decide (`tensor_roles`)."""
    pattern = fields.find("mtp_hybrid_override_pattern", "mtp_layers_block_type")
    stated = fields.number(*DRAFT_FIELDS, default=0)
    return max(stated, 1) if pattern else stated


def _attention_gate(fields: Fields) -> bool:
    stated = fields.find("attn_output_gate")
    model_type = str(fields.find("model_type"))
    return bool(stated) if stated is not None else model_type.startswith(GATED_ATTENTION)


def _layers(
    fields: Fields,
    hidden: int,
    attention: tuple[AttentionKind, ...],
    mlps: tuple[MlpKind, ...],
    mla: MlaShape | None,
) -> tuple[LayerShape, ...]:
    num_heads = fields.number("num_attention_heads", "n_head")
    head_dim = fields.number(
        "head_dim", "attention_head_dim", default=hidden // num_heads if num_heads else 0
    )
    full = LayerShape(
        attention="full",
        mlp="dense",
        num_heads=num_heads,
        # A single count for all, or one per layer where layers differ
        num_kv_heads=fields.number(
            "num_key_value_heads", "num_kv_heads", "multi_query_group_num", default=num_heads
        ),
        head_dim=head_dim,
        value_head_dim=fields.number("v_head_dim", default=head_dim) if not mla else 0,
    )
    window = fields.number(
        "sliding_window", "sliding_window_size", "attention_chunk_size", default=0
    )
    sliding = msgspec.structs.replace(
        full,
        num_heads=fields.number("swa_num_attention_heads", default=full.num_heads),
        num_kv_heads=fields.number("swa_num_key_value_heads", default=full.num_kv_heads),
        head_dim=fields.number("swa_head_dim", default=full.head_dim),
        value_head_dim=fields.number("swa_v_head_dim", default=full.value_head_dim),
        window=window or None,
    )
    global_dim = fields.number("global_head_dim", default=0)
    if global_dim:  # Gemma 4: the plain fields describe the sliding layers
        full = msgspec.structs.replace(
            full,
            head_dim=global_dim,
            value_head_dim=global_dim,
            num_kv_heads=fields.number("num_global_key_value_heads", default=full.num_kv_heads),
            keys_are_values=bool(fields.find("attention_k_eq_v")),
        )
    if mla is not None:
        top = fields.number("index_topk", default=0)
        full = msgspec.structs.replace(full, num_kv_heads=1, window=top or None)
    by_kind = {"sliding": sliding, "full": full, "mla": full}
    nothing = LayerShape(attention="none", mlp="none")
    return tuple(
        msgspec.structs.replace(by_kind.get(kind, nothing), attention=kind, mlp=mlp)
        for kind, mlp in zip(attention, mlps, strict=True)
    )


def _mla(fields: Fields) -> MlaShape | None:
    rank = fields.number("kv_lora_rank", default=0)
    if not rank:
        return None
    nope = fields.number("qk_nope_head_dim")
    return MlaShape(
        q_rank=fields.number("q_lora_rank", default=0) or None,
        kv_rank=rank,
        nope_dim=nope,
        rope_dim=fields.number("qk_rope_head_dim"),
        value_dim=fields.number("v_head_dim", default=nope),
        index_dim=fields.number("index_head_dim", default=0),
    )


def _linear(fields: Fields, attention: tuple[AttentionKind, ...]) -> LinearShape | None:
    if "linear" not in attention:
        return None
    kda = fields.find("linear_attn_config")
    if isinstance(kda, Mapping):
        heads, dim = int(kda.get("num_heads", 0)), int(kda.get("head_dim", 0))
        return LinearShape(
            kind="kda", num_key_heads=heads, num_value_heads=heads, key_dim=dim, value_dim=dim
        )
    if fields.find("linear_num_value_heads") is not None:
        return LinearShape(
            kind="gdn",
            num_key_heads=fields.number("linear_num_key_heads"),
            num_value_heads=fields.number("linear_num_value_heads"),
            key_dim=fields.number("linear_key_head_dim"),
            value_dim=fields.number("linear_value_head_dim"),
        )
    return LinearShape(
        kind="mamba2",
        num_key_heads=fields.number("n_groups", "mamba_n_groups"),
        num_value_heads=fields.number("mamba_num_heads", "mamba_n_heads"),
        key_dim=fields.number("ssm_state_size", "mamba_d_state"),
        value_dim=fields.number("mamba_head_dim", "mamba_d_head"),
    )


def _moe(fields: Fields) -> MoeShape | None:
    num_experts = fields.number(
        "n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts", default=0
    )
    if num_experts <= 1:
        return None
    intermediate = fields.number(
        "moe_intermediate_size", "expert_intermediate_size", "intermediate_size"
    )
    top = fields.number(
        "num_experts_per_tok",
        "num_experts_per_token",
        "experts_per_token",
        "moe_k",
        "top_k_experts",
        "moe_topk",
        "num_selected_experts",
    )
    return MoeShape(
        num_experts=num_experts,
        experts_per_token=top or None,
        intermediate=intermediate,
        shared_intermediate=_shared_intermediate(fields, intermediate),
        hidden=fields.number("moe_latent_size", "routed_expert_hidden_size", default=0) or None,
    )


def _shared_intermediate(fields: Fields, expert_intermediate: int) -> int:
    """Width of all shared experts together."""
    whole = fields.number(
        "shared_expert_intermediate_size", "share_expert_dim", "shared_intermediate_size", default=0
    )
    if whole:
        return whole
    if fields.find("model_type") in ("llama4_text", "llama4"):
        return expert_intermediate
    count = fields.number(
        "n_shared_experts", "num_shared_experts", "moe_num_shared_experts", default=0
    )
    return count * fields.number("moe_shared_expert_intermediate_size", default=expert_intermediate)


def _dense_intermediate(fields: Fields, mlps: tuple[MlpKind, ...]) -> int:
    if not {"dense", "dense+moe"} & {*mlps}:
        return 0
    return fields.number("dense_intermediate_size", "intermediate_size_mlp", "intermediate_size")


def _kv_rules(fields: Fields, mla: MlaShape | None) -> tuple[str, ...]:
    if fields.find("compress_ratios") is not None:
        fields.missing.append(
            "the size of a compressed KV cache (compress_ratios): its attention is not known"
        )
    if mla is not None:
        return ("KV cache: one latent of kv_lora_rank + qk_rope_head_dim per token",)
    stated = fields.find("head_dim", "attention_head_dim") is not None
    return ("KV cache: " + ("head_dim as stated" if stated else "head_dim = hidden / heads"),)
