"""TabbyAPI with ExLlamaV3: draft counts beside the usage (theroyallab/tabbyAPI#452); attach to it.

Versions before that (August 2026) write them into their log only.
"""

from collections.abc import Mapping

from sakiyomi.engines.engine import (
    QUALITIES,
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


def read_response(record: RequestRecord) -> SpecDecodeCounters | None:
    """Accepted and rejected draft tokens under OpenAI's names for predicted outputs."""
    usage = record.evidence.get("usage")
    details = usage.get("completion_tokens_details") if isinstance(usage, dict) else None
    details = details if isinstance(details, dict) else {}
    accepted = number(details.get("accepted_prediction_tokens"))
    rejected = number(details.get("rejected_prediction_tokens"))
    if accepted is None or rejected is None:
        return None
    return SpecDecodeCounters(num_draft_tokens=accepted + rejected, num_accepted_tokens=accepted)


def read_server(pages: Mapping[str, str]) -> ServerFacts:
    """`/v1/model` is the loaded model with its parameters, its draft model among them."""
    model = json_object(pages.get("/v1/model"))
    parameters = model.get("parameters")
    parameters = parameters if isinstance(parameters, dict) else {}
    draft = parameters.get("draft")
    draft = draft if isinstance(draft, dict) else {}
    return ServerFacts(
        engine="TabbyAPI",
        models=(str(model["id"]),) if model.get("id") else model_ids(pages),
        speculative_method="draft_model" if draft.get("id") else None,
        num_speculative_tokens=whole(parameters.get("draft_num_tokens")),
        settings={"max_seq_len": parameters["max_seq_len"]} if "max_seq_len" in parameters else {},
    )


ENGINE = Engine(
    name="tabbyapi",
    title="TabbyAPI",
    command=None,
    request_fields=(),
    read_metrics=no_metrics,
    read_response=read_response,
    group_steps=no_steps,
    read_server=read_server,
    signs=(("/v1/models", r'"owned_by"\s*:\s*"tabbyAPI"'),),
    info_paths=("/v1/model", "/v1/models"),
    metrics_paths=(),
    event_is_step=True,
    qualities={**QUALITIES, "events": "estimated"},
    evidence=(
        "acceptance per request, exact (since August 2026); a chunk is about a step, so tokens per "
        "step are estimated"
    ),
    metrics_hint="TabbyAPI has no metrics page",
)
