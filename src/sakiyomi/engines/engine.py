"""An engine is a frozen value: its paths and a handful of pure functions."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from sakiyomi.errors import MetricsError, PlanError
from sakiyomi.plan import Arm, Speculation
from sakiyomi.record import EngineMetrics, Quality, RequestRecord, SpecDecodeCounters, Step

CONFIG_FILE = "{config}"
"""Stands in an argv for the path of a file with the text of `Engine.config_file(arm)`."""


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a server says of itself at its information endpoints. None: it does not say."""

    engine: str | None = None
    engine_version: str | None = None
    models: tuple[str, ...] = ()
    speculative_method: str | None = None
    num_speculative_tokens: int | None = None
    forced_acceptance: bool = False
    lossy_acceptance: bool = False
    model_path: str | None = None
    settings: dict[str, Any] = {}


class LogRemedy(msgspec.Struct, frozen=True):
    """A regular expression over an engine's log, what it means, and what to try."""

    pattern: str
    meaning: str
    remedy: str


def planned_facts(arm: Arm) -> ServerFacts:
    """What the plan itself says of an arm's speculation."""
    if arm.speculation is None:
        return ServerFacts()
    return ServerFacts(
        speculative_method=arm.speculation.method,
        num_speculative_tokens=arm.speculation.num_speculative_tokens,
    )


QUALITIES: dict[str, Quality] = {
    "per_request": "exact",
    "counters": "exact",
    "events": "derived",
    "bursts": "estimated",
    "gauge": "estimated",
}
"""What most engines' sources are worth; an engine overrides its own."""


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """One engine: where to ask it, how to start it, how to read what it says.

    - `command(arm, port)`: the argv that launches it on loopback.
    - `request_fields`: optional body fields, best first, each a dict to merge into the body;
      probed once per server, dropped when refused.
    - `read_metrics(text, model)`: a metrics page -> EngineMetrics, series filtered by model when
      it is given and present. Raises MetricsError on text that is no metrics page.
    - `read_response(record)`: the engine's per-request evidence -> counts, or None.
    - `group_steps(record)`: decode steps after the first token-bearing event, or None when the
      record's events do not tell.
    - `read_server(pages)`: texts of `info_paths` that answered 200, by path -> ServerFacts.
    - `read_log(text)`: a launched engine's own log -> settings that no page tells, or that only
      the log has right; in the words of `read_server`.
    - `force_acceptance(arm, rates)`: the arm with forced per-position acceptance, or None where
      the engine cannot.
    - `launch_env(arm, port)`: environment variables of the launched process; `arm.env` wins.
    - `config_file(arm)`: text of a file that `command` names as `CONFIG_FILE`, or None.
    - `optional_args(arm, version)`: arguments that only some versions know, to append when the
      version is known.
    - `read_arm(arm)`: what the plan says of the arm's speculation, defaults of the engine filled
      in, lossy and forced acceptance recognised.
    - `signs`: (information path, regular expression) pairs that give this engine away.
    - `qualities`: the quality of each source of acceptance (contract: exact, derived, estimated).
    - `tokens_per_event`: 1 where every event is one token (then events are counted); else None.
    - `event_is_step`: an event is about one decode step and does not say how many tokens it has.
    - `fingerprint`: a regular expression over an answer's `system_fingerprint` that gives the
      engine away; its group `version`, where it has one, is the engine's version.
    - `reloads`: another model or other options on the same server load the model anew.
    - `evidence`: one line for people: what this engine can tell, and of which quality.
    """

    name: str
    title: str
    command: Callable[[Arm, int], list[str]] | None
    request_fields: tuple[dict[str, Any], ...]
    read_metrics: Callable[[str, str | None], EngineMetrics]
    read_response: Callable[[RequestRecord], SpecDecodeCounters | None]
    group_steps: Callable[[RequestRecord], list[Step] | None]
    read_server: Callable[[Mapping[str, str]], ServerFacts]
    read_log: Callable[[str], dict[str, Any]] = lambda _text: {}
    force_acceptance: Callable[[Arm, tuple[float, ...]], Arm | None] | None = None
    launch_env: Callable[[Arm, int], dict[str, str]] | None = None
    config_file: Callable[[Arm], str | None] | None = None
    optional_args: Callable[[Arm, str], list[str]] | None = None
    read_arm: Callable[[Arm], ServerFacts] = planned_facts
    signs: tuple[tuple[str, str], ...] = ()
    qualities: Mapping[str, Quality] = msgspec.field(default_factory=lambda: QUALITIES)
    api_prefix: str = ""
    """Where a launched server keeps `/v1/...`, below its root; health and metrics stay above."""
    health_path: str = "/health"
    metrics_paths: tuple[str, ...] = ("/metrics",)
    info_paths: tuple[str, ...] = ("/version", "/v1/models")
    thinking_field: Callable[[bool], dict[str, Any]] = lambda on: {
        "chat_template_kwargs": {"enable_thinking": on}
    }
    tokens_per_event: int | None = None
    event_is_step: bool = False
    reloads: bool = False
    fingerprint: str = ""
    evidence: str = ""
    counters_at_request_end: bool = False
    metrics_hint: str = ""
    """What to do when the metrics page is missing (the flag's name)."""
    program: str = ""
    """The program that `command` starts and the package that brings it, for errors."""
    log_remedies: tuple[LogRemedy, ...] = ()


def no_metrics(text: str, model: str | None = None) -> EngineMetrics:
    """`read_metrics` of engines that have no page about speculation."""
    del text, model
    raise MetricsError("this engine has no metrics page", "attach without --metrics-url")


def no_response(record: RequestRecord) -> SpecDecodeCounters | None:
    """`read_response` of engines that say nothing of drafts in their answers."""
    del record
    return None


def no_steps(record: RequestRecord) -> list[Step] | None:
    """`group_steps` of engines whose events do not tell: only arrival bursts remain."""
    del record
    return None


def model_of(arm: Arm) -> str:
    """The arm's model; a launched engine cannot do without."""
    if arm.model is None:
        raise PlanError(f"arm {arm.name}: no model to launch", "name a model or a folder")
    return arm.model


def option_flags(options: Mapping[str, Any], prefix: str = "--") -> list[str]:
    """Options of a plan -> flags: `{"draft_p_min": 0.5}` -> `--draft-p-min 0.5`.

    True gives the bare flag, False and None give nothing, a list is joined by commas.
    """
    argv: list[str] = []
    for key, value in options.items():
        flag = key if key.startswith("-") else prefix + key.replace("_", "-")
        if value is True:
            argv.append(flag)
        elif isinstance(value, list | tuple):
            argv += [flag, ",".join(str(item) for item in value)]
        elif value is not False and value is not None:
            argv += [flag, str(value)]
    return argv


def refuse_twice(arm: Arm, *flags: str) -> None:
    """Refuse an arm that says the same thing in `args` and in `speculation`."""
    given = next((a for a in arm.args if a.split("=", 1)[0] in flags), None)
    if arm.speculation is not None and given is not None:
        raise PlanError(
            f"arm {arm.name}: args has {given!r} and speculation is set too",
            "say it in one place: leave it to speculation",
        )


def with_speculation(arm: Arm, num_speculative_tokens: int, options: Mapping[str, Any]) -> Arm:
    """The arm with another draft length and further speculation options."""
    old = arm.speculation
    if old is None:
        raise PlanError(f"arm {arm.name}: it does not speculate", "give it speculation")
    return msgspec.structs.replace(
        arm,
        speculation=Speculation(
            method=old.method,
            num_speculative_tokens=num_speculative_tokens,
            draft_model=old.draft_model,
            options={**old.options, **options},
        ),
    )


def merge_settings(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of several places, the last word last; groups are merged key by key."""
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            known = merged.get(key)
            if isinstance(known, dict) and isinstance(value, dict):
                merged[key] = {**known, **value}
            else:
                merged[key] = value
    return merged


def json_object(text: str | None) -> dict[str, Any]:
    """The object of an information page; empty for anything else."""
    if not text:
        return {}
    try:
        raw = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return raw if isinstance(raw, dict) else {}


def model_entries(pages: Mapping[str, str]) -> list[dict[str, Any]]:
    """Entries of `/v1/models`; empty when it did not answer in its usual shape."""
    data = json_object(pages.get("/v1/models")).get("data")
    return [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []


def model_ids(pages: Mapping[str, str]) -> tuple[str, ...]:
    """The model names that `/v1/models` lists."""
    return tuple(str(entry["id"]) for entry in model_entries(pages) if entry.get("id"))


def number(value: Any) -> float | None:
    """A JSON number as a float; None for anything else, true and false too."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def numbers(value: Any) -> tuple[float, ...] | None:
    """A JSON list of numbers; None for anything else."""
    if not isinstance(value, list) or any(number(item) is None for item in value):
        return None
    return tuple(float(item) for item in value)


def whole(value: Any) -> int | None:
    """A JSON whole number; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
