"""What we intend: a plan's arms, loads, scenarios and limits, frozen and typed.

`parse_plan` refuses what cannot be meant, with its path in the file, before anything starts.
"""

import re
from typing import Annotated, Any, Literal

import msgspec

from sakiyomi.errors import PlanError

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=80)]
Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Seconds = Positive
Share = Annotated[float, msgspec.Meta(gt=0, lt=1)]
Temperature = Annotated[float, msgspec.Meta(ge=0, le=100)]
TopP = Annotated[float, msgspec.Meta(gt=0, le=1)]


class Value(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A frozen value that refuses keys it does not know."""


class Speculation(Value, frozen=True):
    """How an arm drafts. `options` are passed on to the engine as they are."""

    method: Name
    num_speculative_tokens: Count | None = None
    draft_model: str | None = None
    options: dict[str, Any] = {}


class Arm(Value, frozen=True):
    """One engine configuration under test. `url` set: attach, never launch.

    `command` launches through something else (docker, ssh, apptainer): its `{model}` and `{port}`
    are filled in. `env` is added to the launched process's environment.
    """

    name: Name
    engine: Name = "openai"
    model: str | None = None
    args: tuple[str, ...] = ()
    url: str | None = None
    metrics_urls: tuple[str, ...] = ()
    speculation: Speculation | None = None
    command: tuple[str, ...] = ()
    env: dict[str, str] = {}
    api_key_env: str | None = None
    start_timeout_s: Seconds = 900.0
    endpoint: Literal["chat", "completions"] = "chat"
    """`completions`: for a model without a chat template; a URL that ends so means it too."""
    request: dict[str, Any] = {}
    """Body keys sent with every request of this arm (mlx-lm's `num_draft_tokens`, say)."""

    @property
    def asks_completions(self) -> bool:
        """Whether prompts go out as plain text."""
        return self.endpoint == "completions" or bool(
            self.url and self.url.rstrip("/").endswith("/v1/completions")
        )


class ClosedLoad(Value, frozen=True, tag_field="model", tag="closed"):
    """`max_concurrency` conversations in flight; each sends its next turn when one is answered."""

    max_concurrency: Count = 1

    @property
    def label(self) -> str:
        """The load in a word, as records and tables carry it."""
        return f"closed-{self.max_concurrency}"


class OpenLoad(Value, frozen=True, tag_field="model", tag="open"):
    """Conversations arrive at `request_rate` per second, whatever the server does.

    `burstiness` is the shape of a gamma distribution of the gaps: 1 is a Poisson process.
    """

    request_rate: Positive
    burstiness: Positive = 1.0

    @property
    def label(self) -> str:
        """The load in a word, as records and tables carry it."""
        return f"open-{self.request_rate:g}"


Load = ClosedLoad | OpenLoad


class ScenarioRef(Value, frozen=True):
    """A built-in scenario by name, or an own `file` under that name; its values win over both."""

    name: Name
    file: str | None = None
    num_conversations: Count | None = None
    num_requests: Count | None = None
    """Per repeat: first turns of as many conversations as it allows, then second turns, ..."""
    max_tokens: Count | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    enable_thinking: bool | None = None


class Slo(Value, frozen=True):
    """Limits of one path; each must hold for the share `quantile` of its requests.

    `*_s` and `decode_tokens_per_s` are a request's own values (contract, section 2).
    `speech_margin_s`: how far the text stays ahead of speech at its worst moment (at least this).
    """

    quantile: Share = 0.9
    ttft_s: Seconds | None = None
    time_to_answer_s: Seconds | None = None
    time_to_first_sentence_s: Seconds | None = None
    tpot_s: Seconds | None = None
    decode_tokens_per_s: Positive | None = None
    e2e_s: Seconds | None = None
    speech_margin_s: Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)] | None = None
    speech_characters_per_s: Positive | None = None


class Calibrate(Value, frozen=True):
    """Step costs without text: forced acceptance of none and of all, for several draft lengths."""

    num_speculative_tokens: tuple[Count, ...] = (1, 3)
    num_conversations: Count = 4
    max_tokens: Count = 128


class Plan(Value, frozen=True):
    """Everything that a run does. The first arm is the baseline."""

    name: Name
    arms: Annotated[tuple[Arm, ...], msgspec.Meta(min_length=1)]
    scenarios: Annotated[tuple[ScenarioRef, ...], msgspec.Meta(min_length=1)]
    loads: Annotated[tuple[Load, ...], msgspec.Meta(min_length=1)] = (ClosedLoad(),)
    slo: dict[str, Slo] = {}
    repeats: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 2
    warmup_requests: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 1
    seed: int = 1
    min_gain: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.03
    schedule: Literal["alternate", "blocks"] | None = None
    calibrate: Calibrate | None = None


def parse_plan(raw: Any, where: str = "plan") -> Plan:
    """Turn decoded TOML into a `Plan`. Raises PlanError that names the path of what is wrong."""
    if isinstance(raw, dict) and isinstance(raw.get("slo"), dict):
        for path, limits in raw["slo"].items():  # msgspec does not name the key of a table
            parse_value(limits, Slo, f"{where}: slo.{path}", ".")
    plan: Plan = parse_value(raw, Plan, where)
    for what, names in (
        ("arms", [arm.name for arm in plan.arms]),
        ("scenarios", [scenario.name for scenario in plan.scenarios]),
        ("loads", [load.label for load in plan.loads]),
    ):
        for index, name in enumerate(names):
            if name in names[:index]:
                raise PlanError(
                    f"{where}: {what}[{index}]: {name!r} is named twice",
                    f"give each of the {what} its own name",
                )
    for index, arm in enumerate(plan.arms):
        _check_arm(arm, f"{where}: arms[{index}]")
        if arm.asks_completions != plan.arms[0].asks_completions:
            raise PlanError(
                f"{where}: arms[{index}].endpoint: {plan.arms[0].name} and {arm.name} ask chat and "
                "completions: their prompts differ",
                "ask the same endpoint of all arms",
            )
    for path in plan.slo:
        if path not in [scenario.name for scenario in plan.scenarios]:
            raise PlanError(
                f"{where}: slo.{path}: no scenario has this name",
                "a limit belongs to a path: name one of "
                + ", ".join(scenario.name for scenario in plan.scenarios),
            )
    return plan


def parse_value(raw: Any, kind: type[Any], where: str, joint: str = ": ") -> Any:
    """`msgspec.convert` with errors in the user's words: `where: path: what is wrong`."""
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        text = str(error)
        found = re.search(r" - at `(?:key in )?\$\.?([^`]*)`$", text)
        path = found.group(1) if found else ""
        text = text[: found.start()] if found else text
        unknown = re.search(r"unknown field `([^`]*)`", text)
        if unknown:
            path = f"{path}.{unknown.group(1)}" if path else unknown.group(1)
            text = "unknown key"
        raise PlanError(
            f"{where}{joint if path else ''}{path}: {text}",
            "the keys of a plan are listed in docs/plan.md",
        ) from error


def _check_arm(arm: Arm, where: str) -> None:
    """Refuse what the types allow and no engine can do."""
    if arm.url and arm.command:
        raise PlanError(f"{where}: url and command exclude each other", "attach to it or launch it")
    if arm.url and not re.match(r"https?://", arm.url):
        raise PlanError(f"{where}.url: {arm.url!r} is no http(s) URL", "write http://HOST:PORT")
    if not arm.url and not arm.command and arm.engine == "openai":
        raise PlanError(
            f"{where}: nothing to attach to or launch",
            "give a url, or engine and model of an engine that sakiyomi can launch",
        )
    if not arm.url and not arm.command and not arm.model:
        raise PlanError(f"{where}.model: a launched engine needs a model", "name a model or folder")
