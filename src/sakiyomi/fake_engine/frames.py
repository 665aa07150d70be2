"""What a request asks of an answer's form, and the events and actions that it is told in."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from sakiyomi.fake_engine.config import FaultValue
from sakiyomi.fake_engine.logprobs import LogprobsForm

FrameKind = Literal[
    "role", "answer", "reasoning", "tool", "other", "finish", "usage", "extra", "error", "done"
]
Action = Literal["send", "cut", "cut_in_character", "reset", "silence"]


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """One event to be sent, or an action on the connection. `delay_s`: wait before it."""

    payload: Any = None
    kind: FrameKind = "other"
    num_tokens: int = 0
    text: str = ""
    delay_s: float = 0.0
    action: Action = "send"


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What a request asks of the form of the answer."""

    request_id: str
    created: int
    model: str
    chat: bool = True
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    token_ids: bool = False
    timings_per_token: bool = False
    spec_details: bool = False
    per_request: str = "none"
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    num_draft_tokens: int = 0
    """The configured k."""
    logprobs: LogprobsForm | None = None


def error_frames(faults: Mapping[str, FaultValue]) -> list[Frame]:
    """The engine died in mid-stream: an error object, then [DONE], then the end."""
    message = "EngineCore encountered an issue. See stack trace for the root cause."
    error: Any = {"message": message, "type": "InternalServerError", "code": 500}
    if "error_as_string" in faults:
        error = message
    frame = Frame(payload={"error": error}, kind="error", text=message)
    if "no_done" in faults:
        return [frame, Frame(action="cut")]
    return [frame, Frame(payload="[DONE]", kind="done")]
