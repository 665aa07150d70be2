"""Logprobs that came with an answer: where their tokens stand, how uncertain each one was. Pure."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from sakiyomi.record import RequestRecord


class Uncertainty(msgspec.Struct, frozen=True):
    """Of one token, in nats. `unlisted`: the probability that no listed alternative holds.

    `entropy` is at least this large: no unlisted token is likelier than the last listed one, so
    the unlisted probability counts as that many tokens of its size, or as one where it is smaller.
    """

    entropy: float
    surprisal: float
    unlisted: float


class PlacedToken(msgspec.Struct, frozen=True):
    """A token that is known to be this stretch of the answer."""

    offset: int
    text: str
    entry: Mapping[str, Any]


def entries(record: RequestRecord) -> list[dict[str, Any]]:
    """The tokens as the server listed them; empty where it listed none."""
    found = record.evidence.get("logprobs")
    return [e for e in found if isinstance(e, dict)] if isinstance(found, list) else []


def uncertainty(entry: Mapping[str, Any]) -> Uncertainty | None:
    """From one token's entry; None where nothing but the token itself is listed."""
    chosen = entry.get("logprob")
    options = [(o.get("token"), o.get("logprob")) for o in entry.get("top_logprobs") or ()]
    listed = [(token, float(v)) for token, v in options if isinstance(v, int | float) and v <= 0]
    if not isinstance(chosen, int | float) or len(listed) < 2:
        return None
    shares = [math.exp(value) for _, value in listed]
    unlisted = max(0.0, 1 - math.fsum(shares))
    entropy = -math.fsum(p * value for p, (_, value) in zip(shares, listed, strict=True))
    if unlisted > 1e-9:
        # the token itself is listed however unlikely it was: it bounds nothing
        last = min((v for t, v in listed if t != entry.get("token")), default=0.0)
        entropy -= unlisted * min(last, math.log(unlisted))
    return Uncertainty(entropy, max(0.0, -float(chosen)), unlisted)


def placed_tokens(record: RequestRecord) -> list[PlacedToken]:
    """The tokens of an answer whose place in its text is certain.

    A character cut into tokens is left out: its text comes with the last of them, and engines
    show the others as nothing (vLLM) or drop their entries (llama.cpp).
    """
    told, counts = entries(record), record.event_tokens
    if counts and len(told) == sum(n or 0 for n in counts):
        sizes = [n or 0 for n in counts]
    elif counts and len(told) == len(counts):
        sizes = [1] * len(counts)
    else:
        return _by_text(told, "".join(record.event_text))
    found: list[PlacedToken] = []
    offset = at = 0
    is_held = False
    for text, num_tokens, size in zip(record.event_text, counts, sizes, strict=True):
        mine = told[at : at + size]
        if text and not is_held:
            if num_tokens == 1 and mine:
                found.append(PlacedToken(offset, text, mine[0]))
            elif size > 1:
                found += _within(mine, text, offset)
        is_held = not text and (is_held or size > 0)
        at += size
        offset += len(text)
    return found


def _within(told: Sequence[Mapping[str, Any]], text: str, offset: int) -> list[PlacedToken]:
    """The tokens of one event, where their texts together are its text."""
    found = _by_text(told, text)
    if sum(len(token.text) for token in found) < len(text):
        return []
    return [PlacedToken(offset + token.offset, token.text, token.entry) for token in found]


def _by_text(told: Sequence[Mapping[str, Any]], text: str) -> list[PlacedToken]:
    """One after another, until one's text is not what follows."""
    found: list[PlacedToken] = []
    offset = 0
    for entry in told:
        token = str(entry.get("token") or "")
        if not token or not text.startswith(token, offset):
            break
        found.append(PlacedToken(offset, token, entry))
        offset += len(token)
    return found
