"""Steps, costs and ceilings against published figures of the founding case."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sakiyomi.errors import CheckpointError
from sakiyomi.models.forensics import match_size
from sakiyomi.models.formats import BYTES_PER_PARAMETER
from sakiyomi.models.kv_cache import kv_bytes
from sakiyomi.models.model_config import shape_of_config
from sakiyomi.models.published import published_model, published_models
from sakiyomi.models.ratio import compare_reads
from sakiyomi.models.read_model import derive_by_role
from sakiyomi.models.roofline import Device, predict
from sakiyomi.models.weights import attach_draft, distinct_experts

CARD = Device(name="card", nominal_bytes_per_s=1792e9, measured_bytes_per_s=1495e9)
DENSE = published_model("ThinkingCap-Qwen3.6-27B-NVFP4")
SPARSE = published_model("Qwen3.6-35B-A3B-FP8")
MODELS = json.loads(Path(__file__).with_name("data").joinpath("model_configs.json").read_text())


def group(read, role):
    return next(group for group in read.groups if group.role == role)


def test_parameters_and_bytes_of_the_dense_27b():
    for role, expected in (("attention", 1.6777), ("linear", 5.5601), ("mlp", 17.1128)):
        assert group(DENSE, role).num_parameters / 1e9 == pytest.approx(expected, abs=1e-4)
    assert DENSE.always_parameters / 1e9 == pytest.approx(24.3506, abs=1e-4)
    assert DENSE.head_parameters / 1e9 == pytest.approx(1.2714, abs=1e-4)
    assert DENSE.draft.num_parameters / 1e9 == pytest.approx(0.42467, abs=1e-4)
    assert DENSE.draft.resident_bytes / 1e9 == pytest.approx(0.849, abs=1e-3)
    assert DENSE.always_bytes / 1e9 == pytest.approx(13.697, abs=1e-3)
    assert DENSE.head_bytes / 1e9 == pytest.approx(2.543, abs=1e-3)
    assert DENSE.embedding_bytes / 1e9 == pytest.approx(2.543, abs=1e-3)
    assert group(DENSE, "vision").num_bytes / 1e9 == pytest.approx(0.921, abs=1e-3)
    assert DENSE.resident_bytes / 1e9 == pytest.approx(20.55, abs=0.01)
    without_draft = DENSE.resident_bytes - DENSE.draft.resident_bytes
    assert without_draft / 1e9 == pytest.approx(19.70, abs=0.01)
    assert DENSE.state_bytes == 150_994_944


def test_steps_and_ceilings_of_the_dense_27b():
    step = predict(DENSE, CARD, context=0, batch=1, k=3)
    weights = step.plain_bytes - 2 * DENSE.state_bytes
    assert weights / 1e9 == pytest.approx(16.24, abs=0.01)
    assert step.plain_bytes / 1e9 == pytest.approx(16.542, abs=0.005)
    assert CARD.nominal_bytes_per_s / weights == pytest.approx(110.3, abs=0.1)
    nominal, measured = step.ceilings
    assert nominal.plain_tokens_per_s == pytest.approx(108.3, abs=0.1)
    assert 72.0 / nominal.plain_tokens_per_s == pytest.approx(0.665, abs=1e-3)
    assert 70.7 / nominal.plain_tokens_per_s == pytest.approx(0.653, abs=1e-3)
    assert measured.plain_tokens_per_s == pytest.approx(1495e9 / step.plain_bytes)
    assert step.draft_bytes / 1e9 == pytest.approx(3.392, abs=1e-3)
    assert step.draft_bytes / weights == pytest.approx(0.209, abs=1e-3)
    assert step.draft_bytes / step.plain_bytes == pytest.approx(0.205, abs=1e-3)
    assert step.step_bytes / 1e9 == pytest.approx(27.17, abs=0.01)
    assert (weights + 3 * step.draft_bytes) / 1e9 == pytest.approx(26.42, abs=0.01)
    assert (weights + 3 * step.draft_bytes) / weights == pytest.approx(1.627, abs=1e-3)
    assert step.step_cost == pytest.approx(1.643, abs=1e-3)
    assert step.head_share == pytest.approx(0.374, abs=1e-3)
    # one draft at 1.495 TB/s, three of them, and one in plain steps of the chat
    assert measured.draft_s * 1e3 == pytest.approx(2.27, abs=0.005)
    assert measured.draft_s * 3 * 1e3 == pytest.approx(6.81, abs=0.005)
    assert measured.draft_s * 72.0 == pytest.approx(0.163, abs=1e-3)
    excess_s = 3.143 / 131.0 - 1 / 70.7
    explained = (step.step_cost - 1) / 70.7 / excess_s
    assert explained == pytest.approx(0.923, abs=2e-3)


def test_state_traffic_grows_with_k_and_batch():
    traffic = DENSE.state_bytes * 5
    assert traffic / 1e9 == pytest.approx(0.755, abs=1e-3)
    assert 4 * DENSE.state_bytes / 1e9 == pytest.approx(0.604, abs=1e-3)
    step = predict(DENSE, None, context=0, batch=32, k=3)
    state = next(part for part in step.parts if part.name == "state")
    assert state.num_bytes / 1e9 == pytest.approx(24.16, abs=0.01)


@pytest.mark.parametrize(
    ("label", "share", "cost"),
    [("bf16", 0.066, 1.21), ("fp8", 0.125, 1.39), ("nvfp4", 0.205, 1.643)],
)
def test_a_better_quantized_target_makes_the_same_drafter_dearer(label, share, cost):
    shape = shape_of_config(MODELS["Qwen3.6-27B"]["config"])
    formats = dict.fromkeys(("attention", "linear", "mlp"), label)
    step = predict(
        derive_by_role(shape, formats, name="27B", source=""), None, context=0, batch=1, k=3
    )
    assert step.draft_bytes / step.plain_bytes == pytest.approx(share, abs=1e-3)
    assert step.step_cost == pytest.approx(cost, abs=0.01)


def test_the_published_nvfp4_checkpoint_with_a_small_head():
    read = published_model("nvidia/Qwen3.6-27B-NVFP4")
    step = predict(read, None, context=0, batch=1, k=3)
    assert (step.plain_bytes - 2 * read.state_bytes) / 1e9 == pytest.approx(17.58, abs=0.01)
    assert step.draft_bytes / 1e9 == pytest.approx(1.564, abs=1e-3)
    assert step.step_cost == pytest.approx(1.288, abs=2e-3)
    assert 3.143 / step.step_cost == pytest.approx(2.44, abs=0.01)
    assert 2.082 / step.step_cost == pytest.approx(1.62, abs=0.01)


def test_the_sparse_35b():
    router = group(SPARSE, "router").num_parameters
    body = SPARSE.active_parameters - SPARSE.head_parameters
    assert (body - router) / 1e9 == pytest.approx(2.4157, abs=1e-4)
    assert body / 1e9 == pytest.approx(2.4366, abs=1e-4)
    assert SPARSE.active_parameters / 1e9 == pytest.approx(2.945, abs=1e-3)
    assert SPARSE.head_bytes / 1e9 == pytest.approx(1.017, abs=1e-3)
    step = predict(SPARSE, CARD, context=0, batch=1, k=3)
    weights = step.plain_bytes - 2 * SPARSE.state_bytes
    assert weights / 1e9 == pytest.approx(3.475, abs=0.005)
    assert step.plain_bytes / 1e9 == pytest.approx(3.601, abs=0.005)
    assert CARD.nominal_bytes_per_s / weights == pytest.approx(515.7, abs=0.2)
    assert step.ceilings[0].plain_tokens_per_s == pytest.approx(497.7, abs=0.2)
    assert 177 * weights / 1792e9 == pytest.approx(0.343, abs=1e-3)
    assert 177 / step.ceilings[0].plain_tokens_per_s == pytest.approx(0.356, abs=1e-3)
    assert step.draft_bytes / 1e9 == pytest.approx(1.146, abs=1e-3)
    assert step.step_cost == pytest.approx(2.795, abs=2e-3)
    one = predict(SPARSE, CARD, context=0, batch=1, k=1)
    assert one.step_cost == pytest.approx(1.607, abs=2e-3)
    assert step.step_cost_overlap < step.step_cost


def test_measured_overlap_explains_the_397b_better_than_independent_routing():
    # 4x PRO 6000, NVFP4, k = 2: C(2) 1.84 measured; bytes 2.23 and 1.89 (NVFP4 body, bf16 head)
    shape = shape_of_config(MODELS["Qwen3.5-397B-A17B"]["config"])
    formats = dict.fromkeys(("attention", "linear", "experts", "shared"), "nvfp4")
    read = derive_by_role(shape, formats, name="397B", source="")
    step = predict(read, None, context=0, batch=1, k=2)
    assert step.step_cost == pytest.approx(2.23, abs=0.02)
    assert step.step_cost_overlap == pytest.approx(1.89, abs=0.02)


@pytest.mark.parametrize(
    ("num_tokens", "expected"),
    [
        (1, 8),
        (2, 15.8),
        (3, 23.3),
        (4, 30.5),
        (5, 37.6),
        (8, 57.4),
        (16, 102.0),
        (32, 163.3),
        (64, 222.4),
        (128, 251.6),
    ],
)
def test_distinct_experts(num_tokens, expected):
    assert distinct_experts(256, 8, num_tokens) == pytest.approx(expected, abs=0.0501)


def test_distinct_experts_of_128():  # F60: not min(T * k, E) = 32
    assert distinct_experts(128, 8, 4) == pytest.approx(29.12, abs=0.01)


def test_ratio_is_the_product_of_its_factors_exactly():
    ratio = compare_reads(DENSE, SPARSE, context=0, batch=1, tokens_per_s=(72.0, 177.0))
    plain = [predict(read, None, context=0, batch=1, k=0).plain_bytes for read in (DENSE, SPARSE)]
    assert ratio.bytes_ratio == pytest.approx(plain[0] / plain[1], rel=1e-14)
    assert ratio.bytes_ratio == pytest.approx(4.59, abs=0.01)
    assert math.prod(factor.ratio for factor in ratio.factors) == ratio.bytes_ratio
    assert ratio.time_ratio == pytest.approx(2.458, abs=1e-3)
    assert ratio.attainment == pytest.approx(0.3556 / 0.6646, abs=1e-3)
    weights = math.prod(factor.ratio for factor in ratio.factors[:3])
    assert weights == pytest.approx(4.67, abs=0.01)


@given(context=st.integers(0, 100_000), batch=st.integers(1, 64), k=st.integers(0, 8))
def test_properties_of_a_step(context, batch, k):
    for read in (DENSE, SPARSE):
        step = predict(read, CARD, context=context, batch=batch, k=k)
        assert sum(part.num_bytes for part in step.parts) == pytest.approx(step.step_bytes)
        assert sum(step.shares.values()) == pytest.approx(1)
        assert 1 <= step.step_cost_overlap <= step.step_cost or k == 0
        longer = predict(read, CARD, context=context, batch=batch, k=k + 1)
        assert longer.step_bytes > step.step_bytes
        assert longer.plain_bytes == step.plain_bytes
        ratio = compare_reads(DENSE, SPARSE, context=context, batch=batch)
        assert ratio.bytes_ratio > 0


@pytest.mark.parametrize("name", MODELS)
def test_totals_of_published_models_follow_from_their_configs(name):
    shape = shape_of_config(MODELS[name]["config"])
    expected = MODELS[name]["expected"]
    assert shape.missing == ()
    read = derive_by_role(shape, {}, name=name, source="")
    draft = read.draft
    text = read.num_parameters - (draft.num_parameters if draft else 0)
    assert text / 1e9 == pytest.approx(expected["params_text_B"], rel=0.005)
    body = read.active_parameters - read.head_parameters
    assert body / 1e9 == pytest.approx(expected["active_body_B"], rel=0.005)
    if draft:  # Qwen3-Next's config does not tell of its draft head
        assert draft.num_parameters / 1e9 == pytest.approx(expected["params_mtp_B"], rel=0.005)
    capped = [kind for kind in read.kv if kind.kind == "sliding"]
    full = [kind for kind in read.kv if kind.kind != "sliding"]
    assert 2 * sum(kind.elements_per_token for kind in full) == expected["kv_bytes_per_token_bf16"]
    assert kv_bytes(capped, 1e9, 1) == expected["sliding_kv_cap_bytes_fp8"]
    assert read.state_bytes == expected["linear_state_bytes_per_seq_fp32"]
    step = predict(read, None, context=0, batch=1, k=3)
    plain = step.plain_bytes - 2 * read.state_bytes
    assert plain / 1e9 == pytest.approx(expected["read_GB_bf16"], rel=0.005)
    if draft and expected["C3_bytes_bf16"]:
        assert step.step_cost == pytest.approx(expected["C3_bytes_bf16"], abs=0.01)
        passes = expected["draft_pass_GB_mtp_bf16_head_bf16"]
        assert step.draft_bytes / 1e9 == pytest.approx(passes, abs=2e-3)


def test_size_alone_leaves_one_combination():
    shape = shape_of_config(published_models()[0].config)
    matches = match_size(shape, 19.70e9, vision_parameters=460.7e6)
    assert len(matches) == 162
    near = [match for match in matches if match.distance_bytes < 0.15e9]
    assert [(match.formats, match.has_vision) for match in near] == [
        ({"attention": "nvfp4", "linear": "nvfp4", "mlp": "nvfp4", "head": "bf16"}, True)
    ]
    sizes = [(match.resident_bytes / 1e9, match.read_bytes / 1e9) for match in matches[1:4]]
    expected = [(19.52, 16.97), (19.92, 17.38), (19.94, 17.40)]
    for found, wanted in zip(sizes, expected, strict=True):
        assert found == pytest.approx(wanted, abs=0.006)


def test_size_of_a_sparse_model_reads_only_the_chosen_experts():
    shape = shape_of_config(MODELS["Qwen3.6-35B-A3B"]["config"])
    match = match_size(shape, 0, formats=("fp8",))[0]
    head_saved = SPARSE.head_bytes / 2
    weights = predict(SPARSE, None, context=0, batch=1, k=0).plain_bytes - 2 * SPARSE.state_bytes
    assert match.read_bytes == pytest.approx(weights - head_saved)


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("nvfp4", 0.5625),
        ("mxfp4", 0.53125),
        ("fp8 block", 1.0002),
        ("int4 g128 asymmetric", 0.5195),
        ("int4 g128", 0.5156),
        ("Q4_K", 0.5625),
        ("Q5_K", 0.6875),
        ("Q6_K", 0.8203),
        ("Q8_0", 1.0625),
    ],
)
def test_bytes_per_parameter(label, expected):
    assert BYTES_PER_PARAMETER[label] == pytest.approx(expected, abs=5e-5)


def test_a_separate_drafter_borrows_or_brings_its_head():
    step = predict(DENSE, None, context=0, batch=1, k=2)
    both = attach_draft(DENSE, SPARSE)
    dear = predict(both, None, context=0, batch=1, k=2)
    sparse_plain = predict(SPARSE, None, context=0, batch=1, k=0)
    assert both.draft.has_own_head
    assert dear.draft_bytes == pytest.approx(sparse_plain.plain_bytes)
    assert dear.plain_bytes == step.plain_bytes


def test_an_incomplete_model_is_refused_with_what_is_missing():
    shape = shape_of_config({"hidden_size": 64, "num_hidden_layers": 1, "vocab_size": 10})
    read = derive_by_role(shape, {}, name="half", source="")
    with pytest.raises(CheckpointError, match="num_attention_heads"):
        predict(read, None, context=0, batch=1, k=0)


def test_ceiling_scales_with_tokens_per_step():
    step = predict(DENSE, CARD, context=0, batch=2, k=3)
    nominal = step.ceilings[0]
    assert step.ceiling_tokens_per_s(3.0) == pytest.approx(2 * 3 * nominal.steps_per_s)
    assert step.ceiling_tokens_per_s(4.0) == pytest.approx(nominal.max_tokens_per_s)
    assert predict(DENSE, None, context=0, batch=1, k=0).ceiling_tokens_per_s(1.0) is None
    assert nominal.step_s == pytest.approx(nominal.verify_s + 3 * nominal.draft_s)
