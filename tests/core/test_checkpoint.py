"""Finding a model: folders, shards, indexes, single files, bare configs, damage."""

import json
import math
from pathlib import Path

import gguf
import pytest
from model_families import FAMILIES, dense, hybrid
from model_makers import write_folder, write_gguf, write_safetensors

from sakiyomi.errors import CheckpointError
from sakiyomi.models.checkpoint import open_checkpoint
from sakiyomi.models.kv_cache import kv_bytes
from sakiyomi.models.roofline import predict
from sakiyomi.models.weights import attach_draft

INDEX = "model.safetensors.index.json"


def edit_index(folder, change) -> None:
    index = json.loads((folder / INDEX).read_text())
    change(index)
    (folder / INDEX).write_text(json.dumps(index))


def test_one_file_of_a_folder_takes_its_config_along(tmp_path):
    write_folder(tmp_path, dense.config, dense.spec)
    found = open_checkpoint(str(tmp_path / "model.safetensors"))
    assert found.num_parameters == dense.parameters
    assert found.missing == ()


def test_any_shard_resolves_to_the_set(tmp_path):
    write_folder(tmp_path, dense.config, dense.spec, shards=3)
    for name in ("model-00002-of-00003.safetensors", INDEX):
        assert open_checkpoint(str(tmp_path / name)).num_parameters == dense.parameters


def test_shards_without_an_index(tmp_path):
    write_folder(tmp_path, dense.config, dense.spec, shards=3)
    (tmp_path / INDEX).unlink()
    assert open_checkpoint(str(tmp_path)).num_parameters == dense.parameters
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00003\.safetensors"):
        open_checkpoint(str(tmp_path))


def test_a_missing_shard_is_named(tmp_path):
    write_folder(tmp_path, dense.config, dense.spec, shards=3)
    (tmp_path / "model-00003-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00003-of-00003\.safetensors"):
        open_checkpoint(str(tmp_path))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda index: index["weight_map"].update(x=INDEX), "no safetensors file"),  # cyclic
        (lambda index: index["weight_map"].update(x="../a.safetensors"), "not here"),
        (lambda index: index["weight_map"].update(x=5), "weight_map"),
        (lambda index: index.pop("weight_map"), "weight_map"),
        (
            lambda index: index["weight_map"].update(ghost="model-00001-of-00002.safetensors"),
            "ghost",
        ),
    ],
)
def test_an_index_that_lies_is_refused(tmp_path, change, says):
    write_folder(tmp_path, dense.config, dense.spec, shards=2)
    edit_index(tmp_path, change)
    with pytest.raises(CheckpointError, match=says):
        open_checkpoint(str(tmp_path))


def test_a_wrong_total_is_said_and_the_headers_count(tmp_path):
    data_bytes = write_folder(tmp_path, dense.config, dense.spec, shards=2)
    edit_index(tmp_path, lambda index: index["metadata"].update(total_size=1))
    found = open_checkpoint(str(tmp_path))
    assert found.resident_bytes == data_bytes
    assert any("states 1 bytes" in caution for caution in found.cautions)


def test_files_beside_the_index_are_left_out_and_said(tmp_path):
    data_bytes = write_folder(tmp_path, dense.config, dense.spec, shards=2)
    write_safetensors(tmp_path / "extra.safetensors", [("a", "BF16", (4,))])
    found = open_checkpoint(str(tmp_path))
    assert found.resident_bytes == data_bytes
    assert any("extra.safetensors" in caution for caution in found.cautions)


def test_the_same_weights_under_two_names_count_once(tmp_path):  # Mistral
    data_bytes = write_folder(tmp_path, dense.config, dense.spec)
    write_safetensors(tmp_path / "consolidated.safetensors", dense.spec)
    assert open_checkpoint(str(tmp_path)).resident_bytes == data_bytes


def test_a_tensor_in_two_files_is_refused(tmp_path):
    write_folder(tmp_path, dense.config, dense.spec)
    write_safetensors(tmp_path / "again.safetensors", dense.spec[:1])
    with pytest.raises(CheckpointError, match="in another file already"):
        open_checkpoint(str(tmp_path))


def test_a_thousand_shards(tmp_path):
    spec = [(f"model.layers.{n}.mlp.up_proj.weight", "BF16", (4, 4)) for n in range(1000)]
    config = dense.config | {"num_hidden_layers": 1000}
    write_folder(tmp_path, config, spec, shards=1000)
    found = open_checkpoint(str(tmp_path))
    assert found.num_parameters == 16_000
    assert "1000 safetensors files" in found.source


def test_a_bare_config_is_derived_and_says_so(tmp_path):
    (tmp_path / "config.json").write_text("\ufeff" + json.dumps(hybrid.config))
    for path in (tmp_path, tmp_path / "config.json"):
        found = open_checkpoint(str(path))
        assert "derived" in found.source
        assert any("derived from shapes" in caution for caution in found.cautions)
        assert any("config's claim" in caution for caution in found.cautions)
        sizes = {group.role: group.num_parameters for group in found.groups}
        assert sizes["attention"] == hybrid.roles["attention"]
        assert sizes["mlp"] == hybrid.roles["mlp"]
        linear = hybrid.roles["linear"]
        assert sizes["linear"] == linear - 3 * (256 * 4 + 8)  # convolutions and vectors left out


@pytest.mark.parametrize(
    "name", ["NVFP4 modelopt", "fp8 block", "int4 compressed-tensors", "MXFP4"]
)
def test_derived_sizes_are_those_of_the_headers(tmp_path, name):
    family = FAMILIES[name]
    write_folder(tmp_path, family.config, family.spec)
    real = open_checkpoint(str(tmp_path))
    (tmp_path / "model.safetensors").unlink()
    derived = open_checkpoint(str(tmp_path))
    assert derived.num_parameters == pytest.approx(real.num_parameters, rel=0.03)
    assert {group.role for group in derived.groups} == {group.role for group in real.groups} - {
        "norm"
    }
    assert derived.resident_bytes == pytest.approx(real.resident_bytes, rel=0.05)


@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-qwen3.5-mtp"])
def test_derived_sizes_are_those_of_transformers_own_checkpoints(name):
    folder = Path(__file__).parents[1] / "live" / "models" / name
    sizes = [
        {group.role: group.num_parameters for group in open_checkpoint(str(path)).groups}
        for path in (folder, folder / "config.json")
    ]
    for role in sizes[1].keys() - {"linear", "draft"}:  # convolutions, norms: left out
        assert sizes[1][role] == sizes[0][role], role
    if "linear" in sizes[0]:
        # three layers: a convolution of 4 over 512 channels, two values a head of two
        assert sizes[0]["linear"] - sizes[1]["linear"] == 3 * (4 * 512 + 2 + 2)
        # six norms over 256, two over a head of 64
        assert sizes[0]["draft"] - sizes[1]["draft"] == 5 * 256 + 2 * 64


def test_infinity_in_a_config_is_read(tmp_path):  # Nemotron-H: time_step_limit
    (tmp_path / "config.json").write_text(
        json.dumps(dense.config | {"time_step_limit": [0.0, math.inf]})
    )
    assert open_checkpoint(str(tmp_path)).missing == ()


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("config.json", "{", "config.json"),
        ("config.json", "[1]", "no JSON object"),
        ("notes.txt", "hello", "neither safetensors nor GGUF"),
        ("pytorch_model.bin", "PK", "neither safetensors nor GGUF"),
    ],
)
def test_damaged_and_foreign_files_are_refused(tmp_path, name, text, says):
    (tmp_path / name).write_text(text)
    with pytest.raises(CheckpointError, match=says) as caught:
        open_checkpoint(str(tmp_path / name))
    assert caught.value.hint


def test_empty_folder_and_misspelt_path(tmp_path):
    with pytest.raises(CheckpointError, match=r"no \*\.safetensors"):
        open_checkpoint(str(tmp_path))
    (tmp_path / "Qwen3-8B").mkdir()
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(str(tmp_path / "Qwen3-8b-x"))
    assert "Qwen3-8B" in caught.value.hint


LLAMA_KEYS = {
    "block_count": 2,
    "embedding_length": 256,
    "feed_forward_length": 512,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.key_length": 64,
    "attention.value_length": 64,
}


def llama_spec(num_layers: int = 2) -> list:
    spec = [("token_embd.weight", "Q6_K", (64, 256)), ("output_norm.weight", "F32", (256,))]
    for layer in range(num_layers):
        spec += [
            (f"blk.{layer}.attn_norm.weight", "F32", (256,)),
            (f"blk.{layer}.attn_q.weight", "Q4_K", (256, 256)),
            (f"blk.{layer}.attn_k.weight", "Q4_K", (128, 256)),
            (f"blk.{layer}.attn_v.weight", "Q6_K", (128, 256)),
            (f"blk.{layer}.attn_output.weight", "Q4_K", (256, 256)),
            (f"blk.{layer}.ffn_gate.weight", "Q4_K", (512, 256)),
            (f"blk.{layer}.ffn_up.weight", "Q4_K", (512, 256)),
            (f"blk.{layer}.ffn_down.weight", "Q6_K", (256, 512)),
        ]
    return spec


def size_by_library(*paths) -> int:
    return sum(int(tensor.n_bytes) for path in paths for tensor in gguf.GGUFReader(path).tensors)


def test_gguf_file_and_folder(tmp_path):
    path = tmp_path / "tiny-Q4_K_M.gguf"
    write_gguf(path, "llama", llama_spec(), LLAMA_KEYS, vocab=64)
    for model in (path, tmp_path):
        found = open_checkpoint(str(model))
        assert found.resident_bytes == size_by_library(path)
        assert found.head_tied
        assert found.missing == ()
        step = predict(found, None, context=10, batch=1, k=0)
        assert step.plain_bytes == found.resident_bytes + 10 * 2 * 2 * 2 * 64 * 2
        formats = {group.role: group.format for group in found.groups}
        assert formats["attention"] == "Q4_K+Q6_K"


def split(tmp_path, spec, *, total=None):
    """Shard 1 has the keys and no tensors, as llama.cpp's splitter may leave it."""
    paths = []
    for number in range(3):
        path = tmp_path / f"big-{number + 1:05d}-of-00003.gguf"
        part = spec[number - 1 :: 2] if number else []
        keys = {
            "split.no": number,
            "split.count": 3,
            "split.tensors.count": len(spec) if total is None else total,
        }
        write_gguf(path, "llama", part, LLAMA_KEYS | keys if not number else keys, vocab=64)
        paths.append(path)
    return paths


def test_any_gguf_shard_resolves_to_the_set(tmp_path):  # F62
    paths = split(tmp_path, llama_spec())
    for model in (*paths, tmp_path):
        found = open_checkpoint(str(model))
        assert found.resident_bytes == size_by_library(*paths)
        assert found.missing == ()
        assert found.kv[0].num_layers == 2


def test_missing_and_foreign_gguf_shards_are_named(tmp_path):  # F62
    paths = split(tmp_path, llama_spec(), total=99)
    with pytest.raises(CheckpointError, match="99"):
        open_checkpoint(str(paths[1]))
    paths[2].unlink()
    with pytest.raises(CheckpointError, match="big-00003-of-00003"):
        open_checkpoint(str(paths[0]))
    renamed = tmp_path / "alone.gguf"
    paths[0].rename(renamed)
    with pytest.raises(CheckpointError, match="1 of its 3 shards"):
        open_checkpoint(str(renamed))


def test_several_gguf_models_in_a_folder_ask_for_a_choice(tmp_path):
    for name in ("a-Q4_K_M.gguf", "a-Q8_0.gguf", "mmproj-a.gguf"):
        write_gguf(tmp_path / name, "llama", llama_spec(), LLAMA_KEYS, vocab=64)
    with pytest.raises(CheckpointError, match="2 GGUF models") as caught:
        open_checkpoint(str(tmp_path))
    assert "a-Q8_0.gguf" in caught.value.hint


def test_a_gguf_with_experts_and_a_draft_layer(tmp_path):
    keys = {
        "block_count": 3,
        "nextn_predict_layers": 1,
        "embedding_length": 256,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": 64,
        "attention.value_length": 64,
        "expert_count": 8,
        "expert_used_count": 2,
        "expert_feed_forward_length": 256,
        "leading_dense_block_count": 1,
    }
    attention = [
        ("attn_q.weight", "Q8_0", (256, 256)),
        ("attn_k.weight", "Q8_0", (128, 256)),
        ("attn_v.weight", "Q8_0", (128, 256)),
        ("attn_output.weight", "Q8_0", (256, 256)),
    ]
    experts = [
        ("ffn_gate_inp.weight", "F32", (8, 256)),
        ("exp_probs_b.bias", "F32", (8,)),
        ("ffn_gate_exps.weight", "MXFP4", (8, 256, 256)),
        ("ffn_up_exps.weight", "MXFP4", (8, 256, 256)),
        ("ffn_down_exps.weight", "MXFP4", (8, 256, 256)),
        ("ffn_up_shexp.weight", "Q8_0", (256, 256)),
    ]
    fusion = [("nextn.eh_proj.weight", "Q8_0", (256, 512)), ("nextn.enorm.weight", "F32", (256,))]
    layers = [
        [*attention, ("ffn_up.weight", "Q4_K", (512, 256))],
        [*attention, *experts],
        [*attention, *experts, *fusion],
    ]
    spec = [("token_embd.weight", "Q6_K", (64, 256)), ("output.weight", "Q6_K", (64, 256))]
    for number, layer in enumerate(layers):
        spec += [(f"blk.{number}.{name}", kind, shape) for name, kind, shape in layer]
    path = tmp_path / "moe.gguf"
    write_gguf(path, "glm4moe", spec, keys, vocab=64)
    found = open_checkpoint(str(path))
    assert found.resident_bytes == size_by_library(path)
    expert_bytes = 3 * 8 * 256 * 256 * 17 // 32
    (group,) = found.experts
    assert (group.num_experts, group.experts_per_token) == (8, 2)
    assert group.num_bytes == expert_bytes
    assert found.draft is not None
    assert found.draft.experts[0].num_bytes == expert_bytes
    assert not found.draft.has_own_head
    assert found.kv[0].num_layers == 2
    step = predict(found, None, context=0, batch=1, k=1)
    chosen = 2 / 8 * expert_bytes
    draft_always = (2 * 256 * 256 + 2 * 128 * 256 + 256 * 256 + 256 * 512) * 34 // 32
    draft_always += (8 * 256 + 8 + 256) * 4
    assert step.draft_bytes == draft_always + chosen + found.head_bytes


def test_gguf_of_a_recurrent_hybrid(tmp_path):
    keys = {
        "block_count": 4,
        "embedding_length": 256,
        "feed_forward_length": 256,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": 64,
        "attention.value_length": 64,
        "ssm.state_size": 32,
        "ssm.inner_size": 256,
        "ssm.time_step_rank": 8,
        "ssm.group_count": 4,
        "full_attention_interval": 4,
    }
    spec = [("token_embd.weight", "Q6_K", (64, 256))]
    for layer in range(3):
        spec += [
            (f"blk.{layer}.attn_qkv.weight", "Q8_0", (512, 256)),
            (f"blk.{layer}.attn_gate.weight", "Q8_0", (256, 256)),
            (f"blk.{layer}.ssm_conv1d.weight", "F32", (512, 4)),
            (f"blk.{layer}.ssm_a", "F32", (8,)),
            (f"blk.{layer}.ssm_out.weight", "Q8_0", (256, 256)),
        ]
    spec += [
        ("blk.3.attn_q.weight", "Q8_0", (512, 256)),
        ("blk.3.attn_k.weight", "Q8_0", (128, 256)),
    ]
    path = tmp_path / "hybrid.gguf"
    write_gguf(path, "qwen3next", spec, keys, vocab=64)
    found = open_checkpoint(str(path))
    sizes = {group.role: group.num_bytes for group in found.groups}
    assert sizes["linear"] == 3 * (4 * 256 * 256 * 34 // 32 + (2048 + 8) * 4)
    assert sizes["attention"] == (512 + 128) * 256 * 34 // 32
    assert found.state_bytes == 3 * 8 * 32 * 32 * 4
    assert kv_bytes(found.kv, 7, 2) == 7 * 2 * 2 * 64 * 2


def test_gguf_with_latent_attention(tmp_path):
    keys = {
        "block_count": 1,
        "embedding_length": 256,
        "feed_forward_length": 256,
        "attention.head_count": 8,
        "attention.head_count_kv": 1,
        "attention.key_length": 192,
        "attention.value_length": 128,
        "attention.kv_lora_rank": 128,
        "attention.q_lora_rank": 64,
        "rope.dimension_count": 64,
    }
    spec = [
        ("token_embd.weight", "Q8_0", (64, 256)),
        ("blk.0.attn_kv_a_mqa.weight", "Q8_0", (192, 256)),
        ("blk.0.attn_k_b.weight", "Q8_0", (8, 128, 128)),
    ]
    path = tmp_path / "mla.gguf"
    write_gguf(path, "deepseek2", spec, keys, vocab=64)
    found = open_checkpoint(str(path))
    assert kv_bytes(found.kv, 5, 2) == 5 * (128 + 64) * 2
    assert {group.role for group in found.groups} == {"embedding", "attention"}


def test_an_eagle_head_attaches_to_its_target(tmp_path):
    write_folder(tmp_path / "target", dense.config, dense.spec)
    spec = [
        ("fc.weight", "BF16", (128, 384)),
        ("midlayer.self_attn.q_proj.weight", "BF16", (256, 256)),
        ("midlayer.mlp.up_proj.weight", "BF16", (256, 128)),
        ("norm.weight", "BF16", (128,)),
        ("lm_head.weight", "BF16", (64, 128)),  # a pruned vocabulary
        ("d2t", "I64", (64,)),
    ]
    config = dense.config | {"num_hidden_layers": 1, "draft_vocab_size": 64}
    write_folder(tmp_path / "eagle", config, spec)
    target = open_checkpoint(str(tmp_path / "target"))
    eagle = open_checkpoint(str(tmp_path / "eagle"))
    with pytest.raises(CheckpointError, match="drafter"):
        predict(eagle, None, context=0, batch=1, k=0)
    step = predict(attach_draft(target, eagle), None, context=0, batch=1, k=2)
    assert step.draft_bytes == eagle.resident_bytes
    assert step.step_bytes == step.plain_bytes + 2 * eagle.resident_bytes
