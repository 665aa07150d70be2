"""What a plan would launch and ask, line by line: `sakiyomi run --dry-run`."""

import shlex
from collections.abc import Mapping

from sakiyomi.engines import find_engine
from sakiyomi.plan import Arm, Plan
from sakiyomi.redaction import redact, redact_env
from sakiyomi.scenario import Scenario
from sakiyomi.start_command import start_command
from sakiyomi.workload import passes

SHOWN_PORT = 8000


def dry_run(plan: Plan, scenarios: Mapping[str, Scenario], schedule: str) -> list[str]:
    """Each arm's exact command line, each scenario's size, and the order of the first repeats."""
    lines = [line for arm in plan.arms for line in _arm(arm)] + [""]
    for name, scenario in scenarios.items():
        turns = sum(len(conversation.turns) for conversation in scenario.conversations)
        sampling = scenario.sampling
        lines.append(
            f"scenario {name}: {len(scenario.conversations)} conversations, {turns} requests, "
            f"cap {sampling.max_tokens}, temperature {sampling.temperature:g}"
        )
    order = " ".join(f"{p.arm}/{p.scenario}" for p in passes(plan, schedule) if p.repeat < 2)
    return [*lines, "", f"order of the first repeats: {order}"]


def _arm(arm: Arm) -> list[str]:
    """How an arm comes up. Values of secrets are not shown."""
    engine = find_engine(arm.engine)
    if arm.url:
        return [f"arm {arm.name}: attach to {arm.url} ({engine.title})"]
    start = start_command(arm, SHOWN_PORT)
    env = [f"{name}={value}" for name, value in redact_env(start.env).items()]
    words = " ".join(shlex.quote(word) for word in [*env, *redact(start.command)])
    lines = [f"arm {arm.name}: launch {engine.title}, on a free port in place of {SHOWN_PORT}"]
    lines.append(f"  {words}")
    if start.config_text is not None:
        lines.append("  {config} is a file in the run folder:")
        lines += [f"    {line}" for line in start.config_text.splitlines()]
    return lines
