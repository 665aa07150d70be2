"""A record -> its numbers. Expected values are those of the reports behind the fault ids."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sakiyomi.buffering import buffering
from sakiyomi.latency import measure
from sakiyomi.record import RequestError, RequestKey, RequestRecord

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


def record(at_s, completion_tokens=None, *, tokens=None, kinds=None, texts=None, **fields):
    n = len(at_s)
    return RequestRecord(
        key=KEY,
        sent_at_s=fields.pop("sent_at_s", 0.0),
        closed_at_s=fields.pop("closed_at_s", (at_s[-1] if at_s else 0.0) + 0.2),
        event_at_s=list(at_s),
        event_tokens=list(tokens) if tokens is not None else [None] * n,
        event_kind=list(kinds) if kinds is not None else ["answer"] * n,
        event_text=list(texts) if texts is not None else ["word "] * n,
        completion_tokens=completion_tokens,
        **fields,
    )


def test_f01_three_tokens():
    found = measure(record([0.500, 0.520, 0.540], 3))
    assert found.ttft_s == pytest.approx(0.500)
    assert found.tpot_s == pytest.approx(0.020)
    assert found.decode_tokens_per_s == pytest.approx(50.0)
    assert found.inter_event_s == pytest.approx([0.020, 0.020])


def test_f02_reasoning_belongs_to_the_window():
    thinking = [28.64 + i * (34.0 - 28.64) / 277 for i in range(278)]
    answer = [34.69 + i * (35.95 - 34.69) / 21 for i in range(22)]
    kinds = ["reasoning"] * 278 + ["answer"] * 22
    found = measure(record(thinking + answer, 300, kinds=kinds))
    assert found.ttft_s == pytest.approx(28.64)
    assert found.time_to_answer_s == pytest.approx(34.69)
    assert found.decode_tokens_per_s == pytest.approx(299 / 7.31)


def test_f04_the_budget_spent_on_thinking():
    at_s = [1 + i * 0.01 for i in range(128)]
    found = measure(record(at_s, 128, kinds=["reasoning"] * 128, finish_reason="length"))
    assert found.num_tokens == 128
    assert found.ttft_s == pytest.approx(1.0)
    assert found.decode_tokens_per_s == pytest.approx(100.0)
    assert found.time_to_answer_s is None
    assert found.time_to_first_sentence_s is None
    assert found.speech_margin_s is None
    assert found.reasons["time_to_answer_s"] == "no answer text: limit reached while thinking"
    assert any("raise max_tokens or turn thinking off" in note for note in found.notes)


def test_an_answer_of_tools_alone_has_no_text():
    found = measure(record([1.0, 1.1], 2, kinds=["tool"] * 2, finish_reason="tool_calls"))
    assert found.reasons["time_to_answer_s"] == "no answer text"
    assert found.ttft_s == 1.0


def test_f07_everything_in_one_read():
    found = measure(record([2.03] * 20, 20))
    assert found.buffered
    assert (found.ttft_s, found.decode_tokens_per_s, found.inter_event_s) == (None, None, [])
    assert found.reasons["ttft_s"].startswith("not measurable: stream buffered")
    assert found.e2e_s == pytest.approx(2.03)
    assert found.num_tokens == 20


def test_f07_nineteen_gaps_of_nothing():
    found = measure(record([2.03 + i * 0.0001 for i in range(20)], 20))
    assert found.buffered


def test_f07_packs_of_sixteen_kilobytes():
    at_s = [16.5 * (pack + 1) for pack in range(4) for _ in range(64 + pack % 3)]
    found = measure(record(at_s, len(at_s)))
    assert found.buffered
    assert "packs of 65 events every 16.50 s" in found.reasons["decode_tokens_per_s"]


def test_f07_bursts_of_drafts_are_no_buffer():
    # One event a token, several at once: a step of llama.cpp, k up to 7.
    steps = [1, 8, 3, 8, 8, 2, 5, 8, 1, 8, 8, 4]
    at_s = [0.3 + 0.06 * step for step, size in enumerate(steps) for _ in range(size)]
    found = measure(record(at_s, len(at_s), tokens=[1] * len(at_s)))
    assert not found.buffered
    assert found.decode_tokens_per_s == pytest.approx((len(at_s) - 1) / (0.06 * 11))


def test_f07_long_drafts_that_the_server_marks_are_no_buffer():
    at_s = [0.3 + 0.1 * step for step in range(6) for _ in range(16)]
    marks = [100.0 * step for step in range(6) for _ in range(16)]
    assert buffering(at_s, len(at_s)) is not None
    assert buffering(at_s, len(at_s), marks) is None


def packs(num_steps, each, step_s=0.02):
    """Arrivals of steps that are released `each` at a time."""
    return [0.3 + step_s * each * (1 + step // each) for step in range(num_steps)]


@pytest.mark.parametrize(("num_steps", "each"), [(16, 12), (16, 8), (75, 12), (30, 3)])
def test_f07_several_decode_steps_at_once(num_steps, each):
    at_s = packs(num_steps, each)
    tokens = [1 + step % 4 for step in range(num_steps)]  # k = 3: an event is a step
    found = measure(record(at_s, sum(tokens), tokens=tokens))
    assert (found.buffered, found.ttft_s, found.decode_tokens_per_s) == (True, None, None)
    assert found.e2e_s == pytest.approx(at_s[-1])
    assert f"{num_steps} decode steps in" in found.reasons["decode_tokens_per_s"]
    marks = [8.0 * step for step in range(num_steps)]  # llama.cpp marks them
    assert buffering(at_s, num_steps, marks)


def test_f07_a_busy_client_that_reads_two_steps_at_once_is_no_buffer():
    at_s = packs(40, 2)
    tokens = [1 + step % 4 for step in range(40)]
    assert buffering(at_s, sum(tokens), (), tokens) is None
    stalled = packs(40, 10, step_s=0.002)
    assert buffering(stalled, sum(tokens), (), tokens) is None
    once = [0.3, 0.303, *[0.4] * 14]
    assert buffering(once, 40, (), tokens[:16]) is None


def test_f07_arrivals_that_outran_the_servers_own_clock():
    at_s = [0.400 + 0.001 * i for i in range(26)]  # a buffer held the first 0.1 s back
    found = measure(
        record(at_s, 26, evidence={"timings": {"predicted_n": 26, "predicted_ms": 130}})
    )
    assert found.reasons["ttft_s"].endswith("(decoded in 130 ms, arrived within 25 ms)")
    assert found.decode_tokens_per_s is None
    near = measure(record(at_s, 26, evidence={"timings": {"predicted_n": 26, "predicted_ms": 60}}))
    assert near.decode_tokens_per_s == pytest.approx(1000)


def test_f07_two_packs():
    at_s = packs(60, 40)
    assert buffering(at_s, 60, (), [1] * 60) == "packs of 40 events every 0.80 s"
    assert buffering(packs(30, 16), 30, (), [1] * 30) is None  # one long draft each


def test_f07_tokens_of_a_step_in_events_of_their_own_are_no_steps():
    at_s = packs(40, 4)
    assert buffering(at_s, 40, (), [1] * 40) is None


def test_f07_a_steady_stream_with_hiccups_is_no_buffer():
    at_s = [i * 0.01 + (i // 30) * 0.3 for i in range(120)]
    assert buffering(at_s, 120) is None
    uneven = [0.0] * 3 + [1.0] * 60 + [2.0] * 20 + [3.0] * 2
    assert buffering(uneven, len(uneven)) is None


def test_f13_gaps_are_not_time_per_token():
    found = measure(record([0.1 + 0.009 * i for i in range(10)], 30, tokens=[3] * 10))
    assert found.inter_event_s == pytest.approx([0.009] * 9)
    assert found.tpot_s == pytest.approx(0.003)
    assert found.tokens_per_event == pytest.approx(3.0)


def test_f16_the_first_event_holds_eight():
    at_s = [0.4 + 0.1 * i for i in range(15)]
    found = measure(record(at_s, 64, tokens=[8] + [4] * 14))
    assert found.decode_tokens_per_s == pytest.approx(40.0)
    assert (found.first_event_tokens, found.first_event_assumed) == (8, False)


def test_f16_without_counts_one_is_assumed_and_said():
    at_s = [0.4 + 0.1 * i for i in range(15)]
    found = measure(record(at_s, 64))
    assert found.decode_tokens_per_s == pytest.approx(45.0)
    assert (found.first_event_tokens, found.first_event_assumed) == (1, True)
    assert "one token assumed in the first event" in found.notes


def test_f16_a_first_event_above_the_total():
    found = measure(record([0.5, 0.7], 5, tokens=[8, 1]))
    assert found.decode_tokens_per_s == pytest.approx(4 / 0.2)
    assert found.first_event_assumed
    assert any("said to hold 8 tokens, the whole answer 5" in note for note in found.notes)


@pytest.mark.parametrize(("at_s", "num_tokens"), [([2.0], 200), ([2.0], 8), ([2.0, 2.0], 200)])
def test_f17_a_tool_call_held_back_to_the_end(at_s, num_tokens):
    """By the server's parser: no sign of a buffer that spoils the other answers too."""
    found = measure(record(at_s, num_tokens, kinds=["tool"] * len(at_s)))
    assert found.tool_call_at_once
    assert not found.buffered
    assert found.ttft_s is None
    assert found.decode_tokens_per_s is None
    assert found.e2e_s == pytest.approx(2.0)


def test_f17_growing_counts_without_text():
    at_s = [0.5 + 0.02 * i for i in range(10)]
    kinds = ["other"] * 9 + ["tool"]
    found = measure(record(at_s, 28, tokens=[1] + [3] * 9, kinds=kinds))
    assert found.ttft_s == pytest.approx(0.5)
    assert found.decode_tokens_per_s == pytest.approx(27 / 0.18)
    assert not found.notes


def test_f17_tokens_only_in_the_final_count():
    trailing = measure(record([0.5, 0.6, 0.7], 9, tokens=[1, 3, 3]))
    assert trailing.decode_tokens_per_s == pytest.approx(8 / 0.2)
    assert not trailing.notes
    held = measure(record([0.5, 0.6, 0.7], 40, tokens=[1, 3, 3]))
    assert any("inter_event_s unreliable: 33 of 40" in note for note in held.notes)


def test_f19_the_end_is_the_last_token():
    at_s = [0.20 + 0.02 * i for i in range(41)]
    found = measure(record(at_s, 41, closed_at_s=1.20))
    assert found.tpot_s == pytest.approx(0.020)
    assert found.e2e_s == pytest.approx(1.0)


def test_f20_one_token_and_none():
    one = measure(record([0.4], 1))
    assert one.ttft_s == pytest.approx(0.4)
    assert one.decode_tokens_per_s is None
    assert one.tpot_s is None
    assert one.reasons["decode_tokens_per_s"] == "a single token has no rate"
    for completion_tokens in (0, 1):
        none = measure(record([], completion_tokens))
        assert none.ttft_s is None
        assert none.decode_tokens_per_s is None
        assert none.num_tokens == completion_tokens
        assert none.reasons["ttft_s"] == "no token arrived"
    assert measure(record([])).num_tokens is None
    text = msgspec.json.encode(one).decode()
    assert json.loads(text)["tpot_s"] is None
    assert "NaN" not in text


@pytest.mark.parametrize(
    ("at_s", "completion_tokens", "tokens", "reason"),
    [
        ([0.4], 5, None, "all 5 tokens came in one event"),
        ([0.4, 0.4], 5, None, "no time between the first and the last event"),
        ([0.4, 0.5], 5, [5, 0], "no token after the first event"),
    ],
)
def test_f20_no_rate_without_a_window(at_s, completion_tokens, tokens, reason):
    found = measure(record(at_s, completion_tokens, tokens=tokens))
    assert found.decode_tokens_per_s is None
    assert found.reasons["tpot_s"] == reason
    assert found.ttft_s == pytest.approx(0.4)


def test_f26_without_usage_events_are_a_lower_bound():
    found = measure(record([0.1 * i for i in range(1, 12)]))
    assert (found.tokens, found.num_tokens) == ("estimated", 11)
    assert any("lower bound" in note for note in found.notes)


def test_f26_ids_are_the_servers_own_count():
    found = measure(record([0.1, 0.2, 0.3], tokens=[1, 4, 4]))
    assert (found.tokens, found.num_tokens) == ("server", 9)


def test_f15_f21_the_servers_own_rate():
    at_s = [0.4 + 0.02 * i for i in range(128)]
    good = {"timings": {"predicted_n": 128, "predicted_ms": 2540.0}}
    found = measure(record(at_s, 128, evidence=good))
    assert found.server_decode_tokens_per_s == pytest.approx(50.0)
    assert found.decode_tokens_per_s == pytest.approx(50.0)
    for milliseconds in (0, 1, 1200):
        bad = {"timings": {"predicted_n": 128, "predicted_ms": milliseconds}}
        found = measure(record(at_s, 128, evidence=bad))
        assert found.server_decode_tokens_per_s is None
        assert any("is ignored" in note for note in found.notes)
    for timings in ({"predicted_n": 1, "predicted_ms": 5}, {"predicted_n": "x"}, {}, None, 5):
        found = measure(record(at_s, 128, evidence={"timings": timings}))
        assert found.server_decode_tokens_per_s is None
        assert not found.notes


def test_f40_a_failed_request_has_the_numbers_of_its_part():
    error = RequestError(kind="truncated", message="cut")
    found = measure(record([0.5, 0.6, 0.7], tokens=[1, 2, 2], error=error))
    assert found.decode_tokens_per_s == pytest.approx(4 / 0.2)
    assert found.num_tokens == 5


def test_send_lag_is_not_in_ttft():
    found = measure(record([1.5, 1.6], 2, sent_at_s=1.0))
    assert found.send_lag_s == pytest.approx(1.0)
    assert found.ttft_s == pytest.approx(0.5)


def test_reasoning_inside_the_text():
    texts = ["<think>", "hm", "</thi", "nk>\n\n", "Yes", ". So"]
    found = measure(record([1, 2, 3, 4, 5, 6], 6, texts=texts))
    assert found.ttft_s == 1
    assert found.time_to_answer_s == 5
    assert found.time_to_first_sentence_s == 6
    assert any("<think>" in note for note in found.notes)
    # The template may have opened it in the prompt.
    found = measure(record([1, 2, 3], 3, texts=["hm", "</think>Yes", " no"]))
    assert found.time_to_answer_s == 2
    found = measure(record([1, 2], 2, texts=["<think>", "hm"], finish_reason="length"))
    assert found.time_to_answer_s is None
    assert "while thinking" in found.reasons["time_to_answer_s"]
    found = measure(record([1, 2], 2, texts=["<think>", "hm"], finish_reason="stop"))
    assert found.reasons["time_to_answer_s"] == "no answer text: the answer ended while thinking"
    found = measure(record([1, 2, 3], 3, texts=["the tag ", "<think>", " and </think>"]))
    assert found.time_to_answer_s == 1


def test_the_first_sentence_of_the_answer():
    kinds = ["reasoning", "answer", "other", "answer", "answer"]
    texts = ["考える。", "はい", "", "、そうです。", "次"]
    found = measure(record([1, 2, 3, 4, 5], 5, kinds=kinds, texts=texts), language="ja")
    assert found.time_to_answer_s == 2
    assert found.time_to_first_sentence_s == 4
    assert found.speech_margin_s == pytest.approx(8 / 7 - 1)
    slow = measure(
        record([1, 2, 3, 4, 5], 5, kinds=kinds, texts=texts), language="ja", characters_per_s=16
    )
    assert slow.speech_margin_s == pytest.approx(8 / 16 - 1)


instants = st.lists(st.floats(0.001, 0.5), min_size=2, max_size=40).map(
    lambda gaps: [sum(gaps[: i + 1]) for i in range(len(gaps))]
)


@settings(deadline=None)
@given(instants, st.data())
def test_times_add_up(at_s, data):
    tokens = data.draw(
        st.lists(st.integers(1, 5), min_size=len(at_s), max_size=len(at_s)), label="tokens"
    )
    found = measure(record(at_s, sum(tokens), tokens=tokens))
    if found.buffered:
        return
    assert found.ttft_s + sum(found.inter_event_s) == pytest.approx(found.e2e_s)
    assert found.tpot_s * (found.num_tokens - tokens[0]) == pytest.approx(at_s[-1] - at_s[0])
    assert found.time_to_answer_s <= found.time_to_first_sentence_s <= found.e2e_s + 1e-9
