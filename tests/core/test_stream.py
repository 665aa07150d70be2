"""Bytes -> events -> tokens. Fault ids are those of the collection of real reports."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sakiyomi.errors import StreamError
from sakiyomi.sse import MAX_EVENT_BYTES, SseEvent, SseParser
from sakiyomi.stream import TokenStream


def parse(*reads):
    parser = SseParser()
    events = [event for read in reads for event in parser.feed(read)]
    return [*events, *parser.close()], parser


def sse(*chunks, end="\n\n"):
    return "".join(
        f"data: {chunk if isinstance(chunk, str) else json.dumps(chunk, ensure_ascii=False)}{end}"
        for chunk in chunks
    ).encode()


def delta(finish=None, usage=None, **fields):
    chunk = {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}
    return chunk | ({"usage": usage} if usage is not None else {})


def count(completion, prompt=12):
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def read(*timed, tokens_per_event=None):
    """(instant, chunk or bytes) pairs -> the stream after its end."""
    stream = TokenStream(tokens_per_event)
    for at_s, chunk in timed:
        stream.feed(chunk if isinstance(chunk, bytes) else sse(chunk), at_s)
    stream.close()
    return stream


# --- events -----------------------------------------------------------------------------------


def test_f34_all_line_ends_are_equal():
    data = [b'{"a":1}', b'{"a":2}', b"[DONE]"]
    expected = [SseEvent(item) for item in data]
    crlf = b"".join(b"data: " + item + b"\r\n\r\n" for item in data)
    cases = {
        "lf": [b"".join(b"data: " + item + b"\n\n" for item in data)],
        "crlf": [crlf],
        "bare cr": [b"".join(b"data: " + item + b"\r\r" for item in data)],
        "lf, then a crlf blank line": [b"".join(b"data: " + item + b"\n\r\n" for item in data)],
        "cr | lf over two reads": [
            *(b"data: " + data[0] + b"\r", b"\n\r", b"\n"),
            *(b"data: " + data[1] + b"\r", b"\n\r\n", b"data: [DONE]\r\n\r", b"\n"),
        ],
        "no space": [b"".join(b"data:" + item + b"\n\n" for item in data)],
        "one byte per read": [crlf[i : i + 1] for i in range(len(crlf))],
        "id and retry": [b"".join(b"id: 7\nretry: 3\ndata: " + item + b"\n\n" for item in data)],
    }
    for name, reads in cases.items():
        events, parser = parse(*reads)
        assert events == expected, name
        assert parser.num_keep_alives == 0, name


def test_f34_one_leading_space_at_most_and_names():
    assert parse(b"data:  x\n\n")[0] == [SseEvent(b" x")]
    assert parse(b"event:error\ndata:x\n\n")[0] == [SseEvent(b"x", b"error")]
    assert parse(b"event: error\ndata: x\n\ndata: y\n\n")[0] == [
        SseEvent(b"x", b"error"),
        SseEvent(b"y"),
    ]


def test_a_cr_at_the_end_of_a_read_swallows_one_lf_only():
    events, _ = parse(b"data: a\r", b"\n\ndata: b\r\r", b"data: c\n\n")
    assert events == [SseEvent(b"a"), SseEvent(b"b"), SseEvent(b"c")]


def test_lines_of_data_are_joined():
    assert parse(b"data: a\ndata\ndata: b\n\n")[0] == [SseEvent(b"a\n\nb")]


def test_fields_that_the_standard_does_not_know_are_ignored():
    assert parse(b" data: x\ndatax: y\n\ndata: z\n\n")[0] == [SseEvent(b"z")]


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_bom_at_the_start_only(cut):
    data = b"\xef\xbb\xbfdata: x\n\n\xef\xbb\xbfdata: y\n\ndata: z\n\n"
    assert parse(data[:cut], data[cut:])[0] == [SseEvent(b"x"), SseEvent(b"z")]


def test_an_event_without_its_blank_line_is_seen_at_the_end():
    assert parse(b"data: a\n\ndata: [DONE]")[0] == [SseEvent(b"a"), SseEvent(b"[DONE]")]
    assert parse(b"d")[0] == []
    assert parse(b"")[0] == []
    assert parse(b"\xef\xbb")[0] == []


@pytest.mark.parametrize("size", [140_000, 600_000, 2_000_000, 15_000_000])
def test_f37_long_lines(size):
    text = b"x" * size
    data = b"data: " + text + b"\n\n"
    reads = [data[i : i + 65536] for i in range(0, len(data), 65536)]
    assert parse(*reads)[0] == [SseEvent(text)]


@pytest.mark.parametrize("line", [b"x" * 65536, b"data: " + b"x" * 65529 + b"\n"])
def test_f37_beyond_the_limit_is_a_clear_error(line):
    with pytest.raises(StreamError, match="16 MB"):
        parse(*([line] * (MAX_EVENT_BYTES // 65536 + 2)))


def test_f37_an_oversized_event_fails_the_stream_and_keeps_its_tokens():
    stream = TokenStream()
    stream.feed(sse(delta(content="a")), 1.0)
    stream.feed(b"data: " + b"x" * (MAX_EVENT_BYTES + 1), 2.0)
    assert stream.error.kind == "malformed"
    assert "16 MB" in stream.error.message
    assert stream.is_over
    assert stream.event_text == ["a"]


def test_f35_keep_alives_are_counted_and_are_no_tokens():
    cases = {
        "openrouter": (b": OPENROUTER PROCESSING\n\n" * 3, 3, 0),
        "bare comment": (b":\n\n", 1, 0),
        "between ids": (b"id: 1\n\n: ping\n\n", 1, 0),
        "bare data": (b"data:\n\n", 1, 0),
        "event ping": (b"event: ping\n\n", 1, 0),
        "event ping with data": (b'event: ping\ndata: {"type": "ping"}\n\n', 1, 0),
        "rewritten by a proxy": (b"data: : OPENROUTER PROCESSING\n\n", 0, 1),
    }
    for name, (noise, num_keep_alives, num_malformed) in cases.items():
        stream = read(
            (1.0, noise), (2.0, delta(content="a")), (3.0, noise), (4.0, delta("stop")), (4, noise)
        )
        fields = stream.fields()
        assert fields["event_at_s"] == [2.0], name
        assert fields["num_keep_alives"] == 3 * num_keep_alives, name
        assert fields["num_malformed"] == 3 * num_malformed, name
        assert fields["error"] is None, name


JAPANESE = sse(
    delta(content="日本🙂"),
    delta(content="社内規定は全公共入元✅\u2028次"),
    delta("stop"),
    "[DONE]",
)


@settings(deadline=None)
@given(st.lists(st.integers(0, len(JAPANESE)), max_size=12))
def test_f31_f32_no_cut_changes_the_result(cuts):
    edges = [0, *sorted(cuts), len(JAPANESE)]
    stream = TokenStream()
    for start, end in pairwise(edges):
        stream.feed(JAPANESE[start:end], 0.0)
    stream.close()
    assert stream.event_text == ["日本🙂", "社内規定は全公共入元✅\u2028次"]
    assert (stream.done, stream.finish_reason, stream.num_malformed) == (True, "stop", 0)


def test_f31_one_byte_per_read_takes_the_instant_of_the_last_byte():
    stream = TokenStream()
    for index in range(len(JAPANESE)):
        stream.feed(JAPANESE[index : index + 1], float(index))
    first_end = JAPANESE.index(b"\n\n") + 1
    assert stream.event_at_s[0] == first_end


def test_f31_end_inside_a_character():
    data = sse(delta(content="日"), delta(content="本"))
    cut = data.rindex("本".encode()) + 1
    stream = read((0, data[:cut]))
    assert stream.event_text == ["日"]
    assert not stream.is_complete
    assert stream.num_malformed == 0


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"\n", b"\r", b"\r\n"]),
            st.sampled_from([b"data: x", b"data:y", b": c", b"event: e", b"", b"id: 1", b"data"]),
        ),
        max_size=30,
    ),
    st.lists(st.integers(0, 400), max_size=10),
)
def test_any_split_of_any_lines_gives_the_same_events(lines, cuts):
    data = b"".join(line + end for end, line in lines)
    edges = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    pieces = [data[a:b] for a, b in pairwise(edges)]
    whole, one = parse(data)
    split, other = parse(*pieces)
    assert split == whole
    assert one.num_keep_alives == other.num_keep_alives


# --- tokens -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "role",
    [
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": None},
        {"role": "assistant"},
    ],
)
def test_f01_a_role_is_no_token(role):
    stream = read(
        (0.020, delta(**role)),
        (0.500, delta(content="a")),
        (0.520, delta(content="b")),
        (0.540, delta("stop", content="c")),
        (0.541, {"choices": [], "usage": count(3)}),
        (0.541, "[DONE]"),
    )
    assert stream.event_at_s == [0.500, 0.520, 0.540]
    assert stream.event_kind == ["answer"] * 3
    assert stream.fields()["completion_tokens"] == 3


def test_f01_role_and_first_text_in_one_chunk():
    assert read((0.5, delta(role="assistant", content="a"))).event_at_s == [0.5]


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content", "reasoning_text"])
def test_f02_reasoning_under_any_name(name):
    stream = read(
        (1, delta(**{name: "hm", "content": None})),
        (2, delta(**{name: "", "content": ""})),
        (3, delta(content="a", **{name: None})),
    )
    assert stream.event_kind == ["reasoning", "answer"]
    assert stream.event_text == ["hm", "a"]


def test_tool_calls_are_tokens():
    call = {"index": 0, "id": "1", "type": "function"}
    stream = read(
        (1, delta(tool_calls=[call | {"function": {"name": "find", "arguments": ""}}])),
        (2, delta(tool_calls=[call | {"function": {"arguments": '{"q":'}}])),
        (3, delta(tool_calls=[])),
        (4, delta(function_call={"arguments": "1}"})),
        (5, delta(tool_calls=[call])),
        (6, delta("tool_calls")),
    )
    assert stream.event_kind == ["tool"] * 3
    assert stream.event_at_s == [1, 2, 4]
    assert "".join(stream.event_text) == 'find{"q":1}'
    assert stream.finish_reason == "tool_calls"


def test_refusals_are_answers():
    assert read((1, delta(refusal="no"))).event_kind == ["answer"]


def test_completions_have_text():
    stream = read(
        (1, {"choices": [{"text": ""}]}),
        (2, {"choices": [{"text": "a", "finish_reason": None}]}),
        (3, {"choices": [{"text": "b", "finish_reason": "length"}]}),
    )
    assert stream.event_text == ["a", "b"]
    assert stream.finish_reason == "length"


def test_f16_continuous_usage_counts_each_event():
    stream = read(
        (0.1, delta(role="assistant", content="", usage=count(0))),
        (0.4, delta(content="abc", usage=count(8))),
        (0.9, delta(content="d", usage=count(9))),
        (1.8, delta("length", content="efg", usage=count(64))),
        (1.9, {"choices": [], "usage": count(64)}),
    )
    assert stream.event_tokens == [8, 1, 55]


def test_token_ids_come_first():
    for name in ("token_ids", "output_ids"):
        chunk = delta(content="a", usage=count(9))
        chunk["choices"][0][name] = [1, 2, 3]
        empty = delta(content="", usage=count(10))
        empty["choices"][0][name] = [7]
        none = delta(content="")
        none["choices"][0][name] = []
        stream = read((1, chunk), (2, empty), (3, none), tokens_per_event=1)
        assert stream.event_tokens == [3, 1]
        assert stream.event_kind == ["answer", "other"]


def test_f17_an_empty_delta_with_a_growing_count_is_an_arrival():
    stream = read(
        (0.1, delta(role="assistant", content="", usage=count(0))),
        (1, delta(usage=count(1))),
        (2, delta(usage=count(4))),
        (3, delta(content="", usage=count(4))),
        (4, delta(tool_calls=[{"function": {"arguments": "{}"}}], usage=count(7))),
        (5, delta("tool_calls", usage=count(8))),
    )
    assert stream.event_at_s == [1, 2, 4, 5]
    assert stream.event_kind == ["other", "other", "tool", "other"]
    assert stream.event_tokens == [1, 3, 3, 1]


@pytest.mark.parametrize("early", [None, {"prompt_tokens": 0, "completion_tokens": 0}])
@pytest.mark.parametrize("own_chunk", [True, False])
def test_f23_only_a_real_usage_counts(early, own_chunk):
    chunks = [
        delta(content="a") | {"usage": early},
        delta(content="b") | {"usage": early},
    ]
    if own_chunk:
        chunks += [delta("stop") | {"usage": early}, {"choices": [], "usage": count(58)}]
    else:
        chunks += [delta("stop", usage=count(58))]
    chunks.append({"choices": [], "usage": early})
    stream = read(*enumerate(chunks), tokens_per_event=None)
    fields = stream.fields()
    assert (fields["prompt_tokens"], fields["completion_tokens"]) == (12, 58)
    assert fields["event_at_s"] == [0, 1]
    assert fields["event_tokens"] == [None, None]


def test_f23_absent_null_and_zero_are_three_things():
    assert read((0, delta(content="a"))).fields()["completion_tokens"] is None
    assert read((0, delta(content="a") | {"usage": None})).fields()["completion_tokens"] is None
    zeros = read((0, delta(content="a", usage=count(0, 0)))).fields()
    assert zeros["completion_tokens"] is None
    assert zeros["evidence"]["usage"]["completion_tokens"] == 0
    assert read((0, delta("stop", usage=count(0)))).fields()["completion_tokens"] == 0


@pytest.mark.parametrize("none", [[], None])
def test_f25_a_chunk_without_choices(none):
    stream = read(
        (0, {"choices": none, "prompt_filter_results": [{}]}),
        (1, delta(content="a")),
        (2, {"choices": none, "usage": count(1)}),
    )
    assert stream.event_at_s == [1]
    assert stream.fields()["completion_tokens"] == 1


def test_e02_reasoning_tokens_are_part_of_the_completion():
    usage = count(300) | {
        "completion_tokens_details": {"reasoning_tokens": 200},
        "prompt_tokens_details": {"cached_tokens": 7},
    }
    fields = read((0, delta(content="a")), (1, {"choices": [], "usage": usage})).fields()
    assert fields["completion_tokens"] == 300
    assert fields["reasoning_tokens"] == 200
    assert fields["cached_prompt_tokens"] == 7


def test_a_missing_count_is_not_charged_to_the_next_event():
    stream = read(
        (1, delta(content="a", usage=count(1))),
        (2, delta(content="b")),
        (3, delta(content="c", usage=count(6))),
        (4, delta(content="d", usage=count(8))),
        (5, delta(content="e", usage=count(3))),
    )
    assert stream.event_tokens == [1, None, None, 2, None]


def test_the_whole_answer_in_one_chunk_has_its_count():
    stream = read((1, delta("stop", content="abc", usage=count(30))))
    assert stream.event_tokens == [30]


def test_f20_an_end_without_text_is_no_arrival():
    stream = read((1, delta(role="assistant", content="")), (2, delta("stop", usage=count(1))))
    assert stream.event_at_s == []
    assert stream.fields()["completion_tokens"] == 1


def test_engines_of_one_token_an_event():
    stream = read((1, delta(content="a")), (2, delta(content="b")), tokens_per_event=1)
    assert stream.event_tokens == [1, 1]


def test_logprobs_count_where_nothing_else_does():
    chunk = delta(content="ab")
    chunk["choices"][0]["logprobs"] = {"content": [{"token": "a"}, {"token": "b"}]}
    other = {"choices": [{"text": "cd", "logprobs": {"tokens": ["c", "d"], "top_logprobs": None}}]}
    assert read((1, chunk), (2, other)).event_tokens == [2, 2]


def test_llamacpp_counts_the_tokens_of_characters_held_back():
    def timed(at_s, num, **fields):
        return (at_s, delta(**fields) | {"timings": {"predicted_n": num, "predicted_ms": at_s}})

    stream = read(
        timed(1, 1, content="a"),
        timed(2, 4, content="漢"),
        timed(3, 5, content="b"),
        tokens_per_event=1,
    )
    assert stream.event_tokens == [1, 3, 1]


def test_llamacpp_marks_the_steps():
    def timed(at_s, milliseconds, *draft, num=3, **fields):
        timings = {"predicted_n": num, "predicted_ms": milliseconds, "predicted_per_second": 50.1}
        timings |= dict(zip(("draft_n", "draft_n_accepted"), draft, strict=False))
        return (at_s, delta(**fields) | {"timings": timings})

    stream = read(
        (0.9, delta(content="x")),
        timed(1, 0.01, content="a", num=1),
        timed(2, 20.5, 3, 1, content="b", num=2),
        timed(2, 20.5, 3, 1, content="c", num=3),
        (2.5, delta(content="y")),
        timed(3, 30.5, 6, 1, finish="stop", num=3),
        tokens_per_event=1,
    )
    fields = stream.fields()
    assert fields["event_step_mark"] == [None, 0.01, 20.5, 20.5, None]
    assert fields["event_num_draft_tokens"] == [None, None, 3, 3, None]
    assert fields["event_num_accepted_tokens"] == [None, None, 1, 1, None]
    assert fields["event_tokens"] == [1] * 5
    assert fields["evidence"]["timings"] == {
        "predicted_n": 3,
        "predicted_ms": 30.5,
        "predicted_per_second": 50.1,
        "draft_n": 6,
        "draft_n_accepted": 1,
    }


def test_evidence_is_kept_as_received():
    last = delta(content="a")
    last["choices"][0]["avg_decoded_tokens_per_iter"] = 2.5
    metrics = {"speculative_decoding": {"num_draft_tokens": 30, "acceptance_histogram": [1, 2]}}
    stream = read(
        (1, last),
        (2, {"choices": [], "sglext": {"spec_tokens_details": {"spec_verify_ct": 9}}}),
        (3, {"choices": [], "sglext": {"cached_tokens_details": None}}),
        (4, {"choices": [], "usage": count(9), "metrics": metrics, "stats": {"a": 1}}),
    )
    assert stream.fields()["evidence"] == {
        "avg_decoded_tokens_per_iter": 2.5,
        "sglext": {"spec_tokens_details": {"spec_verify_ct": 9}, "cached_tokens_details": None},
        "metrics": metrics,
        "stats": {"a": 1},
        "usage": count(9),
    }


def test_names_of_the_server():
    stream = read((1, delta(content="a") | {"model": "m", "system_fingerprint": "vllm-0.33"}))
    assert (stream.model, stream.system_fingerprint) == ("m", "vllm-0.33")
    signed = {"choices": [], "usage": count(1), "system_fingerprint": "vllm-0.33"}
    stream = read((1, delta(content="a") | {"model": "m"}), (2, signed))  # as vLLM does
    assert (stream.model, stream.system_fingerprint) == ("m", "vllm-0.33")


def test_several_choices_add_up():
    chunk = {
        "choices": [
            {"index": 0, "delta": {"content": "a"}, "token_ids": [1, 2]},
            {"index": 1, "delta": {"content": "b"}, "token_ids": [3]},
        ]
    }
    stream = read((1, chunk))
    assert stream.event_tokens == [3]
    assert stream.event_text == ["ab"]


# --- surprises --------------------------------------------------------------------------------


def test_surprising_types_are_read_all_the_same():
    stream = read(
        (1, delta(content=[{"type": "text", "text": "a"}])),
        (2, delta(content=[{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}])),
        (3, delta(content=[{"type": "thinking", "thinking": "hm"}, 5])),
        (4, delta(tool_calls={"function": {"name": "f", "arguments": {"q": 1}}})),
        (5, delta("stop", content=7, function_call="x", usage={"completion_tokens": 58.0})),
        (
            6,
            {
                "choices": [],
                "usage": {
                    "completion_tokens": 58.0,
                    "prompt_tokens": True,
                    "completion_tokens_details": {"reasoning_tokens": 3.0},
                    "prompt_tokens_details": {"cached_tokens": "4"},
                },
                "timings": {"predicted_ms": "fast"},
            },
        ),
        (
            7,
            {"choices": [5, {"delta": 5, "token_ids": ["a"], "logprobs": {"content": ["x", "y"]}}]},
        ),
        (8, {"choices": "no", "model": 4, "usage": "no", "timings": "no"}),
    )
    assert stream.event_kind == ["answer", "reasoning", "reasoning", "tool", "other"]
    assert stream.event_text == ["a", "hm", "hm", 'f{"q": 1}', ""]
    assert stream.event_at_s == [1, 2, 3, 4, 7]
    fields = stream.fields()
    assert fields["completion_tokens"] == 58
    assert fields["reasoning_tokens"] == 3
    assert fields["prompt_tokens"] is None
    assert fields["num_malformed"] == 0


def test_broken_utf8_and_lone_surrogates_become_replacements():
    stream = read(
        (1, b'data: {"choices":[{"delta":{"content":"a\xe6\x97"}}]}\n\n'),
        (2, b'data: {"choices":[{"delta":{"content":"\\ud83d"}}]}\n\n'),
        (3, b'data: {"choices":[{"delta":{"content":"\\ud83d\\ude42"}}], "x": NaN}\n\n'),
        (4, b'data: {"usage": {"completion_tokens": 3, "note": "\xff"}}\n\n'),
    )
    assert stream.fields()["evidence"] == {"usage": {"completion_tokens": 3, "note": "\ufffd"}}
    assert stream.event_text == ["a\ufffd", "\ufffd", "🙂"]
    assert stream.num_malformed == 0


@pytest.mark.parametrize("line", ["{", "[1]", "7", "null", '"text"', "data: {}"])
def test_what_is_no_object_is_malformed(line):
    stream = read((1, sse(line)), (2, delta(content="a")))
    assert stream.num_malformed == 1
    assert stream.event_at_s == [2]


# --- failures ---------------------------------------------------------------------------------

ERROR = {"error": {"message": "out of memory", "type": "InternalServerError", "code": 500}}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (sse(ERROR), "out of memory"),
        (sse({"error": "text"}), "text"),
        (b'event: error\ndata: {"message": "gone"}\n\n', "gone"),
        (b"event: error\ndata: gone\n\n", "gone"),
        (b'event: error\ndata: {"code": 7}\n\n', '{"code":7}'),
        (sse(delta("error")), "the server ended the answer with 'error'"),
        (sse(delta("abort")), "the server ended the answer with 'abort'"),
        (sse({"object": "error", "message": "bad", "code": 400}), "bad"),
        (sse({"error": {"detail": {"msg": "deep"}}}), "deep"),
        (sse({"error": 5}), "5"),
    ],
)
@pytest.mark.parametrize("num_before", [0, 7])
def test_f39_errors_in_the_stream(data, message, num_before):
    before = [(at_s, delta(content="a") | {"error": None}) for at_s in range(num_before)]
    stream = read(*before, (8, data), (9, "[DONE]"))
    assert stream.error.kind == "error_in_stream"
    assert stream.error.message == message
    assert len(stream.event_at_s) == num_before
    assert stream.is_over


def test_f39_the_first_error_counts():
    stream = read((1, sse({"error": "first"})), (2, sse({"error": "second"})), (3, delta("error")))
    assert stream.error.message == "first"


@pytest.mark.parametrize("none", [None, "", {}, False])
def test_f39_no_error_is_none(none):
    stream = read((1, delta(content="a") | {"error": none}))
    assert stream.error is None
    assert stream.event_text == ["a"]


@pytest.mark.parametrize(
    ("chunks", "complete"),
    [
        ([], False),
        (["[DONE]"], True),
        ([delta(None), "[DONE]"], True),
        ([delta("stop")], True),
        ([delta("stop"), "[DONE]"], True),
    ],
)
def test_f40_five_endings(chunks, complete):
    stream = read((1, delta(content="a")), *((2, chunk) for chunk in chunks))
    assert stream.is_complete is complete
    assert stream.event_text == ["a"]


def test_a_document_gives_its_counts_and_no_instants():
    document = {
        "model": "m",
        "choices": [{"message": {"content": "abc"}, "finish_reason": "stop"}],
        "usage": count(3),
        "timings": {"predicted_ms": 5},
    }
    stream = TokenStream()
    assert stream.take_document(json.dumps(document).encode())
    fields = stream.fields()
    assert fields["event_at_s"] == []
    assert fields["completion_tokens"] == 3
    assert fields["finish_reason"] == "stop"
    assert fields["model"] == "m"
    assert fields["evidence"]["timings"] == {"predicted_ms": 5}
    assert not TokenStream().take_document(b"<html>")
