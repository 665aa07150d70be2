"""Any other server that speaks the OpenAI-compatible stream: what can be had without knowing it."""

from collections.abc import Mapping

from sakiyomi import steps
from sakiyomi.engines.engine import Engine, ServerFacts, json_object, model_ids
from sakiyomi.engines.prometheus import read_page
from sakiyomi.record import EngineMetrics, RequestRecord, SpecDecodeCounters, Step


def read_metrics(text: str, model: str | None = None) -> EngineMetrics:
    """Only what needs no knowledge of the engine: that it is a metrics page, and since when."""
    del model
    page = read_page(text)
    return EngineMetrics(
        process_start_s=page.total("process_start_time_seconds"),
        notes=(*page.notes, "metrics of an unknown engine: name it (--engine, or engine = ...)"),
    )


def read_response(record: RequestRecord) -> SpecDecodeCounters | None:
    """Nothing: an unknown engine's evidence has no agreed meaning."""
    del record
    return None


def group_steps(record: RequestRecord) -> list[Step] | None:
    """Steps only where the events mark them; a chunk of an unknown server may be anything."""
    return steps.from_step_marks(record)


def read_server(pages: Mapping[str, str]) -> ServerFacts:
    """Names of the models, and a version where there is one."""
    version = json_object(pages.get("/version")).get("version")
    return ServerFacts(
        engine_version=version if isinstance(version, str) else None, models=model_ids(pages)
    )


ENGINE = Engine(
    name="openai",
    title="OpenAI-compatible server",
    command=None,
    request_fields=(
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        {"timings_per_token": True},
        {"return_token_ids": True},
    ),
    read_metrics=read_metrics,
    read_response=read_response,
    group_steps=group_steps,
    read_server=read_server,
    evidence="speed only; tokens per step estimated from arrival bursts, single stream",
    metrics_hint="name the engine, or give --metrics-url",
)
