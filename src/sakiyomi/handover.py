"""What a decision hands over: launch commands, a router's config, alert rules, k by batch. Pure.

Everything is text, ready to be written to files. YAML scalars are written as JSON, which YAML 1.2
contains, so that no quoting rule of YAML's own is needed.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from sakiyomi.decision import Choice, Decision
from sakiyomi.engines.engine import with_speculation
from sakiyomi.path_lengths import BatchLengths
from sakiyomi.plan import Arm
from sakiyomi.record import ArmFacts, RunFacts
from sakiyomi.urls import api_url

FIRST_PORT = 8000
ALERT_FOR = "15m"
ALERT_WINDOW = "5m"

Command = Callable[[Arm, int], Sequence[str] | None]
"""(arm, port) -> the argv that launches it, None where sakiyomi cannot."""


def files(decision: Decision, facts: RunFacts, command: Command) -> dict[str, str]:
    """Name -> text of every file that this decision can fill."""
    chosen = chosen_arms(decision)
    found = {"launch.sh": launch_script(decision, facts, command)}
    if len(set(chosen.values())) > 1:
        found["litellm.yaml"] = router_config(decision, facts)
    rules = alert_rules(decision, facts)
    if rules is not None:
        found["alerts.yaml"] = rules
    return found


def chosen_arms(decision: Decision) -> dict[str, str]:
    """Path -> arm; of several loads the first one with an arm."""
    chosen: dict[str, str] = {}
    for choice in decision.choices:
        if choice.arm is not None:
            chosen.setdefault(choice.scenario, choice.arm)
    return chosen


def launch_script(decision: Decision, facts: RunFacts, command: Command) -> str:
    """A commented command per chosen arm, one port each."""
    lines = ["#!/bin/sh", f"# What {facts.run_id} decided, one engine per arm.", ""]
    planned = {arm.name: arm for arm in facts.plan.arms}
    for name, port in ports(decision).items():
        arm = planned[name]
        paths = [path for path, chosen in chosen_arms(decision).items() if chosen == name]
        lines.append(f"# {', '.join(paths)}: {name}{_how_sure(decision, paths)}")
        lines += _commands(decision, arm, port, command)
        lines.append("")
    return "\n".join(lines)


def ports(decision: Decision) -> dict[str, int]:
    """Chosen arm -> the port that its command and the router name."""
    arms = dict.fromkeys(chosen_arms(decision).values())
    return {arm: FIRST_PORT + index for index, arm in enumerate(arms)}


def router_config(decision: Decision, facts: RunFacts) -> str:
    """LiteLLM's proxy config: a model alias per path, each to the endpoint of its arm."""
    served = {arm.name: arm for arm in facts.arms}
    planned = {arm.name: arm for arm in facts.plan.arms}
    at = ports(decision)
    models = []
    for path, name in chosen_arms(decision).items():
        url = planned[name].url
        key = planned[name].api_key_env
        params: dict[str, Any] = {
            "model": f"openai/{served[name].model or name}",
            "api_base": api_url(url or f"http://127.0.0.1:{at[name]}", "/v1"),
            "api_key": f"os.environ/{key}" if key else "none",
        }
        if planned[name].request:
            params["extra_body"] = planned[name].request
        models.append({"model_name": path, "litellm_params": params})
    head = f"# A model alias per path, from {facts.run_id}. litellm --config litellm.yaml\n"
    return head + to_yaml({"model_list": models})


def alert_rules(decision: Decision, facts: RunFacts) -> str | None:
    """Prometheus rules: acceptance below the measured break-even for 15 minutes, per arm served.

    None when no chosen arm speculates on an engine whose counters tell acceptance.
    """
    served = {arm.name: arm for arm in facts.arms}
    rules = []
    for name in ports(decision):
        choices = [c for c in decision.choices if c.arm == name and c.chosen is not None]
        thresholds = [
            found.break_even_rate.point
            for choice in choices
            if (found := choice.chosen) is not None and found.break_even_rate is not None
        ]
        k = served[name].num_speculative_tokens
        expression = acceptance_expression(served[name], k)
        if not thresholds or expression is None or max(thresholds) <= 0:
            continue
        paths = ", ".join(dict.fromkeys(choice.scenario for choice in choices))
        rules.append(_rule(name, paths, expression, max(thresholds), k))
    if not rules:
        return None
    head = f"# Thresholds are the break-even rates measured in {facts.run_id}.\n"
    if len({rule["expr"].rsplit(" < ")[0] for rule in rules}) < len(rules):
        head += "# Arms of one model count together: add labels that tell their servers apart.\n"
    return head + to_yaml({"groups": [{"name": "sakiyomi", "rules": rules}]})


def acceptance_expression(arm: ArmFacts, k: int | None) -> str | None:
    """PromQL of accepted over proposed draft tokens, by the names on the engine's own page."""

    def grown(name: str) -> str:
        named = arm.engine in _LABELLED and arm.model
        labels = f"{{model_name={_scalar(arm.model)}}}" if named else ""
        return f"sum(rate({name}{labels}[{ALERT_WINDOW}]))"

    if arm.engine in _COUNTERS:
        accepted, proposed = _COUNTERS[arm.engine]
        return f"{grown(accepted)} / {grown(proposed)}"
    if arm.engine == "sglang" and k:
        verified = grown("sglang:spec_verify_calls_total")
        generated = grown("sglang:generation_tokens_total")
        finished = grown("sglang:num_requests_total")
        return f"({generated} - {finished} - {verified}) / ({verified} * {k})"
    if arm.engine == "tgi" and k:
        skipped, steps = "tgi_request_skipped_tokens_sum", "tgi_request_skipped_tokens_count"
        finished = grown("tgi_request_success")
        return f"{grown(skipped)} / (({grown(steps)} - {finished}) * {k})"
    return None


_COUNTERS = {
    "vllm": (
        "vllm:spec_decode_num_accepted_tokens_total",
        "vllm:spec_decode_num_draft_tokens_total",
    ),
    "dynamo": (
        "vllm:spec_decode_num_accepted_tokens_total",
        "vllm:spec_decode_num_draft_tokens_total",
    ),
    "lmdeploy": (
        "lmdeploy:spec_decode_num_accepted_tokens_total",
        "lmdeploy:spec_decode_num_draft_tokens_total",
    ),
    "llama.cpp": (
        "llamacpp:spec_decode_num_accepted_tokens_total",
        "llamacpp:spec_decode_num_draft_tokens_total",
    ),
    "tensorrt-llm": (
        "trtllm_spec_decode_accepted_tokens_total",
        "trtllm_spec_decode_drafted_tokens_total",
    ),
}
"""(accepted, proposed), as each engine's reader in `engines` has them."""
_LABELLED = ("vllm", "lmdeploy")


def speculative_config(arm: Arm, batch: BatchLengths) -> Arm:
    """The arm with k by batch size in vLLM's own form; other engines have one k for all."""
    longest = max(k for _, _, k in batch.ranges)
    table = [list(row) for row in batch.ranges]
    return with_speculation(arm, max(longest, 1), {"num_speculative_tokens_per_batch_size": table})


def to_yaml(value: Any, indent: int = 0) -> str:
    """Block YAML of objects and lists; scalars as JSON."""
    pad = "  " * indent
    if isinstance(value, Mapping) and value:
        return "".join(
            f"{pad}{key}:\n{to_yaml(item, indent + 1)}"
            if isinstance(item, Mapping | list) and item
            else f"{pad}{key}: {_scalar(item)}\n"
            for key, item in value.items()
        )
    if isinstance(value, list) and value:
        lines = []
        for item in value:
            text = to_yaml(item, indent + 1)
            lines.append(f"{pad}- {text[len(pad) + 2 :]}")
        return "".join(lines)
    return f"{pad}{_scalar(value)}\n"


def _scalar(value: Any) -> str:
    """A scalar as JSON; what YAML would not print or would take for a line end is escaped."""
    text = msgspec.json.encode(value).decode()
    return _NOT_PLAIN.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


_NOT_PLAIN = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def _commands(decision: Decision, arm: Arm, port: int, command: Command) -> list[str]:
    if arm.url is not None:
        return [f"# already served at {arm.url}"]
    argv = command(arm, port)
    if argv is None:
        return ["# sakiyomi does not know how this engine is started"]
    lines = [_line(arm, argv)]
    for why, other in _predicted(decision, arm):
        lines += [f"# predicted for {why}", "# " + _line(other, command(other, port) or ())]
    return lines


def _predicted(decision: Decision, arm: Arm) -> Iterator[tuple[str, Arm]]:
    """The arm with the draft lengths that its paths are predicted to like better, and why."""
    by_batch = {
        batch.scenario: batch
        for batch in decision.batch_lengths
        if batch.arm == arm.name and arm.engine == "vllm" and len(batch.ranges) > 1
    }
    advised = _advised(decision, arm.name) if arm.speculation is not None else {}
    for path, name in chosen_arms(decision).items():
        if name == arm.name and path in by_batch:
            yield f"{path}: draft length by batch size", speculative_config(arm, by_batch[path])
        elif name == arm.name and path in advised:
            k = advised[path]
            why = f"{path}, not measured: k = {k}; confirm: sakiyomi run --tune"
            yield why, with_speculation(arm, k, {})


def _line(arm: Arm, argv: Sequence[str]) -> str:
    """Environment and argv as a shell takes them."""
    env = [f"{key}={shlex.quote(value)}" for key, value in arm.env.items()]
    return " ".join([*env, shlex.join(argv)])


def _advised(decision: Decision, arm: str) -> dict[str, int]:
    """Path -> predicted draft length, of the paths that this arm serves."""
    return {
        choice.scenario: choice.advised_k
        for choice in decision.choices
        if choice.arm == arm and choice.advised_k is not None
    }


def _how_sure(decision: Decision, paths: Sequence[str]) -> str:
    open_paths = [c.scenario for c in decision.choices if _is_open(c) and c.scenario in paths]
    return f" (not established on {', '.join(dict.fromkeys(open_paths))})" if open_paths else ""


def _is_open(choice: Choice) -> bool:
    return choice.verdict != "established"


def _rule(arm: str, paths: str, expression: str, threshold: float, k: int | None) -> dict[str, Any]:
    name = "".join(part.capitalize() for part in arm.replace("_", "-").replace(".", "-").split("-"))
    return {
        "alert": f"SpeculationBelowBreakEven{name}",
        "expr": f"{expression} < {threshold:.4f}",
        "for": ALERT_FOR,
        "labels": {"severity": "warning", "arm": arm},
        "annotations": {
            "summary": f"{arm}: drafts cost more than they bring on {paths}",
            "description": "Acceptance is {{ $value | humanizePercentage }}, break-even is "
            f"{threshold:.1%} at k = {k}. Shorten the drafts or turn them off.",
        },
    }
