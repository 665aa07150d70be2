"""LM Studio: attach only. It counts each request's drafts beside the usage; the server is closed.

Names and places: the vendor's API changelog (0.3.10) and answers of 0.4.24 that users published.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from sakiyomi.engines.engine import (
    Engine,
    ServerFacts,
    json_object,
    model_ids,
    no_metrics,
    no_steps,
    number,
    whole,
)
from sakiyomi.record import RequestRecord, SpecDecodeCounters

PLACES = ("stats", "usage")
"""`/v1` has the counts in `stats` of the last chunk, `/api/v0` in `usage`."""
SETTINGS = ("quantization", "context_length", "parallel", "flash_attention")


def read_response(record: RequestRecord) -> SpecDecodeCounters | None:
    """Proposed and accepted draft tokens; ignored ones were never tested and are not proposed."""
    for place in PLACES:
        told = record.evidence.get(place)
        told = told if isinstance(told, dict) else {}
        drafted = number(told.get("total_draft_tokens_count"))
        accepted = number(told.get("accepted_draft_tokens_count"))
        if drafted is not None and accepted is not None:
            ignored = number(told.get("ignored_draft_tokens_count")) or 0.0
            return SpecDecodeCounters(
                num_draft_tokens=drafted - ignored, num_accepted_tokens=accepted
            )
    return None


def read_server(pages: Mapping[str, str]) -> ServerFacts:
    """The models; of the one that is loaded, where it is one alone, how it was loaded."""
    loaded = list(_loaded(pages))
    one = loaded[0] if len(loaded) == 1 else {}
    k = whole(one.get("speculative_draft_max_tokens"))
    method = None
    if one.get("speculative_draft_mtp"):
        method = "mtp"
    elif one.get("speculative_draft_model"):
        method = "draft_model"
    return ServerFacts(
        engine="LM Studio",
        models=model_ids(pages),
        speculative_method=method,
        num_speculative_tokens=k if method else None,
        settings={key: one[key] for key in SETTINGS if one.get(key) is not None},
    )


def _loaded(pages: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """How each loaded language model was loaded: `/api/v1/models` (0.4), else `/api/v0/models`."""
    models = json_object(pages.get("/api/v1/models")).get("models")
    for model in models if isinstance(models, list) else ():
        quantization = model.get("quantization")
        name = quantization.get("name") if isinstance(quantization, dict) else None
        for instance in model.get("loaded_instances") or ():
            if model.get("type") == "llm":
                yield {**(instance.get("config") or {}), "quantization": name}
    entries = json_object(pages.get("/api/v0/models")).get("data")
    for entry in entries if isinstance(entries, list) and not models else ():
        if isinstance(entry, dict) and entry.get("state") == "loaded":
            yield {**entry, "context_length": entry.get("loaded_context_length")}


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
        ("/api/v1/models", r'"loaded_instances"'),
    ),
    info_paths=("/v1/models", "/api/v1/models", "/api/v0/models"),
    metrics_paths=(),
    reloads=True,
    thinking_field=lambda on: {"reasoning_effort": "medium" if on else "none"},
    evidence=(
        "acceptance per request, as its stats tell it (a closed server: not verifiable); tokens "
        "per step estimated from arrival bursts"
    ),
    metrics_hint="LM Studio has no metrics page",
)
