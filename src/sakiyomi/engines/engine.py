"""An engine is a frozen value: its paths and a handful of pure functions."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from sakiyomi.plan import Arm
from sakiyomi.record import EngineMetrics, RequestRecord, SpecDecodeCounters, Step


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
    - `force_acceptance(arm, rates)`: the arm with forced per-position acceptance, or None where
      the engine cannot.
    - `tokens_per_event`: 1 where every event is one token (then events are counted); else None.
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
    force_acceptance: Callable[[Arm, tuple[float, ...]], Arm] | None = None
    health_path: str = "/health"
    metrics_paths: tuple[str, ...] = ("/metrics",)
    info_paths: tuple[str, ...] = ("/version", "/v1/models")
    thinking_field: Callable[[bool], dict[str, Any]] = lambda on: {
        "chat_template_kwargs": {"enable_thinking": on}
    }
    tokens_per_event: int | None = None
    evidence: str = ""
    counters_at_request_end: bool = False
    metrics_hint: str = ""
    """What to do when the metrics page is missing (the flag's name)."""
    program: str = ""
    """The program that `command` starts and the package that brings it, for errors."""
    log_remedies: tuple[LogRemedy, ...] = ()
