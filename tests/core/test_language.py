"""Sentences in two languages: the same keys, and a break-even rate that people can read."""

import ast
import re
from pathlib import Path

import pytest

import sakiyomi
from sakiyomi import segments
from sakiyomi.record import Caution
from sakiyomi.report import format as fmt
from sakiyomi.report.language import EN, JA
from sakiyomi.report.words_cautions import EVIDENCE_JA, MEANINGS_JA, caution_text
from sakiyomi.report.words_decision import DECISION
from sakiyomi.report.words_explanation import EXPLANATION
from sakiyomi.report.words_names import NAMES_JA
from sakiyomi.report.words_why import WHY
from sakiyomi.stats import Estimate


def rate(point, low=None, high=None):
    return Estimate(point=point, low=low, high=high, n=9)


@pytest.mark.parametrize("table", [DECISION, EXPLANATION, WHY])
def test_languages_have_the_same_sentences(table):
    assert table["en"].keys() == table["ja"].keys()
    for key, text in table["en"].items():
        assert set(re.findall(r"\{\w+", table["ja"][key])) <= set(re.findall(r"\{\w+", text)), key


@pytest.mark.parametrize(
    ("value", "en", "ja"),
    [
        (rate(0.29), "29%", "29%"),
        (rate(0.29, 0.2, 0.38), "29% (20-38)", "29%（20〜38）"),
        (rate(0.74, -0.61, 3.06), "74% (below 0 to above 100)", "74%（0未満〜100超）"),
        (rate(0.74, 0.62, 1.2), "74% (62 to above 100)", "74%（62〜100超）"),
        (rate(1.15), "above 100%", "100%超"),
        (rate(1.15, 1.05, 4.77), "above 100%", "100%超"),
        (rate(-0.3, -0.5, -0.1), "below 0%", "0%未満"),
        (rate(-0.1, -0.5, 0.2), "below 0% (below 0 to 20)", "0%未満（0未満〜20）"),
        (rate(1.0, 0.0, 1.0), "100% (0-100)", "100%（0〜100）"),
    ],
)
def test_a_break_even_rate_lies_between_0_and_100(value, en, ja):
    assert EN.break_even(value) == en
    assert JA.break_even(value) == ja


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (rate(0.5, 0.2, 0.9), "breaks_even"),
        (rate(0.5, -3.0, 9.0), "breaks_even"),
        (rate(1.15), "never_pays"),
        (rate(1.15, 1.01, 1.3), "never_pays"),
        (rate(1.15, -0.5, 4.8), "never_pays_open"),
        (rate(1.15, 0.9, 1.3), "never_pays_open"),
        (rate(-0.1), "always_pays"),
        (rate(-0.1, -0.2, -0.05), "always_pays"),
        (rate(-0.1, -0.2, 0.05), "always_pays_open"),
    ],
)
def test_what_a_break_even_rate_means(value, key):
    for say in (EN, JA):
        assert say.break_even_clause(value) == say(key, rate=say.break_even(value))


def kinds_in_the_source():
    """Kinds of every `Caution(...)` in the package."""
    kinds = set()
    for path in Path(sakiyomi.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Caution":
                named = [k.value for k in node.keywords if k.arg == "kind"]
                kinds |= {a.value for a in [*node.args[:1], *named] if isinstance(a, ast.Constant)}
    return kinds


def test_every_caution_has_japanese_words():
    kinds = kinds_in_the_source()
    assert len(kinds) > 30
    assert kinds <= MEANINGS_JA.keys()
    assert EVIDENCE_JA.keys() <= MEANINGS_JA.keys()


def test_a_caution_keeps_its_numbers():
    caution = Caution("cut_by_cap", "6 of 6 answers", {"num_cut": 6, "max_tokens": 64})
    assert caution_text(caution, "en") == "6 of 6 answers"
    assert (
        caution_text(caution, "ja")
        == MEANINGS_JA["cut_by_cap"] + "（6 件が上限 64 トークンで終了）"
    )
    differ = [{"field": "model", "baseline": "a", "arm": "b"}]
    detail = {"arm": "x", "baseline": "y", "differences": differ}
    assert "model（a / b）" in caution_text(Caution("arms_differ", "", detail), "ja")
    costs = {"arm": "x", "step_cost": {"chat": 1.8634, "code": 1.7}}
    assert "chat 1.86、code 1.70" in caution_text(Caution("step_cost_differs", "", costs), "ja")


def test_a_caution_of_another_version_keeps_its_meaning():
    assert caution_text(Caution("cut_by_cap", "x", {"other": 1}), "ja") == MEANINGS_JA["cut_by_cap"]
    assert caution_text(Caution("from the future", "x"), "ja") is None


def test_segments_that_are_ranges_have_japanese_names():
    places = (0, 32, 128, 512, 2048, 8192, 32_768)
    names = {f"token {segments._bin(place, segments.POSITION_EDGES)}" for place in places}
    names |= {f"{segments._bin(place, segments.CONTEXT_EDGES)} tokens" for place in places}
    assert len(names) == len(segments.POSITION_EDGES) + len(segments.CONTEXT_EDGES) + 2
    assert names <= NAMES_JA.keys()


@pytest.mark.parametrize(
    ("lang", "text"), [("en", "1.06 (too wide to tell)"), ("ja", "1.06（区間が広すぎます）")]
)
def test_an_interval_that_tells_nothing_has_no_digits(lang, text):
    wide = Estimate(point=1.06, low=0.005, high=233.0, n=8)
    assert {"en": EN, "ja": JA}[lang].estimate(wide) == text
    assert fmt.short_interval(wide) == "1.06 (?)"
    kept = Estimate(point=1.06, low=0.4, high=2.8, n=8)
    assert fmt.estimate(kept) == "1.06 (0.4 to 2.80)"
    below = Estimate(point=0.1, low=-0.2, high=30.0, n=8)
    assert fmt.estimate(below) == "0.1 (-0.2 to 30.0)"
