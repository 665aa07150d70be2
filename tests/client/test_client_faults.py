"""The client against servers that write exact bytes, or nothing. Fault ids as in test_stream."""

import asyncio
import gzip
import json
import socket
import zlib

import pytest
from raw_server import (
    DONE,
    HEAD,
    KEY,
    UNFRAMED,
    USAGE,
    WHOLE,
    always,
    ask,
    chunked,
    event,
    serving,
)

from sakiyomi.client import Client, Timeouts
from sakiyomi.errors import EngineError, PlanError

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
        body = b"\n".join([b"", *WHOLE])
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        request.write(head.encode() + b"\r\n\r\n", body[:1])
        await asyncio.sleep(0.02)
        request.write(body[1:])

    record, _ = ask(answer)
    assert record.error is None
    assert record.event_text == ["a", "b"]


def test_bytes_that_are_no_http():
    async def answer(request):
        request.write(b"SSH-2.0-OpenSSH_9.6\r\n")

    record, _ = ask(answer)
    assert record.error.kind == "malformed"


def test_a_change_of_protocol_is_no_answer():
    async def answer(request):
        request.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n"
        )
        await asyncio.sleep(1)

    record, _ = ask(answer)
    assert record.error.kind == "not_a_stream"
    assert "protocol" in record.error.message


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
