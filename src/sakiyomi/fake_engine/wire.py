"""Bytes on a connection: requests in, responses out, with the faults of the wire.

`Wire` stamps each frame when its bytes are handed to the socket: these instants are the truth.
"""

import asyncio
import gzip
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import httptools
import msgspec

from sakiyomi.fake_engine.config import FaultValue

MAX_REQUEST_BYTES = 64 * 1024 * 1024
SPIN_S = 0.001
"""Sleep up to here before a deadline, then poll: epoll rounds sleeps up to whole milliseconds."""


Stamp = Callable[[float], None]


class ClientGone(Exception):  # noqa: N818 - an event, no fault of the server
    """The client closed the connection in mid-answer."""


class Request(msgspec.Struct, kw_only=True):
    """One request as it came in. `received_at_s`: when its last byte was read."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes
    received_at_s: float
    keep_alive: bool = True
    http10: bool = False


class _Collector:
    """Callbacks of the parser: gathers one request."""

    def __init__(self) -> None:
        self.url = b""
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.headers_done = False
        self.done = False

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.headers_done = True

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.done = True


async def read_request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> Request | None:
    """Read the next request of a connection, or None at its end. Requests are not pipelined."""
    collector = _Collector()
    parser = httptools.HttpRequestParser(collector)
    continued = False
    while not collector.done:
        data = await reader.read(65536)
        if not data or len(collector.body) > MAX_REQUEST_BYTES:
            return None
        received_at_s = time.perf_counter()
        parser.feed_data(data)
        expect = collector.headers.get("expect", "").lower()
        if collector.headers_done and expect == "100-continue" and not continued:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            continued = True
    url = httptools.parse_url(collector.url)
    http10 = parser.get_http_version() == "1.0"
    return Request(
        method=parser.get_method().decode(),
        path=(url.path or b"/").decode(),
        query=(url.query or b"").decode(),
        headers=collector.headers,
        body=bytes(collector.body),
        received_at_s=received_at_s,
        # the parser's own should_keep_alive forgets the header once the message is complete
        keep_alive=not http10 and collector.headers.get("connection", "").lower() != "close",
        http10=http10,
    )


def head(status: int, headers: Mapping[str, str]) -> bytes:
    """Status line and headers."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    lines = [
        f"HTTP/1.1 {status} {phrase}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def whole(status: int, content_type: str, body: bytes, headers: Mapping[str, str] = {}) -> bytes:
    """Render a response in one piece."""
    fields = {"Content-Type": content_type, "Content-Length": str(len(body)), "Server": "fake"}
    return head(status, fields | dict(headers)) + body


def sse(data: bytes, faults: Mapping[str, FaultValue], index: int, event: str = "") -> bytes:
    """One server-sent event, its lines spoiled as the faults say."""
    if "huge_event" in faults and index == 1 and data.startswith(b"{"):
        filler = int(faults["huge_event"]) - len(data)
        data = data[:-1] + b',"padding":"' + b"x" * max(0, filler) + b'"}'
    space = b"" if "no_space" in faults else b"  " if "two_spaces" in faults else b" "
    lines = [b"event:" + space + event.encode()] if event else []
    if "id_lines" in faults:
        lines.append(b"id:" + space + str(index).encode())
    lines.append(b"data:" + space + data)
    end = b"\r\n" if "crlf" in faults else b"\r" if "cr" in faults else b"\n"
    blank = b"\r\n" if "mixed_line_ends" in faults else end
    block = end.join([*lines, b""]) + blank
    for fault, noise in _NOISE.items():
        if fault in faults:
            block += noise.replace(b"\n", end)
    return b"\xef\xbb\xbf" + block if "bom" in faults and index == 0 else block


_NOISE = {
    "empty_comments": b":\n\n",
    "data_comments": b"data: : PROCESSING\n\n",
    "bare_data": b"data:\n\n",
    "ping_events": b"event: ping\n\n",
}


class Wire:
    """One streamed response: `send` frames, then `finish`, `cut` or `reset`."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        request: Request,
        faults: Mapping[str, FaultValue],
    ) -> None:
        self._reader, self._writer, self._faults = reader, writer, faults
        self._chunked = not request.http10 and "http10" not in faults
        self.keep_alive = request.keep_alive and self._chunked
        self._held = bytearray()
        self._held_stamps: list[Stamp] = []
        self._last_release_s = time.perf_counter()
        self._holds_all = bool(faults.keys() & {"gzip", "buffer_all"})

    async def start(self, headers: Mapping[str, str]) -> None:
        """Send the head of a 200 stream."""
        charset = "" if "no_charset" in self._faults else "; charset=utf-8"
        fields = {"Content-Type": f"text/event-stream{charset}", "Cache-Control": "no-cache"}
        fields |= dict(headers)
        if "gzip" in self._faults:
            fields["Content-Encoding"] = "gzip"
        if self._chunked:
            fields["Transfer-Encoding"] = "chunked"
        if not self.keep_alive:
            fields["Connection"] = "close"
        await self._write(head(200, fields))

    async def send(self, data: bytes, stamp: Stamp | None = None) -> None:
        """Send a frame; `stamp` gets the instant at which its bytes leave."""
        self._held += data
        if stamp:
            self._held_stamps.append(stamp)
        if self._holds_all:
            return
        every_s = self._faults.get("buffer_every_s")
        if every_s is not None and time.perf_counter() - self._last_release_s < float(every_s):
            return
        await self._release()

    async def finish(self) -> None:
        """Release what is held and end the body."""
        await self._release()
        if self._chunked:
            await self._write(b"0\r\n\r\n")
        else:
            self._writer.close()

    async def cut(self) -> None:
        """End the connection without ending the body (what is held goes out)."""
        self.keep_alive = False
        await self._release()
        await self._writer.drain()
        self._writer.close()

    def reset(self) -> None:
        """Reset the connection."""
        self.keep_alive = False
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(
            socket.SOL_SOCKET,
            socket.SO_LINGER,
            struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0),
        )
        self._writer.transport.abort()

    def check(self) -> None:
        """Raise ClientGone when nobody listens any more."""
        if self._reader.at_eof() or self._writer.is_closing():
            raise ClientGone

    async def _release(self) -> None:
        data, self._held = bytes(self._held), bytearray()
        stamps, self._held_stamps = self._held_stamps, []
        self._last_release_s = time.perf_counter()
        for stamp in stamps:
            stamp(self._last_release_s)
        if data:
            body = gzip.compress(data) if "gzip" in self._faults else data
            await self._body(body)

    async def _body(self, data: bytes) -> None:
        if "split_bytes" not in self._faults:
            await self._write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
            return
        for index in range(len(data)):
            byte = data[index : index + 1]
            await self._write(b"1\r\n%b\r\n" % byte if self._chunked else byte)
            await asyncio.sleep(0)

    async def _write(self, data: bytes) -> None:
        self.check()
        self._writer.write(data)
        try:
            await self._writer.drain()
        except ConnectionError as error:
            raise ClientGone from error


async def wait_until(deadline_s: float, check: Callable[[], Any] = lambda: None) -> None:
    """Return at `deadline_s` of `time.perf_counter`, to some 0.05 ms on an idle machine."""
    while (left_s := deadline_s - time.perf_counter() - SPIN_S) > 0:
        await asyncio.sleep(min(left_s, 0.05))
        check()
    while time.perf_counter() < deadline_s:  # noqa: ASYNC110 - polling is the precision
        await asyncio.sleep(0)
