"""TensorRT-LLM `trtllm-serve`: counters per position with a true denominator, at request end.

`/metrics` is JSON and emptied by reading; it is left alone.
"""

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from sakiyomi import steps
from sakiyomi.engines.engine import (
    CONFIG_FILE,
    QUALITIES,
    Engine,
    LogRemedy,
    ServerFacts,
    json_object,
    model_ids,
    model_of,
    number,
    planned_facts,
    refuse_twice,
    with_speculation,
)
from sakiyomi.engines.families import SCRAPER_LABELS, trtllm_series
from sakiyomi.engines.prometheus import Page, models_of, of_model, read_page
from sakiyomi.plan import Arm
from sakiyomi.record import EngineMetrics, RequestRecord, SpecDecodeCounters, SpecDecodeGauge

METHODS = {
    "mtp": "MTP",
    "eagle3": "Eagle3",
    "ngram": "NGram",
    "draft_model": "DraftTarget",
    "pard": "PARD",
    "dflash": "DFlash",
}
"""The field's names of methods -> `decoding_type`; other names pass as they are."""

CONFIG_FLAGS = ("--config", "--extra_llm_api_options")
CONFIG_INFO = {
    "model_config": ("dtype", "quantization"),
    "kv_cache_config": ("cache_dtype", "enable_block_reuse", "enable_partial_reuse"),
}
"""`trtllm_*_config_info` and the labels that are read (tensorrt_llm/metrics/collector.py)."""

FORCE_ENV = "TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS"


def command(arm: Arm, port: int) -> list[str]:
    """`trtllm-serve` on loopback; speculation and metrics are switched on in its config file."""
    refuse_twice(arm, *CONFIG_FLAGS)
    argv = ["trtllm-serve", model_of(arm), "--host", "127.0.0.1", "--port", str(port)]
    if not _has_own_config(arm):
        argv += ["--config", CONFIG_FILE]
    return [*argv, *arm.args]


def config_file(arm: Arm) -> str | None:
    """The config file's text: JSON, which is YAML. None when the arm brings its own."""
    if _has_own_config(arm):
        return None
    config: dict[str, Any] = {"return_perf_metrics": True, "enable_iter_perf_stats": True}
    spec = arm.speculation
    if spec is not None:
        speculative: dict[str, Any] = {"decoding_type": METHODS.get(spec.method, spec.method)}
        if spec.num_speculative_tokens is not None:
            speculative["max_draft_len"] = spec.num_speculative_tokens
        if spec.draft_model is not None:
            speculative["speculative_model"] = spec.draft_model
        config["speculative_config"] = {**speculative, **spec.options}
    return msgspec.json.format(msgspec.json.encode(config), indent=2).decode()


def force_acceptance(arm: Arm, rates: tuple[float, ...]) -> Arm | None:
    """Forced number of accepted draft tokens by environment: the mean, without the bonus."""
    if arm.speculation is None or not rates:
        return None
    forced = with_speculation(arm, len(rates), {})
    return msgspec.structs.replace(forced, env={**forced.env, FORCE_ENV: f"{math.fsum(rates):g}"})


def read_metrics(text: str, model: str | None = None) -> EngineMetrics:
    """A `/prometheus/metrics` page (only with `return_perf_metrics`)."""
    page = read_page(text)
    models = models_of(page, "trtllm_")
    page = of_model(page, model)
    several = len(models_of(page, "trtllm_")) > 1
    labels = (("model_name",) if several else ()) + SCRAPER_LABELS
    length = [s.value for s in page.select("trtllm_spec_decode_acceptance_length") if s.value > 0]
    usage = [s.value for s in page.select("trtllm_kv_cache_utilization")]
    positions = page.select("trtllm_spec_decode_drafted_tokens_total")
    notes = () if page.has_prefix("trtllm_") else ("no trtllm_ families on this page",)
    return EngineMetrics(
        num_requests_running=page.total("trtllm_num_requests_running"),
        num_requests_waiting=page.total("trtllm_num_requests_waiting"),
        kv_cache_usage=max(usage) if usage else None,
        models=models,
        series=trtllm_series(page, labels),
        gauge=SpecDecodeGauge(mean_acceptance_length=max(length)) if length else None,
        num_speculative_tokens=len({s.labels.get("token_position") for s in positions}) or None,
        process_start_s=page.total("process_start_time_seconds"),
        settings=_settings(page),
        notes=page.notes + notes,
    )


def read_response(record: RequestRecord) -> SpecDecodeCounters | None:
    """`choices[].avg_decoded_tokens_per_iter`: tokens over iterations, prefill's included.

    So iterations = completion / average, steps = iterations - 1 and accepted = completion -
    iterations. Which of the steps had a draft it does not say.
    """
    average = number(record.evidence.get("avg_decoded_tokens_per_iter"))
    if not average or average < 1 or not record.completion_tokens:
        return None
    iterations = round(record.completion_tokens / average)
    return SpecDecodeCounters(
        num_accepted_tokens=float(record.completion_tokens - iterations),
        num_steps=float(iterations - 1),
    )


def read_server(pages: Mapping[str, str]) -> ServerFacts:
    """`/version` and the names of the models."""
    version = json_object(pages.get("/version")).get("version")
    return ServerFacts(
        engine="TensorRT-LLM",
        engine_version=version if isinstance(version, str) else None,
        models=model_ids(pages),
    )


def read_arm(arm: Arm) -> ServerFacts:
    """The plan's speculation, with relaxed and forced acceptance recognised."""
    options = arm.speculation.options if arm.speculation else {}
    return msgspec.structs.replace(
        planned_facts(arm),
        forced_acceptance=FORCE_ENV in arm.env,
        lossy_acceptance=bool(options.get("use_relaxed_acceptance_for_thinking")),
    )


def _settings(page: Page) -> dict[str, Any]:
    """Info gauges (1, with the configuration as labels) that the server sets at its start."""
    settings: dict[str, Any] = {}
    for name, keys in CONFIG_INFO.items():
        for sample in page.select(f"trtllm_{name}_info")[:1]:
            told = {key: sample.labels[key] for key in keys if key in sample.labels}
            settings |= {name: told} if told else {}
    return settings


def _has_own_config(arm: Arm) -> bool:
    return any(argument.split("=", 1)[0] in CONFIG_FLAGS for argument in arm.args)


ENGINE = Engine(
    name="tensorrt-llm",
    title="TensorRT-LLM",
    command=command,
    config_file=config_file,
    request_fields=({"stream_options": {"include_usage": True, "continuous_usage_stats": True}},),
    read_metrics=read_metrics,
    read_response=read_response,
    group_steps=steps.from_event_tokens,
    read_server=read_server,
    force_acceptance=force_acceptance,
    read_arm=read_arm,
    qualities={**QUALITIES, "per_request": "derived"},
    signs=(
        ("/prometheus/metrics", r"trtllm_"),
        ("/metrics", r"trtllm_|inflightBatchingStats"),
        ("/v1/models", r'"owned_by"\s*:\s*"tensorrt_llm"'),
    ),
    metrics_paths=("/prometheus/metrics",),
    evidence=(
        "counters per position at request end, exact, with their own denominators; steps from "
        "continuous usage"
    ),
    counters_at_request_end=True,
    metrics_hint="set return_perf_metrics: true in its config file (--config)",
    program="trtllm-serve (NVIDIA's TensorRT-LLM)",
    log_remedies=(
        LogRemedy(
            r"CUDA out of memory|OutOfMemoryError",
            "device memory ran out",
            "lower --free_gpu_memory_fraction or --max_batch_size in the arm's args",
        ),
        LogRemedy(
            r"Error: No such option: .*",
            "this version of trtllm-serve does not know a flag",
            "drop it from the arm's args; settings without a flag go into its config file",
        ),
    ),
)
