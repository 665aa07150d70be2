"""From a model's shape alone to its weights: what a checkpoint of that shape would hold.

Norms, biases, convolutions and other vectors are left out: under 0.1 % of the bytes.
Formulas: projections as in the models' own code (transformers, vLLM); MLA 2405.04434, gated delta
net 2412.06464, Mamba-2 2405.21060.
"""

from collections.abc import Callable, Iterator

from sakiyomi.models.model_shape import LayerShape, ModelShape
from sakiyomi.models.tensors import Role, Weight

Format = Callable[[str, Role], tuple[str, float]]
"""Module name and role -> (format, bytes of a parameter)."""


def derive_weights(shape: ModelShape, format_of: Format) -> tuple[Weight, ...]:
    """List the weights of all layers, the embedding, the head and the draft layers."""
    weights = []
    for name, role, layer, num_experts, num_parameters in _modules(shape):
        label, parameter_bytes = format_of(name, role)
        weights.append(
            Weight(
                name=name,
                role=role,
                format=label,
                num_bytes=num_parameters * parameter_bytes,
                num_parameters=num_parameters,
                layer=layer,
                num_experts=num_experts,
            )
        )
    return tuple(weights)


Module = tuple[str, Role, int | None, int, int]
"""Name, role, layer, stacked experts, parameters."""


def _modules(shape: ModelShape) -> Iterator[Module]:
    table = shape.vocab * shape.hidden
    yield "model.embed_tokens", "embedding", None, 1, table
    if not shape.tied:
        yield "lm_head", "head", None, 1, table
    for index, layer in enumerate(shape.layers):
        for name, role, num_experts, size in _layer(shape, layer):
            yield f"model.layers.{index}.{name}", role, index, num_experts, size
    yield from _draft(shape)


def _draft(shape: ModelShape) -> Iterator[Module]:
    """Each prediction layer: a fusion of 2 h to h and one layer like the model's last."""
    if not shape.layers:
        return
    # A recurrent last layer is not what such heads are made of: they attend in full.
    attending = [layer for layer in shape.layers if layer.attention in ("full", "mla")]
    with_mlp = [layer for layer in shape.layers if layer.mlp != "none"]
    if not attending or not with_mlp:
        return
    for index in range(shape.num_draft_layers):
        yield "mtp.fc", "draft", index, 1, 2 * shape.hidden * shape.hidden
        parts = [*_attention(shape, attending[-1]), *_mlp(shape, with_mlp[-1])]
        for name, role, num_experts, size in parts:
            draft_role: Role = "draft_experts" if role == "experts" else "draft"
            yield f"mtp.layers.{index}.{name}", draft_role, index, num_experts, size


Part = tuple[str, Role, int, int]
"""Name, role, stacked experts, parameters."""


def _layer(shape: ModelShape, layer: LayerShape) -> Iterator[Part]:
    if layer.attention == "linear":
        yield from _linear(shape)
    elif layer.attention != "none":
        yield from _attention(shape, layer)
    yield from _mlp(shape, layer)


def _attention(shape: ModelShape, layer: LayerShape) -> Iterator[Part]:
    h, heads = shape.hidden, layer.num_heads
    prefix = "self_attn."
    if layer.attention == "mla" and shape.mla is not None:
        mla = shape.mla
        queries = heads * (mla.nope_dim + mla.rope_dim)
        if mla.q_rank:
            yield prefix + "q_a_proj", "attention", 1, h * mla.q_rank
            yield prefix + "q_b_proj", "attention", 1, mla.q_rank * queries
        else:
            yield prefix + "q_proj", "attention", 1, h * queries
        yield prefix + "kv_a_proj_with_mqa", "attention", 1, h * (mla.kv_rank + mla.rope_dim)
        up = mla.kv_rank * heads * (mla.nope_dim + mla.value_dim)
        yield prefix + "kv_b_proj", "attention", 1, up
        yield prefix + "o_proj", "attention", 1, heads * mla.value_dim * h
        return
    queries = heads * layer.head_dim * (2 if shape.attention_gate else 1)
    yield prefix + "q_proj", "attention", 1, h * queries
    yield prefix + "k_proj", "attention", 1, h * layer.num_kv_heads * layer.head_dim
    if not layer.keys_are_values:
        yield prefix + "v_proj", "attention", 1, h * layer.num_kv_heads * layer.value_head_dim
    yield prefix + "o_proj", "attention", 1, heads * layer.value_head_dim * h


def _linear(shape: ModelShape) -> Iterator[Part]:
    linear = shape.linear
    if linear is None:
        return
    h = shape.hidden
    keys = linear.num_key_heads * linear.key_dim
    values = linear.num_value_heads * linear.value_dim
    if linear.kind == "mamba2":  # z, x, B, C, dt
        size = h * (2 * values + 2 * keys + linear.num_value_heads)
        yield "mixer.in_proj", "linear", 1, size
        yield "mixer.out_proj", "linear", 1, values * h
        return
    prefix = "linear_attn."
    if linear.kind == "kda":
        yield prefix + "in_proj_qkv", "linear", 1, h * (2 * keys + values)
        # decay and output gate through a bottleneck of one head's width (Kimi Linear 2510.26692)
        gates = 2 * (h * linear.key_dim + linear.key_dim * values) + h * linear.num_value_heads
        yield prefix + "gates", "linear", 1, gates
    else:
        yield prefix + "in_proj_qkv", "linear", 1, h * (2 * keys + values)
        yield prefix + "in_proj_z", "linear", 1, h * values
        yield prefix + "in_proj_a", "linear", 1, h * linear.num_value_heads
        yield prefix + "in_proj_b", "linear", 1, h * linear.num_value_heads
    yield prefix + "out_proj", "linear", 1, values * h


def _mlp(shape: ModelShape, layer: LayerShape) -> Iterator[Part]:
    h = shape.hidden
    names = ("gate_proj", "up_proj", "down_proj")[0 if shape.gated_mlp else 1 :]
    if layer.mlp in ("dense", "dense+moe"):
        for name in names:
            yield f"mlp.{name}", "mlp", 1, h * shape.intermediate
    if layer.mlp not in ("moe", "dense+moe") or shape.moe is None:
        return
    moe = shape.moe
    size = moe.num_experts * (moe.hidden or h) * moe.intermediate
    # Gemma 4 keeps its experts beside the dense MLP, the others inside.
    prefix, router = ("", "router.proj") if layer.mlp == "dense+moe" else ("mlp.", "mlp.gate")
    for name in names:
        yield f"{prefix}experts.{name}", "experts", moe.num_experts, size
    yield router, "router", 1, h * moe.num_experts
    if moe.shared_intermediate:
        for name in names:
            yield f"mlp.shared_expert.{name}", "shared", 1, h * moe.shared_intermediate
    if moe.hidden:
        yield "mlp.latent_proj", "shared", 1, 2 * h * moe.hidden
