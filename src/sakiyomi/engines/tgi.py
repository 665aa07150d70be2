"""Text Generation Inference 3.3 (maintenance only): a histogram of skipped tokens, live."""

import math
from collections.abc import Mapping

from sakiyomi.engines.engine import (
    QUALITIES,
    Engine,
    ServerFacts,
    json_object,
    model_ids,
    model_of,
    no_response,
    no_steps,
    option_flags,
    refuse_twice,
)
from sakiyomi.engines.prometheus import Page, Sample, read_page
from sakiyomi.plan import Arm
from sakiyomi.record import EngineMetrics, SeriesCounters, SpecDecodeCounters

SKIPPED = "tgi_request_skipped_tokens"
"""tokens - 1 of each generation step, prefill included as 0 (router/src/infer, 3.3.7)."""


def command(arm: Arm, port: int) -> list[str]:
    """`text-generation-launcher` on loopback; n-grams, or the model's Medusa heads."""
    refuse_twice(arm, "--speculate")
    argv = ["text-generation-launcher", "--model-id", model_of(arm)]
    argv += ["--hostname", "127.0.0.1", "--port", str(port)]
    if arm.speculation is not None:
        argv += ["--speculate", str(arm.speculation.num_speculative_tokens or 2)]
        argv += option_flags(arm.speculation.options)
    return [*argv, *arm.args]


def read_metrics(text: str, model: str | None = None) -> EngineMetrics:
    """A `/metrics` page: the sum of skipped tokens is accepted drafts, its count is steps.

    Prefill is in the count, one a request. How many drafts were proposed is not told.
    """
    del model
    page = read_page(text)
    known = page.has_prefix("tgi_")
    return EngineMetrics(
        num_requests_running=page.total("tgi_batch_current_size"),
        num_requests_waiting=page.total("tgi_queue_size"),
        series={"": _series(page)} if known else {},
        process_start_s=page.total("process_start_time_seconds"),
        notes=page.notes if known else (*page.notes, "no tgi_ families on this page"),
    )


def read_server(pages: Mapping[str, str]) -> ServerFacts:
    """`/info` has the version and the model."""
    info = json_object(pages.get("/info"))
    model = info.get("model_id")
    return ServerFacts(
        engine="TGI",
        engine_version=str(info["version"]) if info.get("version") else None,
        models=model_ids(pages) or ((str(model),) if model else ()),
        model_path=str(model) if model else None,
    )


def _series(page: Page) -> SeriesCounters:
    accepted, count = page.total(SKIPPED + "_sum"), page.total(SKIPPED + "_count")
    finished = page.total("tgi_request_success", "tgi_request_success_total")
    if accepted is None or count is None:
        return SeriesCounters(num_requests_finished=finished)
    num_steps = count - (finished or 0.0)
    return SeriesCounters(
        speculation=SpecDecodeCounters(
            num_accepted_tokens=accepted,
            accepted_per_position=_positions(page.select(SKIPPED + "_bucket"), count),
            num_steps=num_steps,
        ),
        num_generated_tokens=accepted + count,
        num_decode_steps=num_steps,
        num_requests_finished=finished,
    )


def _positions(buckets: tuple[Sample, ...], count: float) -> tuple[float, ...] | None:
    """Steps with at least i+1 accepted = all - those with at most i, where bounds are whole.

    Only bounds below the first empty tail count: buckets without a step say nothing.
    """
    bounds = {float(s.labels["le"]): s.value for s in buckets if s.labels.get("le") != "+Inf"}
    found = []
    for depth in range(len(bounds)):
        if float(depth) not in bounds or count - bounds[float(depth)] <= 0:
            break
        found.append(count - bounds[float(depth)])
    complete = bool(found) and math.isfinite(count)
    return tuple(found) if complete else None


ENGINE = Engine(
    name="tgi",
    title="Text Generation Inference",
    command=command,
    request_fields=(),
    read_metrics=read_metrics,
    read_response=no_response,
    group_steps=no_steps,
    read_server=read_server,
    qualities={**QUALITIES, "counters": "derived"},
    signs=(("/metrics", r"tgi_"), ("/info", r'"model_id"[\s\S]*"max_concurrent_requests"')),
    info_paths=("/info", "/v1/models"),
    tokens_per_event=1,
    evidence=(
        "accepted tokens and steps from a live histogram, derived; proposed drafts are not told; "
        "steps of a request estimated from arrival bursts"
    ),
    metrics_hint="TGI has /metrics on its API port or on --prometheus-port",
    program="text-generation-launcher (Hugging Face's TGI)",
)
