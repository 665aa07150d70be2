"""Connections of the client: opened, kept, lost, trusted. Fault ids as in test_stream."""

import asyncio
import ssl

import pytest
import trustme
from raw_server import (
    HEAD,
    KEY,
    UNFRAMED,
    WHOLE,
    always,
    ask,
    chunked,
    event,
    serving,
)

from sakiyomi.client import Client
from sakiyomi.errors import EngineError

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


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_f66_https_to_a_plain_server(answer):
    async def refuse(reader, writer):
        await reader.read(1)
        writer.write(answer)
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
