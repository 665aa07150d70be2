"""The answer of one streamed request: what it is, when to give up on it, why it failed."""

import asyncio
from http import HTTPStatus

import msgspec

from sakiyomi.chunk import error_text
from sakiyomi.connection import Clock, Exchange
from sakiyomi.record import RequestError
from sakiyomi.stream import TokenStream
from sakiyomi.urls import api_root

END_GRACE_S = 1.0
"""How long to wait for the end of a body whose stream has said `[DONE]`."""

MAX_DOCUMENT_BYTES = 64 * 1024 * 1024
"""A document larger than this is no answer."""


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Separate limits. `silence_s`: after the first token, without anything but keep-alives."""

    connect_s: float = 10.0
    first_token_s: float = 600.0
    silence_s: float = 120.0


class Answer:
    """The answer of one streamed request: a stream of tokens, or a document instead of it."""

    def __init__(self, url: str, tokens: TokenStream, timeouts: Timeouts, clock: Clock) -> None:
        self.url = url
        self.tokens = tokens
        self.exchange = Exchange(self._take_first)
        self.sent_at_s = 0.0
        self.closed_at_s = 0.0
        self.connect_s = 0.0
        self.met_closed_connection = False
        self._timeouts = timeouts
        self._clock = clock
        self._document: bytearray | None = None
        self._head = b""
        self._timer: asyncio.TimerHandle | None = None

    def _take_first(self, data: bytes) -> None:
        """The first bytes tell what this is; the Content-Type may lie (a JSON body as a stream)."""
        exchange = self.exchange
        self._head += data
        start = self._head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
        if not start:
            return
        if exchange.status >= 300 or start in b'{[<"':
            self._document = bytearray()
            exchange.take = self._take_document
        else:
            exchange.take = self._take_events
        exchange.take(self._head)
        self._head = self._head[:300]

    def _take_document(self, data: bytes) -> None:
        assert self._document is not None
        self._document += data
        if len(self._document) > MAX_DOCUMENT_BYTES:
            self.exchange.stop(RequestError(kind="not_a_stream", message="the answer has no end"))

    def _take_events(self, data: bytes) -> None:
        tokens = self.tokens
        tokens.feed(data, self.exchange.at_s)
        if tokens.is_over:
            self.exchange.take = self._take_rest
            asyncio.get_running_loop().call_later(END_GRACE_S, self.exchange.end, "stopped")

    def _take_rest(self, data: bytes) -> None:
        """What follows the end mark; an error's text may be followed by usage."""
        self.tokens.feed(data, self.exchange.at_s)

    def watch(self) -> None:
        """Look at the limits now and then: a timer an event would cost more than the event."""
        now_s = self._clock()
        limits, tokens = self._timeouts, self.tokens
        if tokens.event_at_s:
            name, limit_s = "silence_s", limits.silence_s
            since_s = tokens.last_chunk_at_s or self.sent_at_s
            what = f"nothing but silence or keep-alives after {len(tokens.event_at_s)} events for"
        else:
            name, limit_s, since_s = "first_token_s", limits.first_token_s, self.sent_at_s
            what = "no token within"
        remaining_s = since_s + limit_s - now_s
        if remaining_s <= 0:
            self.exchange.stop(
                RequestError(
                    kind="silence_timeout" if name == "silence_s" else "first_token_timeout",
                    message=f"{what} {name} = {limit_s:g} s",
                )
            )
            return
        delay_s = max(0.001, min(remaining_s, limits.silence_s / 8))
        self._timer = asyncio.get_running_loop().call_later(delay_s, self.watch)

    def unwatch(self) -> None:
        """The answer ended."""
        if self._timer is not None:
            self._timer.cancel()

    def close(self) -> RequestError | None:
        """Why the request failed; None when the answer is complete."""
        exchange, tokens = self.exchange, self.tokens
        is_whole = exchange.ending == "complete" or tokens.is_over
        self.closed_at_s = exchange.at_s if is_whole else self._clock()
        if exchange.status >= 300:
            return self._status_error()
        if self._document is not None:
            return self._document_error(bytes(self._document))
        tokens.close()
        if tokens.error is not None:
            return tokens.error
        if exchange.error is not None and not tokens.is_complete:
            return exchange.error
        return None if tokens.is_complete else self._cut_error()

    def _cut_error(self) -> RequestError:
        exchange, tokens = self.exchange, self.tokens
        after = f"after {len(tokens.event_at_s)} token events"
        if exchange.ending == "reset" or not exchange.status:
            why = exchange.cause or "closed by the server before any answer"
            return RequestError(kind="reset", message=f"the connection was reset {after}: {why}")
        if tokens.is_empty and self._head.strip():
            return self._document_error(self._head)
        return RequestError(
            kind="truncated",
            message=f"the stream ended {after} without finish_reason or [DONE]",
            status=exchange.status,
        )

    def _document_error(self, data: bytes) -> RequestError:
        """A document with status 200 where a stream was asked for."""
        kind = self.exchange.headers.get("content-type", "no content type")
        if self.tokens.take_document(data.removeprefix(b"\xef\xbb\xbf")) and self.tokens.error:
            return self.tokens.error
        return RequestError(
            kind="not_a_stream",
            message=f"asked for a stream, got {kind}: {_excerpt(data)}",
            status=self.exchange.status,
        )

    def _status_error(self) -> RequestError:
        exchange = self.exchange
        data = bytes(self._document or b"")
        try:
            text = error_text(msgspec.json.decode(data))
        except (msgspec.DecodeError, UnicodeDecodeError):
            text = _excerpt(data)
        known = {status.value: status.phrase for status in HTTPStatus}
        where = ""
        if exchange.status == HTTPStatus.NOT_FOUND:
            where = f" (POST {self.url}; the base URL is the server's root: {api_root(self.url)})"
        elif "location" in exchange.headers:
            where = f" (to {exchange.headers['location']}: give that URL)"
        return RequestError(
            kind="http_status",
            status=exchange.status,
            message=f"HTTP {exchange.status} {known.get(exchange.status, '')}: {text}{where}",
        )


def _excerpt(data: bytes) -> str:
    """The beginning of what came, on one line."""
    return " ".join(data[:2000].decode("utf-8", "replace").split())[:500]
