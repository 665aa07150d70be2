"""Connections to any number of servers that stay open between requests."""

import asyncio
import ssl
from collections import defaultdict

from sakiyomi.connection import Clock, Connection, open_connection
from sakiyomi.errors import EngineError
from sakiyomi.urls import Address

IDLE_LIMIT_S = 4.0
"""A connection idle for longer is not used again: servers close theirs after 5 s (uvicorn's
timeout_keep_alive, Node's keepAliveTimeout, cpp-httplib's keep-alive timeout), maybe just now."""

_NUM_OPENED_AT_ONCE = 64


class ConnectionPool:
    """Open connections, idle or in use. `limit_s`: how long opening one may take."""

    def __init__(
        self, clock: Clock, limit_s: float, *, ca_file: str | None, insecure: bool
    ) -> None:
        self._clock = clock
        self._limit_s = limit_s
        self._ca_file = ca_file
        self._insecure = insecure
        self._tls: ssl.SSLContext | None = None
        self._idle: dict[tuple[str, str, int], list[Connection]] = defaultdict(list)
        self._open: set[Connection] = set()

    async def close(self) -> None:
        """Close every connection."""
        connections = list(self._open)
        for connection in connections:
            connection.abort()
        self._idle.clear()
        await asyncio.gather(*(connection.closed for connection in connections))
        self._open.clear()

    async def fill(self, address: Address, num_connections: int) -> None:
        """Have this many idle connections. Raises ConnectFailure."""
        idle = self._idle[address[:3]]
        idle[:] = [connection for connection in idle if self._is_fresh(connection)]
        while (missing := num_connections - len(idle)) > 0:
            idle += await asyncio.gather(
                *(self.open(address) for _ in range(min(missing, _NUM_OPENED_AT_ONCE)))
            )

    async def acquire(self, address: Address) -> tuple[Connection, float]:
        """An open connection, and the seconds it took to open one where none was idle."""
        idle = self._idle[address[:3]]
        while idle:
            connection = idle.pop()
            if self._is_fresh(connection):
                return connection, 0.0
        started_at_s = self._clock()
        connection = await self.open(address)
        return connection, self._clock() - started_at_s

    async def open(self, address: Address) -> Connection:
        """A new connection. Raises ConnectFailure."""
        if address.scheme == "https" and self._tls is None:
            self._tls = _tls_context(self._ca_file, insecure=self._insecure)
        connection = await open_connection(address, self._clock, self._tls, self._limit_s)
        self._open.add(connection)
        connection.closed.add_done_callback(lambda _: self._open.discard(connection))
        return connection

    def release(self, address: Address, connection: Connection) -> None:
        """Keep a connection for the next request, where it can carry one."""
        if connection.release():
            self._idle[address[:3]].append(connection)

    def discard(self, connection: Connection) -> None:
        """Close a connection that was in use."""
        connection.release()
        connection.abort()
        self._open.discard(connection)

    def drop_idle(self, address: Address) -> None:
        """Close what is idle there."""
        for connection in self._idle.pop(address[:3], []):
            connection.abort()

    def _is_fresh(self, connection: Connection) -> bool:
        """Whether an idle connection can carry a request; closes it otherwise."""
        if connection.is_open and self._clock() - connection.idle_since_s < IDLE_LIMIT_S:
            return True
        connection.abort()
        return False


def _tls_context(ca_file: str | None, *, insecure: bool) -> ssl.SSLContext:
    """Verified by the system's authorities (SSL_CERT_FILE is OpenSSL's own) and `ca_file`."""
    context = ssl.create_default_context()
    if ca_file:
        try:
            context.load_verify_locations(ca_file)
        except (OSError, ssl.SSLError) as error:
            raise EngineError(
                f"the certificate file {ca_file} cannot be read: {error}", "give a PEM file"
            ) from error
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
