"""Known defects are pointed at only when what was seen fits."""

import re

import pytest

from sakiyomi.engines import ENGINES
from sakiyomi.suspects import SUSPECTS, match, version_numbers

GRAPHS = (
    "INFO [cuda.py:532] Using FLASHINFER attention backend\n"
    "WARNING [compilation.py:1148] CUDAGraphMode.FULL_AND_PIECEWISE is not supported with "
    "spec-decode for attention backend FlashInferBackend (support: "
    "AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE); setting cudagraph_mode=PIECEWISE\n"
)


def issues(*args, **kwargs):
    return [suspect.issue.split("#")[1] for suspect in match(*args, **kwargs)]


def test_lost_graphs():
    assert issues("vllm", "0.24.0", GRAPHS) == ["49547"]
    none = GRAPHS.replace("=PIECEWISE", "=NONE")
    assert issues("vllm", "0.30.0", none) == ["55581", "49547"]
    assert issues("vllm", "0.30.0", "INFO Capturing CUDA graphs (FULL): 100%") == []
    assert issues("sglang", "0.5.23", GRAPHS) == []
    (suspect,) = match("vllm", "0.24.0", GRAPHS)
    assert suspect.url == "https://github.com/vllm-project/vllm/issues/49547"
    assert "FLASH_ATTN" in suspect.remedy


def test_other_log_lines():
    warning = (
        "WARNING [speculative.py:1382] Enabling num_speculative_tokens > 1 will run multiple times "
        "of forward on same MTP layer,which may result in lower acceptance rate"
    )
    assert issues("vllm", "0.32.0", warning) == ["52688"]
    assert issues("vllm", None, "CUDA error: an illegal memory access was encountered") == ["40756"]
    assert issues("vllm", None, "KeyError: 'model.mtp.layers.0.mlp.weight_scale'") == ["38650"]
    memory = "ggml_backend_cuda_buffer_type_alloc_buffer: cudaMalloc failed: out of memory"
    assert issues("llama.cpp", "b9500", memory) == ["23903"]
    page = '"# HELP llamacpp:prompt_tokens_total'
    assert issues("llama.cpp", "b7050-abc", page) == ["17384"]
    assert issues("llama.cpp", "b11549", page) == []


def test_symptoms_need_their_model():
    zero = {"symptoms": ("acceptance_zero",)}
    assert issues("sglang", "0.5.20", "", model="RedHat/Qwen3.5-9B-quantized.w4a16", **zero) == [
        "35797"
    ]
    assert issues("sglang", "0.5.20", "", model="deepseek-ai/DeepSeek-V3", **zero) == []
    assert issues("sglang", "0.5.20", "", model="RedHat/Qwen3.5-9B-quantized.w4a16") == []
    assert issues("vllm", "0.33.0", "", model="zai-org/GLM-5.3", **zero) == ["55605"]
    assert issues("llama.cpp", "b9305-63248fc3e", "", **zero) == ["23658"]
    assert issues("llama.cpp", "b11549", "", **zero) == []
    assert issues("vllm", "0.32.0", "", symptoms=("acceptance_one",)) == ["40756"]


def test_versions_bound_a_suspect():
    start = {"symptoms": ("start_failed",), "model": "Qwen3.6-27B"}
    assert issues("sglang", "0.5.13", "", **start) == ["28431"]
    assert issues("sglang", "0.5.13.post1", "", **start) == ["28431"]
    assert issues("sglang", "0.5.14", "", **start) == []
    assert issues("sglang", None, "", **start) == ["28431"]


@pytest.mark.parametrize(
    ("version", "numbers"),
    [
        ("0.25.1rc2", (0, 25, 1)),
        ("v0.24.0", (0, 24, 0)),
        ("b9305-63248fc3e", (9305,)),
        ("b0-unknown", (0,)),
        ("main", ()),
        (None, ()),
        ("", ()),
    ],
)
def test_versions_are_read(version, numbers):
    assert version_numbers(version) == numbers


def test_an_unnumbered_build_fits_all_ranges():
    assert issues("llama.cpp", "b0-unknown", "", symptoms=("acceptance_zero",)) == ["23658"]


@pytest.mark.parametrize("suspect", SUSPECTS, ids=lambda s: s.issue)
def test_every_suspect_is_complete(suspect):
    assert suspect.engine in ENGINES
    assert suspect.pattern or suspect.symptoms
    assert suspect.what
    assert suspect.remedy
    assert re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/issues/\d+", suspect.url)
    re.compile(suspect.pattern)
    re.compile(suspect.model)
    assert not suspect.until or suspect.since < suspect.until
