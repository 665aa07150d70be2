"""Chat messages in the forms that logs have -> system text and user turns. Pure."""

from collections.abc import Sequence
from typing import Any

import msgspec

from sakiyomi.logs.json_values import BrokenJson, decode


class BadRow(ValueError):  # noqa: N818 - a fact about a row, counted
    """A row that holds no usable request; the text is the reason, counted under it."""


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked. `marks`: what the scenario cannot carry (tool results, images)."""

    turns: tuple[str, ...]
    system: str | None = None
    marks: tuple[str, ...] = ()


ROLES = {
    "user": "user",
    "human": "user",
    "prompter": "user",
    "customer": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "ai": "assistant",
    "model": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "function_call": "assistant",
    "tool_call": "assistant",
    "system": "system",
    "developer": "system",
    "tool": "tool",
    "function": "tool",
    "function_response": "tool",
    "observation": "tool",
    "ipython": "tool",
}
"""Roles of the OpenAI and Anthropic APIs, Gemini, ShareGPT and its relatives, in lower case."""

PLACEHOLDERS = (
    ("litellm_truncated", "text cut by LiteLLM (raise MAX_STRING_LENGTH_PROMPT_IN_DB)"),
    ("redacted-by-litellm", "text redacted by LiteLLM"),
    (
        "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE",
        "placeholder of SPEED-Bench (run its prepare script first)",
    ),
)
"""What stands where a text was cut, redacted or never shipped: such a row is no request."""


def read_messages(messages: Sequence[Any]) -> Prompt:
    """System text and user turns of one request. Answers are dropped: the model gives its own.

    User messages with nothing between them are one turn. Raises BadRow.
    """
    system: list[str] = []
    turns: list[str] = []
    marks: set[str] = set()
    last = ""
    for entry in messages:
        role, content = _role_and_content(entry)
        text = read_text(content, marks)
        if role == "system" and text:
            system.append(text)
        elif role == "tool":
            marks.add("tool results")
        elif role == "user" and text:
            if last == "user":
                turns[-1] += "\n\n" + text
            else:
                turns.append(text)
        if role != "user" or text:
            last = role
    return make_prompt(turns, "\n\n".join(system), marks)


def make_prompt(turns: Sequence[str], system: Any = None, marks: set[str] | None = None) -> Prompt:
    """A prompt of user texts. Raises BadRow when there is none, or a placeholder in its place."""
    marks = marks or set()
    system = read_text(system, marks) if system else ""
    kept = tuple(turn for turn in turns if turn.strip())
    if not kept:
        only = f" (only {', '.join(sorted(marks))})" if marks else ""
        raise BadRow(f"no user text{only}")
    for text in (*kept, system):
        for placeholder, reason in PLACEHOLDERS:
            if placeholder in text:
                raise BadRow(reason)
    return Prompt(turns=kept, system=system.strip() or None, marks=tuple(sorted(marks)))


def read_text(content: Any, marks: set[str]) -> str:
    """The text of a message's content: a string, parts of the usual APIs, or a mapping."""
    if isinstance(content, list):
        texts = [read_text(part, marks) for part in content]
        return "\n".join(text for text in texts if text)
    if not isinstance(content, dict):
        return content if isinstance(content, str) else ""
    kind = str(content.get("type", ""))
    if "tool" in kind or "functionResponse" in content:
        marks.add("tool results")
    elif any(
        word in kind for word in ("image", "audio", "file", "video", "document", "blob", "uri")
    ):
        marks.add("images or files")
    elif kind not in ("reasoning", "thinking"):
        for key in ("text", "content", "value", "parts"):
            if isinstance(content.get(key), str | list):
                return read_text(content[key], marks)
    return ""


def unpack(value: Any) -> Any:
    """A value that a table or an attribute carries as JSON text, decoded; else as it is."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            return decode(value.encode("utf-8", "replace"))
        except BrokenJson:
            return value
    return value


def _role_and_content(entry: Any) -> tuple[str, Any]:
    if isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str):
        name, content = entry
    elif isinstance(entry, dict):
        if entry.get("type") in ("function_call_output", "function_call", "reasoning"):
            return ("tool" if entry["type"] == "function_call_output" else "assistant"), ""
        name = entry.get("role") or entry.get("from") or entry.get("author") or ""
        if isinstance(name, dict):
            name = name.get("role", "")
        content = next(
            (entry[key] for key in ("content", "value", "text", "parts") if entry.get(key)), ""
        )
    else:
        raise BadRow(f"a message is {kind_of(entry)} instead of an object")
    role = ROLES.get(str(name).strip().lower())
    if role is None:
        raise BadRow("a message of an unknown role" if name else "a message without a role")
    return role, content


def kind_of(value: Any) -> str:
    """The JSON name of a value's type, for messages."""
    if value is None:
        return "null"
    names = {str: "a string", bool: "a boolean", list: "an array", dict: "an object"}
    return names.get(type(value), "a number")
