"""Small checkpoints of each family: config, stored tensors, and what they must come to.

Tensor names are those of the published checkpoints. `parameters` counts unpacked weights by hand.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from model_makers import nvfp4, plain

H, V = 128, 512


class Family(NamedTuple):
    config: dict[str, Any]
    spec: list
    parameters: int
    roles: dict[str, int]
    """Role -> parameters, where the role matters."""
    formats: Mapping[str, str] = MappingProxyType({})


LLAMA = {
    "model_type": "llama",
    "hidden_size": H,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 256,
    "vocab_size": V,
    "tie_word_embeddings": False,
}
ATTENTION = H * 256 * 2 + 2 * H * 128
MLP = 3 * H * 256
NORMS = 2 * H


def llama_layer(layer: int, prefix: str = "model.layers") -> list:
    at = f"{prefix}.{layer}"
    return plain(
        (f"{at}.input_layernorm.weight", (H,)),
        (f"{at}.post_attention_layernorm.weight", (H,)),
        (f"{at}.self_attn.q_proj.weight", (256, H)),
        (f"{at}.self_attn.k_proj.weight", (128, H)),
        (f"{at}.self_attn.v_proj.weight", (128, H)),
        (f"{at}.self_attn.o_proj.weight", (H, 256)),
        (f"{at}.mlp.gate_proj.weight", (256, H)),
        (f"{at}.mlp.up_proj.weight", (256, H)),
        (f"{at}.mlp.down_proj.weight", (H, 256)),
    )


EMBEDDING = plain(("model.embed_tokens.weight", (V, H)))
HEAD = plain(("lm_head.weight", (V, H)))
LAST_NORM = plain(("model.norm.weight", (H,)))

dense = Family(
    LLAMA,
    [*EMBEDDING, *llama_layer(0), *llama_layer(1), *LAST_NORM, *HEAD],
    2 * V * H + 2 * (ATTENTION + MLP + NORMS) + H,
    {"attention": 2 * ATTENTION, "mlp": 2 * MLP, "head": V * H, "embedding": V * H},
)

tied = Family(
    LLAMA | {"tie_word_embeddings": True},
    [*EMBEDDING, *llama_layer(0), *llama_layer(1), *LAST_NORM],
    V * H + 2 * (ATTENTION + MLP + NORMS) + H,
    {"attention": 2 * ATTENTION, "embedding": V * H},
)


def hybrid_layers(prefix: str) -> list:
    spec = []
    for layer in range(3):
        at = f"{prefix}.{layer}.linear_attn"
        spec += plain(
            (f"{at}.in_proj_qkv.weight", (2 * 64 + 128, H)),
            (f"{at}.in_proj_z.weight", (128, H)),
            (f"{at}.in_proj_a.weight", (4, H)),
            (f"{at}.in_proj_b.weight", (4, H)),
            (f"{at}.conv1d.weight", (256, 1, 4)),
            (f"{at}.out_proj.weight", (H, 128)),
            (f"{at}.norm.weight", (32,)),
            (f"{at}.dt_bias", (4,)),
        )
        spec += [(f"{at}.A_log", "F32", (4,))]
    spec += plain(
        (f"{prefix}.3.self_attn.q_proj.weight", (512, H)),
        (f"{prefix}.3.self_attn.k_proj.weight", (128, H)),
        (f"{prefix}.3.self_attn.v_proj.weight", (128, H)),
        (f"{prefix}.3.self_attn.o_proj.weight", (H, 256)),
        (f"{prefix}.3.self_attn.q_norm.weight", (64,)),
    )
    return spec


HYBRID_TEXT = {
    "model_type": "qwen3_5_text",
    "hidden_size": H,
    "num_hidden_layers": 4,
    "full_attention_interval": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "attn_output_gate": True,
    "intermediate_size": 256,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "vocab_size": V,
    "mtp_num_hidden_layers": 1,
}
LINEAR = 3 * ((256 + 128 + 4 + 4 + 128) * H + 256 * 4 + 4 + 4)
GATED = H * 512 + 2 * H * 128 + 256 * H
MTP_LAYER = plain(
    ("mtp.fc.weight", (H, 2 * H)),
    ("mtp.pre_fc_norm_embedding.weight", (H,)),
    ("mtp.pre_fc_norm_hidden.weight", (H,)),
    ("mtp.norm.weight", (H,)),
    ("mtp.layers.0.self_attn.q_proj.weight", (512, H)),
    ("mtp.layers.0.self_attn.k_proj.weight", (128, H)),
    ("mtp.layers.0.self_attn.v_proj.weight", (128, H)),
    ("mtp.layers.0.self_attn.o_proj.weight", (H, 256)),
    ("mtp.layers.0.mlp.gate_proj.weight", (256, H)),
    ("mtp.layers.0.mlp.up_proj.weight", (256, H)),
    ("mtp.layers.0.mlp.down_proj.weight", (H, 256)),
)
MTP = 2 * H * H + 3 * H + GATED + MLP
VISION = plain(
    ("model.visual.blocks.0.attn.qkv.weight", (192, 64)),
    ("model.visual.blocks.0.mlp.linear_fc1.weight", (128, 64)),
    ("model.visual.merger.linear_fc1.weight", (64, 64)),
    ("model.visual.patch_embed.proj.weight", (64, 3, 2, 16, 16)),
)
VISION_PARAMETERS = 192 * 64 + 128 * 64 + 64 * 64 + 64 * 3 * 2 * 256
hybrid = Family(
    {
        "model_type": "qwen3_5",
        "num_hidden_layers": 27,  # a trap: the tower's depth stands at the top
        "text_config": HYBRID_TEXT,
        "vision_config": {"depth": 27, "hidden_size": 64},
        "tie_word_embeddings": False,
    },
    [
        *plain(("model.language_model.embed_tokens.weight", (V, H))),
        *hybrid_layers("model.language_model.layers"),
        *plain(
            *(
                (f"model.language_model.layers.{layer}.mlp.{name}.weight", shape)
                for layer in range(4)
                for name, shape in (
                    ("gate_proj", (256, H)),
                    ("up_proj", (256, H)),
                    ("down_proj", (H, 256)),
                )
            ),
            ("model.language_model.norm.weight", (H,)),
        ),
        *HEAD,
        *MTP_LAYER,
        *VISION,
    ],
    2 * V * H + LINEAR + GATED + 3 * 32 + 64 + 4 * MLP + H + MTP + VISION_PARAMETERS,
    {
        "linear": LINEAR,
        "attention": GATED,
        "mlp": 4 * MLP,
        "draft": MTP,
        "vision": VISION_PARAMETERS,
        "head": V * H,
    },
)

EXPERTS, CHOSEN, WIDTH = 8, 2, 32
EXPERT = 3 * H * WIDTH
moe = Family(
    {
        "model_type": "qwen3_next",
        "hidden_size": H,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "num_experts": EXPERTS,
        "num_experts_per_tok": CHOSEN,
        "moe_intermediate_size": WIDTH,
        "shared_expert_intermediate_size": 64,
        "vocab_size": V,
        "tie_word_embeddings": False,
        "layer_types": ["full_attention"],
    },
    [
        *EMBEDDING,
        *HEAD,
        *plain(
            ("model.layers.0.self_attn.q_proj.weight", (512, H)),
            ("model.layers.0.self_attn.k_proj.weight", (128, H)),
            ("model.layers.0.self_attn.v_proj.weight", (128, H)),
            ("model.layers.0.self_attn.o_proj.weight", (H, 256)),
            ("model.layers.0.mlp.gate.weight", (EXPERTS, H)),
            ("model.layers.0.mlp.shared_expert_gate.weight", (1, H)),
            ("model.layers.0.mlp.shared_expert.gate_proj.weight", (64, H)),
            ("model.layers.0.mlp.shared_expert.up_proj.weight", (64, H)),
            ("model.layers.0.mlp.shared_expert.down_proj.weight", (H, 64)),
            *(
                (f"model.layers.0.mlp.experts.{expert}.{name}.weight", shape)
                for expert in range(EXPERTS)
                for name, shape in (
                    ("gate_proj", (WIDTH, H)),
                    ("up_proj", (WIDTH, H)),
                    ("down_proj", (H, WIDTH)),
                )
            ),
        ),
    ],
    2 * V * H + GATED + EXPERTS * H + H + 3 * H * 64 + EXPERTS * EXPERT,
    {"experts": EXPERTS * EXPERT, "shared": 3 * H * 64 + H, "router": EXPERTS * H},
)

MLA = H * 64 + 64 * 4 * 48 + H * (64 + 16) + 64 * 4 * 64 + 4 * 32 * H
MLA_NORMS = 64 + 64


def mla_layer(layer: int) -> list:
    at = f"model.layers.{layer}.self_attn"
    return plain(
        (f"{at}.q_a_proj.weight", (64, H)),
        (f"{at}.q_a_layernorm.weight", (64,)),
        (f"{at}.q_b_proj.weight", (4 * 48, 64)),
        (f"{at}.kv_a_proj_with_mqa.weight", (64 + 16, H)),
        (f"{at}.kv_a_layernorm.weight", (64,)),
        (f"{at}.kv_b_proj.weight", (4 * 64, 64)),
        (f"{at}.o_proj.weight", (H, 4 * 32)),
    )


def expert_block(layer: int) -> list:
    at = f"model.layers.{layer}.mlp"
    return plain(
        (f"{at}.gate.weight", (EXPERTS, H)),
        (f"{at}.gate.e_score_correction_bias", (EXPERTS,)),
        (f"{at}.shared_experts.gate_proj.weight", (WIDTH, H)),
        (f"{at}.shared_experts.up_proj.weight", (WIDTH, H)),
        (f"{at}.shared_experts.down_proj.weight", (H, WIDTH)),
        *(
            (f"{at}.experts.{expert}.{name}.weight", shape)
            for expert in range(EXPERTS)
            for name, shape in (
                ("gate_proj", (WIDTH, H)),
                ("up_proj", (WIDTH, H)),
                ("down_proj", (H, WIDTH)),
            )
        ),
    )


BLOCK = EXPERTS * H + EXPERTS + EXPERT + EXPERTS * EXPERT
mla = Family(
    {
        "model_type": "deepseek_v3",
        "hidden_size": H,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "q_lora_rank": 64,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
        "n_routed_experts": EXPERTS,
        "num_experts_per_tok": CHOSEN,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": WIDTH,
        "intermediate_size": 256,
        "num_nextn_predict_layers": 1,
        "vocab_size": V,
        "tie_word_embeddings": False,
    },
    [
        *EMBEDDING,
        *HEAD,
        *mla_layer(0),
        *plain(
            ("model.layers.0.mlp.gate_proj.weight", (256, H)),
            ("model.layers.0.mlp.up_proj.weight", (256, H)),
            ("model.layers.0.mlp.down_proj.weight", (H, 256)),
        ),
        *mla_layer(1),
        *expert_block(1),
        *mla_layer(2),
        *expert_block(2),
        *plain(
            ("model.layers.2.eh_proj.weight", (H, 2 * H)),
            ("model.layers.2.enorm.weight", (H,)),
            ("model.layers.2.hnorm.weight", (H,)),
            ("model.layers.2.embed_tokens.weight", (V, H)),
            ("model.layers.2.shared_head.norm.weight", (H,)),
            ("model.layers.2.shared_head.head.weight", (V, H)),
        ),
    ],
    4 * V * H + 3 * (MLA + MLA_NORMS) + MLP + 2 * BLOCK + 2 * H * H + 3 * H,
    {
        "attention": 2 * MLA,
        "experts": EXPERTS * EXPERT,
        "draft_experts": EXPERTS * EXPERT,
        "draft_embedding": V * H,
        "draft_head": V * H,
        "draft": MLA + MLA_NORMS + EXPERTS * H + EXPERTS + EXPERT + 2 * H * H + 3 * H,
    },
)


def quantized(spec_of_linear, *, config: dict | None = None, attention: bool = True) -> list:
    """The two-layer Llama with its linear layers written by `spec_of_linear(module, out, in)`."""
    spec = [*EMBEDDING, *HEAD, *LAST_NORM]
    for layer in (0, 1):
        for name, dtype, shape in llama_layer(layer):
            if "norm" in name or ("self_attn" in name and not attention):
                spec.append((name, dtype, shape))
            else:
                spec += spec_of_linear(name.removesuffix(".weight"), *shape)
    return spec


DENSE_PARAMETERS = dense.parameters

modelopt_nvfp4 = Family(
    LLAMA
    | {
        "quantization_config": {
            "quant_method": "modelopt",
            "quant_algo": "NVFP4",
            "ignore": ["lm_head"],
        }
    },
    quantized(nvfp4),
    DENSE_PARAMETERS,
    {"mlp": 2 * MLP, "attention": 2 * ATTENTION},
    {"mlp": "nvfp4", "head": "bf16"},
)

compressed_nvfp4 = Family(
    LLAMA
    | {
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "format": "nvfp4-pack-quantized",
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": {"num_bits": 4, "type": "float", "group_size": 16},
                }
            },
            "ignore": ["lm_head"],
        }
    },
    quantized(
        lambda module, rows, columns: [
            (f"{module}.weight_packed", "U8", (rows, columns // 2)),
            (f"{module}.weight_scale", "F8_E4M3", (rows, columns // 16)),
            (f"{module}.weight_global_scale", "F32", (1,)),
            (f"{module}.input_global_scale", "F32", (1,)),
        ]
    ),
    DENSE_PARAMETERS,
    {"mlp": 2 * MLP},
    {"mlp": "nvfp4"},
)

compressed_int4 = Family(
    LLAMA
    | {
        "text_config": LLAMA
        | {
            "quantization_config": {  # F56: nested in the language sub-config
                "quant_method": "compressed-tensors",
                "format": "pack-quantized",
                "config_groups": {
                    "group_0": {
                        "targets": ["Linear"],
                        "weights": {"num_bits": 4, "type": "int", "group_size": 32},
                    }
                },
                "ignore": ["lm_head"],
            }
        }
    },
    quantized(
        lambda module, rows, columns: [
            (f"{module}.weight_packed", "I32", (rows, columns // 8)),
            (f"{module}.weight_scale", "BF16", (rows, columns // 32)),
            (f"{module}.weight_shape", "I64", (2,)),
        ]
    ),
    DENSE_PARAMETERS,
    {"mlp": 2 * MLP},
    {"mlp": "int4 g32"},
)

fp8_block = Family(
    LLAMA
    | {
        "quantization_config": {
            "quant_method": "fp8",
            "weight_block_size": [128, 128],
            "activation_scheme": "dynamic",
        }
    },
    quantized(
        lambda module, rows, columns: [
            (f"{module}.weight", "F8_E4M3", (rows, columns)),
            (f"{module}.weight_scale_inv", "F32", (-(-rows // 64), -(-columns // 64))),
        ]
    ),
    DENSE_PARAMETERS,
    {"mlp": 2 * MLP},
    {"mlp": "fp8 block", "attention": "fp8 block"},
)

gptq = Family(
    LLAMA | {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32}},
    quantized(
        lambda module, rows, columns: [
            (f"{module}.qweight", "I32", (columns // 8, rows)),
            (f"{module}.qzeros", "I32", (columns // 32, rows // 8)),
            (f"{module}.scales", "F16", (columns // 32, rows)),
            (f"{module}.g_idx", "I32", (columns,)),
        ]
    ),
    DENSE_PARAMETERS,
    {"mlp": 2 * MLP},
    {"mlp": "int4 g32"},
)

awq = Family(
    LLAMA,  # without a quantization config: the width follows from the scales
    quantized(
        lambda module, rows, columns: [
            (f"{module}.qweight", "I32", (columns, rows // 8)),
            (f"{module}.qzeros", "I32", (columns // 32, rows // 8)),
            (f"{module}.scales", "F16", (columns // 32, rows)),
        ]
    ),
    DENSE_PARAMETERS,
    {"mlp": 2 * MLP},
    {"mlp": "int4 g32"},
)

mlx = Family(
    LLAMA | {"quantization": {"group_size": 32, "bits": 4}},
    quantized(
        lambda module, rows, columns: [
            (f"{module}.weight", "U32", (rows, columns // 8)),
            (f"{module}.scales", "BF16", (rows, columns // 32)),
            (f"{module}.biases", "BF16", (rows, columns // 32)),
        ]
    ),
    DENSE_PARAMETERS,
    {"mlp": 2 * MLP},
    {"mlp": "int4 g32"},
)

bitsandbytes = Family(
    LLAMA,
    quantized(
        lambda module, rows, columns: [
            (f"{module}.weight", "U8", (rows * columns // 2, 1)),
            (f"{module}.weight.absmax", "U8", (rows * columns // 64,)),
            (f"{module}.weight.quant_map", "F32", (16,)),
            (f"{module}.weight.nested_absmax", "F32", (4,)),
            (f"{module}.weight.quant_state.bitsandbytes__nf4", "U8", (80,)),
        ]
    ),
    DENSE_PARAMETERS,
    {"mlp": 2 * MLP},
    {"mlp": "nf4"},
)

GPT_OSS_EXPERTS = 4 * (2 * WIDTH * H + 2 * WIDTH + H * WIDTH + H)
mxfp4 = Family(
    {
        "model_type": "gpt_oss",
        "hidden_size": H,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 16,
        "num_local_experts": 4,
        "experts_per_token": 2,
        "intermediate_size": WIDTH,
        "vocab_size": V,
        "tie_word_embeddings": False,
        "quantization_config": {"quant_method": "mxfp4"},
    },
    [
        *EMBEDDING,
        *HEAD,
        *(
            tensor
            for layer in (0, 1)
            for tensor in [
                *[entry for entry in llama_layer(layer) if "self_attn" in entry[0]],
                *plain(
                    (f"model.layers.{layer}.self_attn.sinks", (4,)),
                    (f"model.layers.{layer}.mlp.router.weight", (4, H)),
                    (f"model.layers.{layer}.mlp.router.bias", (4,)),
                    (f"model.layers.{layer}.mlp.experts.gate_up_proj_bias", (4, 2 * WIDTH)),
                    (f"model.layers.{layer}.mlp.experts.down_proj_bias", (4, H)),
                ),
                (
                    f"model.layers.{layer}.mlp.experts.gate_up_proj_blocks",
                    "U8",
                    (4, 2 * WIDTH, H // 32, 16),
                ),
                (
                    f"model.layers.{layer}.mlp.experts.gate_up_proj_scales",
                    "U8",
                    (4, 2 * WIDTH, H // 32),
                ),
                (f"model.layers.{layer}.mlp.experts.down_proj_blocks", "U8", (4, H, 1, 16)),
                (f"model.layers.{layer}.mlp.experts.down_proj_scales", "U8", (4, H, 1)),
            ]
        ),
    ],
    2 * V * H + 2 * (ATTENTION + 4 + 4 * H + 4 + GPT_OSS_EXPERTS),
    {"experts": 2 * GPT_OSS_EXPERTS, "router": 2 * (4 * H + 4)},
    {"experts": "mxfp4"},
)

FAMILIES: dict[str, Family] = {
    "dense": dense,
    "tied": tied,
    "hybrid with a draft head": hybrid,
    "experts with a shared one": moe,
    "latent attention with a draft layer": mla,
    "NVFP4 modelopt": modelopt_nvfp4,
    "NVFP4 compressed-tensors": compressed_nvfp4,
    "int4 compressed-tensors": compressed_int4,
    "fp8 block": fp8_block,
    "GPTQ": gptq,
    "AWQ": awq,
    "MLX": mlx,
    "bitsandbytes": bitsandbytes,
    "MXFP4": mxfp4,
}
