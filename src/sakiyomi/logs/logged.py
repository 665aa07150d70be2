"""A logged request, and the reading of what was sent to an API: its body. Pure."""

from collections.abc import Mapping
from typing import Any

import msgspec

from sakiyomi.logs.import_messages import BadRow, Prompt, make_prompt, read_messages, unpack
from sakiyomi.logs.log_times import Timing, as_count, as_number


class SamplingSeen(msgspec.Struct, frozen=True, kw_only=True):
    """The sampling parameters that a logged request carried; None where it had none."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    enable_thinking: bool | None = None


class Logged(msgspec.Struct, frozen=True, kw_only=True):
    """One logged request. `prompt` None: only its times and counts are of use.

    `conversation` with `is_turn`: rows of the same conversation are its turns, in their order.
    """

    format: str
    prompt: Prompt | None = None
    sampled: SamplingSeen = SamplingSeen()
    timing: Timing = Timing()
    model: str | None = None
    language: str | None = None
    category: str | None = None
    conversation: str | None = None
    is_turn: bool = False
    reason: str = ""
    """Why there is no prompt; counted as the row's reason for being skipped."""


def find_body(entry: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The part of an entry that is a request's body: the entry itself, or one of its wrappers."""
    if any(entry.get(key) for key in _PROMPT_KEYS):
        return entry
    for key in ("body", "request", "payload", "kwargs", "request_body", "requestBody", "input"):
        inner = unpack(entry.get(key))
        if isinstance(inner, dict) and (found := find_body(inner)) is not None:
            return found
    return None


_PROMPT_KEYS = ("messages", "prompt", "turns", "contents", "input", "question", "instruction")


def read_prompt(body: Mapping[str, Any]) -> Prompt:
    """The prompt of a request body: chat, completion, responses, Anthropic or Gemini."""
    system = body.get("system") or body.get("instructions") or body.get("systemInstruction")
    if not isinstance(body.get("instruction"), str):
        for key in ("messages", "contents", "input", "prompt"):
            value = unpack(body.get(key))
            if isinstance(value, dict) and value.get("messages"):
                return read_prompt(value)
            if isinstance(value, list) and value and not all(isinstance(v, str) for v in value):
                return _chat_prompt(value, system)
            if isinstance(value, list) and len(value) == 1:
                value = value[0]
            if isinstance(value, str) and value.strip():
                return make_prompt([value], system)
    if isinstance(body.get("turns"), list):
        return make_prompt([turn for turn in body["turns"] if isinstance(turn, str)], system)
    # Alpaca's instruction, what it is about in its input; question sets
    parts = (body.get("instruction"), body.get("input"), body.get("question"))
    text = "\n\n".join(part for part in parts if isinstance(part, str) and part)
    return make_prompt([text], system or body.get("system_prompt"))


def _chat_prompt(messages: list[Any], system: Any) -> Prompt:
    if all(isinstance(message, int) for message in messages):
        raise BadRow("a prompt of token ids")
    prompt = read_messages(messages)
    if not system or prompt.system:
        return prompt
    return make_prompt(prompt.turns, system, set(prompt.marks))


def read_sampled(body: Mapping[str, Any]) -> SamplingSeen:
    """Temperature, top_p, cap and thinking of a request body, where it names them."""
    extra = body.get("chat_template_kwargs") or (body.get("extra_body") or {})
    extra = extra.get("chat_template_kwargs", extra) if isinstance(extra, dict) else {}
    thinking = extra.get("enable_thinking")
    caps = ("max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens")
    return SamplingSeen(
        temperature=as_number(body.get("temperature"), 0.0, 5.0),
        top_p=as_number(body.get("top_p"), 1e-6, 1.0),
        max_tokens=next((n for key in caps if (n := as_count(body.get(key)))), None),
        enable_thinking=thinking if isinstance(thinking, bool) else None,
    )


def text_or_none(value: Any) -> str | None:
    """A non-empty string, else None."""
    return str(value) if isinstance(value, str | int) and str(value).strip() else None
