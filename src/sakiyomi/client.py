"""HTTP: stream a request into a record, fetch a page. No retries, no hidden waiting.

A failed request is data: its record tells what failed and keeps what arrived.
"""

import asyncio
import time
from types import TracebackType
from typing import Any, Self
from urllib.parse import urljoin

import msgspec

from sakiyomi import __version__
from sakiyomi.answer import Answer, Timeouts
from sakiyomi.api_key import ApiKey
from sakiyomi.connection import Clock, ConnectFailure, Exchange
from sakiyomi.connection_pool import ConnectionPool
from sakiyomi.errors import EngineError
from sakiyomi.record import RequestError, RequestKey, RequestRecord
from sakiyomi.stream import TokenStream
from sakiyomi.urls import Address, same_host, split_url

__all__ = ["Client", "Response", "Timeouts"]

HUNG_UP_S = 0.1
"""A kept connection that closes this soon after a request, without a byte, was closed before it
(RFC 9112, section 9.3.1). Then, and only then, the request goes out on a new one; the time until
that is in `connect_s`."""

MAX_REDIRECTS = 3


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A page as it came. `at_s`: when it was complete. Header names are in lower case."""

    url: str
    status: int
    headers: dict[str, str]
    body: bytes
    at_s: float

    @property
    def text(self) -> str:
        """The body as UTF-8, a BOM included."""
        return self.body.decode("utf-8", "replace")


class Client:
    """Connections to any number of servers, and how long to wait for them.

    `api_key` goes to the host of `api_url` alone; without `api_url` that is the host which is
    asked first.
    """

    def __init__(
        self,
        *,
        timeouts: Timeouts = Timeouts(),  # noqa: B008 - frozen
        ca_file: str | None = None,
        insecure: bool = False,
        api_key: str | None = None,
        api_url: str | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._timeouts = timeouts
        self._key = ApiKey(api_key)
        self._api_url = api_url
        self._clock = clock
        self._pool = ConnectionPool(clock, timeouts.connect_s, ca_file=ca_file, insecure=insecure)
        self._running: dict[Exchange, str] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection."""
        await self._pool.close()

    def abort(self, request_id: str | None = None) -> int:
        """Give up on the running request of this id, or on all: their records say `cancelled`."""
        chosen = [
            exchange
            for exchange, running_id in self._running.items()
            if request_id is None or running_id == request_id
        ]
        for exchange in chosen:
            exchange.stop(RequestError(kind="cancelled", message="given up by the client"))
        return len(chosen)

    async def preopen(self, url: str, num_connections: int) -> float:
        """Have this many connections open; the seconds it took. Raises EngineError."""
        address = self._address(url)
        started_at_s = self._clock()
        try:
            await self._pool.fill(address, num_connections)
        except ConnectFailure as error:
            raise EngineError(f"{url}: {error.message}", error.hint) from error
        return self._clock() - started_at_s

    async def stream(
        self,
        url: str,
        body: dict[str, Any],
        key: RequestKey,
        *,
        tokens_per_event: int | None = None,
    ) -> RequestRecord:
        """POST the body and read the answer's events. Raises for no failure of the request.

        `tokens_per_event`: 1 for an engine whose every event is one token.
        """
        address = self._address(url)
        request = self._request("POST", url, address, msgspec.json.encode(body))
        started_at_s = self._clock()
        answer = Answer(url, TokenStream(tokens_per_event), self._timeouts, self._clock)
        try:
            await self._exchange(address, request, answer, key.request_id)
            if answer.met_closed_connection:  # the server had hung up: nothing was sent yet
                answer = Answer(url, TokenStream(tokens_per_event), self._timeouts, self._clock)
                await self._exchange(address, request, answer, key.request_id, reuse=False)
                answer.connect_s = answer.sent_at_s - started_at_s
        except ConnectFailure as error:
            answer.sent_at_s, answer.closed_at_s = started_at_s, self._clock()
            refusal = RequestError(kind=error.kind, message=f"{error.message}; {error.hint}")
            return self._record(answer, key, body, refusal)
        failure = answer.close()
        return self._record(answer, key, body, failure)

    async def fetch(
        self,
        url: str,
        *,
        method: str = "GET",
        body: dict[str, Any] | None = None,
        timeout_s: float = 30.0,
    ) -> Response:
        """A page, whatever its HTTP status, over a connection of its own.

        Raises EngineError when none came: the URL, the reason, the remedy.
        """
        payload = None if body is None else msgspec.json.encode(body)
        try:
            async with asyncio.timeout(timeout_s):
                for _ in range(MAX_REDIRECTS + 1):
                    response = await self._fetch_once(url, method, payload)
                    target = response.headers.get("location")
                    if response.status not in (301, 302, 303, 307, 308) or not target:
                        return response
                    url = urljoin(url, target)
        except TimeoutError as error:
            raise EngineError(
                f"{url} did not answer within {timeout_s:g} s", "is the server busy or starting?"
            ) from error
        except ConnectFailure as error:
            raise EngineError(f"{url}: {error.message}", error.hint) from error
        raise EngineError(f"{url}: more than {MAX_REDIRECTS} redirects", "give the final URL")

    async def _fetch_once(self, url: str, method: str, payload: bytes | None) -> Response:
        address = self._address(url)
        connection = await self._pool.open(address)
        pieces: list[bytes] = []
        exchange = Exchange(pieces.append)
        connection.send(exchange, self._request(method, url, address, payload, close=True))
        try:
            await exchange.ended
        finally:
            self._pool.discard(connection)
        if exchange.ending != "complete":
            reason = exchange.error.message if exchange.error else exchange.cause
            raise EngineError(
                f"{url}: the connection closed before the answer was complete"
                + (f": {reason}" if reason else ""),
                "look at the server's log; is this an HTTP port?",
            )
        return Response(
            url=url,
            status=exchange.status,
            headers={
                name: self._key.hide(value.encode()).decode()
                for name, value in exchange.headers.items()
            },
            body=self._key.hide(b"".join(pieces)),
            at_s=exchange.at_s,
        )

    def _address(self, url: str) -> Address:
        address = split_url(url)
        if self._api_url is None:
            self._api_url = url
        return address

    async def _exchange(
        self,
        address: Address,
        request: bytes,
        answer: Answer,
        request_id: str,
        *,
        reuse: bool = True,
    ) -> None:
        """Send a request and wait until its answer ends, one way or another."""
        if not reuse:
            self._pool.drop_idle(address)
        connection, answer.connect_s = await self._pool.acquire(address)
        exchange = answer.exchange
        self._running[exchange] = request_id
        answer.sent_at_s = self._clock()
        connection.send(exchange, request)
        answer.watch()
        try:
            await exchange.ended
        except asyncio.CancelledError:
            connection.abort()
            raise
        finally:
            answer.unwatch()
            del self._running[exchange]
            answer.met_closed_connection = (
                connection.num_exchanges > 1
                and exchange.first_byte_at_s is None
                and exchange.ending in ("cut", "reset")
                and self._clock() - answer.sent_at_s < HUNG_UP_S
            )
            self._pool.release(address, connection)

    def _request(
        self, method: str, url: str, address: Address, payload: bytes | None, *, close: bool = False
    ) -> bytes:
        """Head and body of a request."""
        lines = [
            f"{method} {address.target} HTTP/1.1",
            f"Host: {address.authority}",
            f"User-Agent: sakiyomi/{__version__}",
            "Accept: */*",
            "Accept-Encoding: identity",
        ]
        if self._key.text and same_host(url, self._api_url or url):
            lines.append(f"Authorization: Bearer {self._key.text}")
        if close:
            lines.append("Connection: close")
        if payload is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(payload)}"]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + (payload or b"")

    def _record(
        self,
        answer: Answer,
        key: RequestKey,
        body: dict[str, Any],
        failure: RequestError | None,
    ) -> RequestRecord:
        cap = body.get("max_tokens", body.get("max_completion_tokens"))
        fields = answer.tokens.fields() | {"error": failure}
        record = RequestRecord(
            key=key,
            sent_at_s=answer.sent_at_s,
            closed_at_s=answer.closed_at_s,
            connect_s=answer.connect_s,
            first_byte_at_s=answer.exchange.first_byte_at_s,
            max_tokens=cap if isinstance(cap, int) else None,
            **fields,
        )
        return self._key.without(record)
