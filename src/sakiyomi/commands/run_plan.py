"""Flags -> a plan: what `sakiyomi run` measures when no plan file says it."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from sakiyomi.commands.named_urls import pages_by_server, split_name, with_scheme
from sakiyomi.errors import PlanError
from sakiyomi.plan import Arm, ClosedLoad, Plan, ScenarioRef, parse_plan
from sakiyomi.scenario import Scenario

EMBEDDED_SCENARIOS = ("ja_chat", "code_agent", "en_chat", "ja_code")
EMBEDDED_REQUESTS = 3
EMBEDDED_MAX_TOKENS = 64
EMBEDDED_REPEATS = 2
"""A few minutes on two cores."""
URL_SCENARIOS = ("ja_chat", "code_agent")
URL_CONVERSATIONS = 8
"""The fewest at which an interval keeps its level well (benchmarks/coverage.py)."""
URL_REPEATS = 3
"""Two show little of what a whole repeat shares: their intervals are much wider."""


class RunFlags(msgspec.Struct, frozen=True, kw_only=True):
    """The flags of `run` that shape a plan."""

    urls: tuple[str, ...] = ()
    model: str | None = None
    engine: str | None = None
    scenarios: tuple[str, ...] = ()
    max_tokens: int | None = None
    num_requests: int | None = None
    num_conversations: int | None = None
    repeats: int | None = None
    concurrency: tuple[int, ...] = ()
    name: str | None = None
    metrics_urls: tuple[str, ...] = ()
    api_key_env: str | None = None


def plan_from_flags(flags: RunFlags, embedded_arms: Sequence[Arm]) -> Plan:
    """The plan that the flags mean: attached arms, or the embedded engine's two."""
    arms = list(_attached(flags)) if flags.urls else list(embedded_arms)
    names = flags.scenarios or (URL_SCENARIOS if flags.urls else EMBEDDED_SCENARIOS)
    refs = [_scenario_ref(name, flags) for name in names]
    plan = Plan(
        name=flags.name or _name(flags),
        arms=tuple(arms),
        scenarios=tuple(refs),
        loads=tuple(ClosedLoad(max_concurrency=n) for n in flags.concurrency) or (ClosedLoad(),),
        repeats=flags.repeats or (URL_REPEATS if flags.urls else EMBEDDED_REPEATS),
    )
    return parse_plan(msgspec.to_builtins(plan), "flags")


def _scenario_ref(name: str, flags: RunFlags) -> ScenarioRef:
    """A built-in scenario, cut to a few minutes; or an own file, whole unless a flag cuts it."""
    limits = _limits(flags)
    is_cut = "num_requests" in limits
    if not flags.urls:
        limits.setdefault("max_tokens", EMBEDDED_MAX_TOKENS)
    if not flags.urls and not is_cut:
        limits["num_requests"] = EMBEDDED_REQUESTS
    elif not is_cut and not name.endswith(".jsonl"):
        limits["num_conversations"] = URL_CONVERSATIONS
    return msgspec.structs.replace(_named(name), **limits)


def _named(name: str) -> ScenarioRef:
    """A built-in scenario by its name, an own one by its file."""
    if name.endswith(".jsonl"):
        return ScenarioRef(name=Path(name).stem, file=str(Path(name).resolve()))
    return ScenarioRef(name=name)


def _in_place(name: str, known: Mapping[str, ScenarioRef]) -> ScenarioRef:
    """A scenario beside the plan's; an own file of one's name takes its place whole."""
    named = _named(name)
    ref = msgspec.structs.replace(known.get(named.name, named), file=named.file)
    return msgspec.structs.replace(ref, num_conversations=None, num_requests=None)


def _limits(flags: RunFlags) -> dict[str, int | None]:
    """What the flags change in a scenario; either of the two that cut it takes both places."""
    limits: dict[str, int | None] = {}
    if flags.max_tokens:
        limits["max_tokens"] = flags.max_tokens
    if flags.num_requests or flags.num_conversations:
        limits["num_requests"] = flags.num_requests
        limits["num_conversations"] = flags.num_conversations
    return limits


def too_few(plan: Plan, scenarios: Mapping[str, Scenario]) -> list[str]:
    """What to say where more requests were asked than a scenario has."""
    found = []
    for ref in plan.scenarios:
        conversations = scenarios[ref.name].conversations
        num_requests = sum(len(conversation.turns) for conversation in conversations)
        if num_requests < (ref.num_requests or 0):
            found.append(
                f"! {ref.name}: {ref.num_requests} requests asked, its {len(conversations)} "
                f"conversations have {num_requests}. More: --repeats, or an own scenario"
            )
    return found


def override(plan: Plan, flags: RunFlags) -> Plan:
    """A plan file's values with the flags that were given beside it."""
    for flag, value in (
        ("--url", flags.urls),
        ("--model", flags.model),
        ("--engine", flags.engine),
        ("--metrics-url", flags.metrics_urls),
    ):
        if value:
            raise PlanError(f"a plan and {flag} exclude each other", "write it into the plan")
    changes: dict[str, object] = {}
    if flags.repeats:
        changes["repeats"] = flags.repeats
    if flags.name:
        changes["name"] = flags.name
    if flags.concurrency:
        changes["loads"] = tuple(ClosedLoad(max_concurrency=n) for n in flags.concurrency)
    limits = _limits(flags)
    if limits or flags.scenarios:
        known = {ref.name: ref for ref in plan.scenarios}
        refs = [known.get(name) or _in_place(name, known) for name in flags.scenarios or known]
        changes["scenarios"] = tuple(msgspec.structs.replace(ref, **limits) for ref in refs)
    if flags.api_key_env:
        changes["arms"] = tuple(
            msgspec.structs.replace(arm, api_key_env=arm.api_key_env or flags.api_key_env)
            for arm in plan.arms
        )
    changed = msgspec.structs.replace(plan, **changes)
    return parse_plan(msgspec.to_builtins(changed), plan.name)


def refuse_without_url(flags: RunFlags) -> None:
    """Raise PlanError for flags of a server, which the embedded engine would ignore."""
    for flag, value in (
        ("--engine", flags.engine),
        ("--metrics-url", flags.metrics_urls),
        ("--api-key-env", flags.api_key_env),
    ):
        if value:
            raise PlanError(f"{flag} needs a server", "name it: --url URL")


def _attached(flags: RunFlags) -> list[Arm]:
    given = [split_name(text) for text in flags.urls]
    alone = len(given) == 1
    names = [
        name or ("server" if alone else f"server-{number}")
        for number, (name, _) in enumerate(given, start=1)
    ]
    pages = pages_by_server(flags.metrics_urls, names)
    return [
        Arm(
            name=name,
            engine=flags.engine or "openai",
            model=flags.model,
            url=with_scheme(url),
            metrics_urls=pages.get(name, ()),
            api_key_env=flags.api_key_env,
        )
        for name, (_, url) in zip(names, given, strict=True)
    ]


def _name(flags: RunFlags) -> str:
    if not flags.urls:
        return "embedded engine"
    host = re.sub(r"^([\w.-]+=)?(https?://)?", "", flags.urls[0]).split("/")[0]
    return f"{flags.model.split('/')[-1]} on {host}" if flags.model else host
