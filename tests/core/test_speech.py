"""First sentences, and whether the text stays ahead of the voice."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sakiyomi.speech import (
    JAPANESE_CHARACTERS_PER_S,
    LATIN_CHARACTERS_PER_S,
    characters_per_s,
    first_sentence_at_s,
    first_sentence_end,
    speech_margin_s,
)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("はい。そうです。", "はい。"),
        ("「こんにちは。」と言った。", "「こんにちは。」"),
        ("本当ですか？はい", "本当ですか？"),
        ("すごい!今日は", "すごい!"),
        ("v2.0 です。次", "v2.0 です。"),
        ("値は 3.14 です。次", "値は 3.14 です。"),
        ("Pi is 3.14 today. Next", "Pi is 3.14 today."),
        ("Use e.g. apples. Then", "Use e.g. apples."),
        ('He said "Hi there." Then', 'He said "Hi there."'),
        ("**Bold sentence.** Next", "**Bold sentence.**"),
        ("1. First item is good. x", "1. First item is good."),
        ("No. It is not.", "No."),
        ("Dr. Smith left. He", "Dr. Smith left."),
        ("run a.py now! x", "run a.py now!"),
        ("It costs 5. Then", "It costs 5."),
        ("Wait... what? ok", "Wait... what?"),
        ("Whole.", "Whole."),
        ("ok\nlonger line\nx", "ok\nlonger line\n"),
        ("# \n見出しです\n本文", "# \n見出しです\n"),
        ("\n\n。はい。", "\n\n。はい。"),
        ("ठीक है। और", "ठीक है।"),
    ],
)
def test_first_sentences(text, sentence):
    assert text[: first_sentence_end(text)] == sentence


@pytest.mark.parametrize("text", ["", "abc", "3.14", "a.py", "ok\nno", "..."])
def test_no_sentence(text):
    assert first_sentence_end(text) is None


def test_a_mark_at_the_end_of_a_growing_text_is_not_decided():
    assert first_sentence_end("It is 3.", has_ended=False) is None
    assert first_sentence_end("It is 3.") == 8


def test_the_event_that_completes_it():
    assert first_sentence_at_s([(1, "He"), (2, "llo."), (3, " Next.")]) == 2
    assert first_sentence_at_s([(1, "It is 3."), (2, "14 now."), (3, " x")]) == 2
    assert first_sentence_at_s([(1, "no"), (2, " end")]) == 2
    assert first_sentence_at_s([]) is None


def test_the_pace_follows_the_language_or_the_script():
    assert characters_per_s("", "ja-JP") == JAPANESE_CHARACTERS_PER_S
    assert characters_per_s("", "en") == LATIN_CHARACTERS_PER_S
    assert characters_per_s("今日は良い天気です", None) == JAPANESE_CHARACTERS_PER_S
    assert characters_per_s("hello", None) == LATIN_CHARACTERS_PER_S


def test_the_margin_is_worst_just_before_an_arrival():
    pieces = [(1.0, "a" * 10), (2.0, "b" * 5), (4.0, "c" * 20)]
    # 10 characters/s from 1.0 s: at 2.0 s 10 of 10 are spoken, at 4.0 s 30 of 15.
    assert speech_margin_s(pieces, 1.0, 10.0) == pytest.approx(-1.5)
    assert speech_margin_s(pieces[:2], 1.0, 10.0) == pytest.approx(0.0)
    assert speech_margin_s(pieces[:1], 1.0, 10.0) == pytest.approx(1.0)
    assert speech_margin_s([], 1.0, 10.0) is None


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.01, 1.0), st.integers(1, 20)), min_size=1, max_size=30),
    st.floats(1.0, 50.0),
)
def test_the_margin_against_a_second_by_second_count(steps, pace):
    at_s, pieces = 0.0, []
    for gap_s, size in steps:
        at_s += gap_s
        pieces.append((at_s, "x" * size))
    start_s = pieces[0][0]
    margin_s = speech_margin_s(pieces, start_s, pace)
    for moment_s in [start_s + 0.01 * i for i in range(int((at_s - start_s) / 0.01))]:
        there = sum(len(text) for arrived_s, text in pieces if arrived_s <= moment_s)
        assert margin_s <= (there - pace * (moment_s - start_s)) / pace + 1e-9
