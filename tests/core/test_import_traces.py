"""LiteLLM, Langfuse and OpenTelemetry logs: prompts, counts, and the times that can be trusted."""

import json

import pytest

from sakiyomi.errors import ScenarioError
from sakiyomi.logs.import_log import ImportOptions, import_log
from sakiyomi.logs.log_times import as_instant, read_timing

MESSAGES = [{"role": "system", "content": "S"}, {"role": "user", "content": "How far is it?"}]


def read(folder, rows, name="log.jsonl", **options):
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return import_log([path], ImportOptions(name="own", **options))


def asked(imported):
    return sorted((c.system or "", c.turns) for c in imported.scenarios[0].conversations)


# --- LiteLLM -------------------------------------------------------------------------------------


def spend(number, **fields):
    second = 10 + number
    return {
        "request_id": f"r{number}",
        "call_type": "acompletion",
        "api_key": "hash",
        "spend": 0.01,
        "startTime": f"2026-05-01T10:00:{second}.100000+00:00",
        "completionStartTime": f"2026-05-01T10:00:{second}.350000+00:00",
        "endTime": f"2026-05-01T10:00:{second + 2}.350000+00:00",
        "model": "openai/m",
        "model_group": "m",
        "prompt_tokens": 40,
        "completion_tokens": 101,
        "messages": [{"role": "user", "content": f"Question number {number}?"}],
        **fields,
    }


def test_spend_logs_give_prompts_and_a_baseline(tmp_path):
    imported = read(tmp_path, [spend(n) for n in range(5)])
    assert len(asked(imported)) == 5
    quantities = imported.baseline.quantities
    assert quantities["ttft_s"].median == pytest.approx(0.25)
    assert quantities["e2e_s"].median == pytest.approx(2.25)
    assert quantities["decode_tokens_per_s"].median == pytest.approx(100 / 2.0)
    assert quantities["completion_tokens"].n == 5
    assert imported.baseline.models == {"m": 5}
    assert imported.baseline.schema == "sakiyomi.baseline/1"


@pytest.mark.parametrize(
    ("fields", "kept", "why"),
    [
        ({"completionStartTime": "2026-05-01T10:00:12.350000+00:00"}, {"e2e_s"}, None),  # no stream
        ({"completionStartTime": "2026-05-01T10:00:10.100000+00:00"}, {"e2e_s"}, None),
        ({"completionStartTime": None}, {"e2e_s"}, None),
        ({"cache_hit": "True"}, set(), "answered from a response cache"),
        ({"endTime": "2026-05-01T10:00:09.350000+00:00"}, set(), "an end before its start"),
        ({"endTime": "2026-05-03T10:00:09.350000+00:00"}, set(), "no or absurd duration"),
        (
            {"startTime": "2026-05-01 10:00:10", "completionStartTime": "2026-05-01 10:00:11", "endTime": "2026-05-01 10:00:12"},
            set(),
            "instants in whole seconds",
        ),
        ({"status": "failure"}, set(), None),
    ],
)  # fmt: skip
def test_times_that_cannot_be_trusted_are_left_out(tmp_path, fields, kept, why):
    imported = read(tmp_path, [spend(0, **fields)])
    quantities = imported.baseline.quantities if imported.baseline else {}
    times = {"ttft_s", "e2e_s", "decode_tokens_per_s"} & set(quantities)
    assert times == kept
    if why:
        assert imported.baseline.left_out == {why: 1}
    if "status" in fields:
        assert imported.baseline is None


def test_prompts_stand_in_the_request_when_messages_are_empty(tmp_path):
    body = {
        "messages": MESSAGES,
        "temperature": 0.4,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    rows = [
        spend(0, messages={}, proxy_server_request=json.dumps(body)),
        spend(1, messages="[]", proxy_server_request={"body": {**body, "messages": MESSAGES[1:]}}),
        spend(2, messages=json.dumps([{"role": "user", "content": "As text?"}])),
    ]
    imported = read(tmp_path, rows)
    assert asked(imported) == [
        ("", ("As text?",)),
        ("", ("How far is it?",)),
        ("S", ("How far is it?",)),
    ]
    assert imported.scenarios[0].sampling.temperature == 0.4
    assert imported.scenarios[0].sampling.enable_thinking is False


def test_spend_logs_without_prompts_name_the_setting(tmp_path):
    with pytest.raises(ScenarioError, match="a spend log without messages") as caught:
        read(tmp_path, [spend(n, messages={}) for n in range(3)])
    assert "store_prompts_in_spend_logs" in caught.value.hint


def test_cut_and_redacted_prompts_are_no_prompts(tmp_path):
    cut = "start... (litellm_truncated skipped 12982 chars) ...end"
    rows = [
        spend(0),
        spend(1, messages=[{"role": "user", "content": cut}]),
        spend(2, messages=[{"role": "user", "content": "redacted-by-litellm"}]),
        spend(3, call_type="aembedding"),
    ]
    imported = read(tmp_path, rows)
    assert len(asked(imported)) == 1
    assert sorted(one.num_rows for one in imported.skipped) == [1, 1, 1]


def test_a_csv_of_spend_logs_needs_no_columns(tmp_path):
    import csv

    row = spend(0)
    path = tmp_path / "spend.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, row)
        writer.writeheader()
        writer.writerow({**row, "messages": json.dumps(row["messages"])})
    imported = import_log([path], ImportOptions(name="own"))
    assert asked(imported) == [("", ("Question number 0?",))]
    assert imported.baseline.quantities["ttft_s"].median == pytest.approx(0.25)


# --- Langfuse ------------------------------------------------------------------------------------


def generation(**fields):
    return {
        "id": "o1",
        "traceId": "t1",
        "type": "GENERATION",
        "startTime": "2026-05-01T10:00:00.000Z",
        "completionStartTime": "2026-05-01T10:00:00.500Z",
        "endTime": "2026-05-01T10:00:01.500Z",
        "model": "m",
        "modelParameters": {"temperature": "0.6", "max_tokens": "700"},
        "input": MESSAGES,
        "output": {"role": "assistant", "content": "Far."},
        "usage": {"input": 12, "output": 51, "total": 63, "unit": "TOKENS"},
        **fields,
    }


@pytest.mark.parametrize(
    "row",
    [
        generation(),
        generation(input=json.dumps(MESSAGES)),
        generation(input={"messages": MESSAGES, "tools": []}),
        {"id": "t1", "name": "trace", "input": "x", "observations": [{"type": "SPAN", "input": "q"}, generation()]},
        {
            "id": "o1", "trace_id": "t1", "type": "GENERATION",
            "start_time": "2026-05-01 10:00:00.000000",
            "completion_start_time": "2026-05-01 10:00:00.500000",
            "end_time": "2026-05-01 10:00:01.500000",
            "provided_model_name": "m", "input": json.dumps(MESSAGES),
            "model_parameters": json.dumps({"temperature": 0.6, "max_tokens": 700}),
            "usage_details": {"input": 12, "output": 51},
        },
    ],
    ids=["observation", "text", "mapping", "trace", "blob export"],
)  # fmt: skip
def test_langfuse_exports(tmp_path, row):
    imported = read(tmp_path, [row, {**generation(), "type": "SPAN"}])
    assert asked(imported) == [("S", ("How far is it?",))]
    quantities = imported.baseline.quantities
    assert quantities["ttft_s"].median == pytest.approx(0.5)
    assert quantities["decode_tokens_per_s"].median == pytest.approx(50 / 1.0)
    assert quantities["prompt_tokens"].median == 12
    sampling = imported.scenarios[0].sampling
    assert (sampling.temperature, sampling.max_tokens) == (0.6, 700)


def test_an_api_page_of_observations(tmp_path):
    path = tmp_path / "page.json"
    rows = [generation(id=f"o{n}", input=f"Question {n} about the weather?") for n in range(3)]
    path.write_text(json.dumps({"data": rows, "meta": {"page": 1, "totalItems": 3}}, indent=2))
    imported = import_log([path], ImportOptions(name="own"))
    assert len(asked(imported)) == 3
    assert imported.formats == {"Langfuse": 3}


# --- OpenTelemetry -------------------------------------------------------------------------------


def otlp(attributes, events=(), **fields):
    def pairs(values):
        kinds = {str: "stringValue", float: "doubleValue", int: "intValue"}
        return [
            {
                "key": key,
                "value": {kinds[type(value)]: str(value) if isinstance(value, int) else value},
            }
            for key, value in values.items()
        ]

    span = {
        "traceId": "0af7651916cd43dd8448eb211c80319c",
        "spanId": "b7ad6b7169203331",
        "name": "chat m",
        "startTimeUnixNano": "1777630000000000123",
        "endTimeUnixNano": "1777630001500000123",
        "attributes": pairs(
            {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", **attributes}
        ),
        "events": [{"name": name, "attributes": pairs(values)} for name, values in events],
        **fields,
    }
    return {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}


PARTS = [{"role": "user", "parts": [{"type": "text", "content": "How far is it?"}]}]
USAGE = {"gen_ai.usage.input_tokens": 12, "gen_ai.usage.output_tokens": 51}
LATEST = {
    "gen_ai.input.messages": json.dumps(PARTS),
    "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "S"}]),
}
SPANS = {
    "attributes": otlp({**LATEST, **USAGE, "gen_ai.response.time_to_first_chunk": 0.5}),
    "event with everything": otlp(
        {**USAGE, "gen_ai.response.time_to_first_chunk": 0.5},
        [("gen_ai.client.inference.operation.details", LATEST)],
    ),
    "an event a message": otlp(
        {**USAGE, "gen_ai.latency.time_to_first_token": 0.5},
        [
            ("gen_ai.system.message", {"content": "S"}),
            ("gen_ai.user.message", {"content": "How far is it?"}),
            ("gen_ai.choice", {"message": "Far."}),
        ],
    ),
    "openllmetry": otlp(
        {
            "gen_ai.prompt.0.role": "system", "gen_ai.prompt.0.content": "S",
            "gen_ai.prompt.1.role": "user", "gen_ai.prompt.1.content": "How far is it?",
            "gen_ai.completion.0.content": "Far.", **USAGE,
            "gen_ai.response.time_to_first_chunk": 0.5,
        }
    ),
    "structured attributes": otlp(USAGE),
    "vercel": otlp({"ai.prompt.messages": json.dumps(MESSAGES), **USAGE, "ai.response.msToFirstChunk": 500.0}),
    "console exporter": {
        "name": "chat m",
        "context": {"trace_id": "0x1", "span_id": "0x2"},
        "start_time": "2026-05-01T10:00:00.000000Z",
        "end_time": "2026-05-01T10:00:01.500000Z",
        "status": {"status_code": "UNSET"},
        "attributes": {**LATEST, **USAGE, "gen_ai.response.time_to_first_chunk": 0.5},
        "events": [],
    },
}  # fmt: skip


def _structured(value):
    """A value in OTLP's own types instead of JSON text."""
    if isinstance(value, list):
        return {"arrayValue": {"values": [_structured(item) for item in value]}}
    if isinstance(value, dict):
        pairs = [{"key": key, "value": _structured(item)} for key, item in value.items()]
        return {"kvlistValue": {"values": pairs}}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}


SPANS["structured attributes"]["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["attributes"] += [
    {"key": "gen_ai.input.messages", "value": _structured(PARTS)},
    {"key": "gen_ai.system_instructions", "value": _structured([{"type": "text", "content": "S"}])},
    {"key": "gen_ai.response.time_to_first_chunk", "value": _structured(0.5)},
]


@pytest.mark.parametrize("name", SPANS)
def test_opentelemetry_spans(tmp_path, name):
    imported = read(tmp_path, [SPANS[name], otlp({"gen_ai.operation.name": "execute_tool"})])
    assert asked(imported) == [("S", ("How far is it?",))]
    quantities = imported.baseline.quantities
    assert quantities["ttft_s"].median == pytest.approx(0.5)
    assert quantities["e2e_s"].median == pytest.approx(1.5)
    assert quantities["decode_tokens_per_s"].median == pytest.approx(50 / 1.0)


def test_one_indented_object_of_many_spans(tmp_path):
    path = tmp_path / "export.json"
    spans = []
    for number in range(4):
        text = json.dumps(
            [{"role": "user", "parts": [{"type": "text", "content": f"Question {number} on it?"}]}]
        )
        spans += otlp({"gen_ai.input.messages": text})["resourceSpans"][0]["scopeSpans"][0]["spans"]
    path.write_text(
        json.dumps(
            {"resourceSpans": [{"resource": {}, "scopeSpans": [{"spans": spans}]}]}, indent=1
        )
    )
    imported = import_log([path], ImportOptions(name="own"))
    assert len(asked(imported)) == 4
    assert imported.num_rows == 4


def test_messages_as_log_records(tmp_path):
    def record(name, text, span):
        body = {"kvlistValue": {"values": [{"key": "content", "value": {"stringValue": text}}]}}
        return {"spanId": span, "eventName": name, "body": body}

    records = [
        record("gen_ai.system.message", "S", "1"),
        record("gen_ai.user.message", "How far is it?", "1"),
        record("gen_ai.user.message", "And how deep is it?", "2"),
    ]
    rows = [{"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}]
    assert asked(read(tmp_path, rows)) == [
        ("", ("And how deep is it?",)),
        ("S", ("How far is it?",)),
    ]


def test_a_failed_span_has_no_times(tmp_path):
    imported = read(
        tmp_path, [otlp({**LATEST, **USAGE}, status={"code": 2}), otlp({**LATEST, **USAGE})]
    )
    assert imported.baseline.num_failed == 1
    assert imported.baseline.quantities["e2e_s"].n == 1


def test_spans_without_texts_name_the_switch(tmp_path):
    with pytest.raises(ScenarioError, match="a span without its messages") as caught:
        read(tmp_path, [otlp(USAGE)])
    assert "CAPTURE_MESSAGE_CONTENT" in caught.value.hint


# --- instants ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        "2026-05-01T10:00:00.250Z",
        "2026-05-01 10:00:00.250000",
        "2026-05-01T12:00:00.250+02:00",
        "2026-05-01 10:00:00.25 UTC",
        1777629600.25,
        1777629600250,
        1777629600250000,
        1777629600250000000,
        "1777629600.25",
    ],
)
def test_instants_in_the_forms_of_logs(value):
    assert as_instant(value) == pytest.approx(1777629600.25, abs=1e-6)


@pytest.mark.parametrize("value", [None, "", "yesterday", 0, -1, True, "2026", float("nan"), [1]])
def test_what_is_no_instant(value):
    assert as_instant(value) is None


def test_a_first_token_after_the_end_is_distrusted():
    timing = read_timing({"ttft_s": 2.0, "e2e_s": 1.0}, {"completion_tokens": 5})
    assert (timing.ttft_s, timing.e2e_s, timing.completion_tokens) == (None, None, 5)
    assert timing.distrust == "a first token after the end"
