"""The client against servers that write exact bytes, or nothing. Fault ids as in test_stream."""

import asyncio
import gzip
import json
import socket
import ssl
import struct
import zlib
from contextlib import asynccontextmanager, suppress

import pytest
import trustme

from sakiyomi.client import Client, Response, Timeouts
from sakiyomi.errors import EngineError, PlanError
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


# --- the ordinary case ------------------------------------------------------------------------


def test_a_record_of_a_whole_answer():
    record, seen = ask(always(*WHOLE[:3], USAGE, DONE), {"model": "m", "max_tokens": 7})
    assert record.error is None
    assert record.event_text == ["a", "b"]
    assert (record.prompt_tokens, record.completion_tokens) == (3, 2)
    assert (record.finish_reason, record.done, record.max_tokens) == ("stop", True, 7)
    assert record.key == KEY
    times = [record.sent_at_s, record.first_byte_at_s, *record.event_at_s, record.closed_at_s]
    assert times == sorted(times)
    assert record.connect_s > 0
    (request,) = seen
    assert (request.method, request.target) == ("POST", "/v1/chat/completions")
    assert json.loads(request.body) == {"model": "m", "max_tokens": 7}
    assert request.headers["Accept-Encoding"] == "identity"
    assert request.headers["Content-Type"] == "application/json"
    assert "Authorization" not in request.headers


def test_max_completion_tokens_is_a_cap_too():
    record, _ = ask(always(*WHOLE), {"max_completion_tokens": 9})
    assert record.max_tokens == 9


def test_tokens_per_event_is_the_engines():
    record, _ = ask(always(*WHOLE), tokens_per_event=1)
    assert record.event_tokens == [1, 1]


def test_e08_instants_come_from_the_given_clock_as_bytes_arrive():
    now = [100.0]

    async def answer(request):
        for now[0], data in ((100.5, HEAD), (101.0, chunked(event("a"))), (103.0, b"")):
            request.write(data)
            await asyncio.sleep(0.02)
        request.write(chunked(event(finish="stop")), b"0\r\n\r\n")
        return "keep"

    record, _ = ask(answer, client={"clock": lambda: now[0]})
    assert record.sent_at_s == 100.0
    assert record.first_byte_at_s == 100.5
    assert record.event_at_s == [101.0]
    assert record.closed_at_s == 103.0


def test_f31_any_cut_of_the_wire_gives_the_same_record():
    data = HEAD + b"".join(chunked(item) for item in [event("日本🙂"), *WHOLE]) + b"0\r\n\r\n"

    async def answer(request):
        for index in range(0, len(data), 7):
            request.write(data[index : index + 7])
            await asyncio.sleep(0)
        return "keep"

    record, _ = ask(answer)
    assert record.event_text == ["日本🙂", "a", "b"]
    assert record.error is None


def test_f37_a_line_of_two_megabytes():
    record, _ = ask(always(event("x" * 2_000_000), *WHOLE))
    assert [len(text) for text in record.event_text] == [2_000_000, 1, 1]


def test_f37_beyond_the_limit():
    record, _ = ask(always(event("a"), b"data: " + b"x" * (17 * 2**20), *WHOLE))
    assert record.error.kind == "malformed"
    assert "16 MB" in record.error.message
    assert record.event_text == ["a"]


# --- compression ------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_f07_compression_that_nobody_asked_for(encoding):
    async def answer(request):
        packer = zlib.compressobj(wbits=31 if encoding == "gzip" else 15)
        request.write(HEAD[:-2], f"Content-Encoding: {encoding}\r\n\r\n".encode())
        for item in WHOLE:
            request.write(chunked(packer.compress(item) + packer.flush(zlib.Z_SYNC_FLUSH)))
            await asyncio.sleep(0.02)
        request.write(chunked(packer.flush()), b"0\r\n\r\n")
        return "keep"

    record, _ = ask(answer)
    assert record.event_text == ["a", "b"]
    assert record.error is None
    assert record.event_at_s[1] - record.event_at_s[0] > 0.005


def test_f07_compression_flushed_only_at_the_end_arrives_at_once():
    async def answer(request):
        body = gzip.compress(b"".join(event("a") for _ in range(20)) + DONE)
        request.page(body, kind="text/event-stream", more="Content-Encoding: gzip\r\n")
        return "keep"

    record, _ = ask(answer)
    assert len(set(record.event_at_s)) == 1
    assert len(record.event_at_s) == 20


@pytest.mark.parametrize(("encoding", "kind"), [("br", "not_a_stream"), ("gzip", "malformed")])
def test_compression_that_cannot_be_undone(encoding, kind):
    async def answer(request):
        request.page(b"\x00\x01\x02", more=f"Content-Encoding: {encoding}\r\n")

    record, _ = ask(answer)
    assert record.error.kind == kind
    assert "compress" in record.error.message


# --- endings ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ([event("a")], "truncated"),
        ([event("a"), DONE], None),
        ([event("a"), event(None), DONE], None),
        ([event("a"), event(finish="stop")], None),
        ([event("a"), event(finish="stop"), DONE], None),
    ],
)
@pytest.mark.parametrize("framing", ["chunked", "none", "chunked, cut"])
def test_f40_five_endings(events, kind, framing):
    async def answer(request):
        if framing == "none":
            request.write(UNFRAMED, *events)
        else:
            request.write(
                HEAD, *map(chunked, events), b"0\r\n\r\n" if framing == "chunked" else b""
            )

    record, _ = ask(answer)
    assert (record.error and record.error.kind) == kind
    assert record.event_text == ["a"]
    if kind:
        assert "after 1 token events without finish_reason or [DONE]" in record.error.message


def test_f40_a_reset_after_five_tokens():
    async def answer(request):
        request.write(HEAD, *(chunked(event("a")) for _ in range(5)))
        await asyncio.sleep(0.05)
        request.reset()

    record, _ = ask(answer)
    assert record.error.kind == "reset"
    assert "after 5 token events" in record.error.message
    assert len(record.event_at_s) == 5


def test_closed_without_a_word():
    async def answer(request):
        pass

    record, seen = ask(answer)
    assert record.error.kind == "reset"
    assert "before any answer" in record.error.message
    assert len(seen) == 1


def test_an_empty_stream_is_truncated():
    record, _ = ask(always())
    assert record.error.kind == "truncated"
    record, _ = ask(always(b": ping\n\n"))
    assert record.error.kind == "truncated"
    assert record.num_keep_alives == 1


def test_the_last_event_may_lack_its_blank_line():
    record, _ = ask(always(event("a"), event("b", finish="stop")[:-2]))
    assert record.error is None
    assert record.event_text == ["a", "b"]


def test_a_body_without_end_is_over_at_done():
    async def answer(request):
        request.write(HEAD, *map(chunked, WHOLE))
        await asyncio.sleep(30)

    record, _ = ask(answer)
    assert record.error is None
    assert record.closed_at_s - record.event_at_s[-1] < 0.9


@pytest.mark.parametrize("num_before", [0, 7])
def test_f39_an_error_in_a_stream(num_before):
    error = b'data: {"error":{"message":"engine died","code":500}}\n\n'
    record, _ = ask(always(*[event("a", error=None)] * num_before, error, DONE))
    assert (record.error.kind, record.error.message) == ("error_in_stream", "engine died")
    assert len(record.event_at_s) == num_before


# --- what is no stream ------------------------------------------------------------------------

DOCUMENT = {
    "model": "m",
    "choices": [{"message": {"content": "abc"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 5},
}


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
def test_a_document_instead_of_a_stream(kind):
    async def answer(request):
        request.page(json.dumps(DOCUMENT, indent=1).encode(), kind=kind)

    record, _ = ask(answer)
    assert record.error.kind == "not_a_stream"
    assert f"got {kind}: " in record.error.message
    assert record.completion_tokens == 5
    assert record.finish_reason == "stop"
    assert record.event_at_s == []


def test_html_and_words_instead_of_a_stream():
    for body, kind in ((b"<html><h1>Sign in</h1>", "text/html"), (b"hello there\n", "text/plain")):

        async def answer(request, body=body, kind=kind):
            request.page(body, kind=kind)

        record, _ = ask(answer)
        assert record.error.kind == "not_a_stream"
        assert body.decode().strip() in record.error.message


def test_f39_an_error_document_with_status_200():
    async def answer(request):
        request.page(b'{"error": {"message": "no such model"}}', kind="application/json")

    record, _ = ask(answer)
    assert (record.error.kind, record.error.message) == ("error_in_stream", "no such model")


def test_a_stream_that_calls_itself_json_is_read():
    async def answer(request):
        request.page(b"\n" + b"".join(WHOLE), kind="application/json")

    record, _ = ask(answer)
    assert record.error is None
    assert record.event_text == ["a", "b"]


def test_bytes_that_are_no_http():
    async def answer(request):
        request.write(b"SSH-2.0-OpenSSH_9.6\r\n")

    record, _ = ask(answer)
    assert record.error.kind == "malformed"


def test_100_continue_is_no_answer():
    async def answer(request):
        request.write(b"HTTP/1.1 100 Continue\r\nX-A: 1\r\n\r\n")
        await asyncio.sleep(0.02)
        request.stream(*WHOLE)
        return "keep"

    record, _ = ask(answer)
    assert record.error is None
    assert record.event_text == ["a", "b"]


# --- HTTP errors ------------------------------------------------------------------------------


def test_f11_no_retry_of_429_and_503():
    for status in ("429 Too Many Requests", "503 Service Unavailable"):

        async def answer(request, status=status):
            request.page(b'{"error":{"message":"busy"}}', status, more="Retry-After: 0\r\n")
            return "keep"

        record, seen = ask(answer)
        assert len(seen) == 1
        assert record.error.kind == "http_status"
        assert record.error.status == int(status[:3])
        assert record.error.message == f"HTTP {status}: busy"
        assert record.event_at_s == []


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"object":"error","message":"bad field","code":400}', "bad field"),
        (b'{"detail":[{"loc":["body"],"msg":"extra"}]}', '[{"loc":["body"],"msg":"extra"}]'),
        (b"<html>\n bad\n gateway</html>", "<html> bad gateway</html>"),
        (b"x" * 3000, "x" * 500),
        (b"", ""),
    ],
)
def test_the_servers_own_words(body, text):
    async def answer(request):
        request.page(body, "400 Bad Request")

    record, _ = ask(answer)
    assert record.error.message == f"HTTP 400 Bad Request: {text}"


def test_f65_a_404_names_the_url_and_the_form_that_works():
    async def answer(request):
        request.page(b"{}", "404 Not Found")

    async def main():
        async with serving(answer) as (url, _), Client() as client:
            return url, await client.stream(url + "/v1/v1/chat/completions", {}, KEY)

    url, record = asyncio.run(main())
    assert f"{url}/v1/v1/chat/completions" in record.error.message
    assert "root" in record.error.message


def test_a_redirected_request_is_not_followed():
    async def answer(request):
        request.page(b"", "307 Temporary Redirect", more="Location: http://h/x\r\n")

    record, seen = ask(answer)
    assert record.error.kind == "http_status"
    assert "http://h/x" in record.error.message
    assert len(seen) == 1


# --- limits -----------------------------------------------------------------------------------


def test_e01_first_token():
    async def answer(request):
        request.write(HEAD, chunked(event("")))
        for _ in range(100):
            request.write(chunked(b": ping\n\n"))
            await asyncio.sleep(0.02)

    limits = Timeouts(first_token_s=0.2, silence_s=5)
    record, _ = ask(answer, client={"timeouts": limits})
    assert record.error.kind == "first_token_timeout"
    assert "first_token_s = 0.2 s" in record.error.message
    assert record.closed_at_s - record.sent_at_s >= 0.2


def test_e01_silence_after_tokens_even_with_keep_alives():
    async def answer(request):
        request.write(HEAD, chunked(event("a")))
        for _ in range(100):
            request.write(chunked(b": ping\n\n"))
            await asyncio.sleep(0.02)

    limits = Timeouts(first_token_s=60, silence_s=0.2)
    record, _ = ask(answer, client={"timeouts": limits})
    assert record.error.kind == "silence_timeout"
    assert "silence_s = 0.2 s" in record.error.message
    assert record.event_text == ["a"]
    assert record.num_keep_alives > 1


def test_e01_a_long_prefill_and_a_long_answer_are_no_timeouts():
    async def answer(request):
        await asyncio.sleep(0.5)
        request.write(HEAD)
        for _ in range(6):
            request.write(chunked(event("a")))
            await asyncio.sleep(0.1)
        request.write(chunked(DONE), b"0\r\n\r\n")
        return "keep"

    limits = Timeouts(connect_s=0.3, first_token_s=30, silence_s=0.4)
    record, _ = ask(answer, client={"timeouts": limits})
    assert record.error is None
    assert len(record.event_at_s) == 6


def test_silence_after_the_finish_is_no_failure():
    async def answer(request):
        request.write(HEAD, *map(chunked, WHOLE[:3]))
        await asyncio.sleep(30)

    record, _ = ask(answer, client={"timeouts": Timeouts(silence_s=0.2)})
    assert record.error is None
    assert record.finish_reason == "stop"


def test_e01_connecting_has_its_own_limit():
    async def main():
        with socket.socket() as full:  # a listener that never accepts: its backlog fills up
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            name = full.getsockname()
            others = [socket.socket() for _ in range(4)]
            for other in others:
                other.setblocking(False)
                other.connect_ex(name)
            async with Client(timeouts=Timeouts(connect_s=0.2)) as client:
                record = await client.stream(f"http://127.0.0.1:{name[1]}/v1/x", {}, KEY)
                with pytest.raises(EngineError, match=r"connect_s = 0\.2 s"):
                    await client.fetch(f"http://127.0.0.1:{name[1]}/health")
            for other in others:
                other.close()
            return record

    record = asyncio.run(main())
    assert record.error.kind == "connect_timeout"
    assert "connect_s = 0.2 s" in record.error.message


def test_nobody_listens():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1/chat/completions"

        async def main():
            async with Client() as client:
                record = await client.stream(url, {}, KEY)
                with pytest.raises(EngineError) as refused:
                    await client.preopen(url, 2)
                with pytest.raises(EngineError):
                    await client.fetch(url)
                with pytest.raises(EngineError, match="leads nowhere"):
                    await client.fetch("http://no-such-host.invalid/")
                return record, refused.value

        record, refused = asyncio.run(main())
    assert record.error.kind == "connect"
    assert "refused" in record.error.message
    assert url in refused.message
    assert "running" in refused.hint


def test_what_is_no_url_is_refused():
    async def main():
        async with Client() as client:
            with pytest.raises(PlanError, match="brackets"):
                await client.stream("http://::1:8000/v1", {}, KEY)

    asyncio.run(main())


# --- connections ------------------------------------------------------------------------------


def test_f10_no_cap_and_the_clock_starts_when_the_request_is_written():
    num = 128
    waiting = []

    async def answer(request):
        waiting.append(request)
        if len(waiting) == num:  # none is answered before all have arrived
            for other in waiting:
                other.stream(*WHOLE)
        return "keep"

    async def main():
        async with serving(answer) as (url, seen), Client() as client:
            path = url + "/v1/chat/completions"
            took_s = await client.preopen(path, num)
            records = await asyncio.gather(*(client.stream(path, {}, KEY) for _ in range(num)))
            return took_s, records, seen

    took_s, records, seen = asyncio.run(main())
    assert took_s > 0
    assert len({request.writer for request in seen}) == num
    assert {record.connect_s for record in records} == {0.0}
    assert {record.error for record in records} == {None}


def test_a_connection_is_used_again_and_again():
    async def main():
        async with serving(always(*WHOLE)) as (url, seen), Client() as client:
            records = [await client.stream(url + "/v1", {}, KEY) for _ in range(3)]
            await client.preopen(url, 1)
            return records, seen

    records, seen = asyncio.run(main())
    assert len({request.writer for request in seen}) == 1
    assert [record.connect_s > 0 for record in records] == [True, False, False]


@pytest.mark.parametrize("closing", ["says so", "just closes", "has no framing"])
def test_a_connection_that_the_server_closed_is_not_used_again(closing):
    async def answer(request):
        if closing == "says so":
            request.stream(*WHOLE, head=HEAD[:-2] + b"Connection: close\r\n\r\n")
            return "keep"
        if closing == "just closes":
            request.stream(*WHOLE)
        else:
            request.write(UNFRAMED, *WHOLE)
        return None

    async def main():
        async with serving(answer) as (url, seen), Client() as client:
            records = []
            for _ in range(3):
                records.append(await client.stream(url + "/v1", {}, KEY))
                await asyncio.sleep(0.05)
            return records, seen

    records, seen = asyncio.run(main())
    assert [record.error for record in records] == [None] * 3
    assert all(record.connect_s > 0 for record in records)
    assert len(seen) == 3


def test_a_server_that_hangs_up_just_as_the_request_is_sent():
    async def main():
        closing = always(*WHOLE)

        async def answer(request):
            await closing(request)  # and closes, without having said so

        async with serving(answer) as (url, seen), Client() as client:
            return [await client.stream(url + "/v1", {}, KEY) for _ in range(3)], len(seen)

    records, num_seen = asyncio.run(main())
    assert [record.error for record in records] == [None] * 3
    assert num_seen == 3
    assert all(record.connect_s > 0 for record in records)


def test_f11_a_request_that_kills_its_connection_is_not_sent_again():
    async def answer(request):
        if request.body == b'{"a":1}':
            request.stream(*WHOLE)
            return "keep"
        await asyncio.sleep(0.15)
        return None

    async def main():
        async with serving(answer) as (url, seen), Client() as client:
            await client.stream(url + "/v1", {"a": 1}, KEY)
            return await client.stream(url + "/v1", {"a": 2}, KEY), len(seen)

    record, num_seen = asyncio.run(main())
    assert record.error.kind == "reset"
    assert num_seen == 2


def test_an_old_idle_connection_is_not_trusted():
    now = [0.0]

    async def main():
        async with (
            serving(always(*WHOLE)) as (url, seen),
            Client(clock=lambda: now[0]) as client,
        ):
            await client.stream(url + "/v1", {}, KEY)
            now[0] = 4.5
            await client.stream(url + "/v1", {}, KEY)
            return len({request.writer for request in seen})

    assert asyncio.run(main()) == 2


def test_bytes_that_nobody_asked_for_close_the_connection():
    async def answer(request):
        request.stream(*WHOLE)
        await asyncio.sleep(0.02)
        request.write(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
        return "keep"

    async def main():
        async with serving(answer) as (url, seen), Client() as client:
            await client.stream(url + "/v1", {}, KEY)
            await asyncio.sleep(0.1)
            record = await client.stream(url + "/v1", {}, KEY)
            return record, len({request.writer for request in seen})

    record, num_connections = asyncio.run(main())
    assert record.error is None
    assert num_connections == 2


def test_f12_localhost_where_only_ipv4_listens():
    async def main():
        async with serving(always(*WHOLE)) as (url, _), Client() as client:
            return await client.stream(url.replace("127.0.0.1", "localhost") + "/v1", {}, KEY)

    record = asyncio.run(main())
    assert record.error is None


def test_f12_ipv6_in_brackets():
    try:
        record, seen = ask(always(*WHOLE), server={"host": "::1"})
    except OSError:
        pytest.skip("no IPv6 on this machine")
    assert record.error is None
    assert seen[0].headers["Host"].startswith("[::1]:")


def test_cancelling_closes_the_connection():
    gone = []

    async def answer(request):
        request.write(HEAD, chunked(event("a")))
        gone.append(await request.reader.read())

    async def main():
        async with serving(answer) as (url, _), Client() as client:
            task = asyncio.create_task(client.stream(url + "/v1", {}, KEY))
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(0.05)

    asyncio.run(main())
    assert gone == [b""]


def test_an_aborted_request_keeps_what_came():
    async def answer(request):
        request.write(HEAD, chunked(event("a")))
        await asyncio.sleep(30)

    async def main():
        async with serving(answer) as (url, _), Client() as client:
            task = asyncio.create_task(client.stream(url + "/v1", {}, KEY))
            await asyncio.sleep(0.1)
            assert client.abort("another") == 0
            assert client.abort() == 1
            return await task

    record = asyncio.run(main())
    assert record.error.kind == "cancelled"
    assert record.event_text == ["a"]


# --- TLS --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


def context(authority, *names):
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(*names).configure_cert(tls)
    return tls


def test_f66_a_private_authority(authority, tmp_path):
    ca_file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    server = {"tls": context(authority, "127.0.0.1")}
    record, _ = ask(always(*WHOLE), server=server, client={"ca_file": str(ca_file)})
    assert record.error is None
    record, _ = ask(always(*WHOLE), server=server, client={"insecure": True})
    assert record.error is None
    record, seen = ask(always(*WHOLE), server=server)
    assert record.error.kind == "tls"
    assert "unable to get local issuer certificate" in record.error.message
    assert "--ca-file" in record.error.message
    assert "--insecure" in record.error.message
    assert not seen


def test_f66_an_address_that_the_certificate_does_not_name(authority, tmp_path):
    ca_file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    server = {"tls": context(authority, "example.test")}
    record, _ = ask(always(*WHOLE), server=server, client={"ca_file": str(ca_file)})
    assert record.error.kind == "tls"
    assert "IP address mismatch" in record.error.message


def test_f66_pages_need_the_same_trust(authority):
    async def main():
        async with serving(always(*WHOLE), tls=context(authority, "127.0.0.1")) as (url, _):
            async with Client() as client:
                with pytest.raises(EngineError, match="not trusted") as caught:
                    await client.fetch(url + "/metrics")
                assert "--ca-file" in caught.value.hint
            async with Client(insecure=True) as client:
                assert (await client.fetch(url + "/metrics")).status == 200

    asyncio.run(main())


def test_f66_https_to_a_plain_server():
    async def refuse(_, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async def main():
        server = await asyncio.start_server(refuse, "127.0.0.1", 0)
        async with server, Client() as client:
            port = server.sockets[0].getsockname()[1]
            return await client.stream(f"https://127.0.0.1:{port}/v1", {}, KEY)

    record = asyncio.run(main())
    assert record.error.kind == "tls"
    assert "http://127.0.0.1" in record.error.message


def test_f66_a_certificate_file_that_cannot_be_read(tmp_path):
    async def main():
        async with Client(ca_file=str(tmp_path / "none.pem")) as client:
            with pytest.raises(EngineError, match=r"none\.pem cannot be read"):
                await client.fetch("https://127.0.0.1:1/")

    asyncio.run(main())


# --- pages ------------------------------------------------------------------------------------


def fetch(answer, path="/metrics", client=None, **options):
    async def main():
        async with serving(answer) as (url, seen), Client(**(client or {})) as it:
            return await it.fetch(url + path, **options), seen

    return asyncio.run(main())


def test_a_page_as_it_came():
    async def answer(request):
        request.page(b"\xef\xbb\xbfa 1\n", "501 Not Implemented", more="X-Some: Thing\r\n")

    response, seen = fetch(answer, "/metrics?model=x")
    assert isinstance(response, Response)
    assert response.status == 501
    assert response.text == "\ufeffa 1\n"
    assert response.headers["x-some"] == "Thing"
    assert response.at_s > 0
    assert (seen[0].method, seen[0].target) == ("GET", "/metrics?model=x")


def test_a_page_may_be_posted_and_compressed_and_unframed():
    async def answer(request):
        body = gzip.compress(request.body)
        request.write(b"HTTP/1.0 200 OK\r\nContent-Encoding: gzip\r\n\r\n", body)

    response, _ = fetch(answer, method="POST", body={"a": "日本"})
    assert json.loads(response.text) == {"a": "日本"}


def test_f46_redirects_are_followed():
    async def answer(request):
        if request.target == "/metrics":
            request.page(b"", "307 Temporary Redirect", more="Location: /metrics/\r\n")
        else:
            request.page(b"a 1\n")

    response, seen = fetch(answer)
    assert response.text == "a 1\n"
    assert response.url.endswith("/metrics/")
    assert len(seen) == 2


def test_redirects_have_an_end():
    async def answer(request):
        request.page(b"", "302 Found", more="Location: /again\r\n")

    with pytest.raises(EngineError, match="more than 3 redirects"):
        fetch(answer)


def test_a_page_that_does_not_come():
    async def silent(request):
        await asyncio.sleep(30)

    with pytest.raises(EngineError, match=r"/metrics did not answer within 0\.2 s"):
        fetch(silent, timeout_s=0.2)

    async def cut(request):
        request.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc")

    with pytest.raises(EngineError, match="closed before the answer was complete"):
        fetch(cut)

    async def nonsense(request):
        request.write(b"SSH-2.0\r\n\r\n")

    with pytest.raises(EngineError, match="no HTTP"):
        fetch(nonsense)


# --- secrets ----------------------------------------------------------------------------------


def test_the_key_goes_to_its_host_alone():
    async def main():
        async with (
            serving(always(*WHOLE)) as (api, at_api),
            serving(always(*WHOLE)) as (other, at_other),
            Client(api_key=SECRET + "\n") as client,
        ):
            await client.stream(api + "/v1/chat/completions", {}, KEY)
            await client.fetch(api + "/metrics")
            await client.fetch(other + "/metrics")  # another port of the same host
            await client.fetch(other.replace("127.0.0.1", "localhost") + "/metrics")
            return at_api, at_other

    at_api, at_other = asyncio.run(main())
    keys = [request.headers.get("Authorization") for request in [*at_api, *at_other]]
    assert keys == [f"Bearer {SECRET}"] * 3 + [None]


def test_the_key_does_not_follow_a_redirect_to_another_host():
    async def main():
        async def elsewhere(request):
            target = other.replace("127.0.0.1", "localhost") + "/x"
            request.page(b"", "307 Temporary Redirect", more=f"Location: {target}\r\n")

        async with (
            serving(always(*WHOLE)) as (other, at_other),
            serving(elsewhere) as (api, _),
            Client(api_key=SECRET, api_url=api) as client,
        ):
            await client.fetch(api + "/metrics")
            return at_other

    (request,) = asyncio.run(main())
    assert "Authorization" not in request.headers


def test_a_key_that_comes_back_is_not_kept():
    echo = f"who sent {SECRET}?"

    async def answer(request):
        if request.target == "/page":
            request.page(echo.encode(), more=f"X-Echo: {SECRET}\r\n")
        elif request.target == "/refused":
            request.page(json.dumps({"error": echo}).encode(), "401 Unauthorized")
        else:
            request.stream(event(echo), event("b", metrics={"key": SECRET}), *WHOLE)

    async def main():
        async with serving(answer) as (url, _), Client(api_key=SECRET) as client:
            return (
                await client.stream(url + "/v1", {}, KEY),
                await client.stream(url + "/refused", {}, KEY),
                await client.fetch(url + "/page"),
            )

    streamed, refused, page = asyncio.run(main())
    for found in (streamed, refused, page):
        assert SECRET not in repr(found)
    assert streamed.event_text[0] == "who sent ***?"
    assert streamed.evidence["metrics"] == {"key": "***"}
    assert refused.error.message == "HTTP 401 Unauthorized: who sent ***?"


def test_a_word_that_stands_for_no_key_is_no_secret():
    record, seen = ask(always(event("EMPTY"), *WHOLE), client={"api_key": "EMPTY"})
    assert record.event_text[0] == "EMPTY"
    assert seen[0].headers["Authorization"] == "Bearer EMPTY"
    assert "Authorization" not in ask(always(*WHOLE), client={"api_key": " "})[1][0].headers


def test_a_key_that_no_header_can_carry():
    with pytest.raises(EngineError) as caught:
        Client(api_key="a\nb-secret")
    assert "secret" not in str(caught.value)
