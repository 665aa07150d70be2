"""One HTTP/1.1 connection whose instants are taken as bytes arrive, before anything reads them."""

import asyncio
import errno
import os
import socket
import ssl
import zlib
from collections.abc import Callable
from typing import Literal

import httptools

from sakiyomi.errors import SakiyomiError
from sakiyomi.record import ErrorKind, RequestError
from sakiyomi.urls import Address

Ending = Literal["complete", "cut", "reset", "stopped"]
"""How an answer ended: whole; closed too early; reset; given up on this side."""

HAPPY_EYEBALLS_DELAY_S = 0.25
"""When the next address is tried beside the first (RFC 8305, section 5)."""

Clock = Callable[[], float]


class ConnectFailure(SakiyomiError):  # noqa: N818 - a failure is data, and kept
    """No connection: its kind, what happened, and what to try."""

    def __init__(self, kind: ErrorKind, message: str, hint: str) -> None:
        super().__init__(message, hint)
        self.kind = kind


class Exchange:
    """A request that was sent and the answer as it arrives: the callbacks of httptools' parser.

    `take` gets the body's bytes, decompressed; `at_s` is the instant at which they arrived.
    """

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self.take = take
        self.status = 0
        self.headers: dict[str, str] = {}
        self.first_byte_at_s: float | None = None
        self.at_s = 0.0
        self.keeps_alive = False
        self.ending: Ending | None = None
        self.cause = ""
        self.error: RequestError | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.parser = httptools.HttpResponseParser(self)
        self._inflate: Callable[[bytes], bytes] | None = None

    def on_message_begin(self) -> None:
        """A new head: after `100 Continue` comes another."""
        self.headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header line."""
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self.status = self.parser.get_status_code()
        self.keeps_alive = self.parser.should_keep_alive()
        encoding = self.headers.get("content-encoding", "identity").strip().lower()
        if encoding in ("gzip", "x-gzip", "deflate"):
            self._inflate = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32).decompress
        elif encoding not in ("identity", ""):
            self.stop(
                RequestError(
                    kind="not_a_stream",
                    message=f"the answer is compressed with {encoding!r} although none was asked "
                    "for: turn compression off in the proxy",
                )
            )

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        if self._inflate is not None:
            try:
                body = self._inflate(body)
            except zlib.error as error:
                self.stop(RequestError(kind="malformed", message=f"broken compression: {error}"))
                return
        self.take(body)

    def on_message_complete(self) -> None:
        """The answer is whole; heads of status 1xx only announce it."""
        if self.status >= 200:
            self.end("complete")

    def end(self, ending: Ending, cause: str = "") -> None:
        """Let the one who waits go on. The first ending counts."""
        if self.ending is None:
            self.ending, self.cause = ending, cause
            if not self.ended.done():
                self.ended.set_result(None)

    def stop(self, error: RequestError | None = None) -> None:
        """Give up on the answer."""
        if self.ending is None:
            self.error = error
        self.end("stopped")

    def is_framed(self) -> bool:
        """Whether the head says where the body ends; else it ends with the connection."""
        return "content-length" in self.headers or "transfer-encoding" in self.headers


class Connection(asyncio.Protocol):
    """A connection to one origin; it carries one exchange at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._exchange: Exchange | None = None
        self._transport: asyncio.Transport | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.idle_since_s = clock()
        self.num_exchanges = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Called by the loop with the bytes of one read."""
        at_s = self._clock()
        exchange = self._exchange
        if exchange is None or exchange.ending is not None:
            self.abort()  # bytes that nobody asked for
            return
        if exchange.first_byte_at_s is None:
            exchange.first_byte_at_s = at_s
        exchange.at_s = at_s
        try:
            exchange.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            exchange.stop(RequestError(kind="not_a_stream", message="the server changed protocol"))
        except httptools.HttpParserError as error:
            exchange.stop(RequestError(kind="malformed", message=f"this is no HTTP: {error}"))

    def eof_received(self) -> None:
        """Called by the loop; returning None closes the transport."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop, once."""
        exchange = self._exchange
        if exchange is not None and exchange.ending is None:
            if exc is None and exchange.status and not exchange.is_framed():
                exchange.end("complete")
            else:
                exchange.at_s = self._clock()
                exchange.end("cut" if exc is None else "reset", str(exc or ""))
        if not self.closed.done():
            self.closed.set_result(None)

    @property
    def is_open(self) -> bool:
        """Whether a request could be written."""
        return self._transport is not None and not (
            self._transport.is_closing() or self.closed.done()
        )

    def send(self, exchange: Exchange, request: bytes) -> None:
        """Write a request; its answer goes to the exchange."""
        assert self._transport is not None
        self._exchange = exchange
        self.num_exchanges += 1
        self._transport.write(request)

    def release(self) -> bool:
        """Detach the exchange; whether the connection can carry another one."""
        exchange, self._exchange = self._exchange, None
        self.idle_since_s = self._clock()
        reusable = (
            exchange is not None
            and exchange.ending == "complete"
            and exchange.keeps_alive
            and self.is_open
        )
        if not reusable:
            self.abort()
        return bool(reusable)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()


async def open_connection(
    address: Address, clock: Clock, tls: ssl.SSLContext | None, limit_s: float
) -> Connection:
    """Connect, trying a name's addresses side by side. Raises ConnectFailure."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(limit_s):
            _, connection = await loop.create_connection(
                lambda: Connection(clock),
                address.host,
                address.port,
                ssl=tls if address.scheme == "https" else None,
                happy_eyeballs_delay=HAPPY_EYEBALLS_DELAY_S,
            )
    except TimeoutError as error:
        raise ConnectFailure(
            "connect_timeout",
            f"no connection to {address.authority} within connect_s = {limit_s:g} s",
            "is the host right, does a firewall drop the packets, does the port speak "
            f"{address.scheme}?",
        ) from error
    except ssl.SSLError as error:
        raise _tls_failure(address, error) from error
    except (ConnectionResetError, ConnectionAbortedError) as error:
        if address.scheme == "https":  # what a plain HTTP server does with a TLS greeting
            raise _no_tls(address, "the server closed the connection") from error
        raise _connect_failure(address, error) from error
    except OSError as error:
        raise _connect_failure(address, error) from error
    return connection


def _tls_failure(address: Address, error: ssl.SSLError) -> ConnectFailure:
    """A certificate that is not trusted, or no TLS at all."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return ConnectFailure(
            "tls",
            f"the certificate of {address.authority} is not trusted: {error.verify_message}",
            "give the file of its authority with --ca-file, use the name that the certificate "
            "was made for, or turn the check off with --insecure",
        )
    return _no_tls(address, error.reason or str(error))


def _no_tls(address: Address, reason: str) -> ConnectFailure:
    return ConnectFailure(
        "tls",
        f"no TLS with {address.authority}: {reason}",
        f"does it speak plain HTTP? Then write http://{address.authority}",
    )


def _connect_failure(address: Address, error: OSError) -> ConnectFailure:
    if isinstance(error, socket.gaierror):
        return ConnectFailure(
            "connect",
            f"the name {address.host!r} leads nowhere: {error.strerror}",
            "is it spelled right, and known on this machine?",
        )
    if error.errno == errno.EMFILE:
        return ConnectFailure(
            "connect",
            f"no connection to {address.authority}: too many open files",
            "raise the limit (ulimit -n) above the concurrency",
        )
    reason = os.strerror(error.errno).lower() if error.errno else str(error)
    return ConnectFailure(
        "connect",
        f"no connection to {address.authority}: {reason}",
        "is the server running, and does it listen on this host and port?",
    )
