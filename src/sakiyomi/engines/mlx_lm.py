"""mlx-lm 0.31: no metrics; the one popular engine with a true switch per request."""

from collections.abc import Mapping

import msgspec

from sakiyomi.engines.engine import (
    Engine,
    ServerFacts,
    model_ids,
    model_of,
    no_metrics,
    no_response,
    no_steps,
    option_flags,
    planned_facts,
    refuse_twice,
    whole,
)
from sakiyomi.plan import Arm

DEFAULT_NUM_DRAFT_TOKENS = 3
"""`--num-draft-tokens` when it is not given (mlx_lm/server.py)."""


def command(arm: Arm, port: int) -> list[str]:
    """`mlx_lm.server` on loopback. The body's `num_draft_tokens` (0: off) wins per request."""
    refuse_twice(arm, "--draft-model", "--num-draft-tokens")
    argv = ["mlx_lm.server", "--model", model_of(arm), "--host", "127.0.0.1", "--port", str(port)]
    spec = arm.speculation
    if spec is not None:
        if spec.draft_model is not None:
            argv += ["--draft-model", spec.draft_model]
        if spec.num_speculative_tokens is not None:
            argv += ["--num-draft-tokens", str(spec.num_speculative_tokens)]
        argv += option_flags(spec.options)
    return [*argv, *arm.args]


def read_server(pages: Mapping[str, str]) -> ServerFacts:
    """The models in its cache; the version is in each answer's system_fingerprint."""
    return ServerFacts(engine="mlx-lm", models=model_ids(pages))


def read_arm(arm: Arm) -> ServerFacts:
    """The plan's speculation; a body key of the arm wins over the flag."""
    facts = planned_facts(arm)
    asked = whole(arm.request.get("num_draft_tokens"))
    if asked == 0 or (arm.speculation is None and asked is None):
        return ServerFacts()
    k = asked or facts.num_speculative_tokens or DEFAULT_NUM_DRAFT_TOKENS
    method = facts.speculative_method or "draft_model"
    return msgspec.structs.replace(facts, num_speculative_tokens=k, speculative_method=method)


ENGINE = Engine(
    name="mlx-lm",
    title="mlx-lm",
    command=command,
    request_fields=(),
    read_metrics=no_metrics,
    read_response=no_response,
    group_steps=no_steps,
    read_server=read_server,
    read_arm=read_arm,
    fingerprint=r"^(?P<version>\d+\.\d+\.\d+)-\d+\.\d+\S*-(?:macOS|Linux|Darwin)",
    info_paths=("/v1/models",),
    metrics_paths=(),
    tokens_per_event=1,
    evidence="speed; tokens per step estimated from arrival bursts, single stream",
    metrics_hint="mlx-lm has no metrics page",
    program="mlx_lm.server (pip install mlx-lm)",
)
