"""vLLM 0.24 - 0.33: counters that move every step, and exact counts per request since 0.29."""

from collections.abc import Mapping
from typing import Any

import msgspec

from sakiyomi import steps
from sakiyomi.engines import vllm_settings
from sakiyomi.engines.engine import (
    Engine,
    LogRemedy,
    ServerFacts,
    json_object,
    model_entries,
    model_ids,
    model_of,
    number,
    numbers,
    planned_facts,
    refuse_twice,
    whole,
    with_speculation,
)
from sakiyomi.engines.families import SCRAPER_LABELS, VLLM_FIELDS, vllm_series
from sakiyomi.engines.prometheus import Page, models_of, of_model, read_page
from sakiyomi.plan import Arm
from sakiyomi.record import (
    EngineMetrics,
    RequestRecord,
    SeriesCounters,
    SpecDecodeCounters,
    Step,
)

SERIES_LABELS = ("engine", *SCRAPER_LABELS)
"""What tells engines apart: the data-parallel rank, and labels of whatever stands in between."""

INFO_PATH = "/server_info?config_format=json"
LOSSY_METHODS = ("fly",)
FORCED_METHODS = ("synthetic",)


def command(arm: Arm, port: int) -> list[str]:
    """`vllm serve` on loopback; speculation as one JSON argument."""
    refuse_twice(arm, "--speculative-config", "-sc")
    argv = ["vllm", "serve", model_of(arm), "--host", "127.0.0.1", "--port", str(port)]
    if arm.speculation is not None:
        argv += ["--speculative-config", msgspec.json.encode(_speculative_config(arm)).decode()]
    return [*argv, *arm.args]


def optional_args(arm: Arm, version: str) -> list[str]:
    """Exact counts per request: since 0.29, and only with speculation (else it will not start)."""
    release = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    asked = any(a.startswith("--per-request-spec-decode-metrics") for a in arm.args)
    if release < (0, 29) or asked or arm.speculation is None:
        return []
    return ["--per-request-spec-decode-metrics", "summary"]


def force_acceptance(arm: Arm, rates: tuple[float, ...]) -> Arm | None:
    """Synthetic rejection sampling with unconditional rates per position. Not on CPU."""
    if arm.speculation is None or not rates:
        return None
    return with_speculation(
        arm,
        len(rates),
        {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": list(rates)},
    )


def read_metrics(text: str, model: str | None = None) -> EngineMetrics:
    """A `/metrics` page; one series an engine (data-parallel rank)."""
    page = read_page(text)
    models = models_of(page, "vllm:")
    page = of_model(page, model)
    several = len(models_of(page, "vllm:")) > 1
    labels = (("model_name",) if several else ()) + SERIES_LABELS
    series = vllm_series(page, "vllm:", VLLM_FIELDS, labels)
    per_position = page.select("vllm:spec_decode_num_accepted_tokens_per_pos_total")
    positions = {s.labels.get("position") for s in per_position}
    usage = [s.value for s in page.select("vllm:kv_cache_usage_perc")]
    return EngineMetrics(
        num_requests_running=page.total("vllm:num_requests_running"),
        num_requests_waiting=page.total("vllm:num_requests_waiting"),
        kv_cache_usage=max(usage) if usage else None,
        models=models,
        series=series,
        num_speculative_tokens=len(positions) or None,
        process_start_s=page.total("process_start_time_seconds"),
        notes=page.notes + _notes(page, series),
        settings=vllm_settings.from_metrics(page),
    )


def read_response(record: RequestRecord) -> SpecDecodeCounters | None:
    """`metrics.speculative_decoding` of 0.29+. Counted before truncation by EOS or max_tokens.

    Entry j of the histogram: steps with exactly j accepted, so its reversed running sum is the
    count of steps with at least that many.
    """
    told = _told(record)
    accepted = number(told.get("num_accepted_draft_tokens"))
    if accepted is None:
        return None
    histogram = numbers(told.get("acceptance_histogram"))
    return SpecDecodeCounters(
        num_drafts=number(told.get("num_spec_steps")),
        num_draft_tokens=number(told.get("num_draft_tokens")),
        num_accepted_tokens=accepted,
        accepted_per_position=steps.reversed_cumulative(histogram) if histogram else None,
    )


def group_steps(record: RequestRecord) -> list[Step] | None:
    """A chunk is a step; the per-step arrays of `detailed` add each step's drafts."""
    found = steps.from_event_tokens(record)
    told = _told(record)
    accepted = numbers(told.get("per_step_accepted"))
    drafted = numbers(told.get("per_step_drafted"))
    if found is None or accepted is None or drafted is None:
        return found
    if not len(found) == len(accepted) == len(drafted):
        return found
    return [
        Step(num_tokens=step.num_tokens, num_draft_tokens=int(d), num_accepted_tokens=int(a))
        for step, d, a in zip(found, drafted, accepted, strict=True)
    ]


def read_server(pages: Mapping[str, str]) -> ServerFacts:
    """`/version`, `/v1/models`; `/server_info` exists only with VLLM_SERVER_DEV_MODE=1."""
    version = json_object(pages.get("/version")).get("version")
    entries = model_entries(pages)
    raw = json_object(pages.get(INFO_PATH))
    config = raw.get("vllm_config", raw)
    config = config if isinstance(config, dict) else {}
    speculative = config.get("speculative_config")
    speculative = speculative if isinstance(speculative, dict) else {}
    settings: dict[str, Any] = {}
    if entries and entries[0].get("max_model_len"):
        settings["max_model_len"] = entries[0]["max_model_len"]
    settings |= vllm_settings.from_server_info(config)
    sampling = speculative.get("rejection_sample_method")
    return ServerFacts(
        engine="vLLM",
        engine_version=str(version) if version else None,
        models=model_ids(pages),
        model_path=str(entries[0]["root"]) if entries and entries[0].get("root") else None,
        speculative_method=speculative.get("method"),
        num_speculative_tokens=whole(speculative.get("num_speculative_tokens")),
        forced_acceptance=sampling in FORCED_METHODS,
        lossy_acceptance=sampling in LOSSY_METHODS,
        settings=settings,
    )


def read_arm(arm: Arm) -> ServerFacts:
    """What the plan says, also when it says it in `args`."""
    facts = planned_facts(arm)
    options = dict(arm.speculation.options) if arm.speculation else {}
    if arm.speculation is None:
        options = _config_in_args(arm.args)
        facts = ServerFacts(
            speculative_method=options.get("method"),
            num_speculative_tokens=whole(options.get("num_speculative_tokens")),
        )
    sampling = options.get("rejection_sample_method")
    return msgspec.structs.replace(
        facts,
        forced_acceptance=sampling in FORCED_METHODS,
        lossy_acceptance=sampling in LOSSY_METHODS,
    )


def _speculative_config(arm: Arm) -> dict[str, Any]:
    assert arm.speculation is not None
    config: dict[str, Any] = {"method": arm.speculation.method}
    if arm.speculation.num_speculative_tokens is not None:
        config["num_speculative_tokens"] = arm.speculation.num_speculative_tokens
    if arm.speculation.draft_model is not None:
        config["model"] = arm.speculation.draft_model
    return {**config, **arm.speculation.options}


def _config_in_args(args: tuple[str, ...]) -> dict[str, Any]:
    for index, argument in enumerate(args):
        flag, _, value = argument.partition("=")
        if flag in ("--speculative-config", "-sc"):
            return json_object(value or (args[index + 1] if index + 1 < len(args) else ""))
    return {}


def _notes(page: Page, series: Mapping[str, SeriesCounters]) -> tuple[str, ...]:
    if not page.has_prefix("vllm:"):
        return ("no vllm: families: not vLLM, or started with --disable-log-stats",)
    if len(series) > 1 and not any(one.speculation for one in series.values()):
        note = (
            f"{len(series)} engines and no spec_decode series: speculation is off, or this version "
            "hides it with data parallelism (vllm-project/vllm#23776): try a newer vLLM"
        )
        return (note,)
    return ()


def _told(record: RequestRecord) -> dict[str, Any]:
    metrics = record.evidence.get("metrics")
    told = metrics.get("speculative_decoding") if isinstance(metrics, dict) else None
    return told if isinstance(told, dict) else {}


LOG_REMEDIES = (
    LogRemedy(
        r"Free memory on device .* is less than desired GPU memory utilization",
        "another process holds device memory",
        "stop it, or lower --gpu-memory-utilization in the arm's args",
    ),
    LogRemedy(
        r"No available memory for the cache blocks",
        "the weights fill the memory that vLLM may use",
        "raise --gpu-memory-utilization or lower --max-model-len in the arm's args",
    ),
    LogRemedy(
        r"larger than the available KV cache memory",
        "the context length does not fit",
        "lower --max-model-len in the arm's args",
    ),
    LogRemedy(
        r"max_num_seqs.* exceeds available Mamba cache blocks",
        "a hybrid model keeps k+1 states per sequence under speculation",
        "lower --max-num-seqs in the arm's args",
    ),
    LogRemedy(
        r"torch\.(?:cuda\.)?OutOfMemoryError|CUDA out of memory",
        "device memory ran out",
        "lower --max-model-len, --max-num-seqs or --gpu-memory-utilization in the arm's args",
    ),
    LogRemedy(
        r"Synthetic acceptance not supported with CPU sampling",
        "forced acceptance does not exist on CPU",
        "calibrate on a GPU, or with llama.cpp",
    ),
    LogRemedy(
        r"per-request-spec-decode-metrics.*(?:requires|speculative)",
        "per-request acceptance was asked of an arm that does not speculate",
        "ask for --per-request-spec-decode-metrics on speculative arms only",
    ),
    LogRemedy(
        r"error: unrecognized arguments: .*",
        "this version of vLLM does not know a flag",
        "drop it from the arm's args or install another version",
    ),
    LogRemedy(
        r"GatedRepoError|401 Client Error",
        "the model needs an accepted licence or a token",
        "accept it on the hub and set HF_TOKEN",
    ),
    LogRemedy(
        r"RepositoryNotFoundError|is not a valid model identifier",
        "no such model on the hub or on this disk",
        "check the arm's model",
    ),
)

ENGINE = Engine(
    name="vllm",
    title="vLLM",
    command=command,
    request_fields=(
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        {"return_token_ids": True},
    ),
    read_metrics=read_metrics,
    read_response=read_response,
    group_steps=group_steps,
    read_server=read_server,
    read_log=vllm_settings.from_log,
    force_acceptance=force_acceptance,
    optional_args=optional_args,
    read_arm=read_arm,
    fingerprint=r"^vllm-(?P<version>[^-]+)",
    signs=(("/metrics", r"vllm:"), ("/v1/models", r'"owned_by"\s*:\s*"vllm"')),
    info_paths=("/version", "/v1/models", INFO_PATH),
    evidence=(
        "acceptance per request, exact (0.29+ with --per-request-spec-decode-metrics summary); "
        "else counters, exact if only own traffic; steps from the chunks"
    ),
    metrics_hint="remove --disable-log-stats; /metrics is on the API port",
    program="vllm (pip install vllm)",
    log_remedies=LOG_REMEDIES,
)
