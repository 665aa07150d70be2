"""LM Studio: attach only; draft counts in the `stats` of its own API, not verifiable here."""

from collections.abc import Mapping
from typing import Any

from sakiyomi.engines.engine import (
    Engine,
    ServerFacts,
    json_object,
    model_ids,
    no_metrics,
    no_steps,
    number,
)
from sakiyomi.record import RequestRecord, SpecDecodeCounters

DRAFTED = ("total_draft_tokens_count", "totalDraftTokensCount")
ACCEPTED = ("accepted_draft_tokens_count", "acceptedDraftTokensCount")
IGNORED = ("ignored_draft_tokens_count", "ignoredDraftTokensCount")
"""LlmPredictionStats of the SDK 1.5.0; in snake case where the REST API uses it."""


def read_response(record: RequestRecord) -> SpecDecodeCounters | None:
    """Proposed and accepted draft tokens; ignored ones were never tested and are not proposed."""
    stats = record.evidence.get("stats")
    if not isinstance(stats, dict):
        return None
    drafted, accepted = _first(stats, DRAFTED), _first(stats, ACCEPTED)
    if drafted is None or accepted is None:
        return None
    return SpecDecodeCounters(
        num_draft_tokens=drafted - (_first(stats, IGNORED) or 0.0), num_accepted_tokens=accepted
    )


def read_server(pages: Mapping[str, str]) -> ServerFacts:
    """The models, and which of them is loaded with which context."""
    entries = json_object(pages.get("/api/v0/models")).get("data")
    loaded = [
        {key: entry.get(key) for key in ("id", "quantization", "arch", "loaded_context_length")}
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, dict) and entry.get("state") == "loaded"
    ]
    return ServerFacts(
        engine="LM Studio",
        models=model_ids(pages),
        settings={"loaded": loaded} if loaded else {},
    )


def _first(stats: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    return next((value for name in names if (value := number(stats.get(name))) is not None), None)


ENGINE = Engine(
    name="lm-studio",
    title="LM Studio",
    command=None,
    request_fields=(),
    read_metrics=no_metrics,
    read_response=read_response,
    group_steps=no_steps,
    read_server=read_server,
    health_path="/v1/models",
    signs=(
        ("/v1/models", r'"owned_by"\s*:\s*"organization_owner"'),
        ("/api/v0/models", r'"compatibility_type"'),
    ),
    info_paths=("/v1/models", "/api/v0/models"),
    metrics_paths=(),
    reloads=True,
    evidence=(
        "acceptance per request where its stats arrive (not verifiable: a closed server); else "
        "tokens per step estimated from arrival bursts"
    ),
    metrics_hint="LM Studio has no metrics page",
)
