"""LMDeploy 0.18, PyTorch engine: vLLM's counters under its own prefix, live; static proposals."""

from collections.abc import Mapping

from sakiyomi import steps
from sakiyomi.engines.engine import (
    QUALITIES,
    Engine,
    LogRemedy,
    ServerFacts,
    model_ids,
    model_of,
    no_response,
    option_flags,
    refuse_twice,
)
from sakiyomi.engines.families import LMDEPLOY_FIELDS, SCRAPER_LABELS, vllm_series
from sakiyomi.engines.prometheus import models_of, of_model, read_page
from sakiyomi.plan import Arm
from sakiyomi.record import EngineMetrics

SERIES_LABELS = ("engine", *SCRAPER_LABELS)
METHODS = {"mtp": "deepseek_mtp"}


def command(arm: Arm, port: int) -> list[str]:
    """`lmdeploy serve api_server` on loopback, on the PyTorch engine: the one that speculates.

    A plain arm gets the same engine, so that arms differ in speculation only.
    """
    refuse_twice(arm, "--speculative-algorithm", "--speculative-num-draft-tokens")
    argv = ["lmdeploy", "serve", "api_server", model_of(arm)]
    argv += ["--server-name", "127.0.0.1", "--server-port", str(port)]
    if "--backend" not in arm.args:
        argv += ["--backend", "pytorch"]
    spec = arm.speculation
    if spec is not None:
        argv += ["--speculative-algorithm", METHODS.get(spec.method, spec.method)]
        if spec.draft_model is not None:
            argv += ["--speculative-draft-model", spec.draft_model]
        if spec.num_speculative_tokens is not None:
            argv += ["--speculative-num-draft-tokens", str(spec.num_speculative_tokens)]
        argv += option_flags(spec.options)
    return [*argv, *arm.args]


def read_metrics(text: str, model: str | None = None) -> EngineMetrics:
    """A `/metrics` page. Running and waiting are refreshed every 10 s only."""
    page = read_page(text)
    models = models_of(page, "lmdeploy:")
    page = of_model(page, model)
    several = len(models_of(page, "lmdeploy:")) > 1
    labels = (("model_name",) if several else ()) + SERIES_LABELS
    positions = page.select("lmdeploy:spec_decode_num_accepted_tokens_per_pos_total")
    usage = [s.value for s in page.select("lmdeploy:gpu_cache_usage_perc")]
    notes = () if page.has_prefix("lmdeploy:") else ("no lmdeploy: families on this page",)
    return EngineMetrics(
        num_requests_running=page.total("lmdeploy:num_requests_running"),
        num_requests_waiting=page.total("lmdeploy:num_requests_waiting"),
        kv_cache_usage=max(usage) if usage else None,
        models=models,
        series=vllm_series(page, "lmdeploy:", LMDEPLOY_FIELDS, labels),
        num_speculative_tokens=len({s.labels.get("position") for s in positions}) or None,
        process_start_s=page.total("process_start_time_seconds"),
        notes=page.notes + notes,
    )


def read_server(pages: Mapping[str, str]) -> ServerFacts:
    """Only the names of the models: LMDeploy tells no version over HTTP."""
    return ServerFacts(engine="LMDeploy", models=model_ids(pages))


ENGINE = Engine(
    name="lmdeploy",
    title="LMDeploy",
    command=command,
    request_fields=({"return_token_ids": True},),
    read_metrics=read_metrics,
    read_response=no_response,
    group_steps=steps.from_event_tokens,
    read_server=read_server,
    qualities={**QUALITIES, "counters": "derived"},
    signs=(("/metrics", r"lmdeploy:"), ("/v1/models", r'"owned_by"\s*:\s*"lmdeploy"')),
    info_paths=("/v1/models",),
    evidence=(
        "counters, derived (proposed tokens are the static k), live, per position; steps from "
        "output_ids of each chunk"
    ),
    metrics_hint="remove --disable-metrics; only the PyTorch engine counts drafts",
    program="lmdeploy (pip install lmdeploy)",
    log_remedies=(
        LogRemedy(
            r"torch\.(?:cuda\.)?OutOfMemoryError|CUDA out of memory",
            "device memory ran out",
            "lower --cache-max-entry-count or --session-len in the arm's args",
        ),
        LogRemedy(
            r"invalid choice: .* \(choose from",
            "this version of LMDeploy does not know the speculative algorithm",
            "choose one that its message lists, or another version",
        ),
    ),
)
