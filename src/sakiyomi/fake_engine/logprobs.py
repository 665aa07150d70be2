"""Logprobs as engines send them: each token with its rivals, from the scripted probabilities. Pure.

Three forms: OpenAI's chat form (vLLM 0.32, OpenAI), the old completions form (the same servers'
`/v1/completions`), and llama.cpp's (b11549: the chat form on both routes; a token that came with a
draft has no entry in a stream, and one without alternatives in a whole answer). The other dialects
send none.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from sakiyomi.fake_engine.config import FaultValue
from sakiyomi.fake_engine.tokens import Token, rival_texts, token_id

SENDERS = ("vllm", "openai", "llama.cpp")


class LogprobsForm(msgspec.Struct, frozen=True):
    """Which logprobs a request asks for, and in whose form."""

    dialect: str
    chat: bool
    num_alternatives: int


def read_logprobs(body: dict[str, Any], dialect: str, *, chat: bool) -> LogprobsForm | None:
    """Chat asks with a switch and a number, completions with the number alone."""
    asked = body.get("logprobs")
    if asked is None or asked is False:
        return None
    return LogprobsForm(dialect, chat, int(body.get("top_logprobs") or 0) if chat else int(asked))


def logprobs_of(
    tokens: Sequence[Token],
    form: LogprobsForm,
    faults: Mapping[str, FaultValue],
    *,
    whole: bool,
    offset: int = 0,
) -> dict[str, Any] | None:
    """What `choices[].logprobs` says of these tokens; None: nothing.

    `offset`: characters of the answer before them. `whole`: the answer is in one piece.
    """
    if form.dialect not in SENDERS or "logprobs_null" in faults:
        return None
    num_listed = min(form.num_alternatives, int(faults.get("top_logprobs_cap", 1000)))
    if form.dialect == "llama.cpp":
        content = [_llamacpp(token, num_listed) for token in _shown(tokens, whole=whole)]
        return {"content": content} if content else None
    every = int(faults.get("logprobs_every", 1))
    told = tokens[::every]
    if form.chat:
        return {"content": [_entry(token, num_listed) for token in told]}
    return _completion(told, num_listed + 1, offset)


def _shown(tokens: Sequence[Token], *, whole: bool) -> list[Token]:
    """llama.cpp streams the last token of an event, with the event's text, unless drafted."""
    if whole:
        return list(tokens)
    if not tokens or tokens[-1].drafted:
        return []
    last = tokens[-1]
    text = "".join(token.text for token in tokens)
    return [Token(last.token_id, text, last.reasoning, last.shares)]


def _entry(token: Token, num_listed: int) -> dict[str, Any]:
    return {
        "token": token.text,
        "logprob": math.log(token.shares[0]),
        "bytes": list(token.text.encode()),
        "top_logprobs": [
            {"token": text, "logprob": math.log(share), "bytes": list(text.encode())}
            for text, share in _alternatives(token)[:num_listed]
        ],
    }


def _llamacpp(token: Token, num_listed: int) -> dict[str, Any]:
    entry = {"id": token.token_id} | _entry(token, num_listed)
    if token.drafted:
        return entry | {"logprob": 0.0, "top_logprobs": []}
    options = [{"id": token_id(option["token"])} | option for option in entry["top_logprobs"]]
    return entry | {"top_logprobs": options}


def _completion(tokens: Sequence[Token], num_listed: int, offset: int) -> dict[str, Any]:
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.text)
    return {
        "text_offset": offsets,
        "token_logprobs": [math.log(token.shares[0]) for token in tokens],
        "tokens": [token.text for token in tokens],
        "top_logprobs": [
            {text: math.log(share) for text, share in _alternatives(token)[:num_listed]}
            for token in tokens
        ],
    }


def _alternatives(token: Token) -> list[tuple[str, float]]:
    texts = [token.text, *rival_texts(token, len(token.shares) - 1)]
    return list(zip(texts, token.shares, strict=True))
