"""What the information endpoints of each dialect say. Pure."""

from collections.abc import Mapping
from typing import Any

from sakiyomi.fake_engine.config import FakeEngine, FaultValue
from sakiyomi.fake_engine.counts import Counts
from sakiyomi.fake_engine.dialects import DIALECTS

MAX_MODEL_LEN = 32768


def information(
    config: FakeEngine, path: str, total: Counts, faults: Mapping[str, FaultValue]
) -> Any:
    """The JSON of an information endpoint, or None where the dialect has no such path."""
    if path == "/v1/models":
        return models(config, faults)
    version = config.version or DIALECTS[config.dialect].version
    pages = _PAGES.get(config.dialect)
    return pages(config, version, total).get(path) if pages else None


def models(config: FakeEngine, faults: Mapping[str, FaultValue]) -> dict[str, Any]:
    """`/v1/models`, with what each dialect tells beside the name."""
    names = [config.model, *(["other-model"] if "extra_model" in faults else [])]
    data = []
    for name in names:
        model: dict[str, Any] = {"id": name, "object": "model", "owned_by": config.dialect}
        if config.dialect != "mlx-lm":
            model["created"] = 1_790_000_000
        if config.dialect in {"vllm", "sglang"}:
            model |= {"root": name, "parent": None, "max_model_len": MAX_MODEL_LEN}
        if config.dialect == "llama.cpp":
            meta = {"n_ctx": MAX_MODEL_LEN, "n_ctx_train": MAX_MODEL_LEN, "ftype": "Q4_K - Medium"}
            model["meta"] = meta | {"n_params": 494_032_768, "size": 397_800_000}
        data.append(model)
    return {"object": "list", "data": data}


def _vllm(config: FakeEngine, version: str, _total: Counts) -> dict[str, Any]:
    pages: dict[str, Any] = {"/version": {"version": version}, "/load": {"server_load": 0}}
    if config.server_info:
        speculative = None
        if config.k:
            speculative = {
                "method": config.method,
                "num_speculative_tokens": config.k,
                "rejection_sample_method": config.rejection_sample_method,
            }
        pages["/server_info"] = {
            "vllm_config": {
                "model_config": {"model": config.model, "max_model_len": MAX_MODEL_LEN},
                "parallel_config": {"data_parallel_size": config.num_engines},
                "cache_config": {"enable_prefix_caching": config.prefix_cache},
                "speculative_config": speculative,
            }
        }
    return pages


def _llamacpp(config: FakeEngine, version: str, _total: Counts) -> dict[str, Any]:
    kind = "none"
    if config.k:
        kind = {"mtp": "draft-mtp", "draft_model": "draft-simple"}.get(config.method, config.method)
    params = {"speculative.types": kind, "n_predict": -1}
    if config.k:
        params["speculative.n_max"] = config.k
    slots = config.max_concurrency or 4
    return {
        "/props": {
            "default_generation_settings": {"n_ctx": MAX_MODEL_LEN, "params": params},
            "total_slots": slots,
            "model_path": f"/models/{config.model}.gguf",
            "build_info": version,
            "endpoint_slots": True,
            "endpoint_metrics": config.metrics,
        },
        "/slots": [
            {"id": i, "n_ctx": MAX_MODEL_LEN, "speculative": bool(config.k), "is_processing": False}
            for i in range(slots)
        ],
    }


_PAGES: dict[str, Any] = {"vllm": _vllm, "llama.cpp": _llamacpp}


def health_body(config: FakeEngine) -> bytes:
    """The body of a healthy answer."""
    return b'{"status":"ok"}' if config.dialect == "llama.cpp" else b""
