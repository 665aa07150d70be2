"""What engines say of their own configuration: pages, metrics and real logs give the same words."""

from pathlib import Path

import msgspec
import pytest

from sakiyomi.differences import find_differences
from sakiyomi.engines import sglang, trtllm, vllm, vllm_settings
from sakiyomi.engines.engine import merge_settings
from sakiyomi.record import ArmFacts

GOLDEN = Path(__file__).parent / "golden"
VLLM = GOLDEN / "vllm-0.32"
FALLBACK = (
    "(EngineCore pid=1) WARNING 12-01 10:00:00 [compilation.py:1443] CUDAGraphMode."
    "FULL_AND_PIECEWISE is not supported with spec-decode for attention backend FlashInferBackend "
    "(support: AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE); setting cudagraph_mode=PIECEWISE\n"
)
"""vLLM's words of 0.32 (vllm/config/compilation.py), for a GPU that this test does not have."""


def logged(name):
    return vllm_settings.from_log((VLLM / f"log-config-{name}.txt").read_text())


def different(one, other):
    a, b = (
        ArmFacts(name=n, engine="vllm", url="u", settings=s)
        for n, s in zip("ab", (one, other), strict=True)
    )
    return {d.field: (d.baseline, d.arm) for d in find_differences(a, b)}


def test_vllms_own_log_line():
    assert logged("plain") == {
        "model_config": {"dtype": "bfloat16", "quantization": "none", "enforce_eager": True},
        "cache_config": {"cache_dtype": "auto", "enable_prefix_caching": False},
        "compilation_config": {"cudagraph_mode": "NONE"},
    }
    assert logged("mtp") == logged("plain")  # speculation alone is no difference
    assert vllm_settings.from_log("INFO 12-01 api_server: ready\n") == {}


def test_two_arms_that_differ_by_their_logs():
    assert different(logged("plain"), logged("prefix-caching")) == {
        "model_config.dtype": ("bfloat16", "float32"),
        "model_config.enforce_eager": (True, False),
        "cache_config.enable_prefix_caching": (False, True),
    }


def test_the_log_knows_which_graphs_were_left():
    """`/server_info` shows what was asked; the engine took it back later, in another process."""
    text = (VLLM / "log-config-prefix-caching.txt").read_text()
    asked = text.replace("<CUDAGraphMode.NONE: 0>", "<CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>")
    plain, mtp = vllm_settings.from_log(asked), vllm_settings.from_log(asked + FALLBACK)
    assert different(plain, mtp) == {
        "compilation_config.cudagraph_mode": ("FULL_AND_PIECEWISE", "PIECEWISE")
    }
    told = {"compilation_config": {"cudagraph_mode": "FULL_AND_PIECEWISE", "backend": "inductor"}}
    assert merge_settings(told, mtp)["compilation_config"] == {
        "cudagraph_mode": "PIECEWISE",
        "backend": "inductor",
    }


@pytest.mark.parametrize(
    ("line", "group", "key", "value"),
    [
        ("[vllm.py:999] Asynchronous scheduling is enabled.", "scheduler_config", "async_scheduling", True),
        ("[vllm.py:999] Asynchronous scheduling is disabled.", "scheduler_config", "async_scheduling", False),
        ("[cuda.py:478] Using AttentionBackendEnum.FLASH_ATTN backend.", "attention_config", "backend", "FLASH_ATTN"),
        (
            "[cuda.py:367] Using FLASHINFER attention backend out of potential backends: ['FLASHINFER'].",
            "attention_config", "backend", "FLASHINFER",
        ),
    ],
)  # fmt: skip
def test_lines_of_their_own(line, group, key, value):
    text = (VLLM / "log-config-plain.txt").read_text() + f"INFO 12-01 10:00:00 {line}\n"
    assert vllm_settings.from_log(text)[group][key] == value


def test_vllm_says_the_same_everywhere():
    for name in ("plain", "mtp"):
        told = vllm.read_server(
            {vllm.INFO_PATH: (VLLM / f"server_info-{name}.json").read_text()}
        ).settings
        page = vllm.read_metrics((VLLM / f"metrics-{name}-after.txt").read_text()).settings
        assert page == {"cache_config": {"cache_dtype": "auto", "enable_prefix_caching": False}}
        for group, values in logged(name).items():
            assert {key: told[group][key] for key in values} == values
            assert group != "cache_config" or page[group] == values


@pytest.mark.parametrize(
    ("mode", "name"), [(0, "NONE"), (1, "PIECEWISE"), (2, "FULL"), ([2, 0], "FULL_DECODE_ONLY"), ([2, 1], "FULL_AND_PIECEWISE")]
)  # fmt: skip
def test_vllms_graph_mode_by_name(mode, name):
    config = {"vllm_config": {"compilation_config": {"cudagraph_mode": mode}}}
    told = vllm.read_server({vllm.INFO_PATH: msgspec.json.encode(config).decode()})
    assert told.settings["compilation_config"]["cudagraph_mode"] == name


def test_what_drafts_take_of_the_cache_is_no_difference():
    """A page of its own for drafts leaves fewer blocks: that is speculation itself."""
    plain, mtp = (
        vllm.read_server({vllm.INFO_PATH: (VLLM / f"server_info-{n}.json").read_text()}).settings
        for n in ("plain", "mtp")
    )
    assert plain["cache_config"]["num_gpu_blocks"] != mtp["cache_config"]["num_gpu_blocks"]
    assert different(plain, mtp) == {}


def test_sglangs_server_arguments():
    info = {
        "disable_overlap_schedule": True,
        "disable_radix_cache": False,
        "disable_cuda_graph": False,
        "kv_cache_dtype": "fp8_e4m3",
        "quantization": None,
        "dtype": "bfloat16",
        "cuda_graph_bs": [1, 2, 4],
    }
    settings = sglang.read_server({"/server_info": msgspec.json.encode(info).decode()}).settings
    assert settings == {
        **{k: v for k, v in info.items() if k != "cuda_graph_bs"},
        "quantization": "none",
    }
    other = {**settings, "quantization": "fp8", "disable_overlap_schedule": False}
    assert different(settings, other) == {
        "quantization": ("none", "fp8"),
        "disable_overlap_schedule": (True, False),
    }


def test_trtllms_info_gauges():
    page = trtllm.read_metrics((GOLDEN / "tensorrt-llm-main" / "metrics-after.txt").read_text())
    assert page.settings == {
        "model_config": {"dtype": "bfloat16", "quantization": "NVFP4"},
        "kv_cache_config": {
            "cache_dtype": "fp8",
            "enable_block_reuse": "True",
            "enable_partial_reuse": "True",
        },
    }
