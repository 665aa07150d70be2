"""Entries found in JSON bytes without parsing them, against the standard library's parser."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sakiyomi.logs import json_values
from sakiyomi.logs.json_values import BrokenJson, decode, split_lines, split_values

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
ENTRIES = st.lists(st.dictionaries(st.text(), JSON, max_size=3) | st.lists(JSON, max_size=3))


def pieces(raw, size):
    return [raw[start : start + size] for start in range(0, len(raw), size)]


def values(raw, size=7, *, wrapped=False):
    return [decode(entry) for _, entry in split_values(pieces(raw, size), wrapped=wrapped)]


@given(ENTRIES, st.integers(1, 40), st.sampled_from([None, 2]), st.booleans())
@settings(max_examples=30, deadline=None)
def test_an_array_gives_its_entries_however_it_is_cut(entries, size, indent, ascii_only):
    raw = json.dumps(entries, indent=indent, ensure_ascii=ascii_only).encode()
    assert values(raw, size) == entries


@given(ENTRIES, st.integers(1, 40), st.sampled_from(["data", "observations", "rows"]))
@settings(max_examples=40, deadline=None)
def test_a_wrapping_object_gives_the_entries_of_its_container(entries, size, key):
    whole = {"object": "list", "meta": {"data": [{"no": 1}], "x": "]}"}, key: entries, "next": "["}
    assert values(json.dumps(whole).encode(), size, wrapped=True) == entries


@given(ENTRIES, st.integers(1, 40))
@settings(max_examples=30, deadline=None)
def test_otlp_gives_spans_of_every_resource_and_scope(spans, size):
    def resource(some):
        return {"resource": {"attributes": []}, "scopeSpans": [{"scope": {}, "spans": some}]}

    whole = {"resourceSpans": [resource(spans[:1]), resource(spans[1:])]}
    assert values(json.dumps(whole).encode(), size, wrapped=True) == spans


@given(st.lists(st.dictionaries(st.text(), JSON, max_size=3)), st.integers(1, 40))
@settings(max_examples=30, deadline=None)
def test_objects_one_after_another_need_no_line_ends(entries, size):
    raw = "".join(json.dumps(entry, indent=1) for entry in entries).encode()
    assert values(raw, size) == entries


@given(st.lists(st.text(alphabet="ab\r\n\x0b\u2028あ", max_size=5)), st.integers(1, 9))
@settings(deadline=None)
def test_lines_end_at_lf_alone(texts, size):
    raw = "\n".join(texts).encode()
    expected = raw.split(b"\n")
    found = dict(split_lines(pieces(raw, size)))
    assert [found.get(i + 1, b"") for i in range(len(expected))] == expected


def test_entries_carry_the_line_they_start_on():
    raw = b'[\n\n {"a":\n 1},\n {"b": 2}, {"c": 3},\n 7, "text"\n]'
    assert [line for line, _ in split_values(pieces(raw, 5), wrapped=False)] == [3, 5, 5, 6, 6]


def test_a_broken_entry_costs_itself_alone():
    raw = b'[{"a": 1}, {"a": }, {"a": 2,}, {"a": 3}]'
    good = []
    for _, entry in split_values(pieces(raw, 6), wrapped=False):
        try:
            good.append(decode(entry))
        except BrokenJson:
            good.append("broken")
    assert good == [{"a": 1}, "broken", "broken", {"a": 3}]


@pytest.mark.parametrize(
    "cut", [b'[{"a": 1}, {"b": "x', b'[{"a": 1}, {"b": [1, 2', b'[{"a": 1}, {']
)
def test_what_the_end_of_the_file_cuts_is_given_last(cut):
    entries = [entry for _, entry in split_values(pieces(cut, 4), wrapped=False)]
    assert entries[0] == b'{"a": 1}'
    assert len(entries) == 2
    with pytest.raises(BrokenJson):
        decode(entries[1])


def test_an_entry_that_never_closes_is_cut_at_the_limit(monkeypatch):
    monkeypatch.setattr(json_values, "MAX_ENTRY_BYTES", 1000)
    raw = b'[{"a": 1}, {"b": "' + b"x" * 50_000
    entries = [entry for _, entry in split_values(pieces(raw, 100), wrapped=False)]
    assert entries[0] == b'{"a": 1}'
    assert len(entries[1]) == 1001


def test_a_line_over_the_limit_is_cut_and_the_next_ones_are_read(monkeypatch):
    monkeypatch.setattr(json_values, "MAX_ENTRY_BYTES", 1000)
    raw = b"first\n" + b"x" * 50_000 + b"\nthird\n"
    found = list(split_lines(pieces(raw, 100)))
    assert [number for number, _ in found] == [1, 2, 3]
    assert len(found[1][1]) > 1000
    assert found[2][1] == b"third"


def test_what_pythons_json_writes_is_read():
    assert decode(b'{"a": NaN}')["a"] != decode(b'{"a": NaN}')["a"]
    assert decode(rb'{"a": "\ud800x"}') == {"a": "?x"}
    assert decode(b'{"a": "tab\there"}') == {"a": "tab\there"}


@pytest.mark.parametrize(
    "raw", [b'{"a": 1', b'{"a": 1,}', b"[" * 100_000, b'{"a": "\xff"}', b"{'a': 1}"]
)
def test_what_is_no_json_is_refused(raw):
    with pytest.raises(BrokenJson):
        decode(raw)
