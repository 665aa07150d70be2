"""The sample: uniform over what is distinct, in proportion to the strata, whatever the order."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sakiyomi.logs.import_messages import Prompt
from sakiyomi.logs.language import detect_language, estimate_tokens
from sakiyomi.logs.log_sample import LogSample, allocate
from sakiyomi.logs.logged import Logged


def logged(text, **fields):
    return Logged(format="test", prompt=Prompt(turns=(text,)), **fields)


def sample(texts, num, seed=1):
    found = LogSample(num, seed)
    for text in texts:
        found.add(logged(text))
    return found


def chosen(found):
    return [kept.turns[0] for kept in found.choose()]


TEXTS = [f"Number {n}: what is the capital of country {n}?" for n in range(300)]


def test_order_and_repetition_do_not_matter():
    once = sample(TEXTS, 20)
    shuffled = TEXTS * 3
    random.Random(5).shuffle(shuffled)
    again = sample(shuffled, 20)
    assert chosen(again) == chosen(once)
    assert len(set(chosen(once))) == 20
    assert again.population == once.population
    assert (once.num_again, again.num_again) == (0, 600)


def test_the_seed_chooses():
    assert chosen(sample(TEXTS, 20, seed=1)) == chosen(sample(TEXTS, 20, seed=1))
    assert set(chosen(sample(TEXTS, 20, seed=1))) != set(chosen(sample(TEXTS, 20, seed=2)))


def test_every_conversation_has_the_same_chance():
    """30 of 300 over 200 seeds: each is drawn 20 times on average, sd 4.2; 6 sd is never seen."""
    counts = Counter()
    for seed in range(200):
        counts.update(chosen(sample(TEXTS, 30, seed)))
    assert sum(counts.values()) == 200 * 30
    assert max(abs(counts[text] - 20) for text in TEXTS) < 6 * 4.25


def test_a_repeated_conversation_is_not_more_likely():
    """One text makes up 90 % of the rows: it is drawn as often as any other."""
    texts = TEXTS[:100] + [TEXTS[0]] * 900
    hits = sum(TEXTS[0] in chosen(sample(texts, 10, seed)) for seed in range(200))
    assert abs(hits - 20) < 6 * 4.25


def test_strata_keep_their_shares():
    texts = [f"質問{n}：今日の天気はどうですか、教えてください。" for n in range(300)]
    texts += [f"Question {n}: what is the weather like in this place?" for n in range(600)]
    texts += [f"Text {n}: " + "this is a long story about the sea. " * 60 for n in range(100)]
    found = sample(texts, 100)
    kept = chosen(found)
    assert sum(text.startswith("質問") for text in kept) == 30
    assert sum(text.startswith("Question") for text in kept) == 60
    assert sum(text.startswith("Text") for text in kept) == 10


def test_the_first_few_stand_for_all():
    texts = [f"質問{n}：今日の天気はどうですか、教えてください。" for n in range(500)]
    texts += [f"Question {n}: what is the weather like in this place?" for n in range(500)]
    first = chosen(sample(texts, 100))[:40]
    assert 8 <= sum(text.startswith("質問") for text in first) <= 32


def test_turns_of_a_named_conversation_come_together():
    found = LogSample(10, 1)
    for turn in range(3):
        for talk in ("a", "b"):
            found.add(logged(f"{talk}{turn}", conversation=talk, is_turn=True))
    assert sorted(kept.turns for kept in found.choose()) == [
        ("a0", "a1", "a2"),
        ("b0", "b1", "b2"),
    ]


def test_categories_without_end_share_a_stratum():
    found = LogSample(5, 1)
    for n in range(1000):
        found.add(logged(f"Question {n}: how much is it?", category=f"user{n}"))
    assert len({stratum.category for stratum in found.population}) == 65
    assert found.population.total() == 1000


@given(st.lists(st.integers(1, 500), min_size=1, max_size=30), st.integers(1, 400))
@settings(deadline=None)
def test_places_are_shared_out_fairly(sizes, num):
    places = allocate(sizes, num)
    assert sum(places) == min(num, sum(sizes))
    assert all(0 <= place <= size for place, size in zip(places, sizes, strict=True))
    if num >= len(sizes):
        assert min(places) >= 1
    for a, b in zip(range(len(sizes)), range(1, len(sizes)), strict=False):
        if sizes[a] < sizes[b]:
            assert places[a] <= places[b] + 1


# --- language and length -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("来週の予定を教えてください。", "ja"),
        ("カタカナ", "ja"),
        ("このコードを直してください。\n" + "def f(x):\n    return x + 1\n" * 6, "ja"),
        ("今天天气怎么样？请告诉我明天的安排。", "zh"),
        ("오늘 날씨가 어떤지 알려 주세요", "ko"),
        ("What is the weather like in Osaka today?", "en"),
        ("hi", "en"),
        ("Le chat dort sur le canapé depuis ce matin", "latin"),
        ("Der Hund schläft seit heute Morgen vor der Tür", "latin"),
        ("Какая сегодня погода в Москве?", "other"),
        ("12345 !!!", "other"),
        ("", "other"),
    ],
)
def test_languages_by_their_script(text, language):
    assert detect_language(text) == language


@pytest.mark.parametrize(
    ("text", "num_tokens"),
    [
        # Counts of the Qwen vocabulary (151,643 entries) over texts of the built-in scenarios
        ("en_summary", 7508),
        ("code_agent", 7939),
        ("ja_chat", 2995),
        ("ja_summary", 7366),
        ("rag_qa", 15064),
    ],
)
def test_tokens_are_estimated_within_a_tenth(text, num_tokens):
    import json
    from importlib.resources import files

    lines = (files("sakiyomi") / "scenarios" / f"{text}.jsonl").read_text("utf-8").split("\n")
    found = [json.loads(line) for line in lines[1:] if line]
    estimate = sum(estimate_tokens(part) for c in found for part in (c["system"], *c["turns"]))
    assert abs(estimate / num_tokens - 1) < 0.1
