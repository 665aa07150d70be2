"""Acceptance by segment: kinds of text, and a difference that is really there."""

import random

import pytest

from sakiyomi.plan import Arm, Plan, ScenarioRef
from sakiyomi.record import (
    ArmFacts,
    Environment,
    RequestKey,
    RequestRecord,
    RunFacts,
    ScenarioFacts,
)
from sakiyomi.scenario import Sampling
from sakiyomi.segments import find_segments
from sakiyomi.text_kinds import Blocks, character_class, near_sentence_end

FACTS = RunFacts(
    format=1,
    run_id="r",
    created="",
    plan=Plan(name="p", arms=(Arm(name="mtp"),), scenarios=(ScenarioRef(name="s"),)),
    environment=Environment(tool_version="0"),
    arms=(
        ArmFacts(
            name="mtp", engine="vllm", url="", speculative_method="mtp", num_speculative_tokens=3
        ),
    ),
    scenarios=(
        ScenarioFacts(name="s", num_conversations=12, sampling=Sampling(), content_hash="0"),
    ),
)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("ひらがな", "hiragana"), ("カタカナ", "katakana"), ("ｶﾀｶﾅ", "katakana"), ("ー", "katakana"),
        ("漢字", "kanji"), ("々", "kanji"), ("word", "latin"), (" word", "latin"), ("é", "latin"),
        ("42", "digits"), ("７", "digits"), ("。", "punctuation"), ("・", "punctuation"),
        ("(", "punctuation"), ("+", "punctuation"), ("🙂", "emoji"), ("☀", "emoji"),
        ("✅", "emoji"), ("    x", "indentation"), ("\t", "indentation"), ("\nx", "line end"),
        ("д", "other letters"), ("한", "other letters"), ("", "other"),
    ],
)  # fmt: skip
def test_character_classes(text, name):
    assert character_class(text, 0) == name


def test_a_space_is_indentation_only_where_a_line_begins():
    assert character_class("a b", 1) == "latin"
    assert character_class("a\n b", 2) == "indentation"


def test_blocks():
    text = "prose\n```python\nx = 1\n```\nmore\n| a | b |\n|---|---|\nend"
    blocks = Blocks(text)
    where = {name: blocks.at(text.index(name)) for name in ("prose", "x = 1", "more", "| a", "end")}
    assert where == {
        "prose": "prose", "x = 1": "code", "more": "prose", "| a": "table", "end": "prose",
    }  # fmt: skip
    assert Blocks("```\nnever closed").at(8) == "code"
    assert Blocks('{"city": "Kyoto"}').at(3) == "json"
    assert Blocks("{brace} in prose").at(3) == "prose"


@pytest.mark.parametrize(
    ("text", "offset", "near"),
    [("いいね。次", 1, True), ("行きましょうか。", 0, False), ("v1.5 is", 0, False),
     ("the end. Next", 4, True), ("end.", 0, True), ("なに？", 0, True)],
)  # fmt: skip
def test_sentence_ends(text, offset, near):
    assert near_sentence_end(text, offset) is near


def answers(rate_of, num=12, seed=1):
    """Steps that begin with a kanji or a hiragana in turn; `rate_of[script]`: chance per token."""
    rng = random.Random(seed)
    for number in range(num):
        tokens, texts = [1], ["あ"]
        for step in range(80):
            script = "漢" if step % 2 else "あ"
            accepted = 0
            while accepted < 3 and rng.random() < rate_of[script]:
                accepted += 1
            tokens.append(accepted + 1)
            texts.append(script * (accepted + 1))
        yield RequestRecord(
            key=RequestKey(
                request_id=f"r{number}", scenario="s", conversation_id=f"c{number}", turn=0,
                arm="mtp", load="closed-1", repeat=0, scheduled_at_s=0.0,
            ),
            sent_at_s=0.0,
            closed_at_s=9.0,
            event_at_s=[0.1 * i for i in range(len(texts))],
            event_tokens=tokens,
            event_kind=["answer"] * len(texts),
            event_text=texts,
            prompt_tokens=100,
            completion_tokens=sum(tokens),
        )  # fmt: skip


def test_a_difference_comes_back_with_its_interval():
    found = find_segments(FACTS, answers({"漢": 0.8, "あ": 0.4}))
    rates = {r.segment: r for r in found.rates if r.dimension == "characters"}
    # (a + a^2 + a^3) / 3 for a = 0.8 and 0.4
    assert rates["kanji"].rate.low < 0.6507 < rates["kanji"].rate.high
    assert rates["hiragana"].rate.low < 0.208 < rates["hiragana"].rate.high
    difference = rates["kanji"].difference
    assert difference.low < 0.6507 - 0.208 < difference.high
    assert difference.point == pytest.approx(-rates["hiragana"].difference.point)
    first = found.rates[found.largest[0]]
    assert first.dimension == "characters"
    assert "points" in found.summary[0]


def test_no_difference_is_seldom_claimed():
    """Intervals at 95 % of 16 equal pairs: more than 3 misses have a chance under 1 %."""
    misses = 0
    for seed in range(16):
        found = find_segments(FACTS, answers({"漢": 0.6, "あ": 0.6}, num=8, seed=seed))
        rate = next(r for r in found.rates if r.segment == "kanji")
        misses += not rate.difference.low <= 0 <= rate.difference.high
    assert misses <= 3


def test_the_order_of_conversations_does_not_matter():
    records = list(answers({"漢": 0.7, "あ": 0.5}))
    assert find_segments(FACTS, records) == find_segments(FACTS, reversed(records))


def test_few_conversations_give_no_difference():
    found = find_segments(FACTS, answers({"漢": 0.8, "あ": 0.4}, num=2))
    assert all(rate.difference is None for rate in found.rates)


def test_nothing_without_steps():
    assert find_segments(FACTS, []) is None
