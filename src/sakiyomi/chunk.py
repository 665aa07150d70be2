"""One chunk of an OpenAI-compatible stream: JSON bytes -> `Chunk`.

The typed path is quick; what surprises it (`58.0` tokens, parts instead of text, bytes that are no
UTF-8) is read a second time without expectations.
"""

import json
from typing import Any

import msgspec

from sakiyomi.record import EventKind


class ToolFunction(msgspec.Struct, gc=False):
    """A piece of a tool call."""

    name: str | None = None
    arguments: str | None = None


class ToolCall(msgspec.Struct, gc=False):
    """An entry of `delta.tool_calls`."""

    function: ToolFunction | None = None


class Delta(msgspec.Struct, gc=False):
    """`choices[].delta`. Reasoning has a different name in each engine."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    reasoning_text: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: ToolFunction | None = None


class Logprobs(msgspec.Struct, gc=False):
    """One entry per token: `content` on chat, `tokens` on completions."""

    content: list[msgspec.Raw] | None = None
    tokens: list[msgspec.Raw] | None = None


class Choice(msgspec.Struct, gc=False):
    """`choices[]`. `token_ids`: vLLM, SGLang; `output_ids`: LMDeploy."""

    delta: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    output_ids: list[int] | None = None
    logprobs: Logprobs | None = None
    avg_decoded_tokens_per_iter: float | None = None


class CompletionDetails(msgspec.Struct, gc=False):
    """`usage.completion_tokens_details`."""

    reasoning_tokens: int | None = None


class PromptDetails(msgspec.Struct, gc=False):
    """`usage.prompt_tokens_details`."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct, gc=False):
    """`usage`. completion_tokens contains the reasoning tokens."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    completion_tokens_details: CompletionDetails | None = None
    prompt_tokens_details: PromptDetails | None = None


class Timings(msgspec.Struct, gc=False):
    """llama.cpp's running totals of the request, of every event with `timings_per_token`."""

    predicted_n: int | None = None
    predicted_ms: float | None = None
    draft_n: int | None = None
    draft_n_accepted: int | None = None


class Chunk(msgspec.Struct, gc=False):
    """What a chunk says. Unknown keys are ignored."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    error: Any = None
    object: str | None = None
    model: str | None = None
    system_fingerprint: str | None = None
    metrics: Any = None
    sglext: Any = None
    stats: Any = None


_decode_typed = msgspec.json.Decoder(Chunk).decode


def decode_chunk(data: bytes) -> Chunk | None:
    """JSON bytes -> Chunk; None when they are no JSON object."""
    try:
        return _decode_typed(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _decode_tolerantly(data)


def decode_object(data: bytes) -> dict[str, Any]:
    """JSON bytes -> their object as received; empty when they are none."""
    try:
        raw = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raw = _loads(data)
    return raw if isinstance(raw, dict) else {}


def logprob_entries(choices: list[Choice]) -> list[bytes]:
    """A chunk's logprobs as bytes, to be read later: only a pass that asks for them has any."""
    told = [choice.logprobs.content for choice in choices if choice.logprobs is not None]
    return [bytes(entry) for content in told for entry in content or ()]


def token_logprob(entry: dict[str, Any]) -> dict[str, Any]:
    """A token of `logprobs.content` with its alternatives, without their bytes."""
    options = entry.get("top_logprobs")
    return {
        "token": entry.get("token"),
        "logprob": entry.get("logprob"),
        "top_logprobs": [
            {"token": option.get("token"), "logprob": option.get("logprob")}
            for option in (options if isinstance(options, list) else [])
            if isinstance(option, dict)
        ],
    }


def error_text(error: Any) -> str:
    """The words of an error object as servers send it: text, {"message"}, {"error": {...}}."""
    if isinstance(error, dict):
        for key in ("message", "error", "detail", "msg"):
            if error.get(key):
                return error_text(error[key])
    if isinstance(error, str):
        return error[:500]
    return msgspec.json.encode(error).decode()[:500]


def payload(choice: Choice, kind: EventKind | None, text: str) -> tuple[EventKind | None, str]:
    """Kind and text of a choice, added to those of the choices before it."""
    delta = choice.delta
    if delta is None:
        return ("answer", text + choice.text) if choice.text else (kind, text)
    if delta.content:
        return "answer", text + delta.content
    reasoning = delta.reasoning_content or delta.reasoning or delta.reasoning_text
    if reasoning:
        return kind or "reasoning", text + reasoning
    if delta.tool_calls:
        functions = [call.function for call in delta.tool_calls if call.function]
    elif delta.function_call:
        functions = [delta.function_call]
    else:
        return ("answer", text + delta.refusal) if delta.refusal else (kind, text)
    pieces = "".join((function.name or "") + (function.arguments or "") for function in functions)
    return (kind or "tool", text + pieces) if pieces else (kind, text)


def _loads(data: bytes) -> Any:
    """The most tolerant reading: broken UTF-8 and lone surrogates become U+FFFD."""
    try:
        raw = json.loads(data.decode("utf-8", "replace"), parse_constant=lambda _: None)
        # A lone surrogate cannot be written to a run folder; two halves become one character.
        text = json.dumps(raw, ensure_ascii=False).encode("utf-16", "surrogatepass")
        return json.loads(text.decode("utf-16", "replace"))
    except (ValueError, RecursionError):
        return None


def _decode_tolerantly(data: bytes) -> Chunk | None:
    raw = _loads(data)
    if not isinstance(raw, dict):
        return None
    choices = raw.get("choices")
    return Chunk(
        choices=[_choice(item) for item in choices if isinstance(item, dict)]
        if isinstance(choices, list)
        else None,
        usage=_usage(raw.get("usage")),
        timings=_timings(raw.get("timings")),
        error=raw.get("error"),
        object=_text(raw.get("object")),
        model=_text(raw.get("model")),
        system_fingerprint=_text(raw.get("system_fingerprint")),
        metrics=raw.get("metrics"),
        sglext=raw.get("sglext"),
        stats=raw.get("stats"),
    )


def _choice(raw: dict[str, Any]) -> Choice:
    delta = raw.get("delta")
    logprobs = raw.get("logprobs")
    entries = logprobs.get("content") if isinstance(logprobs, dict) else None
    return Choice(
        delta=_delta(delta) if isinstance(delta, dict) else None,
        text=_text(raw.get("text")),
        finish_reason=_text(raw.get("finish_reason")),
        token_ids=_ids(raw.get("token_ids")),
        output_ids=_ids(raw.get("output_ids")),
        logprobs=Logprobs(content=[msgspec.Raw()] * len(entries))
        if isinstance(entries, list)
        else None,
        avg_decoded_tokens_per_iter=_number(raw.get("avg_decoded_tokens_per_iter")),
    )


def _delta(raw: dict[str, Any]) -> Delta:
    content, thinking = _text(raw.get("content")), None
    if isinstance(raw.get("content"), list):  # parts: [{"type": "text", "text": ...}, ...]
        parts = [part for part in raw["content"] if isinstance(part, dict)]
        content = "".join(_text(part.get("text")) or "" for part in parts)
        thinking = "".join(_part_text(part.get("thinking")) for part in parts)
    calls = raw.get("tool_calls")
    calls = calls if isinstance(calls, list) else [calls]
    return Delta(
        content=content,
        reasoning=_text(raw.get("reasoning")) or thinking,
        reasoning_content=_text(raw.get("reasoning_content")),
        reasoning_text=_text(raw.get("reasoning_text")),
        refusal=_text(raw.get("refusal")),
        tool_calls=[
            ToolCall(_function(call.get("function"))) for call in calls if isinstance(call, dict)
        ]
        or None,
        function_call=_function(raw.get("function_call")),
    )


def _part_text(raw: Any) -> str:
    if isinstance(raw, list):
        return "".join(_text(item.get("text")) or "" for item in raw if isinstance(item, dict))
    return _text(raw) or ""


def _function(raw: Any) -> ToolFunction | None:
    if not isinstance(raw, dict):
        return None
    arguments = raw.get("arguments")
    if isinstance(arguments, dict):  # an object instead of its text
        arguments = json.dumps(arguments, ensure_ascii=False)
    return ToolFunction(_text(raw.get("name")), _text(arguments))


def _usage(raw: Any) -> Usage | None:
    if not isinstance(raw, dict):
        return None
    completion, prompt = raw.get("completion_tokens_details"), raw.get("prompt_tokens_details")
    return Usage(
        prompt_tokens=_count(raw.get("prompt_tokens")),
        completion_tokens=_count(raw.get("completion_tokens")),
        reasoning_tokens=_count(raw.get("reasoning_tokens")),
        completion_tokens_details=CompletionDetails(_count(completion.get("reasoning_tokens")))
        if isinstance(completion, dict)
        else None,
        prompt_tokens_details=PromptDetails(_count(prompt.get("cached_tokens")))
        if isinstance(prompt, dict)
        else None,
    )


def _timings(raw: Any) -> Timings | None:
    if not isinstance(raw, dict):
        return None
    return Timings(
        predicted_n=_count(raw.get("predicted_n")),
        predicted_ms=_number(raw.get("predicted_ms")),
        draft_n=_count(raw.get("draft_n")),
        draft_n_accepted=_count(raw.get("draft_n_accepted")),
    )


def _text(raw: Any) -> str | None:
    return raw if isinstance(raw, str) else None


def _number(raw: Any) -> float | None:
    return float(raw) if isinstance(raw, int | float) and not isinstance(raw, bool) else None


def _count(raw: Any) -> int | None:
    number = _number(raw)
    return int(number) if number is not None and number == number // 1 else None


def _ids(raw: Any) -> list[int] | None:
    if not isinstance(raw, list):
        return None
    return [item if isinstance(item, int) else -1 for item in raw]
