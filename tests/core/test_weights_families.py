"""Real safetensors files of every family: bytes to the byte, parameters unpacked, roles by name."""

import math

import pytest
from model_families import FAMILIES, H, V, dense, hybrid, mla, moe, mxfp4, tied
from model_makers import DTYPES, write_folder

from sakiyomi.models.checkpoint import open_checkpoint
from sakiyomi.models.kv_cache import kv_bytes
from sakiyomi.models.roofline import predict
from sakiyomi.models.weights import ReadBytes, distinct_experts


def stored(spec: list, *parts: str) -> int:
    """Bytes of the spec's tensors whose names hold one of the parts."""
    return sum(
        DTYPES[dtype][1] * math.prod(shape)
        for name, dtype, shape in spec
        if any(part in name for part in parts)
    )


def read(tmp_path, family, **kwargs) -> ReadBytes:
    write_folder(tmp_path, family.config, family.spec, **kwargs)
    return open_checkpoint(str(tmp_path))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("shards", [0, 3])
def test_bytes_are_the_stored_ones_and_parameters_the_unpacked_ones(tmp_path, name, shards):
    family = FAMILIES[name]
    data_bytes = write_folder(tmp_path, family.config, family.spec, shards=shards)
    found = open_checkpoint(str(tmp_path))
    assert found.resident_bytes == data_bytes
    assert found.num_parameters == family.parameters
    assert found.missing == ()
    assert not [caution for caution in found.cautions if "not known" in caution]
    assert sum(group.num_bytes for group in found.groups) == data_bytes
    sizes = {group.role: group.num_parameters for group in found.groups}
    assert {role: sizes[role] for role in family.roles} == family.roles
    formats = {group.role: group.format for group in found.groups}
    assert {role: formats[role] for role in family.formats} == family.formats


@pytest.mark.parametrize("name", FAMILIES)
def test_stored_bits_of_a_parameter_stay_below_16(tmp_path, name):
    found = read(tmp_path, FAMILIES[name])
    assert 8 * found.resident_bytes / found.num_parameters <= 16.1


def test_an_untied_embedding_is_not_read(tmp_path):
    found = read(tmp_path, dense)
    step = predict(found, None, context=0, batch=1, k=0)
    assert step.plain_bytes == found.resident_bytes - 2 * V * H
    assert not found.head_tied


def test_a_tied_table_is_read_once_as_the_head(tmp_path):
    found = read(tmp_path, tied)
    assert found.head_tied
    assert predict(found, None, context=0, batch=1, k=0).plain_bytes == found.resident_bytes


def test_a_missing_head_is_a_tied_one_even_where_the_config_denies_it(tmp_path):
    write_folder(tmp_path, tied.config | {"tie_word_embeddings": False}, tied.spec)
    found = open_checkpoint(str(tmp_path))
    assert found.head_tied
    assert any("tied" in caution for caution in found.cautions)


def test_tower_and_draft_head_are_resident_but_not_in_a_plain_step(tmp_path):
    found = read(tmp_path, hybrid)
    step = predict(found, None, context=0, batch=1, k=0)
    left_out = stored(hybrid.spec, "visual", "mtp.", "embed_tokens")
    assert step.plain_bytes - 2 * found.state_bytes == found.resident_bytes - left_out
    assert found.state_bytes == 3 * 4 * 32 * 32 * 4
    assert found.draft is not None
    assert not found.draft.has_own_head
    assert step.draft_bytes == stored(hybrid.spec, "mtp.") + found.head_bytes


def test_a_speculative_step_reads_state_once_and_writes_it_k_plus_1_times(tmp_path):
    found = read(tmp_path, hybrid)
    plain = predict(found, None, context=64, batch=2, k=0)
    step = predict(found, None, context=64, batch=2, k=3)
    assert step.verify_bytes - plain.plain_bytes == 2 * 3 * found.state_bytes
    assert step.step_bytes == step.verify_bytes + 3 * step.draft_bytes
    # the draft layer attends over its own cache: one layer of 2 x 2 heads x 64, bf16
    empty = predict(found, None, context=0, batch=2, k=3)
    assert step.draft_bytes - empty.draft_bytes == 2 * 64 * (2 * 2 * 64) * 2


def test_experts_are_read_as_far_as_they_are_chosen(tmp_path):
    found = read(tmp_path, moe)
    experts = stored(moe.spec, ".experts.")
    rest = found.resident_bytes - experts - 2 * V * H
    for batch in (1, 3):
        step = predict(found, None, context=0, batch=batch, k=0)
        share = distinct_experts(8, 2, batch) / 8
        assert step.plain_bytes == pytest.approx(rest + share * experts)
    assert found.active_parameters == pytest.approx(moe.parameters - V * H - 0.75 * 8 * 3 * H * 32)


def test_a_draft_layer_behind_the_last_one_is_found_by_its_tensors(tmp_path):
    found = read(tmp_path, mla)
    draft = found.draft
    assert draft is not None
    assert draft.has_own_head
    assert draft.head_bytes == V * H * 2
    assert draft.experts[0].num_experts == 8
    assert found.experts[0].num_bytes == stored(mla.spec, "layers.1.mlp.experts.")
    without_field = mla.config | {"num_nextn_predict_layers": 0}
    write_folder(tmp_path, without_field, mla.spec)
    assert open_checkpoint(str(tmp_path)).draft == draft


def test_a_claimed_draft_head_without_tensors_is_said(tmp_path):
    spec = [entry for entry in hybrid.spec if not entry[0].startswith("mtp.")]
    write_folder(tmp_path, hybrid.config, spec)
    found = open_checkpoint(str(tmp_path))
    assert found.draft is None
    assert any("draft head" in caution for caution in found.cautions)


@pytest.mark.parametrize(
    ("family", "context", "expected"),
    [
        (dense, 100, 100 * 2 * (2 * 2 * 64)),  # layers x (K, V) x kv heads x head_dim
        (hybrid, 100, 100 * 1 * (2 * 2 * 64)),  # one full layer of four
        (mla, 100, 100 * 2 * (64 + 16)),  # a latent per layer
        (mxfp4, 100, (100 + 16) * (2 * 2 * 64)),  # one layer sees a window of 16
    ],
)
def test_kv_elements_by_kind_of_attention(tmp_path, family, context, expected):
    found = read(tmp_path, family)
    assert kv_bytes(found.kv, context, 1) == expected
    assert found.kv_element_bytes == 2
    assert found.rules


def test_the_checkpoint_says_how_its_cache_is_stored(tmp_path):
    modelopt = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}
    write_folder(tmp_path, dense.config, dense.spec, hf_quant_config=modelopt)
    assert open_checkpoint(str(tmp_path)).kv_element_bytes == 1


def test_unknown_names_are_counted_and_said(tmp_path):
    spec = [*dense.spec, ("model.mystery.weight", "BF16", (4, 4))]
    write_folder(tmp_path, dense.config, spec)
    found = open_checkpoint(str(tmp_path))
    assert any("model.mystery" in caution for caution in found.cautions)
    plain = predict(found, None, context=0, batch=1, k=0).plain_bytes
    assert plain == found.resident_bytes - 2 * V * H


def test_without_a_config_bytes_are_known_and_the_step_is_not(tmp_path):
    data_bytes = write_folder(tmp_path, dense.config, dense.spec)
    (tmp_path / "config.json").unlink()
    found = open_checkpoint(str(tmp_path))
    assert found.resident_bytes == data_bytes
    assert found.missing


def test_an_fp32_checkpoint_counts_four_bytes_whatever_the_config_says(tmp_path):  # E14
    spec = [(name, "F32", shape) for name, _dtype, shape in dense.spec]
    config = dense.config | {"torch_dtype": "bfloat16"}
    data_bytes = write_folder(tmp_path, config, spec)
    found = open_checkpoint(str(tmp_path))
    assert found.resident_bytes == data_bytes == 4 * found.num_parameters
    assert not [caution for caution in found.cautions if "bits per parameter" in caution]


def test_packed_words_without_any_hint_are_said_to_be_taken_as_4_bit(tmp_path):
    spec = [*dense.spec[:-1], ("lm_head.weight_packed", "I32", (V, H // 8))]
    write_folder(tmp_path, dense.config, spec)
    found = open_checkpoint(str(tmp_path))
    assert found.head_parameters == V * H
    assert any("taken as 4 bit" in caution for caution in found.cautions)
