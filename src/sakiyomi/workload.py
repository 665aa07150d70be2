"""Scenarios, load and seed -> what is sent, and when. Pure."""

import hashlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from sakiyomi.plan import Arm, ClosedLoad, Load, OpenLoad, Plan
from sakiyomi.scenario import Conversation, Sampling


class Pass(msgspec.Struct, frozen=True):
    """One pass over a scenario with one arm under one load: the inside of a repeat."""

    repeat: int
    arm: str
    load: Load
    scenario: str


def choose_schedule(plan: Plan, *, fits_together: bool) -> str:
    """`alternate` when the arms can be up at the same time, else `blocks`.

    Attached arms are up already. Several launched ones share a device: they are started one after
    another (A, B, B, A) unless the plan says that they fit together.
    """
    if plan.schedule:
        return plan.schedule
    num_launched = sum(arm.url is None for arm in plan.arms)
    return "alternate" if num_launched < 2 or fits_together else "blocks"


def passes(plan: Plan, schedule: str) -> Iterator[Pass]:
    """Every pass of the plan in order.

    The arms' order turns round with each repeat (A B / B A), so that a linear drift cancels.
    `alternate`: arms change innermost, close in time. `blocks`: outermost, with the fewest starts.
    """
    for repeat in range(plan.repeats):
        names = [arm.name for arm in plan.arms]
        if repeat % 2:
            names.reverse()
        inner = [(load, ref.name) for load in plan.loads for ref in plan.scenarios]
        if schedule == "blocks":
            order = [(name, load, scenario) for name in names for load, scenario in inner]
        else:
            order = [(name, load, scenario) for load, scenario in inner for name in names]
        for name, load, scenario in order:
            yield Pass(repeat, name, load, scenario)


def arrivals(load: Load, num_conversations: int, seed: int) -> list[float]:
    """Seconds after the start at which each conversation may begin; zeros for a closed loop.

    Open loop: gamma gaps with mean 1/request_rate and shape `burstiness` (1: Poisson).
    """
    if isinstance(load, ClosedLoad):
        return [0.0] * num_conversations
    return _open_arrivals(load, num_conversations, random.Random(seed))


def _open_arrivals(load: OpenLoad, count: int, rng: random.Random) -> list[float]:
    instants, now = [], 0.0
    for _ in range(count):
        now += rng.gammavariate(load.burstiness, 1 / (load.request_rate * load.burstiness))
        instants.append(now)
    return instants


def opening(conversation: Conversation, nonce: str) -> list[dict[str, str]]:
    """The messages before the first answer.

    A short mark stands first, so that no prefix cache knows the prompt; the content is left alone.
    """
    mark = f"[{nonce}]\n"
    if conversation.system:
        system = {"role": "system", "content": mark + conversation.system}
        return [system, {"role": "user", "content": conversation.turns[0]}]
    return [{"role": "user", "content": mark + conversation.turns[0]}]


def make_nonce(run_id: str, conversation_id: str, repeat: int, salt: str = "") -> str:
    """Eight hex digits: the same for every arm of a run, another for every repeat and run."""
    text = f"{run_id}/{conversation_id}/{repeat}/{salt}"
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def request_body(
    messages: Sequence[dict[str, str]],
    sampling: Sampling,
    *,
    model: str | None,
    fields: Sequence[dict[str, Any]],
    max_tokens_field: str = "max_tokens",
    as_text: bool = False,
) -> dict[str, Any]:
    """The body of a streaming request; `fields` are merged in, objects key by key.

    `as_text`: for completions; the messages as paragraphs, without roles.
    """
    body: dict[str, Any] = {"stream": True}
    if as_text:
        body["prompt"] = "\n\n".join(message["content"] for message in messages)
    else:
        body["messages"] = list(messages)
    if model:
        body["model"] = model
    body[max_tokens_field] = sampling.max_tokens
    body["temperature"] = sampling.temperature
    if sampling.top_p is not None:
        body["top_p"] = sampling.top_p
    for field in fields:
        merge(body, field)
    return body


def merge(body: dict[str, Any], field: dict[str, Any]) -> None:
    """Merge `field` into `body` in place; objects are merged key by key."""
    for key, value in field.items():
        if isinstance(value, dict) and isinstance(body.get(key), dict):
            body[key] = {**body[key], **value}
        else:
            body[key] = value


def shared_urls(arms: Sequence[Arm]) -> bool:
    """True when two arms are the same server told apart by body keys only."""
    urls = [arm.url for arm in arms if arm.url]
    return len(set(urls)) < len(urls)
