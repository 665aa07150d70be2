"""The truth: what a fake engine really did and when. Instants are `time.perf_counter` seconds."""

import hashlib
from typing import Any, Literal

import msgspec

from sakiyomi.fake_engine.answer import ScriptedStep

End = Literal["", "complete", "error", "cut", "reset", "client_gone", "refused"]


class LoggedEvent(msgspec.Struct, kw_only=True):
    """One frame. `written_at_s`: when its bytes went to the socket; None: they never did.

    `step`: the decode step whose tokens it brings (0: the prefill); None: no tokens.
    """

    kind: str
    num_tokens: int = 0
    text: str = ""
    step: int | None = None
    due_at_s: float | None = None
    written_at_s: float | None = None


class LoggedStep(msgspec.Struct, kw_only=True):
    """One decode step as the engine counts it, and what it delivered."""

    due_at_s: float
    num_draft_tokens: int
    num_accepted_tokens: int
    num_tokens: int


class LoggedRequest(msgspec.Struct, kw_only=True):
    """One completion request from its last byte in to its last byte out.

    `steps[0]` is the prefill. `completion_tokens` is the count of the whole answer as planned;
    a request that ends early has delivered fewer. `shares`: probabilities of each token and its
    rivals, where logprobs were asked for.
    """

    request_id: str
    ordinal: int
    path: str
    body_hash: str
    body: dict[str, Any]
    received_at_s: float
    started_at_s: float | None = None
    closed_at_s: float | None = None
    engine: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: str | None = None
    status: int = 200
    end: End = ""
    faults: dict[str, Any] = {}
    steps: list[LoggedStep] = []
    shares: list[tuple[float, ...]] = []
    events: list[LoggedEvent] = []

    @property
    def token_events(self) -> list[LoggedEvent]:
        """Events that carry tokens and were written."""
        return [e for e in self.events if e.num_tokens and e.written_at_s is not None]

    @property
    def ttft_s(self) -> float | None:
        """First token-bearing event - request received; None without a token."""
        events = self.token_events
        return _at_s(events[0]) - self.received_at_s if events else None

    @property
    def decode_tokens_per_s(self) -> float | None:
        """(tokens - tokens of the first event) / (last - first event); None where not defined."""
        events = self.token_events
        if len(events) < 2:
            return None
        span_s = _at_s(events[-1]) - _at_s(events[0])
        return sum(e.num_tokens for e in events[1:]) / span_s if span_s > 0 else None

    @property
    def drafted(self) -> list[LoggedStep]:
        """Steps that had a draft."""
        return [step for step in self.steps if step.num_draft_tokens]

    @property
    def num_draft_tokens(self) -> int:
        """Proposed draft tokens."""
        return sum(step.num_draft_tokens for step in self.steps)

    @property
    def num_accepted_tokens(self) -> int:
        """Accepted draft tokens, by the engine's count."""
        return sum(step.num_accepted_tokens for step in self.steps)


def body_hash(body: bytes) -> str:
    """Name a request's body: by it a client finds its own request in the log."""
    return hashlib.sha256(body).hexdigest()[:16]


def logged_step(step: ScriptedStep, num_tokens: int, due_at_s: float) -> LoggedStep:
    """Log a step that delivered `num_tokens` at `due_at_s`."""
    return LoggedStep(
        due_at_s=due_at_s,
        num_draft_tokens=step.num_draft_tokens,
        num_accepted_tokens=step.num_accepted_tokens,
        num_tokens=num_tokens,
    )


def _at_s(event: LoggedEvent) -> float:
    assert event.written_at_s is not None
    return event.written_at_s
