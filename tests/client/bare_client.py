"""A client of a few lines for the fake engine's tests: sockets and bytes, nothing of the product."""

import asyncio
import hashlib
import json
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass
class Answer:
    """`reads`: (instant, bytes) as they came off the socket. `ended`: eof, reset or length."""

    sent_at_s: float = 0.0
    reads: list = field(default_factory=list)
    status: int = 0
    headers: dict = field(default_factory=dict)
    body: bytes = b""
    ended: str = ""
    body_hash: str = ""
    connection: object = None

    @property
    def text(self):
        body = self.body
        if self.headers.get("content-encoding") == "gzip":
            body = zlib.decompress(body, wbits=31)
        return body.decode()


async def until(condition):
    while not condition():  # noqa: ASYNC110 - the other side has no event to wait for
        await asyncio.sleep(0.002)


async def get(url, path, tls=None, key=None):
    return await _talk(url, "GET", path, b"", tls=tls, key=key)


async def post(
    url,
    prompt="hello",
    *,
    path="/v1/chat/completions",
    raw=None,
    tls=None,
    key=None,
    keep=False,
    connection=None,
    read_until=None,
    **body,
):
    """Ask for a completion; `raw` replaces the chat messages."""
    fields = raw if raw is not None else {"messages": [{"role": "user", "content": prompt}]}
    fields = {"model": "fake-model", "stream": True} | fields | body
    data = json.dumps(fields, ensure_ascii=False).encode()
    options = {"tls": tls, "key": key, "keep": keep, "connection": connection}
    return await _talk(url, "POST", path, data, read_until=read_until, **options)


async def _talk(
    url, method, path, data, *, tls=None, key=None, keep=False, connection=None, read_until=None
):
    parts = urlsplit(url)
    reader, writer = connection or await asyncio.open_connection(
        parts.hostname, parts.port, ssl=tls
    )
    answer = Answer(body_hash=hashlib.sha256(data).hexdigest()[:16])
    lines = [f"{method} {parts.path}{path} HTTP/1.1", f"Host: {parts.netloc}"]
    lines += [f"Content-Length: {len(data)}", f"Connection: {'keep-alive' if keep else 'close'}"]
    lines += [f"Authorization: Bearer {key}"] if key else []
    answer.sent_at_s = time.perf_counter()
    try:
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        await _read(reader, answer, keep=keep, read_until=read_until)
    finally:
        if keep:
            answer.connection = (reader, writer)
        else:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
    return answer


async def _read(reader, answer, *, keep, read_until):
    raw = b""
    while True:
        try:
            data = await reader.read(65536)
        except ConnectionResetError:
            answer.ended = "reset"
            break
        if not data:
            answer.ended = "eof"
            break
        answer.reads.append((time.perf_counter(), data))
        raw += data
        if (keep and raw.endswith(b"0\r\n\r\n")) or (read_until and read_until in raw):
            answer.ended = "length"
            break
    head, _, rest = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    answer.status = int(first.split(" ")[1]) if first else 0
    answer.headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}
    chunked = answer.headers.get("transfer-encoding") == "chunked"
    answer.body = unchunked(rest, answer) if chunked else rest


def unchunked(data, answer):
    """The body of a chunked response; `ended` becomes "complete" when its last chunk is there."""
    body = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size or b"0", 16)
        if length == 0:
            answer.ended = "complete" if size else answer.ended
            break
        body += data[:length]
        data = data[length + 2 :]
    return body


def events_of(answer):
    """The data of each event, for streams with plain line ends."""
    blocks = answer.text.split("\n\n")
    return [line[6:] for block in blocks for line in block.split("\n") if line.startswith("data: ")]


def chunks_of(answer):
    return [json.loads(data) for data in events_of(answer) if data != "[DONE]"]


def json_of(answer):
    assert answer.status == 200, answer.text
    return json.loads(answer.body)


def token_counts(answer, key):
    """Tokens per chunk by the ids that it carries."""
    counts = [len(c["choices"][0].get(key) or []) for c in chunks_of(answer) if c["choices"]]
    return [count for count in counts if count]
