"""Traces of requests: OpenTelemetry GenAI spans and events, Langfuse observations. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from sakiyomi.logs.import_messages import BadRow, Prompt, make_prompt, read_messages, unpack
from sakiyomi.logs.log_times import MAX_REQUEST_S, Timing, as_count, as_number, read_timing
from sakiyomi.logs.logged import Logged, read_prompt, read_sampled, text_or_none

NO_CONTENT = "a span without its messages"
"""Instrumentations leave the texts out unless told otherwise; vLLM's own spans never have them."""


# --- OpenTelemetry -------------------------------------------------------------------------------


def read_otlp(entry: Mapping[str, Any]) -> Sequence[Logged]:
    """A message of OTLP/JSON (a line of the collector's file exporter), or a scope's records."""
    found: list[Logged] = _log_records(entry.get("logRecords") or ())
    for resource in entry.get("resourceSpans") or ():
        for scope in resource.get("scopeSpans") or ():
            for span in scope.get("spans") or ():
                found += read_span(span)
    for resource in entry.get("resourceLogs") or ():
        for scope in resource.get("scopeLogs") or ():
            found += _log_records(scope.get("logRecords") or ())
    return found


def read_span(span: Mapping[str, Any]) -> Sequence[Logged]:
    """A span in OTLP/JSON, or as the SDKs' console exporters print it; () when it is no request."""
    attributes = read_attributes(span.get("attributes"))
    events = [event for event in span.get("events") or () if isinstance(event, dict)]
    operation = str(attributes.get("gen_ai.operation.name", ""))
    if operation in _NOT_INFERENCE or not _is_request(attributes):
        return ()
    try:
        prompt, reason = _span_prompt(attributes, events), NO_CONTENT
    except BadRow as problem:
        prompt, reason = None, str(problem)
    return (
        Logged(
            format="OpenTelemetry",
            prompt=prompt,
            sampled=read_sampled(
                {key.removeprefix("gen_ai.request."): value for key, value in attributes.items()}
            ),
            timing=_span_timing(span, attributes),
            model=text_or_none(
                attributes.get("gen_ai.response.model") or attributes.get("gen_ai.request.model")
            ),
            reason=reason if prompt is None else "",
        ),
    )


_NOT_INFERENCE = frozenset(
    {"embeddings", "execute_tool", "create_agent", "invoke_agent", "invoke_workflow", "retrieval"}
)
"""Operations whose spans wrap requests or are none: their messages would count twice."""


def _is_request(attributes: Mapping[str, Any]) -> bool:
    return any(
        key.startswith(("gen_ai.", "llm.request", "llm.input_messages", "ai.prompt"))
        for key in attributes
    )


def read_attributes(raw: Any) -> dict[str, Any]:
    """Attributes as a flat mapping, from OTLP's key and value pairs or a mapping."""
    if isinstance(raw, dict):
        return dict(raw)
    pairs = raw if isinstance(raw, list) else ()
    return {
        str(pair.get("key")): _any_value(pair.get("value"))
        for pair in pairs
        if isinstance(pair, dict)
    }


def _any_value(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "stringValue" in value:
        return value["stringValue"]
    if "arrayValue" in value:
        return [_any_value(item) for item in (value["arrayValue"] or {}).get("values") or ()]
    if "kvlistValue" in value:
        return read_attributes((value["kvlistValue"] or {}).get("values"))
    if "intValue" in value:  # 64-bit integers are strings in OTLP/JSON
        return as_number(value["intValue"], -1e19, 1e19)
    return next(iter(value.values()), None)


def _span_prompt(
    attributes: Mapping[str, Any], events: Sequence[Mapping[str, Any]]
) -> Prompt | None:
    """The prompt of a span: the conventions of today, of 1.36 and before, and two neighbours'."""
    for event in events:
        inner = read_attributes(event.get("attributes"))
        if "gen_ai.input.messages" in inner or "gen_ai.prompt" in inner:
            attributes = {**attributes, **inner}
    for key in ("gen_ai.input.messages", "ai.prompt.messages", "gen_ai.prompt"):
        messages = unpack(attributes.get(key))
        if isinstance(messages, list) and messages:
            prompt = read_messages(messages)
            system = unpack(attributes.get("gen_ai.system_instructions"))
            if system and not prompt.system:
                return make_prompt(prompt.turns, system, set(prompt.marks))
            return prompt
        if isinstance(messages, str) and messages.strip():
            return make_prompt([messages])
    indexed = _indexed_messages(attributes)
    if indexed:
        return read_messages(indexed)
    messages = [
        {"role": name.split(".")[1], "content": read_attributes(event["attributes"]).get("content")}
        for event in events
        if (name := str(event.get("name", ""))) in _MESSAGE_EVENTS and event.get("attributes")
    ]
    return read_messages(messages) if any(m["content"] for m in messages) else None


_MESSAGE_EVENTS = frozenset(
    f"gen_ai.{role}.message" for role in ("system", "user", "assistant", "tool")
)
_INDEXED = re.compile(
    r"(?:gen_ai\.prompt|llm\.input_messages)\.(\d+)\.(?:message\.)?(role|content)$"
)
"""OpenLLMetry's `gen_ai.prompt.0.role` and OpenInference's `llm.input_messages.0.message.role`."""


def _indexed_messages(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages: dict[int, dict[str, Any]] = {}
    for key, value in attributes.items():
        if match := _INDEXED.match(key):
            messages.setdefault(int(match[1]), {"role": "user"})[match[2]] = unpack(value)
    return [messages[index] for index in sorted(messages)]


def _span_timing(span: Mapping[str, Any], attributes: Mapping[str, Any]) -> Timing:
    """The span's own length, and the first token where an instrumentation says it.

    `gen_ai.response.time_to_first_chunk` (conventions), `gen_ai.latency.time_to_first_token`
    (vLLM, SGLang) are seconds, `ai.response.msToFirstChunk` (Vercel AI SDK) milliseconds.
    """
    first_s = next(
        (
            seconds * scale
            for key, scale in _FIRST_TOKEN
            if (seconds := as_number(attributes.get(key), 1e-9, MAX_REQUEST_S * 1e3)) is not None
        ),
        None,
    )
    times = {
        "startTime": _nanoseconds(span.get("startTimeUnixNano")) or span.get("start_time"),
        "endTime": _nanoseconds(span.get("endTimeUnixNano")) or span.get("end_time"),
        "ttft_s": first_s,
        "e2e_s": attributes.get("gen_ai.latency.e2e"),
    }
    counts = {
        "prompt_tokens": attributes.get("gen_ai.usage.input_tokens")
        or attributes.get("gen_ai.usage.prompt_tokens"),
        "completion_tokens": attributes.get("gen_ai.usage.output_tokens")
        or attributes.get("gen_ai.usage.completion_tokens"),
    }
    timing = read_timing(times, counts)
    status = span.get("status")
    code = status.get("code", status.get("status_code")) if isinstance(status, dict) else None
    if "error.type" in attributes or str(code) in ("2", "ERROR", "STATUS_CODE_ERROR"):
        return msgspec.structs.replace(timing, failed=True, ttft_s=None, e2e_s=None)
    return timing


_FIRST_TOKEN = (
    ("gen_ai.response.time_to_first_chunk", 1.0),
    ("gen_ai.latency.time_to_first_token", 1.0),
    ("gen_ai.server.time_to_first_token", 1.0),
    ("ai.response.msToFirstChunk", 1e-3),
)


def _nanoseconds(value: Any) -> float | None:
    """Seconds; through whole numbers, so that a double's 53 bits cost no microsecond."""
    try:
        nanoseconds = int(value)
    except (TypeError, ValueError):
        return None
    return nanoseconds // 1000 / 1e6


def _log_records(records: Iterable[Mapping[str, Any]]) -> list[Logged]:
    """Events as log records: one with everything, or one for each message of a span."""
    found: list[Logged] = []
    messages: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        attributes = read_attributes(record.get("attributes"))
        name = str(record.get("eventName") or attributes.get("event.name") or "")
        if "gen_ai.input.messages" in attributes:
            found += read_span({"attributes": attributes})
        elif name in _MESSAGE_EVENTS:
            body = _any_value(record.get("body"))
            body = body if isinstance(body, dict) else {"content": body}
            message = {"role": name.split(".")[1], "content": body.get("content")}
            messages.setdefault(str(record.get("spanId")), []).append(message)
    for chain in messages.values():
        try:
            found.append(Logged(format="OpenTelemetry", prompt=read_messages(chain)))
        except BadRow as problem:
            found.append(Logged(format="OpenTelemetry", reason=str(problem)))
    return found


# --- Langfuse ------------------------------------------------------------------------------------


def read_langfuse(entry: Mapping[str, Any]) -> Sequence[Logged]:
    """An observation, or a trace with its observations; () when there is no generation in it."""
    observations = entry.get("observations")
    if isinstance(observations, list):
        inner = [o for o in observations if isinstance(o, dict)]
        found: list[Logged] = []
        for observation in inner:
            found += read_langfuse(observation)
        if found or inner:
            return found
        return _observation(entry)  # a trace whose observations are ids only
    if str(entry.get("type", "GENERATION")).upper() != "GENERATION":
        return ()
    return _observation(entry)


def _observation(entry: Mapping[str, Any]) -> Sequence[Logged]:
    content = unpack(entry.get("input"))
    prompt, reason = None, "a generation without its input"
    try:
        if isinstance(content, dict):
            prompt = read_prompt(content)
        elif content:
            prompt = read_prompt({"input": content})
    except BadRow as problem:
        reason = str(problem)
    counts = _counts(entry)
    for key in ("usage", "usage_details", "usageDetails"):
        if isinstance(usage := unpack(entry.get(key)), dict):
            counts |= dict(usage)
    parameters = unpack(entry.get("modelParameters") or entry.get("model_parameters"))
    return (
        Logged(
            format="Langfuse",
            prompt=prompt,
            sampled=read_sampled(parameters if isinstance(parameters, dict) else {}),
            timing=read_timing(entry, counts),
            model=text_or_none(entry.get("model") or entry.get("provided_model_name")),
            reason=reason if prompt is None else "",
        ),
    )


def _counts(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The counts of an observation that has them at its top; its `input` is a text, not a count."""
    keys = ("promptTokens", "completionTokens", "prompt_tokens", "completion_tokens")
    return {key: entry[key] for key in keys if as_count(entry.get(key))}
