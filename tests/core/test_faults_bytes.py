"""Published faults of tools that count bytes, at their own numbers; the fault's id at each test."""

import pytest
from model_families import FAMILIES, LLAMA, H, V, dense, llama_layer
from model_makers import plain, write_folder

from sakiyomi.models.checkpoint import open_checkpoint
from sakiyomi.models.kv_cache import kv_bytes, kv_groups
from sakiyomi.models.model_config import shape_of_config
from sakiyomi.models.read_model import derive_by_role
from sakiyomi.models.roofline import predict
from sakiyomi.models.weights import attach_draft

UP = "model.layers.0.mlp.up_proj"


@pytest.mark.parametrize(
    ("quantization", "tensors", "parameters", "num_bytes"),
    [
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 128},
            [("qweight", "I32", (512, 4096)), ("scales", "F16", (32, 4096))],
            16_777_216,
            4 * 512 * 4096 + 2 * 32 * 4096,
        ),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4"},
            [
                ("weight", "U8", (4096, 2048)),
                ("weight_scale", "F8_E4M3", (4096, 256)),
                ("weight_scale_2", "F32", ()),
            ],
            16_777_216,
            4096 * 2048 + 4096 * 256 + 4,
        ),
        (
            {},  # MLX: words of 32 bits; the width follows from the scales
            [
                ("weight", "U32", (4096, 512)),
                ("scales", "BF16", (4096, 64)),
                ("biases", "BF16", (4096, 64)),
            ],
            16_777_216,
            4 * 4096 * 512 + 2 * 2 * 4096 * 64,
        ),
    ],
    ids=["gptq", "nvfp4", "mlx"],
)
def test_packed_weights_are_counted_unpacked_and_their_scales_not(  # F56
    tmp_path, quantization, tensors, parameters, num_bytes
):
    added = [(f"{UP}.{name}", dtype, shape) for name, dtype, shape in tensors]
    rest = [entry for entry in dense.spec if not entry[0].startswith(UP)]
    key = "quantization_config" if quantization else "quantization"
    value = quantization or {"bits": 4, "group_size": 64}
    write_folder(tmp_path, LLAMA | {key: value}, [*rest, *added])
    found = open_checkpoint(str(tmp_path))
    others = dense.parameters - 256 * H
    assert found.num_parameters - others == parameters
    assert found.resident_bytes - 2 * others == num_bytes


def test_mxfp4_blocks_hold_two_weights_a_byte_and_scales_none(tmp_path):  # F56
    family = FAMILIES["MXFP4"]
    write_folder(tmp_path, family.config, family.spec)
    found = open_checkpoint(str(tmp_path))
    (experts,) = [group for group in found.groups if group.role == "experts"]
    assert experts.num_parameters == family.roles["experts"]
    assert found.num_parameters == family.parameters


def test_mixtral_is_47b_and_reads_13b():  # F60
    config = {
        "model_type": "mixtral",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 32000,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "tie_word_embeddings": False,
    }
    read = derive_by_role(shape_of_config(config), {}, name="Mixtral-8x7B", source="")
    assert read.num_parameters / 1e9 == pytest.approx(46.70, abs=0.01)
    active = read.active_parameters + 32000 * 4096  # its "13B" counts the embedding table
    assert active / 1e9 == pytest.approx(12.88, abs=0.01)
    plain_step = predict(read, None, context=0, batch=1, k=0)
    verify = predict(read, None, context=0, batch=1, k=3)
    experts = 8 * 3 * 4096 * 14336 * 32 * 2
    # 4 tokens that choose 2 of 8: 8 (1 - (3/4)^4) = 5.47, neither 2 nor min(4 x 2, 8)
    assert verify.verify_bytes - plain_step.plain_bytes == pytest.approx(
        experts * (5.46875 - 2) / 8
    )


def test_deepseek_v3_1_keeps_a_latent_of_10_7_gib_at_full_context():  # F64
    config = {
        "model_type": "deepseek_v3",
        "hidden_size": 7168,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "vocab_size": 129280,
        "intermediate_size": 18432,
    }
    found = shape_of_config(config)
    assert kv_bytes(kv_groups(found.layers, found), 163_840, 2) / 2**30 == pytest.approx(
        10.7, abs=0.05
    )


def test_per_layer_embeddings_are_looked_up_not_read(tmp_path):  # F61 (f): Gemma 3n
    table = plain(("model.embed_tokens_per_layer.weight", (V, 2 * 64)))
    write_folder(tmp_path, dense.config, [*dense.spec, *table])
    found = open_checkpoint(str(tmp_path))
    step = predict(found, None, context=0, batch=1, k=0)
    assert step.plain_bytes == found.resident_bytes - 2 * V * H - 2 * V * 2 * 64


def test_a_drafts_copied_embedding_is_resident_and_not_read(tmp_path):  # F61 (e)
    write_folder(tmp_path / "target", dense.config, dense.spec)
    vocabulary = 262_144
    spec = [
        *plain(("model.embed_tokens.weight", (vocabulary, H)), ("lm_head.weight", (V, H))),
        *llama_layer(0),
    ]
    config = LLAMA | {"num_hidden_layers": 1, "vocab_size": vocabulary}
    write_folder(tmp_path / "draft", config, spec)
    target = open_checkpoint(str(tmp_path / "target"))
    draft = open_checkpoint(str(tmp_path / "draft"))
    both = attach_draft(target, draft)
    step = predict(both, None, context=0, batch=1, k=4)
    assert step.draft_bytes == draft.resident_bytes - 2 * vocabulary * H
    assert step.step_bytes == step.plain_bytes + 4 * step.draft_bytes
    assert step.plain_bytes == predict(target, None, context=0, batch=1, k=0).plain_bytes
