"""From a tensor's name to what it does in a decode step.

Names of Hugging Face checkpoints (transformers, vLLM's loaders) and of GGUF
(`gguf.constants.TENSOR_NAMES`). The draft head is found by names too, never by the config:
exporters drop the tensors and keep the field, and the reverse.
"""

import re
from collections.abc import Iterable

import msgspec

from sakiyomi.models.tensors import Role

LAYER = re.compile(r"(?:^|\.)(?:layers|blk|h|blocks)\.(\d+)\.(.+)$")

DRAFT_LAYER = re.compile(r"^(?:eh_proj|enorm|hnorm|shared_head)\.|^nextn\.")
"""What only the layer of a multi-token prediction head has (DeepSeek, GLM; GGUF `nextn.`)."""

DRAFT_PREFIX = re.compile(
    r"(?:^|\.)(?:mtp|mtp_\w+|nextn|eagle\w*|medusa\w*|draft\w*|dflash\w*|midlayer)(?:\.|$)"
)
DRAFTER_ONLY = re.compile(r"^(?:model\.)?(?:d2t|t2d|midlayer\..+|fc\.(?:weight|qweight|\d+\..+))$")
"""Tensors that make a whole checkpoint a drafter: EAGLE's fusion and its vocabulary maps."""

DRAFT_PROJECTION = re.compile(r"(?:eh_proj|input_proj|linear_proj)(?:\.(\d+))?\.")
"""One per prediction module, whatever its layers are called."""

RECURRENT = re.compile(r"(?:^|[._])(?:A_log|dt_bias|conv1d|ssm_\w+)(?:\.|$)")
RECURRENT_ATTENTION = re.compile(r"self_attn\.(?:A_log|\w*conv1d)|ssm_conv1d_q")
PLAIN_KEYS = re.compile(r"attn_k\.|attn_kv_a")

VISION = re.compile(
    r"(?:^|\.)(?:visual|vision\w*|vit|vpm|resampler|image_\w+|mm_projector|multi_modal_projector"
    r"|embed_vision|mlp1)(?:\.|$)|^(?:v|mm)\."
)
AUDIO = re.compile(
    r"(?:^|\.)(?:audio\w*|embed_audio|speech\w*|talker|code2wav|token2wav|code_predictor)(?:\.|$)"
    r"|^a\."
)
EMBEDDING = re.compile(
    r"(?:^|\.)(?:embed_tokens\w*|wte|wpe|word_embeddings|tok_embeddings|token_embd|position_embd"
    r"|per_layer_token_embd|embed_in|(?<=backbone\.)embeddings)(?:\.|$)"
)
HEAD = re.compile(
    r"(?:^|\.)(?:lm_head|embed_out|shared_head_head|output_head)(?:\.|$)|shared_head\.head\."
    r"|^output(?:\.|$)"
)
NORM = re.compile(
    r"(?:^|[._])(?:\w*norm\w*|ln_\w+|layer_scalar|layer_output_scale|rope_freqs|rope_factors\w*"
    r"|inv_freq)(?:\.(?:weight|bias|scale|\d+))*$"
)
EXPERTS = re.compile(
    r"(?:^|\.)experts\.|ffn_(?:gate|up|down|gate_up)_exps|(?:^|\.)moe\.(?:gate|up|down)_proj"
)
SHARED = re.compile(r"shared_expert|share_expert|shared_mlp|_shexp|latent_proj|ffn_latent")
ROUTER = re.compile(
    r"(?:^|\.)(?:gate|router|gate_inp)\.|router|ffn_gate_inp|exp_probs_b|e_score_correction_bias"
)
LINEAR = re.compile(r"linear_attn|mamba|ssm_|delta_net|(?:^|\.)kda\.|conv1d|A_log|dt_bias")
MIXER_LINEAR = re.compile(r"^mixer\.(?:in_proj|out_proj|D\b)|^conv\.")
ATTENTION = re.compile(r"attn|attention|^mixer\.[qkvo]_proj")
MLP = re.compile(
    r"mlp|feed_forward|ffn|^mixer\.(?:gate|up|down)_proj|per_layer|altup|laurel|^inp_gate|^proj\."
)

LAYER_RULES: tuple[tuple[re.Pattern[str], Role], ...] = (
    (SHARED, "shared"),
    (EXPERTS, "experts"),
    (ROUTER, "router"),
    (NORM, "norm"),
    (LINEAR, "linear"),
    (MIXER_LINEAR, "linear"),
    (ATTENTION, "attention"),
    (MLP, "mlp"),
)
"""The first that matches the name behind `layers.N.` tells the role."""


class NameScan(msgspec.Struct, frozen=True, kw_only=True):
    """What all names together say: which layers draft, which are recurrent."""

    draft_layers: frozenset[int]
    linear_layers: frozenset[int]
    all_is_draft: bool
    num_draft_modules: int


def scan_names(names: Iterable[str]) -> NameScan:
    """Look at all names once before roles are given."""
    draft_layers: set[int] = set()
    recurrent_layers: set[int] = set()
    maybe_recurrent_layers: set[int] = set()
    plain_key_layers: set[int] = set()
    modules: set[str] = set()
    all_is_draft = False
    for name in names:
        all_is_draft = all_is_draft or DRAFTER_ONLY.match(name) is not None
        layer, rest = split_layer(name)
        tower = VISION.search(name) or AUDIO.search(name)
        outside = tower or DRAFT_PREFIX.search(name)
        if layer is not None and not tower and DRAFT_LAYER.search(rest):
            draft_layers.add(layer)
        if layer is not None and not outside:
            # Kimi's KDA keeps its convolutions inside self_attn; in GGUF a recurrent layer that has
            # no keys of its own borrows the names of attention.
            if RECURRENT_ATTENTION.search(rest):
                recurrent_layers.add(layer)
            elif name.startswith("blk.") and RECURRENT.search(rest):
                maybe_recurrent_layers.add(layer)
            if PLAIN_KEYS.search(rest) and name.startswith("blk."):
                plain_key_layers.add(layer)
        projection = DRAFT_PROJECTION.search(name)
        if projection and (outside or (layer is not None and DRAFT_LAYER.search(rest))):
            modules.add(projection.group(1) or str(layer))
    return NameScan(
        draft_layers=frozenset(draft_layers),
        linear_layers=frozenset(recurrent_layers | (maybe_recurrent_layers - plain_key_layers)),
        all_is_draft=all_is_draft,
        num_draft_modules=max(1, len(modules)),
    )


def split_layer(name: str) -> tuple[int | None, str]:
    """Split `model.layers.3.mlp.up_proj.weight` into (3, `mlp.up_proj.weight`)."""
    match = LAYER.search(name)
    return (int(match.group(1)), match.group(2)) if match else (None, name)


def role_of(name: str, scan: NameScan) -> Role:
    """Give the role of a tensor or module name."""
    if VISION.search(name):
        return "vision"
    if AUDIO.search(name):
        return "audio"
    layer, rest = split_layer(name)
    if scan.all_is_draft or DRAFT_PREFIX.search(name) or layer in scan.draft_layers:
        return _draft_role(name, rest)
    if layer is None:
        return _outer_role(name)
    role: Role = next((role for pattern, role in LAYER_RULES if pattern.search(rest)), "other")
    return "linear" if role == "attention" and layer in scan.linear_layers else role


def _draft_role(name: str, rest: str) -> Role:
    if HEAD.search(name):
        return "draft_head"
    if EMBEDDING.search(name) or rest.startswith("nextn.embed_tokens"):
        return "draft_embedding"
    if EXPERTS.search(rest) and not SHARED.search(rest):
        return "draft_experts"
    return "draft"


def _outer_role(name: str) -> Role:
    if HEAD.search(name):
        return "head"
    if NORM.search(name):
        return "norm"
    if EMBEDDING.search(name):
        return "embedding"
    if MLP.search(name):  # Gemma's per_layer_model_projection stands outside the layers
        return "mlp"
    return "other"
