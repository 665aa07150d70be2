"""One entry of a log -> the requests in it, whatever tool wrote it. Pure; raises BadRow.

Formats are told apart by their keys, entry by entry: a file may be a mixture.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from sakiyomi.logs.import_messages import BadRow, kind_of, make_prompt, read_messages, unpack
from sakiyomi.logs.import_traces import read_langfuse, read_otlp, read_span
from sakiyomi.logs.json_values import CONTAINERS
from sakiyomi.logs.log_times import as_count, read_timing
from sakiyomi.logs.logged import Logged, find_body, read_prompt, read_sampled, text_or_none

BATCH_OUTPUT = "batch output: answers, no prompts"
NO_MESSAGES = "a spend log without messages"


def read_entry(entry: Any, columns: Mapping[str, str]) -> Sequence[Logged]:
    """The requests of one entry of a log. `columns`: our field -> the user's key or column."""
    if isinstance(entry, list):
        return (Logged(format="ShareGPT", prompt=read_messages(entry)),)
    if not isinstance(entry, dict):
        raise BadRow(f"{kind_of(entry)} instead of an object")
    if "scenario" in entry and isinstance(entry["scenario"], dict):
        return ()  # the first line of a scenario file
    if columns:
        return (read_columns(entry, columns),)
    for recognises, read in _FORMATS:
        if recognises(entry):
            return read(entry)
    body = find_body(entry)
    if body is None:
        for key in sorted(CONTAINERS & entry.keys()):
            if isinstance(entry[key], list):
                return _page(entry[key], columns)
        raise BadRow("no messages, prompt or conversation in it")
    return (_chat_log(entry, body),)


def _page(rows: Sequence[Any], columns: Mapping[str, str]) -> Sequence[Logged]:
    """The rows of an API's page that stands on a line of its own; bad ones cost themselves."""
    found: list[Logged] = []
    for row in rows:
        try:
            found += read_entry(row, columns)
        except BadRow as problem:
            found.append(Logged(format="page", reason=str(problem)))
    return found


def _chat_log(entry: Mapping[str, Any], body: Mapping[str, Any]) -> Logged:
    usage = entry.get("usage")
    if not isinstance(usage, dict):
        response = unpack(entry.get("response"))
        response = response.get("body", response) if isinstance(response, dict) else {}
        usage = response.get("usage") if isinstance(response, dict) else None
    return Logged(
        format="questions" if "turns" in body else "chat log",
        prompt=read_prompt(body),
        sampled=read_sampled(body),
        timing=read_timing(entry, usage if isinstance(usage, dict) else {}),
        model=text_or_none(body.get("model") or entry.get("model")),
        language=text_or_none(entry.get("language")),
        category=text_or_none(entry.get("category")),
    )


def _batch_input(entry: Mapping[str, Any]) -> Sequence[Logged]:
    url, body = str(entry.get("url", "")), entry["body"]
    if any(word in url for word in ("embedding", "moderation", "image", "audio", "rerank")):
        raise BadRow(f"no chat request ({url})")
    return (
        Logged(
            format="OpenAI batch input",
            prompt=read_prompt(body),
            sampled=read_sampled(body),
            model=text_or_none(body.get("model")),
        ),
    )


def _is_batch_output(entry: Mapping[str, Any]) -> bool:
    response = entry.get("response")
    if isinstance(response, dict) and "status_code" in response:
        return find_body(entry) is None
    return "custom_id" in entry and "body" not in entry and ("error" in entry or bool(response))


def _batch_output(entry: Mapping[str, Any]) -> Sequence[Logged]:
    """Counts of tokens of an answer; a status of 400 and more, or an error, is a failure."""
    response = entry.get("response")
    response = response if isinstance(response, dict) else {}
    body = response.get("body")
    body = body if isinstance(body, dict) else {}
    status = as_count(response.get("status_code")) or 200
    failed = bool(entry.get("error")) or status >= 400 or "error" in body or not response
    usage = body.get("usage")
    timing = read_timing({}, usage if isinstance(usage, dict) and not failed else {})
    return (
        Logged(
            format="OpenAI batch output",
            timing=msgspec.structs.replace(timing, failed=failed),
            model=text_or_none(body.get("model")),
            reason=BATCH_OUTPUT,
        ),
    )


def _litellm(entry: Mapping[str, Any]) -> Sequence[Logged]:
    """A row of LiteLLM's spend logs, or its standard logging payload (buckets)."""
    request = unpack(entry.get("proxy_server_request"))
    request = request if isinstance(request, dict) else {}
    request = request.get("body", request)
    parameters = unpack(entry.get("model_parameters"))
    sampled = read_sampled(parameters if isinstance(parameters, dict) else request)
    call = str(entry.get("call_type") or "completion")
    if "completion" not in call and "responses" not in call and "message" not in call:
        raise BadRow(f"no chat request ({call})")
    prompt, reason = None, ""
    for source in (entry, request):
        if (body := find_body({**source, "messages": unpack(source.get("messages"))})) is not None:
            prompt = read_prompt(body)
            break
    else:
        reason = NO_MESSAGES
    return (
        Logged(
            format="LiteLLM",
            prompt=prompt,
            sampled=sampled,
            timing=read_timing(entry, entry),
            model=text_or_none(entry.get("model_group") or entry.get("model")),
            reason=reason,
        ),
    )


def _sharegpt(entry: Mapping[str, Any]) -> Sequence[Logged]:
    messages = next(entry[key] for key in _SHAREGPT_KEYS if isinstance(entry.get(key), list))
    prompt = read_messages(messages)
    if entry.get("system") and not prompt.system:
        prompt = make_prompt(prompt.turns, entry["system"], set(prompt.marks))
    return (
        Logged(
            format="ShareGPT",
            prompt=prompt,
            language=text_or_none(entry.get("language") or entry.get("lang")),
            category=text_or_none(entry.get("category")),
        ),
    )


_SHAREGPT_KEYS = ("conversations", "conversation", "items")


def read_columns(entry: Mapping[str, Any], columns: Mapping[str, str]) -> Logged:
    """A row by the names the user gave: `prompt`, `system`, `language`, `conversation`, ..."""

    def value(field: str) -> Any:
        found: Any = entry
        name = columns.get(field)
        if name is None or name in entry:
            return entry.get(name) if name else None
        for part in name.split("."):
            found = unpack(found).get(part) if isinstance(unpack(found), dict) else None
        return found

    content = unpack(value("prompt"))
    if isinstance(content, list):
        prompt = read_messages(content)
    else:
        prompt = make_prompt([str(content)] if content not in (None, "") else [], value("system"))
    named = {field: value(field) for field in columns}
    conversation = text_or_none(named.get("conversation"))
    return Logged(
        format="named columns",
        prompt=prompt,
        sampled=read_sampled(named),
        timing=read_timing(named, named),
        model=text_or_none(named.get("model")),
        language=text_or_none(named.get("language")),
        category=text_or_none(named.get("category")),
        conversation=conversation,
        is_turn=conversation is not None,
    )


def _is_langfuse(entry: Mapping[str, Any]) -> bool:
    if isinstance(entry.get("observations"), list):
        return True
    has_trace = "traceId" in entry or "trace_id" in entry
    return has_trace and "type" in entry and ("startTime" in entry or "start_time" in entry)


_FORMATS: tuple[
    tuple[Callable[[Mapping[str, Any]], bool], Callable[[Mapping[str, Any]], Sequence[Logged]]], ...
] = (
    (lambda e: any(k in e for k in ("resourceSpans", "resourceLogs", "logRecords")), read_otlp),
    (_is_batch_output, _batch_output),
    (lambda e: "custom_id" in e and isinstance(e.get("body"), dict), _batch_input),
    (_is_langfuse, read_langfuse),
    (lambda e: isinstance(e.get("attributes"), list | dict) and find_body(e) is None, read_span),
    (
        lambda e: ("request_id" in e or "id" in e) and ("call_type" in e or "spend" in e),
        _litellm,
    ),
    (lambda e: "request_id" in e and "startTime" in e, _litellm),
    (lambda e: any(isinstance(e.get(key), list) for key in _SHAREGPT_KEYS), _sharegpt),
)
