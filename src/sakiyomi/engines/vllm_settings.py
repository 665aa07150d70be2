"""What vLLM says of its own configuration: at `/server_info`, on its metrics page, in its log.

All three give the same keys, so that arms which tell it in different places can be compared.
"""

import re
from collections.abc import Mapping
from typing import Any

from sakiyomi.engines.prometheus import Page

MODEL_KEYS = ("dtype", "quantization", "enforce_eager")
GRAPH_MODES = {
    "0": "NONE",
    "1": "PIECEWISE",
    "2": "FULL",
    "[2, 0]": "FULL_DECODE_ONLY",
    "[2, 1]": "FULL_AND_PIECEWISE",
}
"""`CUDAGraphMode` as `/server_info` writes it (vllm/config/compilation.py, 0.32)."""

LOG_KEYS = {
    ("model_config", "dtype"): r"dtype=torch\.(\w+)",
    ("model_config", "quantization"): r"quantization=([\w-]+)",
    ("model_config", "enforce_eager"): r"enforce_eager=(\w+)",
    ("cache_config", "cache_dtype"): r"kv_cache_dtype=(\w+)",
    ("cache_config", "enable_prefix_caching"): r"enable_prefix_caching=(\w+)",
    ("compilation_config", "cudagraph_mode"): r"'cudagraph_mode': <CUDAGraphMode\.(\w+)",
}
"""In the line `Initializing a V1 LLM engine (v0.32.0) with config: ...`."""

LATER_LINES = (
    (("compilation_config", "cudagraph_mode"), r"setting\s+cudagraph_mode=(\w+)"),
    (
        ("attention_config", "backend"),
        r"Using (?:AttentionBackendEnum\.)?(\w+)(?: attention)? backend",
    ),
    (("scheduler_config", "async_scheduling"), r"Asynchronous scheduling is (enabled|disabled)"),
)
"""Lines of their own: a graph mode is taken back when the attention back end cannot do it."""

WORDS: dict[str, str | bool] = {
    "True": True,
    "False": False,
    "enabled": True,
    "disabled": False,
    "None": "none",
}


def from_server_info(config: Mapping[str, Any]) -> dict[str, Any]:
    """The plain values of `/server_info`'s configs; the rest is too long to keep with every run."""
    settings = {
        name: {k: v for k, v in told.items() if v is None or isinstance(v, str | int | float)}
        for name in ("scheduler_config", "cache_config", "compilation_config")
        if isinstance(told := config.get(name), dict)
    }
    if isinstance(model := config.get("model_config"), dict):
        plain = {key: model[key] for key in MODEL_KEYS if key in model}
        plain["quantization"] = plain.get("quantization") or "none"
        plain["dtype"] = str(plain.get("dtype")).removeprefix("torch.")
        settings["model_config"] = plain
    if "compilation_config" in settings:
        mode = str(config["compilation_config"].get("cudagraph_mode"))
        settings["compilation_config"]["cudagraph_mode"] = GRAPH_MODES.get(mode, mode)
    return settings


def from_metrics(page: Page) -> dict[str, Any]:
    """`vllm:cache_config_info`: the configuration of the cache as labels."""
    for sample in page.select("vllm:cache_config_info"):
        keys = ("cache_dtype", "enable_prefix_caching")
        told = {key: _word(sample.labels[key]) for key in keys if key in sample.labels}
        return {"cache_config": told} if told else {}
    return {}


def from_log(text: str) -> dict[str, Any]:
    """The engine's configuration line, and what later lines say of it; empty without one."""
    found = re.search(r"Initializing a V1 LLM engine[^\n]* with config: ([^\n]*)", text)
    if found is None:
        return {}
    settings: dict[str, Any] = {}
    for (group, key), pattern in LOG_KEYS.items():
        if told := re.search(r"(?<![\w'])" * (pattern[0] != "'") + pattern, found[1]):
            settings.setdefault(group, {})[key] = _word(told[1])
    for (group, key), pattern in LATER_LINES:
        if later := re.findall(pattern, text):
            settings.setdefault(group, {})[key] = _word(later[-1])
    return settings


def _word(text: str) -> str | bool:
    return WORDS.get(text, text)
