"""Pages that the client fetches, and the key that it keeps. Fault ids as in test_stream."""

import asyncio
import gzip
import json

import pytest
from raw_server import (
    KEY,
    SECRET,
    WHOLE,
    always,
    ask,
    event,
    serving,
)

from sakiyomi.client import Client, Response
from sakiyomi.errors import EngineError

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
