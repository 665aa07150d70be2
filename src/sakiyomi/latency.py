"""A record -> its times and rates, by the formulas of the contract. Pure.

What cannot be measured is None, with the reason under its name: never 0, never a guess.
"""

from itertools import pairwise
from typing import Any, Literal

import msgspec

from sakiyomi.buffering import buffering, outran_server
from sakiyomi.record import RequestRecord
from sakiyomi.speech import characters_per_s as speaking_pace
from sakiyomi.speech import first_sentence_at_s, speech_margin_s

HELD_BACK_SHARE = 0.2
"""Share of the tokens that no event carried from which the gaps are called unreliable."""

MIN_SERVER_SHARE = 0.5
"""A server's decode time below this share of the client's cannot be right."""


class RequestLatency(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds. `reasons`: for each quantity that is None, why.

    `e2e_s`: request sent to the last token-bearing event. `tokens`: whether the server counted
    `num_tokens`, or they are the events (a lower bound). `first_event_assumed`: nobody said how
    many tokens the first event holds, one is assumed. `buffered`: something between held the
    stream back. `tool_call_at_once`: the server's parser did, the whole answer is a tool call.
    `server_decode_tokens_per_s`: what the server's own timings say, where they are plausible.
    """

    ttft_s: float | None = None
    time_to_answer_s: float | None = None
    time_to_first_sentence_s: float | None = None
    decode_tokens_per_s: float | None = None
    tpot_s: float | None = None
    inter_event_s: list[float] = []
    tokens_per_event: float | None = None
    e2e_s: float | None = None
    send_lag_s: float = 0.0
    num_tokens: int | None = None
    tokens: Literal["server", "estimated"] = "server"
    first_event_tokens: int | None = None
    first_event_assumed: bool = False
    buffered: bool = False
    tool_call_at_once: bool = False
    speech_margin_s: float | None = None
    server_decode_tokens_per_s: float | None = None
    reasons: dict[str, str] = {}
    notes: tuple[str, ...] = ()


def measure(
    record: RequestRecord, *, language: str | None = None, characters_per_s: float | None = None
) -> RequestLatency:
    """All quantities of one request; of a failed one, those of the part that arrived."""
    reasons: dict[str, str] = {}
    notes: list[str] = []
    num_tokens, tokens = _num_tokens(record)
    fields: dict[str, Any] = {
        "send_lag_s": record.sent_at_s - record.key.scheduled_at_s,
        "num_tokens": num_tokens,
        "tokens": tokens,
    }
    if not record.event_at_s:
        for name in ("ttft_s", "e2e_s", "time_to_answer_s", "time_to_first_sentence_s"):
            reasons[name] = "no token arrived"
        for name in ("decode_tokens_per_s", "tpot_s", "inter_event_s"):
            reasons[name] = "no token arrived"
        return RequestLatency(**fields, reasons=reasons)
    fields["e2e_s"] = record.event_at_s[-1] - record.sent_at_s
    fields["tokens_per_event"] = num_tokens / len(record.event_at_s) if num_tokens else None
    if tokens == "estimated":
        notes.append("the server sent no usage: events are counted, a lower bound of the tokens")
    first, assumed = _first_event_tokens(record, num_tokens, notes)
    fields |= {"first_event_tokens": first, "first_event_assumed": assumed}
    buffered = buffering(
        record.event_at_s, num_tokens or 0, record.event_step_mark, record.event_tokens
    ) or outran_server(record)
    one_call = set(record.event_kind) == {"tool"}
    if one_call and len(record.event_at_s) == 1 and (num_tokens or 0) > 1:
        buffered = "one event"
    if buffered is not None:
        found = RequestLatency(**fields, reasons=reasons, notes=tuple(notes))
        return _tool_call_at_once(found) if one_call else held_back(found, buffered)
    fields["ttft_s"] = record.event_at_s[0] - record.sent_at_s
    fields |= _answer(record, language, characters_per_s, reasons, notes)
    fields |= _rates(record, num_tokens, first, reasons, notes)
    return RequestLatency(**fields, reasons=reasons, notes=tuple(notes))


def held_back(latency: RequestLatency, how: str) -> RequestLatency:
    """The same without the times that a buffer on the way spoils."""
    found = _without_times(latency, f"not measurable: stream buffered ({how})")
    return msgspec.structs.replace(found, buffered=True)


def _tool_call_at_once(latency: RequestLatency) -> RequestLatency:
    """The same without the times that a parser spoils which waits for the end of a tool call."""
    found = _without_times(latency, "not measurable: the whole answer is one tool call, sent whole")
    return msgspec.structs.replace(found, tool_call_at_once=True)


def _without_times(latency: RequestLatency, reason: str) -> RequestLatency:
    """Only `e2e_s` stays."""
    spoiled = (
        *("ttft_s", "time_to_answer_s", "time_to_first_sentence_s", "speech_margin_s"),
        *("decode_tokens_per_s", "tpot_s"),
    )
    return msgspec.structs.replace(
        latency,
        inter_event_s=[],
        reasons={**latency.reasons, **dict.fromkeys((*spoiled, "inter_event_s"), reason)},
        **dict.fromkeys(spoiled),
    )


def _num_tokens(record: RequestRecord) -> tuple[int | None, Literal["server", "estimated"]]:
    """The server's count: its usage, or its ids added up; else the events, a lower bound."""
    counted = [count for count in record.event_tokens if count is not None]
    if record.completion_tokens or (record.completion_tokens == 0 and not record.event_at_s):
        return record.completion_tokens, "server"
    if not record.event_at_s:
        return None, "server"
    if len(counted) == len(record.event_at_s) and sum(counted) > 0:
        return sum(counted), "server"
    return len(record.event_at_s), "estimated"


def _first_event_tokens(
    record: RequestRecord, num_tokens: int | None, notes: list[str]
) -> tuple[int, bool]:
    """Tokens in the first token-bearing event; one is assumed where nobody says."""
    first = record.event_tokens[0] if record.event_tokens else None
    if first is None:
        if num_tokens and num_tokens > len(record.event_at_s):
            notes.append("one token assumed in the first event")
        return 1, True
    if num_tokens is not None and first > num_tokens:
        notes.append(
            f"the first event is said to hold {first} tokens, the whole answer {num_tokens}: "
            "one token assumed in the first event"
        )
        return 1, True
    return first, False


def _answer(
    record: RequestRecord,
    language: str | None,
    characters_per_s: float | None,
    reasons: dict[str, str],
    notes: list[str],
) -> dict[str, float | None]:
    """Times of the answer's text, which starts after the reasoning."""
    pieces = answer_pieces(record)
    if not pieces:
        reason = "no answer text"
        if "reasoning" in record.event_kind or "answer" in record.event_kind:
            reason = "no answer text: the answer ended while thinking"
            if record.finish_reason == "length":
                reason = "no answer text: limit reached while thinking"
                notes.append(f"{reason} (raise max_tokens or turn thinking off)")
        for name in ("time_to_answer_s", "time_to_first_sentence_s", "speech_margin_s"):
            reasons[name] = reason
        return {}
    if len(pieces) < record.event_kind.count("answer"):
        notes.append("the reasoning came as answer text: the server parses no <think>")
    sentence_at_s = first_sentence_at_s(pieces)
    assert sentence_at_s is not None
    pace = characters_per_s or speaking_pace("".join(text for _, text in pieces), language)
    return {
        "time_to_answer_s": pieces[0][0] - record.sent_at_s,
        "time_to_first_sentence_s": sentence_at_s - record.sent_at_s,
        "speech_margin_s": speech_margin_s(pieces, sentence_at_s, pace),
    }


def answer_pieces(record: RequestRecord) -> list[tuple[float, str]]:
    """(arrival, text) of the answer; reasoning that came as `<think>` text is left out."""
    pieces = [
        (at_s, text)
        for at_s, kind, text in zip(
            record.event_at_s, record.event_kind, record.event_text, strict=True
        )
        if kind == "answer" and text
    ]
    text = "".join(text for _, text in pieces)
    end = text.find("</think>")
    if end < 0:
        return [] if text.lstrip().startswith("<think>") else pieces
    if "<think>" in text[:end] and not text.lstrip().startswith("<think>"):
        return pieces  # an answer that speaks of the tag
    rest = len(text) - len(text[end + len("</think>") :].lstrip())
    answer = []
    for at_s, piece in pieces:
        if len(piece) > rest:
            answer.append((at_s, piece[rest:]))
        rest = max(0, rest - len(piece))
    return answer


def _rates(
    record: RequestRecord,
    num_tokens: int | None,
    first: int,
    reasons: dict[str, str],
    notes: list[str],
) -> dict[str, Any]:
    """(completion_tokens - tokens in the first event) / (last event - first event)."""
    at_s = record.event_at_s
    span_s = at_s[-1] - at_s[0]
    fields: dict[str, Any] = {
        "inter_event_s": [after - before for before, after in pairwise(at_s)],
        "server_decode_tokens_per_s": _server_rate(record.evidence.get("timings"), span_s, notes),
    }
    counted = sum(count for count in record.event_tokens if count is not None)
    if num_tokens and None not in record.event_tokens:
        missing = num_tokens - counted
        if missing > max(2, HELD_BACK_SHARE * num_tokens):
            notes.append(
                f"inter_event_s unreliable: {missing} of {num_tokens} tokens were in no event "
                "(a parser held them back)"
            )
    reason = ""
    if not num_tokens or num_tokens < 2:
        reason = "a single token has no rate"
    elif len(at_s) < 2:
        reason = f"all {num_tokens} tokens came in one event"
    elif span_s <= 0:
        reason = "no time between the first and the last event"
    elif num_tokens <= first:
        reason = "no token after the first event"
    else:
        rate = (num_tokens - first) / span_s
        return fields | {"decode_tokens_per_s": rate, "tpot_s": 1 / rate}
    reasons["decode_tokens_per_s"] = reasons["tpot_s"] = reason
    return fields


def _server_rate(timings: Any, span_s: float, notes: list[str]) -> float | None:
    """llama.cpp's own decode rate, (predicted_n - 1) / predicted_ms, where it can be true."""
    if not isinstance(timings, dict):
        return None
    count, milliseconds = timings.get("predicted_n"), timings.get("predicted_ms")
    if not isinstance(count, int | float) or not isinstance(milliseconds, int | float):
        return None
    if count < 2 or span_s <= 0:
        return None
    if milliseconds <= 0 or milliseconds / 1000 < MIN_SERVER_SHARE * span_s:
        notes.append(
            f"the server's decode time of {milliseconds:g} ms is ignored: the tokens took "
            f"{span_s * 1000:.0f} ms to arrive"
        )
        return None
    return float((count - 1) * 1000 / milliseconds)
