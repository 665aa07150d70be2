"""Logs in the forms that tools write them -> the right conversations, and an account of the rest.

F67 and F70 of the faults of tools like this one are here.
"""

import gzip
import json
import random
import tracemalloc

import pytest

from sakiyomi.errors import ScenarioError
from sakiyomi.logs.import_log import ImportOptions, import_log, scenario_text
from sakiyomi.scenario import parse_scenario


def write(folder, name, content, encoding="utf-8"):
    path = folder / name
    if not isinstance(content, str | bytes):
        content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in content)
    path.write_bytes(content if isinstance(content, bytes) else content.encode(encoding))
    return path


def read(paths, **options):
    paths = paths if isinstance(paths, list) else [paths]
    return import_log(paths, ImportOptions(name="own", **options))


def asked(imported):
    """(system, turns) of every conversation, sorted."""
    found = [(c.system or "", c.turns) for s in imported.scenarios for c in s.conversations]
    return sorted(found)


def skipped(imported):
    return {one.reason: (one.num_rows, one.examples) for one in imported.skipped}


def chat(text, *, system=None, **fields):
    messages = [{"role": "system", "content": system}] if system else []
    return {"messages": [*messages, {"role": "user", "content": text}], **fields}


# --- F67: a BOM changes nothing; other encodings -------------------------------------------------

BOM = b"\xef\xbb\xbf"
TEXTS = ["来週の予定を教えてください。", "メールの下書きをお願いします。"]


@pytest.mark.parametrize("bom", [b"", BOM], ids=["plain", "bom"])
@pytest.mark.parametrize(
    ("name", "raw"),
    [
        (
            "log.csv",
            "prompt,max_tokens\r\n来週の予定を教えてください。,64\r\nメールの下書きをお願いします。,64\r\n",
        ),
        (
            "log.csv",
            '"prompt","max_tokens"\r\n"来週の予定を教えてください。","64"\r\n"メールの下書きをお願いします。","64"\r\n',
        ),
        ("log.json", json.dumps([chat(text, max_tokens=64) for text in TEXTS])),
        ("log.jsonl", "\n".join(json.dumps(chat(text, max_tokens=64)) for text in TEXTS)),
        ("log.jsonl", json.dumps([chat(text, max_tokens=64) for text in TEXTS], indent=1)),
    ],
    ids=["csv", "quoted csv", "array", "lines", "array named jsonl"],
)
def test_a_bom_changes_nothing(tmp_path, bom, name, raw):
    imported = read(write(tmp_path, name, bom + raw.encode()))
    assert asked(imported) == sorted(("", (text,)) for text in TEXTS)
    assert imported.scenarios[0].sampling.max_tokens == 64
    assert imported.skipped == ()


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "cp932", "euc_jp"]
)
@pytest.mark.parametrize("name", ["log.csv", "log.jsonl"])
def test_encodings_are_found_out(tmp_path, encoding, name):
    rows = [f"{text}{number}番目" for text in TEXTS for number in range(20)]
    if name == "log.csv":
        content = "id,prompt\r\n" + "".join(f"{i},{row}\r\n" for i, row in enumerate(rows))
    else:
        content = "".join(json.dumps(chat(row), ensure_ascii=False) + "\n" for row in rows)
    imported = read(write(tmp_path, name, content, encoding))
    assert asked(imported) == sorted(("", (row,)) for row in rows)
    assert imported.scenarios[0].language == "ja"


def test_an_encoding_shows_after_a_megabyte_of_ascii(tmp_path):
    rows = [chat("hello " * 300 + str(number)) for number in range(800)] + [chat(TEXTS[0])]
    path = write(tmp_path, "log.jsonl", rows, "cp932")
    assert path.stat().st_size > 1_200_000
    imported = read(path, num_conversations=1000)
    assert ("", (TEXTS[0],)) in asked(imported)


def test_one_cut_character_makes_a_bad_row_and_no_other_encoding(tmp_path):
    lines = [json.dumps(chat(f"{TEXTS[0]}{n}"), ensure_ascii=False).encode() for n in range(9)]
    lines[4] = lines[4].replace("予".encode(), "予".encode()[:2])
    imported = read(write(tmp_path, "log.jsonl", b"\n".join(lines)))
    assert len(asked(imported)) == 8
    assert list(skipped(imported).values()) == [(1, ("log.jsonl:5",))]


def test_gzip_is_read(tmp_path):
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(chat("How are you?")).encode()))
    assert asked(read(path)) == [("", ("How are you?",))]


# --- F70: ShareGPT, OpenAI batch, messages -------------------------------------------------------

SHAREGPT = [
    ({"conversations": [{"from": "human", "value": "a?"}, {"from": "gpt", "value": "b"}]}, ("", ("a?",))),
    ({"conversations": [{"from": "USER", "value": "c?"}, {"from": "ASSISTANT", "value": "d"}]}, ("", ("c?",))),
    ({"conversations": [{"from": "gpt", "value": "hi"}, {"from": "human", "value": "e?"}]}, ("", ("e?",))),
    (
        {"conversations": [
            {"from": "system", "value": "S"}, {"from": "human", "value": "f?"},
            {"from": "function_call", "value": "{}"}, {"from": "observation", "value": "7"},
            {"from": "gpt", "value": "g"}, {"from": "human", "value": "h?"},
        ]},
        ("S", ("f?", "h?")),
    ),
    ({"conversations": [{"role": "user", "content": "i?"}, {"role": "assistant", "content": "j"}]}, ("", ("i?",))),
    ({"conversations": [{"from": "human", "value": "k?"}], "system": "T"}, ("T", ("k?",))),
    ({"items": [{"from": "human", "value": "l?"}]}, ("", ("l?",))),
    ({"conversations": [["human", "m?"], ["gpt", "n"]]}, ("", ("m?",))),
    ([{"from": "human", "value": "o?"}, {"from": "gpt", "value": "p"}], ("", ("o?",))),
    ([{"role": "user", "content": "q?"}], ("", ("q?",))),
]  # fmt: skip


@pytest.mark.parametrize("shape", ["lines", "array", "indented", "one line array named jsonl"])
def test_sharegpt_in_its_variants(tmp_path, shape):
    rows = [row for row, _ in SHAREGPT]
    bad = ["text", 7, {"conversations": ["no object"]}, {"conversations": [{"value": "no role"}]}]
    rows = [*rows[:3], *bad, *rows[3:]]
    if shape == "lines":
        path = write(tmp_path, "share.jsonl", rows)
    else:
        raw = json.dumps(rows, indent=2 if shape == "indented" else None)
        path = write(tmp_path, "share.jsonl" if "named" in shape else "share.json", raw)
    imported = read(path)
    assert asked(imported) == sorted(expected for _, expected in SHAREGPT)
    assert {reason: num for reason, (num, _) in skipped(imported).items()} == {
        "a string instead of an object": 1,
        "a number instead of an object": 1,
        "a message is a string instead of an object": 1,
        "a message without a role": 1,
    }
    if shape == "lines":
        assert skipped(imported)["a number instead of an object"] == (1, ("share.jsonl:5",))
    assert imported.marks == {"tool results": 1}


def batch_input(number, text, **body):
    return {
        "custom_id": f"c{number}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "m", "messages": [{"role": "user", "content": text}], **body},
    }


def batch_output(number, status=200, **fields):
    body = {
        "model": "m",
        "choices": [],
        "usage": {"prompt_tokens": 10 + number, "completion_tokens": 100 + number},
    }
    if status >= 400:
        body = {"error": {"message": "too long"}}
    return {
        "custom_id": f"c{number}",
        "error": None,
        "response": {"status_code": status, "body": body},
        **fields,
    }


def test_a_batch_input_is_read(tmp_path):
    rows = [batch_input(n, f"Question {n}?", temperature=0.2, max_tokens=300) for n in range(4)]
    rows.append({"custom_id": "c9", "url": "/v1/completions", "body": {"prompt": "Once upon"}})
    rows.append(
        {
            "custom_id": "c8",
            "url": "/v1/responses",
            "body": {"input": "Say it", "instructions": "Short."},
        }
    )
    rows.append({"custom_id": "c7", "url": "/v1/embeddings", "body": {"input": "embed me"}})
    imported = read(write(tmp_path, "batch.jsonl", rows))
    questions = [("", (f"Question {n}?",)) for n in range(4)]
    assert asked(imported) == sorted([*questions, ("", ("Once upon",)), ("Short.", ("Say it",))])
    assert skipped(imported) == {"no chat request (/v1/embeddings)": (1, ("batch.jsonl:7",))}
    assert imported.scenarios[0].sampling.temperature == 0.2
    assert imported.scenarios[0].sampling.max_tokens == 300


def test_a_batch_output_alone_has_no_prompts(tmp_path):
    path = write(tmp_path, "out.jsonl", [batch_output(n) for n in range(3)])
    with pytest.raises(ScenarioError, match="answers, no prompts") as caught:
        read(path)
    assert "batch input" in caught.value.hint
    assert caught.value.exit_status == 2


def test_failures_in_a_batch_output_are_failures(tmp_path):
    asked_for = write(tmp_path, "in.jsonl", [batch_input(n, f"Question {n}?") for n in range(6)])
    rows = [batch_output(0), batch_output(1), batch_output(2, 400), batch_output(3, 500)]
    rows.append({"custom_id": "c4", "error": "expired", "response": None})
    rows.append({"error": None, "response": batch_output(5)["response"]})  # no custom_id
    imported = read([asked_for, write(tmp_path, "out.jsonl", rows)])
    assert len(asked(imported)) == 6
    assert imported.baseline.num_failed == 3
    tokens = imported.baseline.quantities["completion_tokens"]
    assert (tokens.median, tokens.n) == (101, 3)
    assert "ttft_s" not in imported.baseline.quantities
    assert any("no times" in note for note in imported.baseline.notes)


def test_bad_rows_are_skipped_and_named_by_line(tmp_path):
    good = json.dumps(chat("A good row?"))
    lines = [good, "{broken", '{"messages": []}', "", '{"messages": 5}', "[1, 2", '{"a": 1}']
    imported = read(write(tmp_path, "log.jsonl", "\n".join(lines)))
    assert asked(imported) == [("", ("A good row?",))]
    found = [(num, examples) for num, examples in skipped(imported).values()]
    assert sum(num for num, _ in found) == 5
    assert sorted(line for _, lines in found for line in lines) == [
        f"log.jsonl:{n}" for n in (2, 3, 5, 6, 7)
    ]


def test_a_broken_first_row_is_a_bad_row(tmp_path):
    lines = ['{"messages": [{"role": "us', json.dumps(chat("one?")), json.dumps(chat("two?"))]
    imported = read(write(tmp_path, "log.jsonl", "\n".join(lines)))
    assert asked(imported) == [("", ("one?",)), ("", ("two?",))]
    assert [one.examples for one in imported.skipped] == [("log.jsonl:1",)]


def big(number):
    return chat(f"Big question number {number}?", response="x" * 1_200_000)


@pytest.mark.parametrize("shape", ["lines", "array", "wrapped", "indented array", "pretty object"])
def test_entries_longer_than_what_the_kind_is_told_from(tmp_path, shape):
    rows = [big(n) for n in range(3)]
    raw = {
        "lines": "\n".join(map(json.dumps, rows)),
        "array": json.dumps(rows),
        "wrapped": json.dumps({"meta": {"n": 3}, "data": rows}),
        "indented array": json.dumps(rows, indent=1),
        "pretty object": "\n".join(json.dumps(row, indent=1) for row in rows),
    }[shape]
    # a wrapping object is told from its keys, so they must stand before the first megabyte ends
    imported = read(write(tmp_path, "log.jsonl", raw))
    assert asked(imported) == [("", (f"Big question number {n}?",)) for n in range(3)]
    assert imported.skipped == ()


def test_pages_of_an_api_one_a_line(tmp_path):
    pages = [
        {"data": [chat(f"Question {p}{n}?") for n in range(3)] + [{"no": 1}]} for p in range(2)
    ]
    imported = read(write(tmp_path, "pages.jsonl", pages))
    assert asked(imported) == [("", (f"Question {p}{n}?",)) for p in range(2) for n in range(3)]
    assert skipped(imported) == {
        "no messages, prompt or conversation in it": (2, ("pages.jsonl:1", "pages.jsonl:2"))
    }


def test_a_file_cut_in_the_middle_keeps_what_is_whole(tmp_path):
    raw = json.dumps([chat(f"Question number {n}?") for n in range(50)], indent=1)
    imported = read(write(tmp_path, "log.json", raw[:-40]))
    assert len(asked(imported)) == 49
    assert [one.num_rows for one in imported.skipped] == [1]


def test_a_cut_gzip_file_is_named(tmp_path):
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(chat("How are you?" * 999)).encode())[:-20])
    with pytest.raises(ScenarioError, match=r"log\.jsonl\.gz"):
        read(path)


# --- messages ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (chat("a?", system="S"), ("S", ("a?",))),
        ({"system": [{"type": "text", "text": "S"}], **chat("a?")}, ("S", ("a?",))),
        ({"request": chat("a?"), "response": {"status_code": 200, "body": {}}}, ("", ("a?",))),
        ({"kwargs": json.dumps(chat("a?"))}, ("", ("a?",))),
        ({"messages": [{"role": "developer", "content": "S"}, {"role": "user", "content": [{"type": "text", "text": "a?"}, {"type": "text", "text": "b"}]}]}, ("S", ("a?\nb",))),
        ({"messages": [{"role": "user", "content": "a?"}, {"role": "user", "content": "b"}]}, ("", ("a?\n\nb",))),
        ({"contents": [{"role": "user", "parts": [{"text": "a?"}]}, {"role": "model", "parts": [{"text": "x"}]}]}, ("", ("a?",))),
        ({"prompt": ["a?"]}, ("", ("a?",))),
        ({"input": [{"role": "user", "content": "a?"}, {"type": "function_call", "name": "f"}, {"type": "function_call_output", "output": "7"}], "instructions": "S"}, ("S", ("a?",))),
        ({"messages": [{"author": {"role": "user"}, "content": {"parts": ["a?"]}}]}, ("", ("a?",))),
        ({"messages": [{"role": "user", "content": [{"type": "thinking", "text": "no"}, {"type": "tool_result", "content": "no"}, {"type": "text", "text": "a?"}]}]}, ("", ("a?",))),
        ({"prompt": "a?", "attributes": {"team": 1}}, ("", ("a?",))),
        ({"instruction": "Sum up.", "input": "A text", "output": "x"}, ("", ("Sum up.\n\nA text",))),
        ({"system_prompt": "S", "question": "a?", "answer": "x"}, ("S", ("a?",))),
        ({"turns": ["a?", "b?"], "system": "S"}, ("S", ("a?", "b?"))),
    ],
)  # fmt: skip
def test_forms_of_a_request(tmp_path, row, expected):
    assert asked(read(write(tmp_path, "log.jsonl", [row]))) == [expected]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": [1, 2, 3]}, "a prompt of token ids"),
        ({"prompt": "   "}, "no user text"),
        ({"messages": [{"role": "stranger", "content": "a"}]}, "a message of an unknown role"),
        ({"messages": [None]}, "a message is null instead of an object"),
        ({"answer": 1}, "no messages, prompt or conversation in it"),
        ({"turns": [1, 2]}, "no user text"),
    ],
)
def test_reasons_for_skipping(tmp_path, row, reason):
    imported = read(write(tmp_path, "log.jsonl", [chat("good?"), row]))
    assert skipped(imported) == {reason: (1, ("log.jsonl:2",))}


def test_images_and_tool_results_are_said_to_be_left_out(tmp_path):
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    rows = [
        {"messages": [{"role": "user", "content": [picture, {"type": "text", "text": "What is it?"}]}]},
        {"messages": [{"role": "user", "content": [picture]}]},
        {"messages": [{"role": "user", "content": "go"}, {"role": "assistant", "content": None}, {"role": "tool", "content": "7"}]},
    ]  # fmt: skip
    imported = read(write(tmp_path, "log.jsonl", rows))
    assert asked(imported) == [("", ("What is it?",)), ("", ("go",))]
    assert imported.marks == {"images or files": 1, "tool results": 1}
    assert skipped(imported) == {"no user text (only images or files)": (1, ("log.jsonl:2",))}


def test_rows_of_one_conversation_are_one_conversation(tmp_path):
    """Chat logs repeat the history in every request: the longest state is kept, once."""
    texts = ["How do I renew a passport in Osaka?", "And how long does it take?", "Thanks"]
    messages, rows = [], []
    for text in texts:
        messages.append({"role": "user", "content": text})
        rows.append({"messages": list(messages)})
        messages.append({"role": "assistant", "content": "It depends."})
    rows += [chat("hello"), chat("hello"), chat("hello there")]
    random.Random(1).shuffle(rows)
    imported = read(write(tmp_path, "log.jsonl", rows))
    expected = [("", ("hello",)), ("", ("hello there",)), ("", tuple(texts))]
    assert asked(imported) == sorted(expected)
    assert (imported.num_distinct, imported.num_again) == (3, 3)


# --- tables --------------------------------------------------------------------------------------


def test_named_columns_of_a_csv(tmp_path):
    raw = (
        "talk;lang;Frage;Anweisung\r\n"
        '1;de;"Wo ist; der Bahnhof?\r\nBitte";Kurz\r\n'
        "2;de;Guten Tag;\r\n"
        "1;de;Danke;Kurz\r\n"
        "3;de;zu;viele;Zellen\r\n"
        "4;de;;Kurz\r\n"
    )
    columns = {"prompt": "Frage", "system": "Anweisung", "language": "lang", "conversation": "talk"}
    imported = read(write(tmp_path, "t.csv", raw), columns=columns)
    assert asked(imported) == [
        ("", ("Guten Tag",)),
        ("Kurz", ("Wo ist; der Bahnhof?\r\nBitte", "Danke")),
    ]
    assert imported.scenarios[0].language == "de"
    assert skipped(imported) == {
        "5 cells, the header has 4": (1, ("t.csv:6",)),
        "no user text": (1, ("t.csv:7",)),
    }


def test_dotted_keys_of_json(tmp_path):
    rows = [{"event": {"question": "How far?", "ms": "120"}, "kind": "geo"}]
    columns = {"prompt": "event.question", "category": "kind", "ttft_ms": "event.ms"}
    imported = read(write(tmp_path, "log.jsonl", rows), columns=columns)
    assert asked(imported) == [("", ("How far?",))]
    assert imported.scenarios[0].category == "geo"
    assert imported.baseline.quantities["ttft_s"].median == 0.12


def test_a_table_without_a_prompt_column_is_asked_about(tmp_path):
    path = write(tmp_path, "t.csv", "wann,was\r\n1,Hallo\r\n")
    with pytest.raises(ScenarioError, match=r"which column is the prompt.*'wann', 'was'") as caught:
        read(path)
    assert "--column prompt=" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("a.txt", b"just some words\nin lines\n", "neither JSON"),
        ("b.json", b"", "empty"),
        ("c.jsonl", b"\xef\xbb\xbf\n", "empty"),
        ("d.jsonl", b'{"scenario": {"name": "x"}}\n', "no requests"),
    ],
)
def test_what_is_no_log_is_refused(tmp_path, name, raw, message):
    with pytest.raises(ScenarioError, match=message):
        read(write(tmp_path, name, raw))


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    with pytest.raises(ScenarioError, match="no such file"):
        read(tmp_path / "gone.jsonl")
    with pytest.raises(ScenarioError, match="a folder"):
        read(tmp_path)


# --- question sets -------------------------------------------------------------------------------


def spec_bench(number, category):
    return {
        "question_id": number,
        "category": category,
        "turns": [f"{category} question {number}, what is the answer to it?", "And why?"],
        "reference": ["because"],
    }


def test_spec_bench_by_category(tmp_path):
    rows = [spec_bench(n, category) for category in ("writing", "math", "rag") for n in range(10)]
    imported = read(write(tmp_path, "question.jsonl", rows), num_conversations=4, per_category=True)
    assert {s.name: len(s.conversations) for s in imported.scenarios} == {
        "own_math": 4,
        "own_rag": 4,
        "own_writing": 4,
    }
    for scenario in imported.scenarios:
        assert {c.category for c in scenario.conversations} == {scenario.category}
        assert all(c.turns[1] == "And why?" for c in scenario.conversations)
    together = read(write(tmp_path, "question.jsonl", rows), num_conversations=9)
    categories = [c.category for c in together.scenarios[0].conversations]
    assert sorted(set(categories)) == ["math", "rag", "writing"]
    assert all(categories.count(one) == 3 for one in set(categories))


def test_speed_bench_parquet_and_its_placeholders(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [
        {
            "question_id": f"q{n}",
            "category": "coding" if n % 2 else "humanities",
            "sub_category": None,
            "turns": [f"Question {n}: explain in detail how it works."],
            "source": "x",
            "src_id": n,
            "difficulty": "easy",
            "multiturn": False,
        }
        for n in range(600)
    ]
    rows[7]["turns"] = ["FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"]
    path = tmp_path / "test.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    imported = read(path, num_conversations=1000)
    assert len(asked(imported)) == 599
    assert {c.category for c in imported.scenarios[0].conversations} == {"coding", "humanities"}
    ((reason, found),) = skipped(imported).items()
    assert "SPEED-Bench" in reason
    assert found == (1, ("test.parquet:8",))


def test_a_damaged_parquet_file_is_named(tmp_path):
    pytest.importorskip("pyarrow")
    with pytest.raises(ScenarioError, match=r"x\.parquet"):
        read(write(tmp_path, "x.parquet", b"PAR1 and nothing else PAR1"))


# --- the scenario --------------------------------------------------------------------------------


def test_the_file_is_read_back_the_same(tmp_path):
    rows = [chat(f"Case {n}: please summarise it.", system="S", temperature=0.3) for n in range(9)]
    scenario = read(write(tmp_path, "log.jsonl", rows)).scenarios[0]
    again = parse_scenario(scenario_text(scenario).split("\n"), "own", "own.jsonl")
    assert again == scenario


def test_masked_by_default_and_kept_when_asked(tmp_path):
    path = write(tmp_path, "log.jsonl", [chat("Write to taro@kaisha.jp please", system="a@b.jp")])
    masked = read(path)
    assert asked(masked) == [("[MAIL_1]", ("Write to [MAIL_2] please",))]
    assert masked.masked == {"mail": 2}
    kept = read(path, mask=False)
    assert asked(kept) == [("a@b.jp", ("Write to taro@kaisha.jp please",))]
    assert kept.masked == {}


def test_the_cap_covers_the_logged_answers(tmp_path):
    rows = [chat(f"Case {n}?", usage={"completion_tokens": n + 1}) for n in range(1000)]
    imported = read(write(tmp_path, "log.jsonl", rows))
    # 90 % of 1..1000 are at most 900.1; the next multiple of 64 is 960
    assert imported.scenarios[0].sampling.max_tokens == 960


def rows_of(num_rows):
    for n in range(num_rows):
        text = (
            "先月の売り上げを教えてください。" if n % 4 == 0 else "Please tell me what was sold. "
        )
        yield chat(f"{n}: {text * 8}", response="An answer. " * 400)


@pytest.mark.parametrize("shape", ["lines", "array", "wrapped"])
def test_memory_does_not_grow_with_the_rows(tmp_path, shape):
    peaks = []
    for num_rows in (300, 3_000):
        path = tmp_path / f"{num_rows}.json"
        with path.open("w") as file:
            if shape != "lines":
                file.write("[" if shape == "array" else '{"meta": {}, "data": [')
            for n, row in enumerate(rows_of(num_rows)):
                separator = "" if n == 0 else "\n" if shape == "lines" else ", "
                file.write(separator + json.dumps(row, ensure_ascii=False))
            file.write({"lines": "", "array": "]", "wrapped": "]}"}[shape])
        tracemalloc.start()
        imported = read(path, num_conversations=8)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert imported.num_distinct == num_rows
    assert peaks[1] < 1.05 * peaks[0]  # of a log ten times as large


def test_values_of_the_baseline_are_bounded(monkeypatch):
    from sakiyomi.logs import log_baseline

    monkeypatch.setattr(log_baseline, "MAX_VALUES", 100)
    values = log_baseline._Values(seed=1)
    for n in range(10_000):
        values.add(float(n))
    assert (values.num, len(values.kept)) == (10_000, 100)
    # 100 uniform draws: the standard error of their mean is 289
    assert abs(sum(values.kept) / 100 - 4999.5) < 4 * 289
