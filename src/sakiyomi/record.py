"""What happened: facts as they were seen, nothing derived from them.

Instants are seconds of one monotonic clock (`time.perf_counter`), taken when bytes arrive.
"""

from typing import Any, Literal

import msgspec

from sakiyomi.plan import Plan
from sakiyomi.scenario import Sampling

RUN_FORMAT = 1
"""Version of the run folder. 1: the first."""

Quality = Literal["exact", "derived", "estimated"]
"""What a number about drafts is worth: counted, computed with an assumption, or guessed."""

EventKind = Literal["answer", "reasoning", "tool", "other"]
"""`other`: no visible text, but the server's token count grew (a held-back or empty token)."""

ErrorKind = Literal[
    "connect",
    "tls",
    "connect_timeout",
    "first_token_timeout",
    "silence_timeout",
    "http_status",
    "error_in_stream",
    "truncated",
    "reset",
    "not_a_stream",
    "malformed",
    "cancelled",
]


class Fact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A stored fact. Unknown keys of a newer sakiyomi are ignored when read."""


class RequestError(Fact, frozen=True):
    """Why a request failed: its kind, the message as received, the HTTP status if there was one."""

    kind: ErrorKind
    message: str
    status: int | None = None


class RequestKey(Fact, frozen=True):
    """Which request of a run this is."""

    request_id: str
    scenario: str
    conversation_id: str
    turn: int
    arm: str
    load: str
    repeat: int
    scheduled_at_s: float
    window: int = 0
    """Which pair of snapshots brackets it: one pass of a repeat, or of its resumption."""
    start: int = 0
    """Which start of a launched engine answered it, from 1; 0: attached."""
    warmup: bool = False


class RequestRecord(Fact, frozen=True):
    """One request as it was seen on the wire. The `event_*` arrays are parallel.

    Only token-bearing events are in the arrays. `event_tokens` is None where the server does not
    say how many tokens an event carries. The three `event_draft_*` arrays hold what an engine
    tells with every event (llama.cpp's timings) and are empty elsewhere:
    events with the same `event_step_mark` came from one decode step; the other two are running
    totals of this request.
    """

    key: RequestKey
    sent_at_s: float
    closed_at_s: float
    connect_s: float = 0.0
    """Time spent opening a connection for this request; 0 when one was open already."""
    first_byte_at_s: float | None = None
    event_at_s: list[float] = []
    event_tokens: list[int | None] = []
    event_kind: list[EventKind] = []
    event_text: list[str] = []
    event_step_mark: list[float | None] = []
    event_num_draft_tokens: list[int | None] = []
    event_num_accepted_tokens: list[int | None] = []
    prompt_tokens: int | None = None
    cached_prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    finish_reason: str | None = None
    done: bool = False
    """The stream said `[DONE]`."""
    model: str | None = None
    system_fingerprint: str | None = None
    evidence: dict[str, Any] = {}
    """The engine's per-request objects as received, by their key: timings, metrics, sglext, ..."""
    num_keep_alives: int = 0
    num_malformed: int = 0
    max_tokens: int | None = None
    error: RequestError | None = None


class Snapshot(Fact, frozen=True):
    """A metrics page as received. `moment` says on which side of a repeat it stands."""

    at_s: float
    url: str
    arm: str
    scenario: str
    load: str
    repeat: int
    moment: Literal["before", "after"]
    window: int = 0
    status: int | None = None
    text: str = ""
    error: str | None = None
    clock_mhz: float | None = None
    power_w: float | None = None


class SpecDecodeCounters(Fact, frozen=True):
    """Counts of speculation: of one request, of one series of a metrics page, or a difference.

    `accepted_per_position[i]`: drafts in which at least i+1 draft tokens were accepted.
    `num_steps`: decode steps, with and without a draft. None: the source does not tell.
    """

    num_drafts: float | None = None
    num_draft_tokens: float | None = None
    num_accepted_tokens: float | None = None
    accepted_per_position: tuple[float, ...] | None = None
    num_steps: float | None = None


class SpecDecodeGauge(Fact, frozen=True):
    """A running average that an engine shows; it has no difference between two instants."""

    mean_acceptance_length: float | None = None
    draft_acceptance_rate: float | None = None


class SeriesCounters(Fact, frozen=True):
    """Monotone counters of one engine (rank, replica) of one model on a metrics page."""

    speculation: SpecDecodeCounters | None = None
    num_generated_tokens: float | None = None
    num_decode_steps: float | None = None
    num_requests_finished: float | None = None
    prefix_cache_queries: float | None = None
    prefix_cache_hits: float | None = None


class EngineMetrics(Fact, frozen=True):
    """What a metrics page says, in sakiyomi's words. `series` is keyed by url-free labels."""

    num_requests_running: float | None = None
    num_requests_waiting: float | None = None
    kv_cache_usage: float | None = None
    models: tuple[str, ...] = ()
    series: dict[str, SeriesCounters] = {}
    gauge: SpecDecodeGauge | None = None
    num_speculative_tokens: int | None = None
    process_start_s: float | None = None
    settings: dict[str, Any] = {}
    """What the page says of the server's configuration, in the words of its information pages."""
    notes: tuple[str, ...] = ()


class Step(Fact, frozen=True):
    """One decode step of one request, from per-event evidence.

    `num_tokens`: tokens it delivered. `num_draft_tokens`, `num_accepted_tokens`: None if unknown.
    """

    num_tokens: int
    num_draft_tokens: int | None = None
    num_accepted_tokens: int | None = None


class Caution(Fact, frozen=True):
    """A machine-readable warning about a number, with its evidence and the remedy."""

    kind: str
    message: str
    detail: dict[str, Any] = {}


class Environment(Fact, frozen=True):
    """The machine that ran the client, and the engine as it calls itself."""

    tool_version: str
    host: str = ""
    os: str = ""
    cpu: str = ""
    num_cpus: int | None = None
    memory_bytes: int | None = None
    device: str | None = None
    driver: str | None = None
    engine: str | None = None
    engine_version: str | None = None
    python: str = ""


class ArmFacts(Fact, frozen=True):
    """An arm as it was launched or found."""

    name: str
    engine: str
    url: str
    model: str | None = None
    argv: tuple[str, ...] = ()
    engine_version: str | None = None
    speculative_method: str | None = None
    num_speculative_tokens: int | None = None
    forced_acceptance: bool = False
    lossy_acceptance: bool = False
    request_fields: tuple[str, ...] = ()
    """Optional body keys that the server accepted and that every measured request carried."""
    metrics_urls: tuple[str, ...] = ()
    device: str | None = None
    quantization: str | None = None
    model_path: str | None = None
    start_s: float | None = None
    num_starts: int = 0
    settings: dict[str, Any] = {}
    """What else the server says of itself: scheduler, graphs, caches, KV dtype, fingerprint."""


class ScenarioFacts(Fact, frozen=True):
    """A scenario as it was asked."""

    name: str
    num_conversations: int
    sampling: Sampling
    content_hash: str
    language: str | None = None
    category: str | None = None


class PublishedCell(Fact, frozen=True):
    """A row of numbers that others published: points without a spread, counts as they stand."""

    scenario: str
    arm: str
    decode_tokens_per_s: float
    num_draft_tokens: float | None = None
    num_accepted_tokens: float | None = None


class Looks(Fact, frozen=True):
    """A run that looked as it went: which look ended it, of how many fixed before the first.

    Its intervals are those of `sakiyomi.sequential`, wider than after a single look.
    """

    look: int
    max_looks: int


class RunFacts(Fact, frozen=True):
    """`run.json`: the facts of a run that are not requests or snapshots."""

    format: int
    run_id: str
    created: str
    plan: Plan
    environment: Environment
    arms: tuple[ArmFacts, ...] = ()
    scenarios: tuple[ScenarioFacts, ...] = ()
    cautions: tuple[Caution, ...] = ()
    provenance: Literal["measured", "published"] = "measured"
    published: tuple[PublishedCell, ...] = ()
    """Numbers of others, not measured here; with `provenance` published."""
    kind: Literal["workload", "calibration"] = "workload"
    looks: Looks | None = None
    """Set by `--until-established`; None: looked at once, at its end."""
    finished: bool = False
    interrupted: bool = False
    forced: bool = False
    """Compared although version or device differ (--force)."""
