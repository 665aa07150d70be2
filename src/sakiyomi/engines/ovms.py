"""OpenVINO Model Server: request metrics only; drafts are set per request in the body."""

from collections.abc import Mapping

import msgspec

from sakiyomi.engines.engine import (
    Engine,
    ServerFacts,
    json_object,
    model_ids,
    model_of,
    no_response,
    no_steps,
    option_flags,
    planned_facts,
    refuse_twice,
    whole,
)
from sakiyomi.engines.prometheus import read_page
from sakiyomi.errors import PlanError
from sakiyomi.plan import Arm
from sakiyomi.record import EngineMetrics

DEFAULT_NUM_ASSISTANT_TOKENS = 5
"""Used when neither `num_assistant_tokens` nor `assistant_confidence_threshold` is sent."""


def command(arm: Arm, port: int) -> list[str]:
    """`ovms` on loopback for text generation, with its metrics page on."""
    refuse_twice(arm, "--draft_source_model")
    argv = ["ovms", "--rest_bind_address", "127.0.0.1", "--rest_port", str(port)]
    argv += ["--source_model", model_of(arm), "--task", "text_generation", "--metrics_enable"]
    spec = arm.speculation
    if spec is not None:
        if spec.draft_model is not None:
            argv += ["--draft_source_model", spec.draft_model]
        elif spec.method in ("ngram", "prompt_lookup"):
            raise PlanError(
                f"arm {arm.name}: OpenVINO Model Server has no flag for prompt lookup",
                'put "prompt_lookup": true into plugin_config of its graph.pbtxt, start it with an '
                "own command, and keep the speculation for the report",
            )
        argv += option_flags({f"--{key}": value for key, value in spec.options.items()})
    return [*argv, *arm.args]


def read_metrics(text: str, model: str | None = None) -> EngineMetrics:
    """Load only: no tokens, no drafts, and request counts that mix health checks in."""
    del model
    page = read_page(text)
    known = page.has_prefix("ovms_")
    return EngineMetrics(
        num_requests_running=page.total("ovms_current_requests"),
        process_start_s=page.total("process_start_time_seconds"),
        notes=page.notes if known else (*page.notes, "no ovms_ families on this page"),
    )


def read_server(pages: Mapping[str, str]) -> ServerFacts:
    """`/v2` has the version of the server."""
    version = json_object(pages.get("/v2")).get("version")
    return ServerFacts(
        engine="OpenVINO Model Server",
        engine_version=version if isinstance(version, str) else None,
        models=model_ids(pages),
    )


def read_arm(arm: Arm) -> ServerFacts:
    """The plan's speculation; the body's `num_assistant_tokens` is what counts."""
    facts = planned_facts(arm)
    if arm.speculation is None:
        return facts
    asked = whole(arm.request.get("num_assistant_tokens"))
    k = asked or facts.num_speculative_tokens
    if k is None and "assistant_confidence_threshold" not in arm.request:
        k = DEFAULT_NUM_ASSISTANT_TOKENS
    return msgspec.structs.replace(facts, num_speculative_tokens=k)


ENGINE = Engine(
    name="openvino",
    title="OpenVINO Model Server",
    command=command,
    request_fields=(),
    read_metrics=read_metrics,
    read_response=no_response,
    group_steps=no_steps,
    read_server=read_server,
    read_arm=read_arm,
    api_prefix="/v3",
    health_path="/v2/health/ready",
    signs=(("/metrics", r"ovms_"), ("/v2", r"OpenVINO Model Server")),
    info_paths=("/v2", "/v1/models"),
    evidence="speed; tokens per step estimated from arrival bursts, single stream",
    metrics_hint="start it with --metrics_enable",
    program="ovms (Intel's OpenVINO Model Server)",
)
