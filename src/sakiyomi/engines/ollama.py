"""Ollama 0.33: no metrics and no draft counts; speed, and bursts of arrivals."""

from collections.abc import Mapping

import msgspec

from sakiyomi.engines.engine import (
    Engine,
    ServerFacts,
    json_object,
    model_ids,
    no_metrics,
    no_response,
    no_steps,
    planned_facts,
)
from sakiyomi.errors import PlanError
from sakiyomi.plan import Arm

DEFAULT_DRAFT_NUM_PREDICT = 4
"""`draft_num_predict` with a separate draft model; embedded MTP is off unless it is set."""


def command(arm: Arm, port: int) -> list[str]:
    """`ollama serve`; the port goes by environment. Speculation is a property of the model."""
    del port
    if arm.speculation is not None and arm.speculation.options:
        raise PlanError(
            f"arm {arm.name}: Ollama takes no speculation options",
            "make a model whose Modelfile says PARAMETER draft_num_predict N, and name it",
        )
    return ["ollama", "serve", *arm.args]


def launch_env(arm: Arm, port: int) -> dict[str, str]:
    """`OLLAMA_HOST` is where it listens; one request at a time keeps bursts readable."""
    del arm
    return {"OLLAMA_HOST": f"127.0.0.1:{port}"}


def read_server(pages: Mapping[str, str]) -> ServerFacts:
    """`/api/version` and the names of the models."""
    version = json_object(pages.get("/api/version")).get("version")
    return ServerFacts(
        engine="Ollama",
        engine_version=version if isinstance(version, str) else None,
        models=model_ids(pages),
    )


def read_arm(arm: Arm) -> ServerFacts:
    """The plan's word: Ollama tells nobody what it drafts."""
    facts = planned_facts(arm)
    if arm.speculation is None or facts.num_speculative_tokens is not None:
        return facts
    return msgspec.structs.replace(facts, num_speculative_tokens=DEFAULT_DRAFT_NUM_PREDICT)


ENGINE = Engine(
    name="ollama",
    title="Ollama",
    command=command,
    launch_env=launch_env,
    request_fields=(),
    read_metrics=no_metrics,
    read_response=no_response,
    group_steps=no_steps,
    read_server=read_server,
    read_arm=read_arm,
    health_path="/api/version",
    fingerprint=r"^fp_ollama$",
    signs=(("/v1/models", r'"owned_by"\s*:\s*"library"'), ("/", r"Ollama is running")),
    info_paths=("/api/version", "/v1/models", "/"),
    metrics_paths=(),
    reloads=True,
    thinking_field=lambda on: {"reasoning_effort": "medium" if on else "none"},
    evidence="speed; tokens per step estimated from arrival bursts, single stream",
    metrics_hint="Ollama has no metrics page",
    program="ollama (https://ollama.com)",
)
