"""The built-in scenario files: form, variety and what must not be in them."""

import difflib
import json
import re
import unicodedata
from importlib.resources import files
from itertools import combinations

import pytest

FOLDER = files("sakiyomi") / "scenarios"
NAMES = (
    "code_agent",
    "code_edit",
    "en_chat",
    "en_summary",
    "ja_business",
    "ja_chat",
    "ja_code",
    "ja_summary",
    "ja_translate",
    "ja_voice",
    "rag_qa",
    "tool_calls",
)
MIN_CONVERSATIONS = 16
MAX_FILE_BYTES = 400_000
# Above this share of common text two prompts are one prompt with other nouns.
NEAR_DUPLICATE_RATIO = 0.8
JAPANESE = re.compile(r"[ぁ-んァ-ヶ]")
MAIL = re.compile(r"[\w.+-]+@((?:[a-z0-9-]+\.)+[a-z]{2,})", re.IGNORECASE)
# Digit groups as telephone numbers have them: 03-1234-5678, 090 1234 5678, +44 20 7946 0000.
PHONE = re.compile(r"(?<![\d.])(?:\+\d{1,3}[ -]|0)\d{1,4}[ -]\d{2,4}[ -]\d{3,4}(?!\d)")
SECRET = re.compile(r"\b(?:sk-|hf_|ghp_|AKIA)[A-Za-z0-9]{8,}|BEGIN [A-Z ]*PRIVATE KEY")
EXAMPLE_DOMAIN = re.compile(r"(?:^|\.)example\.(?:com|org|net)$", re.IGNORECASE)


def raw(name: str) -> bytes:
    return (FOLDER / f"{name}.jsonl").read_bytes()


def lines(name: str) -> list[dict]:
    return [json.loads(line) for line in raw(name).decode("utf-8").splitlines()]


def conversations(name: str) -> list[dict]:
    return lines(name)[1:]


def texts(conversation: dict) -> list[str]:
    return [conversation["system"], *conversation["turns"]]


def similarity(first: str, second: str) -> float:
    """difflib's ratio over words (over characters where there are no spaces), in [0, 1]."""
    words = [re.findall(r"[A-Za-z0-9_]+|[^A-Za-z0-9_\s]", text) for text in (first, second)]
    matcher = difflib.SequenceMatcher(None, *words, autojunk=False)
    # Two cheap upper bounds, for most pairs enough.
    if min(matcher.real_quick_ratio(), matcher.quick_ratio()) < NEAR_DUPLICATE_RATIO:
        return 0.0
    return matcher.ratio()


def test_these_and_no_other_files_are_built_in():
    found = sorted(path.name for path in FOLDER.iterdir() if path.name.endswith(".jsonl"))
    assert found == [f"{name}.jsonl" for name in NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_the_bytes_are_plain_json_lines(name):
    data = raw(name)
    assert len(data) < MAX_FILE_BYTES
    assert not data.startswith(b"\xef\xbb\xbf")
    assert b"\r" not in data
    assert data.endswith(b"\n")
    assert not data.endswith(b"\n\n")
    assert b"\\u" not in data.replace(b"\\\\", b""), "text is stored as it is, not as escapes"


@pytest.mark.parametrize("name", NAMES)
def test_the_first_line_sets_the_defaults(name):
    (key,) = lines(name)[0].keys()
    assert key == "scenario"
    scenario = lines(name)[0]["scenario"]
    assert set(scenario) == {"name", "category", "language", "licence", "sampling"}
    assert scenario["name"] == name
    assert scenario["licence"] == "Apache-2.0"
    assert scenario["category"]
    assert scenario["language"] in {"en", "ja", "mixed"}
    sampling = scenario["sampling"]
    assert set(sampling) == {"temperature", "top_p", "max_tokens", "enable_thinking"}
    assert 0 <= sampling["temperature"] <= 1
    assert 0 < sampling["top_p"] <= 1
    assert sampling["max_tokens"] in {256, 512, 1024, 2048}
    assert sampling["enable_thinking"] is False


@pytest.mark.parametrize(
    ("name", "temperature", "max_tokens"),
    [
        ("ja_chat", 0.7, 512),
        ("en_chat", 0.7, 512),
        ("code_agent", 0.2, 2048),
        ("ja_code", 0.2, 2048),
        ("ja_voice", 0.7, 256),
        ("tool_calls", 0.0, 512),
        ("code_edit", 0.0, 2048),
    ],
)
def test_sampling_is_that_of_the_kind_of_work(name, temperature, max_tokens):
    sampling = lines(name)[0]["scenario"]["sampling"]
    assert sampling["temperature"] == temperature
    assert sampling["max_tokens"] == max_tokens


@pytest.mark.parametrize("name", NAMES)
def test_every_further_line_is_a_conversation(name):
    found = conversations(name)
    assert len(found) >= MIN_CONVERSATIONS
    for conversation in found:
        assert set(conversation) == {"id", "system", "turns", "language", "category"}
        assert conversation["language"] in {"en", "ja"}
        assert re.fullmatch(r"[a-z_]+", conversation["category"])
        assert 1 <= len(conversation["turns"]) <= 4
        assert all(text and text == text.strip() for text in texts(conversation))
    identifiers = [conversation["id"] for conversation in found]
    assert len(set(identifiers)) == len(identifiers)
    assert len({conversation["system"] for conversation in found}) == len(found)


def test_identifiers_are_unique_across_files():
    identifiers = [c["id"] for name in NAMES for c in conversations(name)]
    assert len(set(identifiers)) == len(identifiers)


@pytest.mark.parametrize("name", NAMES)
def test_no_two_conversations_open_alike(name):
    found = conversations(name)
    close = [
        (first["id"], second["id"])
        for first, second in combinations(found, 2)
        if similarity(first["turns"][0], second["turns"][0]) >= NEAR_DUPLICATE_RATIO
    ]
    assert close == []


def test_near_duplicates_would_be_seen():
    text = "Write the tests for this file, it lives in the billing folder."
    assert similarity(text, text.replace("billing", "banking")) >= NEAR_DUPLICATE_RATIO
    assert similarity(text, "今日の昼、会社の近くのラーメン屋に行ってきた。") == 0.0


@pytest.mark.parametrize("name", NAMES)
def test_turns_do_not_repeat_anywhere_in_a_file(name):
    turns = [turn for conversation in conversations(name) for turn in conversation["turns"]]
    assert len(set(turns)) == len(turns)


@pytest.mark.parametrize("name", NAMES)
def test_no_control_characters_and_nothing_private(name):
    for conversation in conversations(name):
        for text in texts(conversation):
            strange = {c for c in text if unicodedata.category(c) in {"Cc", "Cf", "Co", "Cn"}}
            assert strange <= {"\n", "\t"}, conversation["id"]
            assert "\ufffd" not in text, conversation["id"]
            domains = {match[1] for match in MAIL.finditer(text)}
            assert all(EXAMPLE_DOMAIN.search(domain) for domain in domains), conversation["id"]
            assert not PHONE.search(text), conversation["id"]
            assert not SECRET.search(text), conversation["id"]


@pytest.mark.parametrize("name", NAMES)
def test_a_japanese_conversation_is_written_in_japanese(name):
    # A translation out of English opens with Japanese instructions, the other way round with
    # a Japanese text: each carries kana somewhere.
    for conversation in conversations(name):
        has_kana = any(JAPANESE.search(text) for text in texts(conversation))
        expected = conversation["language"] == "ja" or name == "ja_translate"
        assert has_kana == expected, conversation["id"]


def test_language_and_kind_of_work_are_crossed():
    cells = {
        (scenario["language"], scenario["category"])
        for scenario in (lines(name)[0]["scenario"] for name in NAMES)
    }
    crossed = {
        (language, kind) for language in ("en", "ja") for kind in ("chat", "code", "summary")
    }
    assert crossed <= cells


@pytest.mark.parametrize(
    ("english", "japanese"), [("en_chat", "ja_chat"), ("code_agent", "ja_code")]
)
def test_crossed_cells_differ_in_the_language_alone(english, japanese):
    first, second = lines(english)[0]["scenario"], lines(japanese)[0]["scenario"]
    assert first["sampling"] == second["sampling"]
    assert {c["language"] for c in conversations(english)} == {"en"}
    assert {c["language"] for c in conversations(japanese)} == {"ja"}


@pytest.mark.parametrize("name", ["rag_qa", "tool_calls"])
def test_mixed_files_hold_both_languages(name):
    languages = [conversation["language"] for conversation in conversations(name)]
    assert min(languages.count("en"), languages.count("ja")) >= 7


@pytest.mark.parametrize("name", ["code_agent", "ja_code", "code_edit"])
def test_code_arrives_as_files(name):
    for conversation in conversations(name):
        opening = conversation["turns"][0]
        fences = re.findall(r"```[a-z]+\n(.*?)```|<file path.*?>\n(.*?)</file>", opening, re.DOTALL)
        num_lines = sum(len((a or b).splitlines()) for a, b in fences)
        assert 20 <= num_lines <= 90, conversation["id"]


def test_retrieval_contexts_are_long():
    for conversation in conversations("rag_qa"):
        shortest = 1400 if conversation["language"] == "ja" else 1800
        assert shortest <= len(conversation["turns"][0]) <= 3000, conversation["id"]


def test_summaries_have_something_to_summarise():
    for conversation in conversations("en_summary"):
        assert 200 <= len(conversation["turns"][0].split()) <= 500, conversation["id"]
    for conversation in conversations("ja_summary"):
        assert 300 <= len(conversation["turns"][0]) <= 800, conversation["id"]


def test_voice_turns_are_short():
    lengths = [len(turn) for c in conversations("ja_voice") for turn in c["turns"]]
    assert max(lengths) <= 50


@pytest.mark.parametrize("name", ["ja_chat", "en_chat", "ja_voice"])
def test_chats_go_on(name):
    counts = [len(conversation["turns"]) for conversation in conversations(name)]
    assert min(counts) >= 3
    assert len(set(counts)) > 1


@pytest.mark.parametrize("name", NAMES)
def test_lengths_vary(name):
    lengths = sorted(len(conversation["turns"][0]) for conversation in conversations(name))
    assert len(set(lengths)) > len(lengths) / 2
    assert lengths[-1] >= 1.3 * lengths[0]
