"""NVIDIA Dynamo 1.6: a front end; the workers' system ports pass their engine's metrics through.

The URL to attach to is the front end's; `--metrics-url` names each worker's system port
(DYN_SYSTEM_PORT). Per-request counts of the engine behind are not forwarded.
"""

from collections.abc import Mapping

from sakiyomi import steps
from sakiyomi.engines.engine import Engine, ServerFacts, model_ids, no_response
from sakiyomi.engines.families import (
    SCRAPER_LABELS,
    VLLM_FIELDS,
    sglang_gauge,
    sglang_series,
    trtllm_series,
    vllm_series,
    without_priorities,
)
from sakiyomi.engines.prometheus import Page, models_of, of_model, read_page
from sakiyomi.record import EngineMetrics, SeriesCounters

WORKER_LABELS = ("engine", "dynamo_endpoint", *SCRAPER_LABELS)
LOAD = {
    "vllm:": ("vllm:num_requests_running", "vllm:num_requests_waiting"),
    "sglang:": ("sglang:num_running_reqs", "sglang:num_queue_reqs"),
    "trtllm_": ("trtllm_num_requests_running", "trtllm_num_requests_waiting"),
}


def read_metrics(text: str, model: str | None = None) -> EngineMetrics:
    """A worker's page in the families of its engine; the front end's page has none of them."""
    page = read_page(text)
    prefix = next((p for p in LOAD if page.has_prefix(p)), None)
    if prefix is None:
        front = page.total("dynamo_frontend_inflight_requests")
        waiting = page.total("dynamo_frontend_queued_requests")
        note = "no engine's families: give the workers' system ports with --metrics-url"
        return EngineMetrics(
            num_requests_running=front,
            num_requests_waiting=waiting,
            process_start_s=page.total("process_start_time_seconds"),
            notes=(*page.notes, note),
        )
    models = models_of(page, prefix)
    page = without_priorities(of_model(page, model))
    running, waiting_name = LOAD[prefix]
    return EngineMetrics(
        num_requests_running=page.total(running),
        num_requests_waiting=page.total(waiting_name),
        models=models,
        series=_series(page, prefix),
        gauge=sglang_gauge(page) if prefix == "sglang:" else None,
        num_speculative_tokens=_draft_length(page),
        process_start_s=page.total("process_start_time_seconds"),
        notes=page.notes,
    )


def read_server(pages: Mapping[str, str]) -> ServerFacts:
    """The models alone: the front end tells no version."""
    return ServerFacts(engine="Dynamo", models=model_ids(pages))


def _series(page: Page, prefix: str) -> dict[str, SeriesCounters]:
    if prefix == "vllm:":
        return vllm_series(page, "vllm:", VLLM_FIELDS, WORKER_LABELS)
    if prefix == "trtllm_":
        return trtllm_series(page, WORKER_LABELS)
    return sglang_series(page)


def _draft_length(page: Page) -> int | None:
    for name, label in (
        ("vllm:spec_decode_num_accepted_tokens_per_pos_total", "position"),
        ("trtllm_spec_decode_drafted_tokens_total", "token_position"),
    ):
        if samples := page.select(name):
            return len({sample.labels.get(label) for sample in samples})
    return None


ENGINE = Engine(
    name="dynamo",
    title="NVIDIA Dynamo",
    command=None,
    request_fields=({"stream_options": {"include_usage": True, "continuous_usage_stats": True}},),
    read_metrics=read_metrics,
    read_response=no_response,
    group_steps=steps.from_event_tokens,
    read_server=read_server,
    signs=(("/metrics", r"dynamo_frontend_"),),
    info_paths=("/v1/models",),
    evidence="counters of the engine behind, from the workers' system ports; steps from the chunks",
    metrics_hint="give each worker's system port (DYN_SYSTEM_PORT) with --metrics-url",
)
