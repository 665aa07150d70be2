"""Traps of real configs: nested ones, head sizes, windows, experts by many names."""

import pytest

from sakiyomi.models.gguf_config import shape_of_gguf
from sakiyomi.models.kv_cache import kv_groups
from sakiyomi.models.model_config import shape_of_config
from sakiyomi.models.quantization import Names, Quantization, bytes_of, find_quantization
from sakiyomi.models.read_model import derive_by_role

BASE = {
    "hidden_size": 1024,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "vocab_size": 1000,
    "intermediate_size": 4096,
}


def shape(**fields):
    return shape_of_config(BASE | fields)


def test_the_language_sub_config_wins():  # F59
    config = {
        "num_hidden_layers": 33,
        "hidden_size": 1280,
        "text_config": {**BASE, "num_hidden_layers": 40},
    }
    assert len(shape_of_config(config).layers) == 40
    assert shape_of_config(config).hidden == 1024
    thinker = {"thinker_config": {"text_config": BASE, "vision_config": {"depth": 32}}}
    assert len(shape_of_config(thinker).layers) == 12


def test_a_missing_field_is_named_with_the_paths_tried():  # F59: no silent 4096 x 32
    found = shape_of_config({"text_config": {"hidden_size": 8}})
    assert any("text_config.num_hidden_layers" in entry for entry in found.missing)
    assert any("text_config.vocab_size" in entry for entry in found.missing)


def test_head_dim_is_not_hidden_over_heads_where_it_is_stated():  # F64
    stated = shape(head_dim=128, num_key_value_heads=4)
    (group,) = kv_groups(stated.layers, stated)
    assert group.elements_per_token == 12 * 4 * 2 * 128
    derived = shape(num_key_value_heads=None)
    (group,) = kv_groups(derived.layers, derived)
    assert group.elements_per_token == 12 * 16 * 2 * 64  # multi-head, 1024 / 16
    assert stated.rules != derived.rules


def test_gemma_3_27b_cache_is_10_gb_not_81():  # F64
    found = shape_of_config(
        {
            "model_type": "gemma3_text",
            "hidden_size": 5376,
            "num_hidden_layers": 62,
            "num_attention_heads": 32,
            "num_key_value_heads": 16,
            "head_dim": 128,
            "sliding_window": 1024,
            "sliding_window_pattern": 6,
            "intermediate_size": 21504,
            "vocab_size": 262208,
        }
    )
    full = [layer for layer in found.layers if layer.attention == "full"]
    assert len(full) == 10
    total = sum(
        group.elements_per_token * min(131072, group.window or 131072)
        for group in kv_groups(found.layers, found)
    )
    assert 2 * total / 1e9 == pytest.approx(11.2, abs=0.1)


@pytest.mark.parametrize(
    ("fields", "kinds"),
    [
        ({"layer_types": ["sliding_attention", "full_attention"] * 6}, "sf" * 6),
        ({"hybrid_layer_pattern": [0] + [1] * 11, "sliding_window": 128}, "f" + "s" * 11),
        ({"full_attention_interval": 4, "linear_num_value_heads": 2}, "lllf" * 3),
        ({"sliding_window": 64, "use_sliding_window": False}, "f" * 12),
        (
            {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 8},
            "f" * 8 + "s" * 4,
        ),
        ({"sliding_window": 64, "model_type": "mistral"}, "s" * 12),
        ({"attention_chunk_size": 64, "model_type": "llama4_text"}, "sssf" * 3),
        ({"hybrid_override_pattern": "M-M*M-M*M-M-"}, "lnlflnlflnln"),
        ({"attn_type_list": [0, 1] * 6, "linear_num_value_heads": 1}, "lf" * 6),
        ({"linear_attn_config": {"kda_layers": [1, 2, 3, 5]}}, "lllflfffffff"),
    ],
)
def test_kinds_of_layers(fields, kinds):
    letters = {"s": "sliding", "f": "full", "l": "linear", "n": "none"}
    assert [layer.attention for layer in shape(**fields).layers] == [letters[k] for k in kinds]


@pytest.mark.parametrize(
    ("fields", "dense_layers"),
    [
        ({"first_k_dense_replace": 3}, {0, 1, 2}),
        ({"mlp_only_layers": [5]}, {5}),
        ({"decoder_sparse_step": 2}, {0, 2, 4, 6, 8, 10}),
        ({"moe_layer_freq": [0, 0] + [1] * 10}, {0, 1}),
        ({"moe_layer_start_index": 1, "moe_layer_end_index": 10}, {0, 11}),
        ({"interleave_moe_layer_step": 1}, set()),
        ({"moe_layers_enum": "1,2,3,4,5,6,7,8,9,10,11"}, {0}),
    ],
)
def test_which_layers_have_experts(fields, dense_layers):
    found = shape(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=64, **fields)
    assert {index for index, layer in enumerate(found.layers) if layer.mlp == "dense"} == (
        dense_layers
    )


@pytest.mark.parametrize(
    ("fields", "expected"),
    [  # F60: total, chosen, width of one, width of the shared
        ({"num_local_experts": 8, "num_experts_per_tok": 2}, (8, 2, 4096, 0)),
        (
            {
                "n_routed_experts": 256,
                "num_experts_per_tok": 8,
                "n_shared_experts": 2,
                "moe_intermediate_size": 512,
            },
            (256, 8, 512, 1024),
        ),
        (
            {
                "moe_num_experts": [64, 64],
                "moe_k": 6,
                "moe_num_shared_experts": 2,
                "moe_intermediate_size": [1536, 512],
            },
            (64, 6, 1536, 3072),
        ),
        (
            {"num_experts": 288, "num_experts_per_tok": 8, "share_expert_dim": 1280},
            (288, 8, 4096, 1280),
        ),
        (
            {"num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704},
            (128, 8, 704, 0),
        ),
    ],
)
def test_experts_by_their_many_names(fields, expected):
    moe = shape(**fields).moe
    assert (
        moe.num_experts,
        moe.experts_per_token,
        moe.intermediate,
        moe.shared_intermediate,
    ) == expected


def test_experts_without_a_chosen_number_are_missing_not_guessed():
    assert any("num_experts_per_tok" in entry for entry in shape(num_experts=8).missing)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"num_nextn_predict_layers": 1}, 1),
        ({"mtp_num_hidden_layers": 2}, 2),
        ({"num_mtp_modules": 3}, 3),
        ({"mtp_hybrid_override_pattern": "*E"}, 1),
        ({}, 0),
    ],
)
def test_draft_layers_that_configs_claim(fields, expected):
    assert shape(**fields).num_draft_layers == expected


def test_tied_is_unknown_where_the_config_is_silent():  # Qwen3.5 is, at text level
    assert shape().tied is None
    assert shape_of_config({"text_config": BASE, "tie_word_embeddings": False}).tied is False


def test_gguf_kv_heads_per_layer_and_zero_for_recurrent_ones():  # F64: an array, not an int
    found = shape_of_gguf(
        {
            "general.architecture": "nemotron_h",
            "nemotron_h.block_count": 4,
            "nemotron_h.embedding_length": 512,
            "nemotron_h.attention.head_count": [0, 8, 0, 8],
            "nemotron_h.attention.head_count_kv": [0, 2, 0, 4],
            "nemotron_h.attention.key_length": 64,
            "nemotron_h.attention.value_length": 64,
            "nemotron_h.ssm.state_size": 16,
            "nemotron_h.ssm.inner_size": 1024,
            "nemotron_h.ssm.time_step_rank": 16,
            "nemotron_h.ssm.group_count": 2,
        },
        {"tokenizer.ggml.tokens": 100},
        frozenset({0, 2}),
    )
    assert [layer.attention for layer in found.layers] == ["linear", "full", "linear", "full"]
    assert sum(group.elements_per_token for group in kv_groups(found.layers, found)) == 6 * 128
    assert found.vocab == 100


def test_gguf_windows_by_pattern_and_by_architecture():
    keys = {
        "block_count": 6,
        "embedding_length": 64,
        "attention.head_count": 2,
        "attention.head_count_kv": 1,
        "attention.sliding_window": 512,
    }

    def kinds(architecture, **more):
        metadata = {f"{architecture}.{key}": value for key, value in {**keys, **more}.items()}
        metadata["general.architecture"] = architecture
        found = shape_of_gguf(metadata, {"tokenizer.ggml.tokens": 8})
        return "".join(layer.attention[0] for layer in found.layers)

    assert kinds("gemma3") == "sssssf"
    assert kinds("gpt-oss") == "sfsfsf"
    pattern = {"attention.sliding_window_pattern": [True, True, False] * 2}
    assert kinds("gemma4", **pattern) == "ssfssf"


@pytest.mark.parametrize(
    ("config", "module", "label"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "mlp.up_proj", "fp8 block"),
        ({"quant_method": "fp8"}, "lm_head", "bf16"),
        ({"quant_method": "mxfp4"}, "model.layers.0.mlp.experts.up_proj", "mxfp4"),
        ({"quant_method": "mxfp4"}, "model.layers.0.self_attn.q_proj", "bf16"),
        (
            {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True},
            "model.layers.0.mlp.up_proj",
            "int4 g128 asymmetric",
        ),
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True},
            "model.layers.0.mlp.up_proj",
            "int4 g128",
        ),
        (
            {
                "quant_method": "gptq",
                "bits": 4,
                "group_size": 128,
                "sym": True,
                "dynamic": {"-:.*mlp.*": {}},
            },
            "model.layers.0.mlp.up_proj",
            "bf16",
        ),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["mtp*", "lm_head"]},
            "mtp.layers.0.mlp.up_proj",
            "bf16",
        ),
        (
            {
                "quant_method": "modelopt",
                "quant_algo": "MIXED_PRECISION",
                "quantized_layers": {
                    "model.language_model.layers.0.mlp.experts": {"quant_algo": "W4A16_NVFP4"}
                },
            },
            "model.layers.0.mlp.experts.up_proj",
            "nvfp4",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "g": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}}
                },
                "ignore": ["re:.*self_attn.*"],
            },
            "model.layers.3.self_attn.q_proj",
            "bf16",
        ),
    ],
)
def test_formats_that_configs_state(config, module, label):
    assert Quantization(config, {}).format_of(module, "bf16") == label
    assert bytes_of(label) > 0


def test_patterns_match_whole_steps_of_a_name():
    names = Names(["mlp.gate", "lm_head", "model.layers.1*"])
    assert names.match("model.layers.5.mlp.gate")
    assert not names.match("model.layers.5.mlp.gate_proj")
    assert names.match("model.layers.1.self_attn.q_proj")


def test_quantization_nested_in_the_language_config_is_found():  # F56
    nested = {"text_config": {"quantization_config": {"quant_method": "awq", "bits": 4}}}
    assert find_quantization(nested)["bits"] == 4


NEMOTRON = {  # nvidia/NVIDIA-Nemotron-3-Super-120B-A12B (ai-dynamo/aiconfigurator, model_configs)
    "model_type": "nemotron_h",
    "hidden_size": 4096,
    "hybrid_override_pattern": (
        "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME"
    ),
    "num_hidden_layers": 88,
    "head_dim": 128,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "mamba_head_dim": 64,
    "mamba_num_heads": 128,
    "n_groups": 8,
    "ssm_state_size": 128,
    "intermediate_size": 2688,
    "moe_intermediate_size": 2688,
    "moe_latent_size": 1024,
    "moe_shared_expert_intermediate_size": 5376,
    "n_routed_experts": 512,
    "n_shared_experts": 1,
    "num_experts_per_tok": 22,
    "mlp_hidden_act": "relu2",
    "vocab_size": 131072,
    "tie_word_embeddings": False,
}


def test_mamba_with_latent_experts_comes_to_its_name():
    found = shape_of_config(NEMOTRON)
    read = derive_by_role(found, {}, name="Super-120B-A12B", source="")
    assert found.missing == ()
    assert not found.gated_mlp
    assert read.num_parameters / 1e9 == pytest.approx(120.7, rel=0.005)
    assert read.active_parameters / 1e9 == pytest.approx(12.2, rel=0.01)
    # 40 Mamba-2 layers x 128 heads x 64 x 128, fp32
    assert read.state_bytes == 40 * 128 * 64 * 128 * 4
    assert kv_groups(found.layers, found)[0].num_layers == 8


def test_layers_named_by_block_type():
    words = {"M": "mamba", "E": "moe", "*": "attention"}
    listed = [words[letter] for letter in NEMOTRON["hybrid_override_pattern"]]
    config = {
        key: value
        for key, value in NEMOTRON.items()
        if key not in ("hybrid_override_pattern", "num_hidden_layers")
    } | {"layers_block_type": listed, "mtp_layers_block_type": ["attention", "moe"]}
    found = shape_of_config(config)
    assert found.layers == shape_of_config(NEMOTRON).layers
    assert found.num_draft_layers == 1
