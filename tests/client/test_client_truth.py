"""The client against the fake engine's log: every dialect's tokens, events and ends, exactly."""

import asyncio

import msgspec
import pytest

from sakiyomi.client import Client
from sakiyomi.fake_engine import FakeEngine, serve
from sakiyomi.fake_engine.log import body_hash
from sakiyomi.latency import measure
from sakiyomi.record import RequestKey

KEY = RequestKey(
    request_id="r",
    scenario="s",
    conversation_id="c",
    turn=0,
    arm="a",
    load="closed-1",
    repeat=0,
    scheduled_at_s=0.0,
)


def ask(config, *, tokens_per_event=None, path="/v1/chat/completions", **fields):
    """(record, the log's entry) of one request."""
    body = {
        "model": config.model,
        "messages": [{"role": "user", "content": "日本語で長く答えてください。"}],
        "max_tokens": 40,
        "stream": True,
        "stream_options": {"include_usage": True},
    } | fields
    if not path.endswith("chat/completions"):
        body["prompt"] = body.pop("messages")[0]["content"]

    async def main():
        async with serve(config) as server, Client() as client:
            record = await client.stream(
                server.url + path, body, KEY, tokens_per_event=tokens_per_event
            )
            await asyncio.sleep(0.02)
            return record, server.request(body_hash(msgspec.json.encode(body)))

    return asyncio.run(main())


CONTINUOUS = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}


@pytest.mark.parametrize(
    ("dialect", "fields", "tokens_per_event"),
    [
        ("vllm", {"return_token_ids": True}, None),
        ("vllm", CONTINUOUS, None),
        ("sglang", CONTINUOUS, None),
        ("tensorrt-llm", CONTINUOUS, None),
        ("lmdeploy", {"return_token_ids": True}, None),
        ("llama.cpp", {"timings_per_token": True}, 1),
        ("mlx-lm", {}, 1),
        ("tgi", {}, 1),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_every_token_is_counted_in_its_event(dialect, fields, tokens_per_event, path):
    config = FakeEngine(dialect=dialect, k=3, ttft_s=0.005, step_s=0.002)
    record, truth = ask(config, tokens_per_event=tokens_per_event, path=path, **fields)
    assert record.error is None
    assert record.completion_tokens == truth.completion_tokens == 40
    assert record.prompt_tokens == truth.prompt_tokens
    assert record.finish_reason == truth.finish_reason
    visible = [event for event in truth.token_events if event.text or None in record.event_tokens]
    assert "".join(record.event_text) == "".join(event.text for event in visible)
    assert sum(count or 0 for count in record.event_tokens) <= 40
    if tokens_per_event is None:
        assert record.event_tokens == [event.num_tokens for event in truth.token_events]


def test_thinking_and_answer_are_told_apart():
    config = FakeEngine(dialect="vllm", k=3, ttft_s=0.005, step_s=0.002, reasoning_tokens=15)
    record, truth = ask(config, return_token_ids=True)
    assert record.event_kind == [event.kind for event in truth.token_events]
    found = measure(record, language="ja")
    assert found.ttft_s < found.time_to_answer_s


def test_the_steps_of_llamacpp_are_marked():
    config = FakeEngine(dialect="llama.cpp", k=3, ttft_s=0.005, step_s=0.002, script=(3, 0, 1, 2))
    record, truth = ask(config, tokens_per_event=1, timings_per_token=True)
    marks = record.event_step_mark
    assert len(marks) == len(record.event_at_s)
    assert len(set(marks)) == len({event.step for event in truth.token_events})
    assert record.event_num_draft_tokens[-1] == truth.num_draft_tokens
    assert record.event_num_accepted_tokens[-1] == truth.num_accepted_tokens


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("cut_after_tokens", "truncated"),
        ("cut_in_character", "truncated"),
        ("eof_only", "truncated"),
        ("reset_after_tokens", "reset"),
        ("error_before_token", "error_in_stream"),
        ("error_after_tokens", "error_in_stream"),
        ("finish_error", "error_in_stream"),
        ("json_instead", "not_a_stream"),
        ("html_instead", "not_a_stream"),
        ("http_status=503", "http_status"),
        ("retry_429_once", "http_status"),
    ],
)
def test_scripted_failures(fault, kind):
    record, truth = ask(FakeEngine(ttft_s=0.005, step_s=0.002, faults=(fault,)))
    assert record.error.kind == kind
    if kind != "not_a_stream":
        assert len(record.event_at_s) == len(truth.token_events)


@pytest.mark.parametrize("form", ["error_as_string", "error_event"])
def test_errors_in_other_forms(form):
    record, _ = ask(FakeEngine(ttft_s=0.005, step_s=0.002, faults=(form, "error_after_tokens")))
    assert record.error.kind == "error_in_stream"
    assert record.error.message


@pytest.mark.parametrize(
    "fault",
    [
        *("error_null", "no_done", "no_finish_reason", "usage_null_chunks", "usage_zero_chunks"),
        *("usage_with_finish", "empty_choices_first", "choices_null", "role_null"),
        *("role_no_content", "role_with_text", "trailing_tokens", "first_chunk_tokens"),
        *("merge_steps", "late_usage_s=0.01", "late_done_s=0.01", "split_bytes", "crlf", "cr"),
        *("mixed_line_ends", "no_space", "two_spaces", "keepalive_comments=0.001"),
        *("empty_comments", "data_comments", "bare_data", "ping_events", "id_lines", "bom"),
        *("huge_event", "raw_separators", "http10", "no_charset", "gzip", "buffer_all"),
        *("empty_tokens", "held_text", "tool_call"),
    ],
)
@pytest.mark.parametrize("dialect", ["vllm", "llama.cpp"])
def test_what_does_no_harm(fault, dialect):
    config = FakeEngine(dialect=dialect, k=3, ttft_s=0.005, step_s=0.002, faults=(fault,))
    record, truth = ask(config)
    assert record.error is None
    text = "".join(record.event_text)
    assert text.removeprefix("answer") == "".join(event.text for event in truth.events)
    trailing = 3 if fault == "trailing_tokens" else 0
    assert record.completion_tokens == truth.completion_tokens + trailing
    assert (record.num_malformed > 0) == (fault == "data_comments")
    if not fault.startswith("keepalive_comments"):  # how many depends on the machine
        noise = fault in ("empty_comments", "bare_data", "ping_events")
        assert (record.num_keep_alives > 0) == noise
    if fault in ("gzip", "buffer_all", "held_text", "tool_call"):
        found = measure(record)
        assert found.tool_call_at_once == (fault == "tool_call")
        assert found.buffered != found.tool_call_at_once


@pytest.mark.parametrize("fault", ["no_usage", "done_only"])
def test_f26_without_usage_the_count_is_estimated(fault):
    record, truth = ask(FakeEngine(k=3, ttft_s=0.005, step_s=0.002, faults=(fault,)))
    assert record.error is None
    assert record.completion_tokens is None
    found = measure(record)
    assert found.tokens == "estimated"
    assert found.num_tokens == len(truth.token_events) < truth.completion_tokens
