"""The report for a terminal keeps to its columns, and loses no number by it."""

import msgspec
import pytest
from decide_makers import PLAIN_RATE, arm_facts, drafted, group, make_facts, make_report, request
from rich.cells import cell_len

from sakiyomi.plan import ClosedLoad
from sakiyomi.record import Caution
from sakiyomi.report import text
from sakiyomi.report.narrow import table, wrapped


def report(name="a run", scenario="ja_chat", arm="mtp"):
    requests = []
    for index in range(12):
        common = {"scenario": scenario, "load": ClosedLoad().label}
        requests.append(request("plain", f"c{index}", 0, PLAIN_RATE, **common))
        requests.append(
            request(arm, f"c{index}", 0, PLAIN_RATE * 1.6, counts=drafted((0.9, 0.6)), **common)
        )
    facts = make_facts(
        (arm_facts("plain"), arm_facts(arm, k=2)), scenarios=(scenario,), loads=(ClosedLoad(),)
    )
    return msgspec.structs.replace(make_report(facts, group(requests)), name=name)


@pytest.mark.parametrize("width", [24, 40, 60, 80])
@pytest.mark.parametrize(
    "names",
    [
        {},
        {"name": "n" * 90, "scenario": "s" * 45, "arm": "a" * 45},
        {"name": "先読み" * 20, "scenario": "日本語の雑談" * 6, "arm": "構成" * 12},
    ],
    ids=["short", "long", "wide"],
)
def test_the_title_and_the_tables_keep_to_the_columns(width, names):
    found = report(**names)
    lines = text.render(found, width).split("\n\n")
    for line in "\n".join(lines[:2]).splitlines():
        assert cell_len(line) <= width, line


def test_a_narrow_terminal_shows_every_number_of_a_wide_one():
    found = report()
    wide, narrow = (text.render(found, width) for width in (200, 40))
    assert "\nja_chat x mtp\n" in narrow
    assert "  speedup: 1.60" in narrow
    assert "  verdict: faster" in narrow
    table_of = wide.split("\n\n")[1].splitlines()[2].split()
    for part in table_of[1:]:
        assert part in narrow or part == "to"


def test_a_table_becomes_a_block_a_row_where_its_columns_do_not_fit():
    rows = [("category", "arm", "acceptance rate", "speedup"), ("qa", "plain", "-", "1x")]
    rows.append(("", "mtp", "71% (69-74)", "1.85x"))
    assert table(rows, 80)[2] == "          mtp    71% (69-74)      1.85x"
    assert table(rows, 30) == [
        "qa x plain",
        "  speedup: 1x",
        "qa x mtp",
        "  acceptance rate: 71% (69-74)",
        "  speedup: 1.85x",
    ]


def test_words_longer_than_a_line_are_cut_and_none_is_lost():
    assert wrapped("ab 先読み先読み cd", 6) == ["ab", "先読み", "先読み", "cd"]
    assert wrapped("abcdefgh", 5, "- ", "  ") == ["- abc", "  def", "  gh"]
    assert wrapped("", 5) == []


def test_no_two_empty_lines_where_nothing_is_said_of_acceptance():
    found = report()
    caution = Caution("cut_by_cap", "cut", {})
    cells = [
        msgspec.structs.replace(cell, acceptance=None, cautions=[caution]) for cell in found.cells
    ]
    shown = text.render(msgspec.structs.replace(found, cells=cells), 80)
    assert "! every cell: cut" in shown
    assert "\n\n\n" not in shown
