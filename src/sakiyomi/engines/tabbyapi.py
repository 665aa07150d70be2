"""TabbyAPI with ExLlamaV3: draft counts go to its log only; attach to it."""

from collections.abc import Mapping

from sakiyomi.engines.engine import (
    QUALITIES,
    Engine,
    ServerFacts,
    json_object,
    model_ids,
    no_metrics,
    no_response,
    no_steps,
    whole,
)


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
    read_response=no_response,
    group_steps=no_steps,
    read_server=read_server,
    signs=(("/v1/models", r'"owned_by"\s*:\s*"tabbyAPI"'),),
    info_paths=("/v1/model", "/v1/models"),
    metrics_paths=(),
    event_is_step=True,
    qualities={**QUALITIES, "events": "estimated"},
    evidence=(
        "speed; a chunk is about a step, so tokens per step are estimated; its log has the "
        "accepted and proposed tokens"
    ),
    metrics_hint="TabbyAPI has no metrics page",
)
