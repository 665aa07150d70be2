"""What the information endpoints of each dialect say. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

from sakiyomi.fake_engine.config import FakeEngine, FaultValue
from sakiyomi.fake_engine.counts import Counts
from sakiyomi.fake_engine.dialects import DIALECTS

MAX_MODEL_LEN = 32768
CREATED = 1_790_000_000
OWNERS = {
    "llama.cpp": "llamacpp",
    "tensorrt-llm": "tensorrt_llm",
    "ollama": "library",
    "tabbyapi": "tabbyAPI",
    "ovms": "OVMS",
    "lmstudio": "organization_owner",
    "openai": "system",
}


def information(
    config: FakeEngine, path: str, total: Counts, faults: Mapping[str, FaultValue]
) -> Any:
    """The JSON of an information endpoint, or None where the dialect has no such path."""
    prefixes = (
        ("/v1/models", "/v3/models", "/v3/v1/models")
        if config.dialect == "ovms"
        else ("/v1/models",)
    )
    if path in prefixes:
        return models(config, faults)
    version = config.version or DIALECTS[config.dialect].version
    pages = _PAGES.get(config.dialect)
    return pages(config, version, total).get(path) if pages else None


def models(config: FakeEngine, faults: Mapping[str, FaultValue]) -> dict[str, Any]:
    """`/v1/models`, with what each dialect tells beside the name."""
    data = []
    for name in [config.model, *(["other-model"] if "extra_model" in faults else [])]:
        model: dict[str, Any] = {"id": name, "object": "model", "created": CREATED}
        if config.dialect != "mlx-lm":
            model["owned_by"] = OWNERS.get(config.dialect, config.dialect)
        if config.dialect in {"vllm", "sglang"}:
            model |= {"root": name, "parent": None, "max_model_len": MAX_MODEL_LEN}
        if config.dialect == "llama.cpp":
            meta = {"n_ctx": MAX_MODEL_LEN, "n_ctx_train": MAX_MODEL_LEN, "ftype": "Q4_K - Medium"}
            model["meta"] = meta | {"n_params": 494_032_768, "size": 397_800_000}
        data.append(model)
    return {"object": "list", "data": data}


def _vllm(config: FakeEngine, version: str, _total: Counts) -> dict[str, Any]:
    pages: dict[str, Any] = {"/version": {"version": version}, "/load": {"server_load": 0}}
    if not config.server_info:
        return pages
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
    params: dict[str, Any] = {"speculative.types": kind, "n_predict": -1}
    if config.k:
        params["speculative.n_max"] = config.k
    num_slots = config.max_concurrency or 4
    return {
        "/props": {
            "default_generation_settings": {"n_ctx": MAX_MODEL_LEN, "params": params},
            "total_slots": num_slots,
            "model_path": f"/models/{config.model}.gguf",
            "build_info": version,
            "endpoint_slots": True,
            "endpoint_metrics": config.metrics,
        },
        "/slots": [
            {"id": i, "n_ctx": MAX_MODEL_LEN, "speculative": bool(config.k), "is_processing": False}
            for i in range(num_slots)
        ],
    }


def _sglang(config: FakeEngine, version: str, total: Counts) -> dict[str, Any]:
    length = total.num_generated_tokens / total.num_drafts if total.num_drafts else None
    algorithm = {"mtp": "EAGLE", "draft_model": "STANDALONE"}.get(config.method, config.method)
    speculative: dict[str, Any] = {"speculative_algorithm": None}
    if config.k:
        speculative = {
            "speculative_algorithm": algorithm.upper(),
            "speculative_num_steps": config.k,
            "speculative_eagle_topk": 1,
            "speculative_num_draft_tokens": config.k + 1,
            "speculative_accept_threshold_single": 1.0,
            "speculative_accept_threshold_acc": 1.0,
        }
    state = {"last_gen_throughput": 0.0, "avg_spec_accept_length": length}
    info = {"model_path": config.model, "version": version, **speculative}
    info["internal_states"] = [state] * config.num_engines
    pages: dict[str, Any] = {"/model_info": {"model_path": config.model, "is_generation": True}}
    if config.server_info:
        pages |= {"/server_info": info, "/get_server_info": info}
    return pages


def _trtllm(_config: FakeEngine, version: str, _total: Counts) -> dict[str, Any]:
    return {"/version": {"version": version}, "/server_info": {"disaggregated_params": {}}}


def _tgi(config: FakeEngine, version: str, _total: Counts) -> dict[str, Any]:
    info = {"model_id": config.model, "version": version, "max_concurrent_requests": 128}
    return {"/info": info | {"max_total_tokens": MAX_MODEL_LEN, "docker_label": "sha-fake"}}


def _ollama(config: FakeEngine, version: str, _total: Counts) -> dict[str, Any]:
    running = {"models": [{"name": config.model, "model": config.model}]}
    return {"/api/version": {"version": version}, "/api/tags": running, "/api/ps": running}


def _tabbyapi(config: FakeEngine, _version: str, _total: Counts) -> dict[str, Any]:
    parameters: dict[str, Any] = {"max_seq_len": MAX_MODEL_LEN, "draft": None}
    if config.k:
        draft = {"id": "fake-draft", "object": "model", "owned_by": "tabbyAPI"}
        parameters |= {"draft": draft, "draft_num_tokens": config.k}
    model = {"id": config.model, "object": "model", "owned_by": "tabbyAPI"}
    return {"/v1/model": model | {"parameters": parameters}}


def _ovms(_config: FakeEngine, version: str, _total: Counts) -> dict[str, Any]:
    return {"/v2": {"name": "OpenVINO Model Server", "version": version}}


def _lmstudio(config: FakeEngine, _version: str, _total: Counts) -> dict[str, Any]:
    """`/api/v1/models` as 0.4 shows it: how each model was loaded."""
    loaded = {
        "context_length": MAX_MODEL_LEN,
        "parallel": config.max_concurrency or 4,
        "flash_attention": True,
        "speculative_draft_mtp": bool(config.k) and config.method == "mtp",
        "speculative_draft_model": "fake-draft" if config.method == "draft_model" else "",
        "speculative_draft_max_tokens": config.k or 2,
    }
    model = {"type": "llm", "key": config.model, "architecture": "fake", "format": "gguf"}
    quantization = {"name": "Q4_K_M", "bits_per_weight": 4}
    instances = [{"id": config.model, "config": loaded}]
    other = {"type": "embedding", "key": "fake-embedding", "loaded_instances": []}
    models = [{**model, "quantization": quantization, "loaded_instances": instances}, other]
    return {"/api/v1/models": {"models": models}}


_PAGES: dict[str, Callable[[FakeEngine, str, Counts], dict[str, Any]]] = {
    "vllm": _vllm,
    "llama.cpp": _llamacpp,
    "sglang": _sglang,
    "tensorrt-llm": _trtllm,
    "tgi": _tgi,
    "ollama": _ollama,
    "tabbyapi": _tabbyapi,
    "ovms": _ovms,
    "lmstudio": _lmstudio,
}


def health(config: FakeEngine, path: str) -> tuple[str, bytes]:
    """Content type and body of a healthy answer."""
    if config.dialect == "ollama" and path == "/":
        return "text/plain", b"Ollama is running"
    if config.dialect == "ollama":
        version = config.version or DIALECTS["ollama"].version
        return "application/json", f'{{"version":"{version}"}}'.encode()
    if config.dialect in {"llama.cpp", "mlx-lm"}:
        return "application/json", b'{"status":"ok"}'
    if config.dialect == "tabbyapi":
        return "application/json", b'{"status":"healthy","issues":[]}'
    return "text/plain", b""
