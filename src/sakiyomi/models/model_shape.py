"""The shape of a language model: what its config says about layers, heads and experts."""

from typing import Literal

import msgspec

AttentionKind = Literal["full", "sliding", "mla", "linear", "none"]
MlpKind = Literal["dense", "moe", "dense+moe", "none"]
LinearKind = Literal["gdn", "kda", "mamba2"]


class LayerShape(msgspec.Struct, frozen=True, kw_only=True):
    """One layer. `head_dim` is of queries and keys; `window` caps the cached positions it reads."""

    attention: AttentionKind
    mlp: MlpKind
    num_heads: int = 0
    num_kv_heads: int = 0
    head_dim: int = 0
    value_head_dim: int = 0
    window: int | None = None
    keys_are_values: bool = False
    """One projection serves keys and values (Gemma 4's global layers); both are cached."""


class MlaShape(msgspec.Struct, frozen=True, kw_only=True):
    """Multi-head latent attention (DeepSeek-V2 2405.04434): one latent per token is cached."""

    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    index_dim: int = 0
    """Key size of a sparse attention's indexer (DSA); its keys are cached beside the latent."""


class LinearShape(msgspec.Struct, frozen=True, kw_only=True):
    """A recurrent layer. Its state has `num_value_heads * key_dim * value_dim` elements."""

    kind: LinearKind
    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int


class MoeShape(msgspec.Struct, frozen=True, kw_only=True):
    """Routed experts. `hidden` is their own width where they work in a latent space."""

    num_experts: int
    experts_per_token: int | None
    intermediate: int
    shared_intermediate: int = 0
    hidden: int | None = None


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """A language model's shape. `missing`: what the config does not say, with the paths."""

    model_type: str
    hidden: int
    vocab: int
    layers: tuple[LayerShape, ...]
    tied: bool | None
    intermediate: int = 0
    gated_mlp: bool = True
    attention_gate: bool = False
    mla: MlaShape | None = None
    linear: LinearShape | None = None
    moe: MoeShape | None = None
    num_draft_layers: int = 0
    state_element_bytes: float = 4
    rules: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
