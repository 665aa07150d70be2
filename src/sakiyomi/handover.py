"""What a decision hands over: launch commands, a router's config, alert rules, k by batch. Pure.

Everything is text, ready to be written to files.
"""

import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sakiyomi.alerts import alert_rules
from sakiyomi.decision import Choice, Decision
from sakiyomi.engines.engine import with_speculation
from sakiyomi.path_lengths import BatchLengths
from sakiyomi.plan import Arm
from sakiyomi.record import RunFacts
from sakiyomi.urls import api_url
from sakiyomi.yaml_text import to_yaml

FIRST_PORT = 8000

Command = Callable[[Arm, int], Sequence[str] | None]
"""(arm, port) -> the argv that launches it, None where sakiyomi cannot."""


def files(decision: Decision, facts: RunFacts, command: Command) -> dict[str, str]:
    """Name -> text of every file that this decision can fill."""
    chosen = decision.chosen_arms
    found = {"launch.sh": launch_script(decision, facts, command)}
    if len(set(chosen.values())) > 1:
        found["litellm.yaml"] = router_config(decision, facts)
    rules = alert_rules(decision, facts)
    if rules is not None:
        found["alerts.yaml"] = rules
    return found


def launch_script(decision: Decision, facts: RunFacts, command: Command) -> str:
    """A commented command per chosen arm, one port each."""
    lines = ["#!/bin/sh", f"# What {facts.run_id} decided, one engine per arm.", ""]
    planned = {arm.name: arm for arm in facts.plan.arms}
    for name, port in ports(decision).items():
        arm = planned[name]
        paths = [path for path, chosen in decision.chosen_arms.items() if chosen == name]
        lines.append(f"# {', '.join(paths)}: {name}{_how_sure(decision, paths)}")
        lines += _commands(decision, arm, port, command)
        lines.append("")
    return "\n".join(lines)


def ports(decision: Decision) -> dict[str, int]:
    """Chosen arm -> the port that its command and the router name."""
    arms = dict.fromkeys(decision.chosen_arms.values())
    return {arm: FIRST_PORT + index for index, arm in enumerate(arms)}


def router_config(decision: Decision, facts: RunFacts) -> str:
    """LiteLLM's proxy config: a model alias per path, each to the endpoint of its arm."""
    served = {arm.name: arm for arm in facts.arms}
    planned = {arm.name: arm for arm in facts.plan.arms}
    at = ports(decision)
    models = []
    for path, name in decision.chosen_arms.items():
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


def speculative_config(arm: Arm, batch: BatchLengths) -> Arm:
    """The arm with k by batch size in vLLM's own form; other engines have one k for all."""
    longest = max(k for _, _, k in batch.ranges)
    table = [list(row) for row in batch.ranges]
    return with_speculation(arm, max(longest, 1), {"num_speculative_tokens_per_batch_size": table})


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
    for path, name in decision.chosen_arms.items():
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
