"""A server for tests that writes exact bytes, and what tests of the client share."""

import asyncio
import json
import socket
import struct
from contextlib import asynccontextmanager, suppress

from sakiyomi.client import Client
from sakiyomi.record import RequestKey

KEY = RequestKey(
    request_id="r1",
    scenario="s",
    conversation_id="c",
    turn=0,
    arm="a",
    load="closed-1",
    repeat=0,
    scheduled_at_s=0.0,
)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
UNFRAMED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
SECRET = "sk-very-secret-key"


def chunked(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(content=None, finish=None, **more):
    fields = {} if content is None else {"content": content}
    chunk = {"choices": [{"delta": fields, "finish_reason": finish}]} | more
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
WHOLE = [event("a"), event("b"), event(finish="stop"), DONE]
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'


class Request:
    """One request as a server saw it, with the means to answer."""

    def __init__(self, reader, writer, head, body):
        self.reader, self.writer, self.body = reader, writer, body
        lines = head.decode().split("\r\n")
        self.method, self.target, _ = lines[0].split(" ")
        self.headers = dict(line.split(": ", 1) for line in lines[1:] if line)

    def write(self, *pieces):
        self.writer.write(b"".join(pieces))

    def stream(self, *events, head=HEAD):
        self.write(head, *(chunked(data) for data in events), b"0\r\n\r\n")

    def page(self, body, status="200 OK", kind="text/plain", more=""):
        self.write(
            f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode(),
            body,
        )

    def reset(self):
        """Close with RST."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


@asynccontextmanager
async def serving(answer, host="127.0.0.1", tls=None):
    """A server that hands each request to `answer(request)`; yields (its URL, requests seen)."""
    seen, tasks, writers = [], set(), set()

    async def connected(reader, writer):
        tasks.add(asyncio.current_task())
        writers.add(writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                size = [line for line in head.split(b"\r\n") if line.startswith(b"Content-Length")]
                body = await reader.readexactly(int(size[0].split(b":")[1])) if size else b""
                request = Request(reader, writer, head[:-4], body)
                seen.append(request)
                if await answer(request) != "keep":
                    writer.close()

    server = await asyncio.start_server(connected, host, 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    name = f"[{host}]" if ":" in host else host
    try:
        yield f"{'https' if tls else 'http'}://{name}:{port}", seen
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        for writer in writers:
            writer.transport.abort()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.01)


def ask(answer, body=None, *, client=None, server=None, **options):
    """Stream one request against `answer`; (record, requests seen)."""

    async def main():
        async with serving(answer, **(server or {})) as (url, seen), Client(**(client or {})) as it:
            path = url + "/v1/chat/completions"
            return await it.stream(path, body or {"model": "m"}, KEY, **options), seen

    return asyncio.run(main())


def always(*events):
    async def answer(request):
        request.stream(*events)
        return "keep"

    return answer
