"""SGLang 0.5.6 - 0.5.23 (and KTransformers on top of it): exact per request since 0.5.20."""

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from sakiyomi import steps
from sakiyomi.engines.engine import (
    QUALITIES,
    Engine,
    LogRemedy,
    ServerFacts,
    json_object,
    model_entries,
    model_ids,
    model_of,
    number,
    numbers,
    option_flags,
    planned_facts,
    refuse_twice,
    whole,
    with_speculation,
)
from sakiyomi.engines.families import sglang_gauge, sglang_series, without_priorities
from sakiyomi.engines.prometheus import models_of, of_model, read_page
from sakiyomi.plan import Arm
from sakiyomi.record import EngineMetrics, RequestRecord, SpecDecodeCounters

METHODS = {
    "mtp": "NEXTN",
    "eagle": "EAGLE",
    "eagle3": "EAGLE3",
    "draft_model": "STANDALONE",
    "ngram": "NGRAM",
    "dflash": "DFLASH",
}
"""The field's names of methods -> `--speculative-algorithm`; other names pass as they are."""

WITHOUT_STEPS = ("NGRAM", "DFLASH", "DSPARK")
"""Algorithms that draft in one pass: they take a number of draft tokens and no steps."""

NAMES = {
    "num_drafts": ("spec_verify_ct",),
    "num_draft_tokens": (
        "spec_num_proposed_drafts",
        "spec_proposed_drafts",
        "spec_draft_token_num",
    ),
    "num_accepted_tokens": (
        "spec_num_correct_drafts",
        "spec_accepted_drafts",
        "spec_accept_token_num",
    ),
}
"""Per-request names, newest first: 0.5.12+, its aliases until 0.5.20, up to 0.5.10."""

HISTOGRAMS = ("spec_correct_drafts_histogram", "spec_accept_histogram")
INFO_PATHS = ("/server_info", "/get_server_info")
SETTINGS = (
    "attention_backend",
    "disable_cuda_graph",
    "disable_piecewise_cuda_graph",
    "disable_overlap_schedule",
    "disable_radix_cache",
    "dtype",
    "kv_cache_dtype",
)
"""Server arguments as the server resolved them (srt/server_args.py): what changes the speed."""


def command(arm: Arm, port: int) -> list[str]:
    """`python -m sglang.launch_server` on loopback with its metrics page on.

    k chain drafts are k steps of top-k 1, so k + 1 tokens to verify (`num_draft_tokens`).
    """
    refuse_twice(arm, "--speculative-algorithm", "--speculative-num-steps")
    argv = ["python", "-m", "sglang.launch_server", "--model-path", model_of(arm)]
    argv += ["--host", "127.0.0.1", "--port", str(port), "--enable-metrics"]
    if arm.speculation is not None:
        argv += option_flags(_speculation(arm), prefix="--speculative-")
    return [*argv, *arm.args]


def force_acceptance(arm: Arm, rates: tuple[float, ...]) -> Arm | None:
    """Simulated acceptance by environment: the mean length, bonus included."""
    if arm.speculation is None or not rates:
        return None
    forced = with_speculation(arm, len(rates), {})
    env = {
        "SGLANG_SIMULATE_ACC_LEN": f"{1 + math.fsum(rates):g}",
        "SGLANG_SIMULATE_ACC_METHOD": "match-expected",
        "SGLANG_SIMULATE_ACC_TOKEN_MODE": "real-draft-token",
    }
    return msgspec.structs.replace(forced, env={**forced.env, **env})


def read_metrics(text: str, model: str | None = None) -> EngineMetrics:
    """A `/metrics` page. Counters move at request end; the gauges are a short running average.

    A `priority` label repeats parts of the total: only the total is read.
    """
    page = read_page(text)
    models = models_of(page, "sglang:")
    page = without_priorities(of_model(page, model))
    usage = [s.value for s in page.select("sglang:token_usage")]
    k = [s.value for s in page.select("sglang:spec_num_steps") if s.value > 0]
    notes = page.notes
    if not page.has_prefix("sglang:"):
        notes += ("no sglang: families: start it with --enable-metrics",)
    elif not page.select("sglang:spec_verify_calls_total"):
        notes += ("no spec_verify_calls_total: before 0.5.13 there is only the running average",)
    return EngineMetrics(
        num_requests_running=page.total("sglang:num_running_reqs"),
        num_requests_waiting=page.total("sglang:num_queue_reqs"),
        kv_cache_usage=max(usage) if usage else None,
        models=models,
        series=sglang_series(page),
        gauge=sglang_gauge(page),
        num_speculative_tokens=int(max(k)) if k else None,
        process_start_s=page.total("process_start_time_seconds"),
        notes=notes,
    )


def read_response(record: RequestRecord) -> SpecDecodeCounters | None:
    """`sglext.spec_tokens_details` or `meta_info`, under the names of any version.

    Proposed drafts are verify calls x (k): a static denominator, so the rate is derived.
    """
    for told in _told(record.evidence):
        found = {field: _first(told, names) for field, names in NAMES.items()}
        if found["num_drafts"] is None or found["num_accepted_tokens"] is None:
            continue
        histogram = next((h for name in HISTOGRAMS if (h := numbers(told.get(name)))), None)
        return SpecDecodeCounters(
            **found,
            accepted_per_position=steps.reversed_cumulative(histogram) if histogram else None,
            num_steps=found["num_drafts"],
        )
    return None


def read_server(pages: Mapping[str, str]) -> ServerFacts:
    """`/server_info` (older `/get_server_info`): all server arguments.

    Behind a prefill/decode router the shape is another and what is missing stays unknown.
    """
    info: dict[str, Any] = next((i for p in INFO_PATHS if (i := json_object(pages.get(p)))), {})
    entries = model_entries(pages)
    method = info.get("speculative_algorithm")
    settings: dict[str, Any] = {
        key: info[key] for key in SETTINGS if isinstance(info.get(key), str | bool)
    }
    if "quantization" in info:
        settings["quantization"] = info["quantization"] or "none"
    if (length := _life_time_length(info.get("internal_states"))) is not None:
        settings["avg_spec_accept_length"] = length
    if entries and entries[0].get("max_model_len"):
        settings["max_model_len"] = entries[0]["max_model_len"]
    thresholds = [
        number(info.get(f"speculative_accept_threshold_{name}")) for name in ("single", "acc")
    ]
    model_path = info.get("model_path")
    return ServerFacts(
        engine="SGLang",
        engine_version=str(info["version"]) if info.get("version") else None,
        models=model_ids(pages),
        speculative_method=method if isinstance(method, str) else None,
        num_speculative_tokens=_draft_length(info) if isinstance(method, str) else None,
        lossy_acceptance=any(t is not None and t < 1 for t in thresholds),
        model_path=model_path if isinstance(model_path, str) else None,
        settings=settings,
    )


def read_arm(arm: Arm) -> ServerFacts:
    """The plan's speculation, with lossy thresholds and simulated acceptance recognised."""
    options = {
        key.removeprefix("speculative_"): value
        for key, value in (arm.speculation.options if arm.speculation else {}).items()
    }
    thresholds = [number(options.get(f"accept_threshold_{name}")) for name in ("single", "acc")]
    return msgspec.structs.replace(
        planned_facts(arm),
        forced_acceptance="SGLANG_SIMULATE_ACC_LEN" in arm.env,
        lossy_acceptance=any(t is not None and t < 1 for t in thresholds),
    )


def _speculation(arm: Arm) -> dict[str, Any]:
    assert arm.speculation is not None
    spec = arm.speculation
    algorithm = METHODS.get(spec.method, spec.method)
    flags: dict[str, Any] = {"algorithm": algorithm}
    if spec.draft_model is not None:
        flags["draft_model_path"] = spec.draft_model
    if spec.num_speculative_tokens is not None:
        if algorithm.upper() not in WITHOUT_STEPS:
            flags["num_steps"] = spec.num_speculative_tokens
            flags["eagle_topk"] = 1
        flags["num_draft_tokens"] = spec.num_speculative_tokens + 1
    own = {key.removeprefix("speculative_"): value for key, value in spec.options.items()}
    return {**flags, **own}


def _told(evidence: Mapping[str, Any]) -> list[dict[str, Any]]:
    extension = evidence.get("sglext")
    details = extension.get("spec_tokens_details") if isinstance(extension, dict) else None
    if isinstance(details, list):
        details = details[0] if len(details) == 1 else None
    return [told for told in (details, evidence.get("meta_info")) if isinstance(told, dict)]


def _first(told: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    return next((value for name in names if (value := number(told.get(name))) is not None), None)


def _life_time_length(states: Any) -> float | None:
    """Mean of the ranks that know it; elements can be null."""
    if not isinstance(states, list):
        return None
    lengths = [
        length
        for state in states
        if isinstance(state, dict)
        and (length := number(state.get("avg_spec_accept_length"))) is not None
    ]
    return math.fsum(lengths) / len(lengths) if lengths else None


def _draft_length(info: Mapping[str, Any]) -> int | None:
    """Depth of the drafts: steps of a chain or tree, else the tokens to verify less the bonus."""
    drafted = whole(info.get("speculative_num_draft_tokens"))
    return whole(info.get("speculative_num_steps")) or (drafted - 1 if drafted else None)


ENGINE = Engine(
    name="sglang",
    title="SGLang",
    command=command,
    request_fields=(
        {"return_spec_tokens_details": True},
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    ),
    read_metrics=read_metrics,
    read_response=read_response,
    group_steps=steps.from_event_tokens,
    read_server=read_server,
    force_acceptance=force_acceptance,
    read_arm=read_arm,
    qualities={**QUALITIES, "counters": "derived"},
    signs=(
        ("/metrics", r"sglang:"),
        ("/v1/models", r'"owned_by"\s*:\s*"sglang"'),
        ("/server_info", r'"speculative_algorithm"'),
        ("/get_server_info", r'"speculative_algorithm"'),
    ),
    info_paths=("/v1/models", *INFO_PATHS),
    evidence=(
        "acceptance per request (0.5.20+), length exact, rate derived from the static draft "
        "length; older: counters at request end, derived; the gauges are a running average"
    ),
    counters_at_request_end=True,
    metrics_hint="start it with --enable-metrics; it may ask for the API key",
    program="python -m sglang.launch_server (pip install sglang)",
    log_remedies=(
        LogRemedy(
            r"CUDA out of memory|Not enough memory|RuntimeError: .*out of memory",
            "device memory ran out",
            "lower --mem-fraction-static or --max-running-requests in the arm's args",
        ),
        LogRemedy(
            r"No module named ['\"]?sglang",
            "sglang is not installed for the python on the PATH",
            "pip install sglang, or give the arm a command with the right python",
        ),
        LogRemedy(
            r"error: unrecognized arguments: .*",
            "this version of SGLang does not know a flag",
            "drop it from the arm's args or install another version",
        ),
        LogRemedy(
            r"mamba.*radix.*(?:extra_buffer|strategy)",
            "a hybrid model needs a radix-cache strategy that fits speculation",
            "add --mamba-radix-cache-strategy extra_buffer to the arm's args",
        ),
    ),
)
