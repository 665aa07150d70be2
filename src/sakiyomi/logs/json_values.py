"""The entries of JSON text that does not fit into memory, found without parsing it. Pure.

Only brackets and strings are looked at; an entry is then decoded on its own, so that a broken one
costs itself and not the file.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

MAX_ENTRY_BYTES = 64 * 1024 * 1024
"""A longer entry is no request: a bracket or a quotation mark is missing somewhere."""

CONTAINERS = frozenset(
    {"data", "rows", "items", "records", "results", "logs", "spend_logs", "requests", "dataset"}
    | {"observations", "generations", "traces", "spans", "scopeLogs"}
)
"""Keys of an object that wraps a whole export; the elements of their arrays are the entries."""

NESTED = frozenset({"resourceSpans", "scopeSpans", "resourceLogs"})
"""OTLP/JSON: arrays whose objects wrap further arrays (OpenTelemetry protocol, JSON encoding).
A scope's log records stay together: several of them make one request."""

_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+("?)'
_TOKEN = re.compile(_STRING + rb"|[{}\[\]]|[^\s,:{}\[\]\"]+", re.DOTALL)
_BRACKET = re.compile(_STRING + rb"|[{}\[\]]", re.DOTALL)
_COLON = re.compile(rb"\s*+(:?)")


class BrokenJson(ValueError):  # noqa: N818 - a fact about a row, counted
    """Bytes that are no JSON value; the text says what is wrong with them."""


def decode(raw: bytes) -> Any:
    """Decode one JSON value. NaN, lone surrogates and control characters are let through.

    Raises BrokenJson.
    """
    try:
        return msgspec.json.decode(raw)
    except RecursionError:
        raise BrokenJson("nested too deeply") from None
    except msgspec.DecodeError as problem:
        reason = str(problem)
    try:
        # The standard library reads what Python's json.dumps writes: NaN, \ud800, ...
        text = json.dumps(json.loads(raw, strict=False), ensure_ascii=False)
        return json.loads(text.encode("utf-8", "replace"))
    except UnicodeDecodeError:
        raise BrokenJson("not UTF-8") from None
    except (ValueError, RecursionError):
        raise BrokenJson(f"not JSON ({reason})") from None


def split_lines(chunks: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers from 1, without their LF. A line over the limit is cut to it."""
    number, tail, too_long = 1, b"", False
    for chunk in chunks:
        lines = (tail + chunk).split(b"\n") if not too_long else chunk.split(b"\n")
        tail = lines.pop()
        for line in lines:
            if not too_long:
                yield number, line
            too_long = False
            number += 1
        if len(tail) > MAX_ENTRY_BYTES:
            yield number, tail
            tail, too_long = b"", True
        elif too_long:
            tail = b""
    if tail and not too_long:
        yield number, tail


def split_values(chunks: Iterable[bytes], *, wrapped: bool) -> Iterator[tuple[int, bytes]]:
    """Entries of a JSON array, of values one after another, or of a wrapping object.

    `wrapped`: an object at the top holds the entries in an array under one of CONTAINERS. Yields
    the line an entry starts on and its bytes; what the file's end cuts comes last, as it is.
    """
    yield from _Splitter(chunks, wrapped=wrapped).entries()


class _Splitter:
    """A window over the bytes: `position` is how far they are understood."""

    def __init__(self, chunks: Iterable[bytes], *, wrapped: bool) -> None:
        self._chunks = iter(chunks)
        self._wrapped = wrapped
        self._buffer = b""
        self._position = 0
        self._counted = 0
        self._line = 1
        self._key = ""

    def entries(self) -> Iterator[tuple[int, bytes]]:
        """Walk the brackets; `stack` says what is open: list, nest (of wrappers) or object."""
        stack: list[str] = []
        while token := self._next_token():
            start, text = token
            inside = stack[-1] if stack else "top"
            if text in (b"]", b"}"):
                del stack[-1:]
            elif opened := self._opens(text, inside):
                stack.append(opened)
            elif text in (b"[", b"{"):
                line = self._line_at(start)
                entry = self._take(start)
                if entry is None:
                    break
                if inside != "object":
                    yield line, entry
            elif inside == "object":
                self._key = self._key_of(text) or self._key
            else:
                yield self._line_at(start), text
        rest = self._buffer[self._position :].strip()
        if rest[:1] in (b"[", b"{", b'"'):
            yield self._line_at(self._position), rest[: MAX_ENTRY_BYTES + 1]

    def _opens(self, text: bytes, inside: str) -> str | None:
        """What a bracket opens that must be looked into; None: an entry, or nothing."""
        if text == b"[" and inside == "top":
            return "list"
        if text == b"[" and inside == "object":
            return "nest" if self._key in NESTED else "list" if self._key in CONTAINERS else None
        wraps = inside == "nest" or (inside == "top" and self._wrapped)
        return "object" if text == b"{" and wraps else None

    def _more(self, keep_from: int) -> bool:
        """Read on, at least as much again as is kept, so that rescanning stays linear."""
        line = self._line_at(keep_from)
        pieces = [self._buffer[keep_from:]]
        wanted, got = max(1, len(pieces[0])), 0
        for chunk in self._chunks:
            pieces.append(chunk)
            got += len(chunk)
            if got >= wanted:
                break
        self._buffer = b"".join(pieces)
        self._position = self._counted = 0
        self._line = line
        return got > 0

    def _next_token(self) -> tuple[int, bytes] | None:
        while True:
            match = _TOKEN.search(self._buffer, self._position)
            at_end = match is None or (
                match.end() == len(self._buffer) and match[0] not in (b"{", b"}", b"[", b"]")
            )
            if not at_end:
                assert match is not None
                self._position = match.end()
                return match.start(), match[0]
            start = match.start() if match else len(self._buffer)
            if len(self._buffer) - start > MAX_ENTRY_BYTES or not self._more(start):
                match = _TOKEN.match(self._buffer, self._position)
                if match is None or match[0][:1] == b'"':
                    return None
                self._position = match.end()
                return match.start(), match[0]

    def _take(self, start: int) -> bytes | None:
        """The bytes of the array or object that starts at `start`; None: it does not end."""
        scanned, depth = start, 0
        while True:
            for match in _BRACKET.finditer(self._buffer, scanned):
                text = match[0]
                if text in (b"{", b"["):
                    depth += 1
                elif text in (b"}", b"]"):
                    depth -= 1
                    if depth == 0:
                        self._position = match.end()
                        return self._buffer[start : self._position]
                elif not match[1]:  # a string that goes on
                    scanned = match.start()
                    break
                scanned = match.end()
            self._position = start
            scanned -= start
            if len(self._buffer) - start > MAX_ENTRY_BYTES or not self._more(start):
                return None
            start = 0

    def _key_of(self, text: bytes) -> str | None:
        if text[:1] != b'"':
            return None
        colon = _COLON.match(self._buffer, self._position)
        if colon and not colon[1] and colon.end() == len(self._buffer):
            self._more(self._position)
            colon = _COLON.match(self._buffer, self._position)
        return text[1:-1].decode("utf-8", "replace") if colon and colon[1] else None

    def _line_at(self, position: int) -> int:
        self._line += self._buffer.count(b"\n", self._counted, position)
        self._counted = position
        return self._line
