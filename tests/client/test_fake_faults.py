"""Every fault of the fake engine does what it says, at the level of bytes."""

import asyncio
import gzip
import json
from itertools import pairwise

import pytest
from bare_client import chunks_of, events_of, get, post, token_counts, until

from sakiyomi.fake_engine import FAULTS, FakeEngine, serve

FIELDS = {
    "return_token_ids": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}
TOKENS = 12
CHECKS = {}
"""Fault -> coroutine function that asserts its effect."""


def checks(*faults):
    def register(check):
        CHECKS.update(dict.fromkeys((fault.partition("=")[0] for fault in faults), check))
        return check

    return register


async def ask(*faults, body=None, **config):
    """One request to a fresh server; k=1, so steps of 2 tokens: 1, 2, 2, 2, 2, 2, 1."""
    settings = {"k": 1, "script": (1,), "ttft_s": 0.002, "step_s": 0.001} | config
    async with serve(FakeEngine(faults=faults, **settings)) as server:
        fields = FIELDS | {"max_tokens": TOKENS} | (body or {})
        return await post(server.url, **fields), server.log[0]


def choices_of(answer):
    return [chunk["choices"][0] for chunk in chunks_of(answer) if chunk.get("choices")]


def text_of(answer):
    return "".join(choice["delta"].get("content") or "" for choice in choices_of(answer))


def finishes(answer):
    return [c["finish_reason"] for c in choices_of(answer) if c.get("finish_reason")]


def usages(answer):
    return [c["usage"]["completion_tokens"] for c in chunks_of(answer) if c.get("usage")]


OF_LOGPROBS = {
    "near_tie", "diverges", "logprobs_null", "logprobs_every", "top_logprobs_cap", "logprobs_400"
}  # fmt: skip
"""What they do to logprobs is held by test_fake_logprobs.py."""


@pytest.mark.parametrize("fault", sorted(set(FAULTS) - OF_LOGPROBS))
def test_fault(fault):
    asyncio.run(CHECKS[fault]())


def test_no_fault_is_a_clean_stream():
    answer, logged = asyncio.run(ask())
    assert answer.ended == "complete"
    assert token_counts(answer, "token_ids") == [1, 2, 2, 2, 2, 2, 1]
    assert finishes(answer) == ["length"]
    assert usages(answer) == [0, 1, 3, 5, 7, 9, 11, 12, 12]
    assert events_of(answer)[-1] == "[DONE]"
    assert logged.end == "complete"
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"


def test_a_fault_hits_the_requests_that_it_names():
    async def scenario():
        config = FakeEngine(faults=("http_status=500@2", "no_done@3-", "no_usage@1-2"), step_s=0.0)
        async with serve(config) as server:
            answers = [await post(server.url, max_tokens=2, **FIELDS) for _ in range(4)]
        assert [a.status for a in answers] == [200, 500, 200, 200]
        assert [bool(usages(a)) for a in answers if a.status == 200] == [False, True, True]
        dones = [events_of(a)[-1] == "[DONE]" for a in answers if a.status == 200]
        assert dones == [True, False, False]

    asyncio.run(scenario())


# answers


@checks("error_before_token")
async def _():
    answer, logged = await ask("error_before_token")
    error, done = events_of(answer)
    assert json.loads(error)["error"]["code"] == 500
    assert done == "[DONE]"
    assert logged.end == "error"
    assert answer.status == 200


@checks("error_after_tokens", "error_as_string", "error_event")
async def _():
    answer, logged = await ask("error_after_tokens=4")
    assert token_counts_until_error(answer) == [1, 2, 1]
    assert json.loads(events_of(answer)[-2])["error"]["type"] == "InternalServerError"
    assert sum(e.num_tokens for e in logged.token_events) == 4
    text, _ = await ask("error_after_tokens=4", "error_as_string")
    assert isinstance(json.loads(events_of(text)[-2])["error"], str)
    named, _ = await ask("error_after_tokens=4", "error_event")
    assert "event: error\ndata: {" in named.text


def token_counts_until_error(answer):
    found = [json.loads(data) for data in events_of(answer)[:-2]]
    return [len(c["choices"][0]["token_ids"]) for c in found if "token_ids" in c["choices"][0]]


@checks("error_null")
async def _():
    answer, _ = await ask("error_null")
    assert all(chunk["error"] is None for chunk in chunks_of(answer))


@checks("finish_error")
async def _():
    assert finishes((await ask("finish_error"))[0]) == ["error"]


@checks("cut_after_tokens")
async def _():
    answer, logged = await ask("cut_after_tokens=4")
    assert token_counts(answer, "token_ids") == [1, 2, 1]
    assert (answer.ended, logged.end) == ("eof", "cut")
    assert not finishes(answer)


@checks("cut_in_character")
async def _():
    answer, _ = await ask("cut_in_character=4", body={"return_token_ids": False})
    assert answer.body.endswith(b'"content":"\xe6\x97\xa5\xe6')
    assert answer.ended == "eof"


@checks("reset_after_tokens")
async def _():
    answer, logged = await ask("reset_after_tokens=4")
    assert (answer.ended, logged.end) == ("reset", "reset")
    assert token_counts(answer, "token_ids") == [1, 2, 1]


@checks("silence_after_tokens")
async def _():
    async with serve(FakeEngine(faults=("silence_after_tokens=3",), step_s=0.0)) as server:
        task = asyncio.create_task(post(server.url, max_tokens=TOKENS))
        await until(lambda: server.log and len(server.log[0].token_events) == 3)
        await asyncio.sleep(0.05)
        assert not task.done()
        assert len(server.log[0].events) == 4
        task.cancel()
        await until(lambda: server.log[0].end == "client_gone")


@checks("no_done")
async def _():
    answer, _ = await ask("no_done")
    assert "[DONE]" not in answer.text
    assert (answer.ended, finishes(answer)) == ("complete", ["length"])


@checks("no_finish_reason", "done_only", "eof_only")
async def _():
    null, _ = await ask("no_finish_reason")
    assert {c["finish_reason"] for c in choices_of(null)} == {None}
    assert events_of(null)[-1] == "[DONE]"
    done, _ = await ask("done_only", body={"stream_options": {"include_usage": True}})
    assert all("finish_reason" not in c for c in choices_of(done))
    assert (events_of(done)[-1], usages(done)) == ("[DONE]", [])
    bare, _ = await ask("eof_only", body={"stream_options": {"include_usage": True}})
    assert not finishes(bare)
    assert "[DONE]" not in bare.text
    assert bare.ended == "complete"
    for dialect in ("openai", "llama.cpp"):
        apart, _ = await ask("eof_only", dialect=dialect)
        assert not finishes(apart)
        assert len(choices_of(apart)) > 6


@checks("no_usage")
async def _():
    answer, _ = await ask("no_usage")
    assert "usage" not in answer.text


@checks("usage_null_chunks", "usage_zero_chunks")
async def _():
    null, _ = await ask("usage_null_chunks")
    assert [c["usage"] for c in chunks_of(null)[:-1]] == [None] * 8
    assert usages(null) == [TOKENS]
    zero, _ = await ask("usage_zero_chunks")
    assert usages(zero) == [0] * 8 + [TOKENS]


@checks("usage_with_finish")
async def _():
    for dialect in ("vllm", "openai"):
        answer, _ = await ask(
            "usage_with_finish", dialect=dialect, body={"stream_options": {"include_usage": True}}
        )
        assert usages(answer) == [TOKENS]
        last = chunks_of(answer)[-1]
        assert last["choices"][0]["finish_reason"] == "length"
        assert last["usage"]["completion_tokens"] == TOKENS


@checks("empty_choices_first", "choices_null")
async def _():
    first, _ = await ask("empty_choices_first")
    assert chunks_of(first)[0]["choices"] == []
    assert "prompt_filter_results" in chunks_of(first)[0]
    null, _ = await ask("choices_null")
    assert chunks_of(null)[-1]["choices"] is None
    assert chunks_of(null)[-1]["usage"]["completion_tokens"] == TOKENS


@checks("role_only_delay")
async def _():
    _, logged = await ask("role_only_delay=0.01", ttft_s=0.06)
    role, first = logged.events[:2]
    assert (role.kind, first.kind) == ("role", "answer")
    assert first.written_at_s - role.written_at_s > 0.02
    assert first.due_at_s - logged.received_at_s == pytest.approx(0.06)


@checks("role_null", "role_no_content", "role_with_text")
async def _():
    null, _ = await ask("role_null")
    assert choices_of(null)[0]["delta"] == {"role": "assistant", "content": None}
    bare, _ = await ask("role_no_content")
    assert choices_of(bare)[0]["delta"] == {"role": "assistant"}
    both, _ = await ask("role_with_text")
    delta = choices_of(both)[0]["delta"]
    assert delta["role"] == "assistant"
    assert delta["content"]


@checks("empty_tokens")
async def _():
    clean, _ = await ask(k=None, script=())
    held, logged = await ask("empty_tokens=3", k=None, script=())
    texts = [c["delta"]["content"] for c in choices_of(held)[1:]]
    assert [not text for text in texts] == [i in {3, 6, 9} for i in range(1, 13)]
    assert text_of(held) == text_of(clean)
    assert [e.kind for e in logged.token_events].count("other") == 3
    # llama.cpp holds such a token back: its chunk never comes, the count is with the next
    bursts, logged = await ask("empty_tokens=3", dialect="llama.cpp", k=None, script=())
    assert len(choices_of(bursts)) == 1 + 9 + 1
    assert [e.num_tokens for e in logged.token_events] == [1, 1, 2, 1, 2, 1, 2, 1, 1]
    assert text_of(bursts) == text_of(clean)


@checks("held_text")
async def _():
    answer, _ = await ask("held_text")
    texts = [c["delta"]["content"] for c in choices_of(answer)[1:]]
    assert texts[:-1] == [""] * 6
    assert texts[-1]
    assert usages(answer) == [0, 1, 3, 5, 7, 9, 11, 12, 12]


@checks("tool_call")
async def _():
    answer, logged = await ask("tool_call")
    role, call = choices_of(answer)
    assert len(call["delta"]["tool_calls"]) == 1
    assert call["finish_reason"] == "tool_calls"
    assert [(e.kind, e.num_tokens) for e in logged.token_events] == [("tool", TOKENS)]
    last = logged.steps[-1].due_at_s
    assert logged.token_events[0].written_at_s >= last
    assert role["delta"]["role"] == "assistant"


@checks("trailing_tokens")
async def _():
    answer, _ = await ask("trailing_tokens=3")
    assert sum(token_counts(answer, "token_ids")) == TOKENS
    assert usages(answer)[-1] == TOKENS + 3


@checks("first_chunk_tokens", "merge_steps")
async def _():
    first, _ = await ask("first_chunk_tokens=6")
    assert token_counts(first, "token_ids") == [7, 2, 2, 1]
    merged, _ = await ask("merge_steps=2")
    assert token_counts(merged, "token_ids") == [1, 4, 4, 3]


@checks("late_usage_s", "late_done_s")
async def _():
    _, logged = await ask("late_usage_s=0.02", "late_done_s=0.03")
    token, usage, done = (event.written_at_s for event in logged.events[-3:])
    assert [e.kind for e in logged.events[-3:]] == ["answer", "usage", "done"]
    assert usage - token >= 0.02
    assert done - usage >= 0.03


@checks("slow_first_token_s", "cold_start")
async def _():
    _, slow = await ask("slow_first_token_s=0.03")
    assert slow.steps[0].due_at_s - slow.received_at_s == pytest.approx(0.032)
    async with serve(FakeEngine(faults=("cold_start=1",), step_s=0.002, ttft_s=0.0)) as server:
        for _ in range(2):
            await post(server.url, max_tokens=3)
        gaps = [[b.due_at_s - a.due_at_s for a, b in pairwise(r.steps)] for r in server.log]
    assert gaps[0] == pytest.approx([0.0032] * 2)
    assert gaps[1] == pytest.approx([0.002] * 2)


@checks("loop_text")
async def _():
    answer, _ = await ask("loop_text=10", body={"max_tokens": 42})
    ids = [i for c in choices_of(answer)[1:] for i in c["token_ids"]]
    assert ids[10:] == (ids[2:10] * 4)


@checks("timings_zero")
async def _():
    answer, _ = await ask("timings_zero", dialect="llama.cpp")
    timings = chunks_of(answer)[-1]["timings"]
    assert timings["predicted_ms"] == timings["predicted_per_second"] == 0
    assert (timings["predicted_n"], timings["draft_n"]) == (TOKENS, 5)


@checks("ignore_max_tokens", "stop_early")
async def _():
    beyond, _ = await ask("ignore_max_tokens", step_s=0.0, ttft_s=0.0)
    assert usages(beyond)[-1] == 256
    early, _ = await ask("stop_early=5", body={"ignore_eos": True})
    assert (usages(early)[-1], finishes(early)) == (5, ["stop"])


@checks("overrun_steps", "slow_release_s")
async def _():
    faults = ("overrun_steps=2", "slow_release_s=0.05")
    async with serve(FakeEngine(k=1, script=(1,), faults=faults, step_s=0.0)) as server:
        await post(server.url, max_tokens=TOKENS)
        drafted = len(server.log[0].drafted)
        assert "num_drafts_total{" in server.metrics_text()
        assert f" {drafted + 2}.0" in line_of(
            server.metrics_text(), "vllm:spec_decode_num_drafts_total"
        )
        assert line_of(server.metrics_text(), "vllm:num_requests_running").endswith(" 1.0")
        await until(lambda: server.state.num_running == 0)
        assert line_of(server.metrics_text(), "vllm:num_requests_running").endswith(" 0.0")


def line_of(page, name):
    return next(line for line in page.splitlines() if line.startswith((name + "{", name + " ")))


# the wire


@checks("gzip", "buffer_all")
async def _():
    zipped, logged = await ask("gzip")
    assert zipped.headers["content-encoding"] == "gzip"
    assert finishes(zipped) == ["length"]
    assert len({event.written_at_s for event in logged.events}) == 1
    buffered, logged = await ask("buffer_all")
    assert finishes(buffered) == ["length"]
    assert len({event.written_at_s for event in logged.events}) == 1
    assert logged.events[1].written_at_s > logged.steps[-1].due_at_s


@checks("buffer_every_s")
async def _():
    _, logged = await ask("buffer_every_s=0.02", step_s=0.005, body={"max_tokens": 30})
    releases = sorted({event.written_at_s for event in logged.events})
    assert 2 <= len(releases) <= 5
    # the last release is the end of the body, whenever that is
    assert all(b - a >= 0.02 for a, b in pairwise(releases[:-1]))


@checks("split_bytes")
async def _():
    clean, _ = await ask(language="ja")
    split, _ = await ask("split_bytes", language="ja")
    assert text_of(split) == text_of(clean)
    raw = b"".join(data for _, data in split.reads).partition(b"\r\n\r\n")[2]
    assert raw.count(b"1\r\n") >= len(split.body)


@checks("crlf", "cr", "mixed_line_ends", "no_space", "two_spaces")
async def _():
    clean, _ = await ask()
    for fault, start, end in (
        ("crlf", b"data: {", b"\r\n\r\n"),
        ("cr", b"data: {", b"\r\r"),
        ("mixed_line_ends", b"data: {", b"\n\r\n"),
        ("no_space", b"data:{", b"\n\n"),
        ("two_spaces", b"data:  {", b"\n\n"),
    ):
        answer, _ = await ask(fault)
        *events, done, rest = answer.body.split(end)
        assert rest == b""
        assert done.endswith(b"[DONE]")
        assert all(event.startswith(start) for event in events)
        assert len(events) == len(chunks_of(clean))
        assert b"\n" not in answer.body or fault != "cr"


@checks(
    "keepalive_comments", "empty_comments", "data_comments", "bare_data", "ping_events", "id_lines"
)
async def _():
    answer, logged = await ask("keepalive_comments=0.005", ttft_s=0.05)
    head, _, _ = answer.text.partition("data:")
    assert 3 <= head.count(": PROCESSING\n\n") <= 10
    assert logged.events[0].kind == "role"
    for fault, noise in (
        ("empty_comments", "}\n\n:\n\ndata: {"),
        ("data_comments", "}\n\ndata: : PROCESSING\n\ndata: {"),
        ("bare_data", "}\n\ndata:\n\ndata: {"),
        ("ping_events", "}\n\nevent: ping\n\ndata: {"),
        ("id_lines", "}\n\nid: 3\ndata: {"),
    ):
        assert noise in (await ask(fault))[0].text


@checks("bom", "huge_event", "raw_separators", "no_charset", "http10")
async def _():
    bom, _ = await ask("bom")
    assert bom.body.startswith(b"\xef\xbb\xbfdata: {")
    assert bom.body.count(b"\xef\xbb\xbf") == 1
    huge, _ = await ask("huge_event=600000")
    sizes = sorted(len(data) for data in events_of(huge))
    assert 590_000 < sizes[-1] < 610_000
    assert sizes[-2] < 1000
    assert finishes(huge) == ["length"]
    raw, logged = await ask("raw_separators")
    assert "\u2028\u0085".encode() in raw.body
    assert text_of(raw) == "".join(event.text for event in logged.token_events)
    latin, _ = await ask("no_charset")
    assert latin.headers["content-type"] == "text/event-stream"
    old, _ = await ask("http10")
    assert "transfer-encoding" not in old.headers
    assert (old.ended, events_of(old)[-1]) == ("eof", "[DONE]")


# responses


@checks("json_instead", "html_instead")
async def _():
    answer, _ = await ask("json_instead")
    assert answer.headers["content-type"] == "application/json"
    assert json.loads(answer.body)["usage"]["completion_tokens"] == TOKENS
    page, _ = await ask("html_instead")
    assert page.status == 200
    assert page.body.startswith(b"<!DOCTYPE html>")


@checks("http_status", "retry_429_once")
async def _():
    failed, logged = await ask("http_status=503")
    assert (failed.status, logged.status, logged.end) == (503, 503, "refused")
    async with serve(FakeEngine(faults=("retry_429_once",), step_s=0.0)) as server:
        answers = [await post(server.url, max_tokens=2) for _ in range(2)]
    assert [a.status for a in answers] == [429, 200]
    assert answers[0].headers["retry-after"] == "1"


@checks("stream_options_400", "ignore_eos_400", "max_completion_tokens_only", "max_tokens_only")
async def _():
    for fault, body in (
        ("stream_options_400", {"stream_options": {"include_usage": True}}),
        ("ignore_eos_400", {"ignore_eos": True}),
        ("max_completion_tokens_only", {"max_tokens": 3}),
        ("max_tokens_only", {"max_completion_tokens": 3}),
    ):
        async with serve(FakeEngine(faults=(fault,), step_s=0.0)) as server:
            [key] = body
            refused = await post(server.url, **body)
            error = json.loads(refused.body)["error"]
            other = {"max_completion_tokens": 3} if key == "max_tokens" else {"max_tokens": 3}
            accepted = await post(server.url, **other)
        assert refused.status == 400
        assert (error["code"], error["param"]) == ("unsupported_parameter", key)
        assert accepted.status == 200


@checks("wrong_model_404")
async def _():
    config = {"dialect": "llama.cpp", "step_s": 0.0}
    async with serve(FakeEngine(faults=("wrong_model_404",), **config)) as server:
        assert (await post(server.url, model="other", max_tokens=1)).status == 404
        assert (await post(server.url, max_tokens=1)).status == 200
    async with serve(FakeEngine(**config)) as server:
        assert (await post(server.url, model="other", max_tokens=1)).status == 200
    async with serve(FakeEngine(step_s=0.0)) as server:
        answer = await post(server.url, model="other", max_tokens=1)
        assert answer.status == 404
        assert "`other` does not exist" in answer.text


@checks("die_after_requests")
async def _():
    async with serve(FakeEngine(faults=("die_after_requests=1",), step_s=0.0)) as server:
        answer = await post(server.url, max_tokens=3)
        await asyncio.wait_for(server.closed.wait(), 10)
        with pytest.raises(ConnectionRefusedError):
            await post(server.url, max_tokens=3)
    assert answer.ended == "complete"


@checks("no_draft_details")
async def _():
    for faults, told in (((), True), (("no_draft_details",), False)):
        answer, logged = await ask(*faults, dialect="tabbyapi")
        usage = chunks_of(answer)[-1]["usage"]
        assert ("completion_tokens_details" in usage) == told
        if told:
            counts = usage["completion_tokens_details"]
            assert counts["accepted_prediction_tokens"] == logged.num_accepted_tokens > 0
            assert sum(counts.values()) == logged.num_draft_tokens


@checks("draft_counts_times")
async def _():
    answer, logged = await ask("draft_counts_times=2", dialect="lmstudio")
    stats = chunks_of(answer)[-1]["stats"]
    assert stats["total_draft_tokens_count"] == 2 * logged.num_draft_tokens > 0
    assert stats["accepted_draft_tokens_count"] == 2 * logged.num_accepted_tokens > 0


@checks("other_replica")
async def _():
    async with serve(FakeEngine(faults=("other_replica=3",), step_s=0.0)) as server:
        answers = [await post(server.url, max_tokens=2) for _ in range(6)]
    one, again, other, *more = [chunks_of(a)[-1]["system_fingerprint"] for a in answers]
    assert one == again != other
    assert more == [one, one, other]


@checks("hang_health", "health_status", "metrics_hang")
async def _():
    for fault, path in (("hang_health", "/health"), ("metrics_hang", "/metrics")):
        async with serve(FakeEngine(faults=(fault,))) as server:
            task = asyncio.create_task(get(server.url, path))
            await asyncio.sleep(0.05)
            assert not task.done()
            task.cancel()
    async with serve(FakeEngine(faults=("health_status=503@1-2",))) as server:
        assert [(await get(server.url, "/health")).status for _ in range(3)] == [503, 503, 200]


# metrics pages


async def scrape(*faults, **config):
    async with serve(FakeEngine(faults=faults, **{"k": 2} | config)) as server:
        return await get(server.url, "/metrics")


@checks("metrics_404", "metrics_401", "metrics_500", "metrics_501", "metrics_307")
async def _():
    for status in (404, 401, 500, 501):
        assert (await scrape(f"metrics_{status}")).status == status
    assert "--metrics" in (await scrape("metrics_501")).text
    assert (await scrape(dialect="llama.cpp", metrics=False)).status == 501
    async with serve(FakeEngine(faults=("metrics_401",), api_key="key")) as server:
        assert (await get(server.url, "/metrics")).status == 401
        assert (await get(server.url, "/metrics", key="key")).status == 200
    async with serve(FakeEngine(faults=("metrics_307",), base_path="/proxy")) as server:
        moved = await get(server.url, "/metrics")
        assert (moved.status, moved.body) == (307, b"")
        assert moved.headers["location"] == "/proxy/metrics/"
        assert (await get(server.url, "/metrics/")).status == 200


@checks(
    "metrics_html",
    "metrics_json",
    "metrics_json_string",
    "metrics_bom",
    "metrics_nan",
    "metrics_gzip",
    "metrics_crlf",
    "metrics_no_newline",
)
async def _():
    start = b"# HELP process_start_time_seconds"
    assert (await scrape("metrics_html")).body.startswith(b"<!DOCTYPE html>")
    assert isinstance(json.loads((await scrape("metrics_json")).body), dict)
    assert json.loads((await scrape("metrics_json_string")).body).encode().startswith(start)
    assert (await scrape("metrics_bom")).body.startswith(b"\xef\xbb\xbf" + start)
    assert (await scrape("metrics_nan")).body.endswith(b" -nan\n")
    assert gzip.decompress((await scrape("metrics_gzip")).body).startswith(start)
    crlf = (await scrape("metrics_crlf")).body
    assert crlf.count(b"\r\n") == crlf.count(b"\n") > 10
    assert not (await scrape("metrics_no_newline")).body.endswith(b"\n")


@checks("counter_reset")
async def _():
    name = "vllm:generation_tokens_total"
    config = FakeEngine(faults=("counter_reset=2",), num_engines=2, step_s=0.0)
    async with serve(config) as server:
        start = line_of(server.metrics_text(), "process_start_time_seconds")
        for _ in range(2):
            await post(server.url, max_tokens=5)
        page = server.metrics_text()
        counts = [line for line in page.splitlines() if line.startswith(name + "{")]
        assert [line.split()[-1] for line in counts] == ["0.0", "5.0"]
        assert line_of(page, "process_start_time_seconds") == start
    async with serve(FakeEngine(faults=("counter_reset=1",), step_s=0.0)) as server:
        start = line_of(server.metrics_text(), "process_start_time_seconds")
        await post(server.url, max_tokens=5)
        page = server.metrics_text()
        assert line_of(page, name).endswith(" 0.0")
        assert line_of(page, "process_start_time_seconds") != start


@checks("created_gauges", "no_created", "no_spec_series", "late_position")
async def _():
    assert "_created" in (await scrape()).text
    assert "_created" not in (await scrape("no_created")).text
    assert "_created" not in (await scrape(dialect="llama.cpp")).text
    assert "_drafts_created" in (await scrape("created_gauges", dialect="llama.cpp")).text
    assert "spec_decode" not in (await scrape("no_spec_series")).text
    config = FakeEngine(k=2, script=(1,), faults=("late_position",), step_s=0.0)
    async with serve(config) as server:
        assert 'position="' not in server.metrics_text()
        await post(server.url, max_tokens=5)
        page = server.metrics_text()
        assert 'position="0"' in page
        assert 'position="1"' not in page


@checks("bounce", "other_traffic", "other_running", "extra_model", "tp_ranks")
async def _():
    async with serve(FakeEngine(faults=("bounce",), step_s=0.0)) as server:
        await post(server.url, max_tokens=10)
        pages = [(await get(server.url, "/metrics")).text for _ in range(3)]
    tokens = [line_of(page, "vllm:generation_tokens_total").split()[-1] for page in pages]
    assert tokens == ["10.0", "5.0", "10.0"]
    async with serve(FakeEngine(k=2, faults=("other_traffic=100000",))) as server:
        first = line_of(server.metrics_text(), "vllm:generation_tokens_total")
        await asyncio.sleep(0.02)
        page = server.metrics_text()
        grown = float(line_of(page, "vllm:generation_tokens_total").split()[-1])
        assert grown - float(first.split()[-1]) >= 2000
        assert float(line_of(page, "vllm:spec_decode_num_drafts_total").split()[-1]) > 0
    page = (await scrape("other_running=3")).text
    assert line_of(page, "vllm:num_requests_running").endswith(" 3.0")
    async with serve(FakeEngine(k=2, faults=("extra_model",))) as server:
        models = json.loads((await get(server.url, "/v1/models")).body)["data"]
        assert [m["id"] for m in models] == ["fake-model", "other-model"]
        assert 'model_name="other-model"} 1000.0' in server.metrics_text()
    page = (await scrape("tp_ranks=4", dialect="sglang")).text
    assert page.count("sglang:num_running_reqs{") == 4
    assert page.count("sglang:generation_tokens_total{") == 1
