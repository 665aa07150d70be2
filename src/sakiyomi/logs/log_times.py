"""Instants and counts of a log -> the times of a request, where they can be trusted. Pure."""

import datetime as dt
import math
from collections.abc import Mapping
from typing import Any

import msgspec

MAX_REQUEST_S = 86_400.0
"""A longer request is a wrong clock."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """What a log says of a request's speed. `distrust`: why times were left out."""

    started_at_s: float | None = None
    ttft_s: float | None = None
    e2e_s: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    failed: bool = False
    distrust: str = ""


def as_number(value: Any, low: float, high: float) -> float | None:
    """A finite number (or its text, as tables have it) between `low` and `high`, else None."""
    if value is None or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) and low <= number <= high else None


def as_count(value: Any) -> int | None:
    """A positive whole number, else None."""
    number = as_number(value, 1, 1e9)
    return int(number) if number is not None and number == int(number) else None


def as_instant(value: Any) -> float | None:
    """Seconds since 1970: from ISO 8601 text (UTC without a zone), or s, ms, us, ns by size."""
    number = as_number(value, 1e8, 1e20)
    if number is not None:
        for limit, scale in ((1e11, 1.0), (1e14, 1e3), (1e17, 1e6)):
            if number < limit:
                return number / scale
        return number / 1e9
    if not isinstance(value, str) or len(value) < 10:
        return None
    try:
        instant = dt.datetime.fromisoformat(value.strip().removesuffix(" UTC"))
    except ValueError:
        return None
    return (instant if instant.tzinfo else instant.replace(tzinfo=dt.UTC)).timestamp()


def _first(entry: Mapping[str, Any], *keys: str) -> Any:
    for key in keys:  # a generator costs three times as much, and this runs for every row
        if (value := entry.get(key)) is not None and value != "":
            return value
    return None


def read_timing(entry: Mapping[str, Any], usage: Mapping[str, Any]) -> Timing:
    """Times of a row by the names that LiteLLM, Langfuse and plain logs use; counts of `usage`.

    A first token at the start or at the very end says that the answer was not streamed: no TTFT.
    Instants in whole seconds, a cached answer and times that contradict each other are distrusted.
    """
    started = as_instant(_first(entry, "startTime", "start_time", "started_at", "timestamp"))
    first = as_instant(
        _first(entry, "completionStartTime", "completion_start_time", "first_token_at")
    )
    ended = as_instant(_first(entry, "endTime", "end_time", "ended_at"))
    ttft_s, e2e_s = _named_seconds(entry, "ttft"), _named_seconds(entry, "e2e")
    distrust = ""
    if started is not None and ended is not None and e2e_s is None:
        stamps = [at for at in (started, first, ended) if at is not None]
        if all(at == int(at) for at in stamps):
            distrust = "instants in whole seconds"
        elif not 0 < ended - started < MAX_REQUEST_S:
            distrust = "an end before its start" if ended < started else "no or absurd duration"
        else:
            e2e_s = ended - started
            if first is not None and ttft_s is None and started < first < ended:
                ttft_s = first - started
    if ttft_s is not None and e2e_s is not None and ttft_s > e2e_s:
        distrust, ttft_s, e2e_s = "a first token after the end", None, None
    if str(entry.get("cache_hit", "")).lower() in ("true", "1"):
        distrust, ttft_s, e2e_s = "answered from a response cache", None, None
    status = str(entry.get("status") or entry.get("level") or "").lower()
    failed = status in ("failure", "failed", "error") or bool(entry.get("error"))
    return Timing(
        started_at_s=started,
        ttft_s=None if failed else ttft_s,
        e2e_s=None if failed else e2e_s,
        prompt_tokens=as_count(_first(usage, *_PROMPT_TOKENS)),
        completion_tokens=as_count(_first(usage, *_COMPLETION_TOKENS)),
        failed=failed,
        distrust=distrust,
    )


_PROMPT_TOKENS = ("prompt_tokens", "input_tokens", "promptTokens", "input", "inputTokens")
_COMPLETION_TOKENS = (
    "completion_tokens",
    "output_tokens",
    "completionTokens",
    "output",
    "outputTokens",
)


def _named_seconds(entry: Mapping[str, Any], name: str) -> float | None:
    if (seconds := as_number(entry.get(f"{name}_s"), 1e-6, MAX_REQUEST_S)) is not None:
        return seconds
    milliseconds = as_number(entry.get(f"{name}_ms"), 1e-3, MAX_REQUEST_S * 1e3)
    return milliseconds / 1e3 if milliseconds is not None else None
