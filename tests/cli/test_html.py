"""The page: whole, small, in two languages, and deaf to what users and models write."""

import base64
import hashlib
import html.parser
import json
import re

import pytest
from page_run import IMAGE, SCRIPT, write_run

from sakiyomi import store
from sakiyomi.cli import main
from sakiyomi.commands.full_report import fill_report
from sakiyomi.commands.saved_report import read_report
from sakiyomi.report import html as page
from sakiyomi.report.words import TEXTS

SECTIONS = ("verdict", "table", "speed", "positions", "curve", "bytes", "time", "segments", "list")


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("SAKIYOMI_HOME", str(tmp_path / "home"))
    return write_run(tmp_path / "page-run")


def written(run, tmp_path, *options):
    path = tmp_path / "report.html"
    assert main(["report", str(run), "-o", str(path), *options]) == 0
    return path.read_text(encoding="utf-8")


class Tags(html.parser.HTMLParser):
    """Tags with their attributes, texts by tag, ids."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.texts, self._open = [], [], {}, []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._open.append(tag)
        if (name := dict(attrs).get("id")) is not None:
            self.ids.append(name)

    def handle_endtag(self, tag):
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data):
        if self._open:
            self.texts.setdefault(self._open[-1], []).append(data)


def embedded(text):
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    return json.loads(found[1])


def policy(text):
    return next(a["content"] for _, a in Tags(text).tags if "http-equiv" in a)


@pytest.mark.parametrize("lang", ["en", "ja"])
def test_the_page_is_whole_and_small(run, tmp_path, lang):
    text = written(run, tmp_path, "--lang", lang)
    tags = Tags(text)
    assert len(text.encode()) < 2_000_000
    assert dict(tags.tags)["html"] == {"lang": lang}
    for name in SECTIONS:
        assert tags.ids.count(f"section-{name}") == 1
    assert len(tags.ids) == len(set(tags.ids))
    assert TEXTS[lang]["chart_speed"] in "".join(tags.texts["h2"])
    rows = [t for t in tags.tags if t[0] == "tr" and t[1].get("class") == "cell"]
    assert len(rows) == 4
    data = embedded(text)
    assert data["lang"] == lang
    assert [c["arm"] for c in data["report"]["cells"]] == ["plain", "mtp-k3"] * 2
    assert data["report"]["requests"]["num_requests"] == 48
    assert 'name = "mtp-k3"' in data["report"]["plan_toml"]


def test_languages_have_the_same_texts():
    assert TEXTS["en"].keys() == TEXTS["ja"].keys()
    for key, text in TEXTS["en"].items():
        places = re.findall(r"\{\w+\}", text)
        assert sorted(re.findall(r"\{\w+\}", TEXTS["ja"][key])) == sorted(places), key


def test_nothing_is_loaded_from_anywhere(run, tmp_path):
    text = written(run, tmp_path)
    tags = Tags(text)
    loading = {"src", "href", "srcset", "data", "poster", "action", "background", "xlink:href"}
    assert not [(tag, attrs) for tag, attrs in tags.tags if loading & attrs.keys()]
    assert "@import" not in text
    assert "url(" not in text
    assert policy(text).startswith(
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-"
    )


def test_what_users_and_models_write_stays_text(run, tmp_path):
    text = written(run, tmp_path)
    tags = Tags(text)
    assert [t for t, _ in tags.tags].count("script") == 2  # the data and the page's own
    assert not [t for t, _ in tags.tags if t == "img"]
    assert SCRIPT not in text
    assert IMAGE not in text
    assert "\u2028" not in text
    rows = embedded(text)["report"]["requests"]["rows"]
    answers = [
        "".join(piece[0] for piece in row.get("pieces") or []) or row["text"] for row in rows
    ]
    assert all(SCRIPT in answer and IMAGE in answer and "\u2028" in answer for answer in answers)


def test_its_script_is_the_one_that_its_policy_allows(run, tmp_path):
    text = written(run, tmp_path)
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in policy(text)


def test_a_long_run_is_cut_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("SAKIYOMI_HOME", str(tmp_path / "home"))
    run = write_run(tmp_path / "long", num_conversations=9, num_repeats=3, text_times=8)
    text = written(run, tmp_path, "--lang", "en")
    assert len(text.encode()) < 2_000_000
    found = embedded(text)["report"]["requests"]
    assert 0 < found["num_answers"] < found["num_requests"] == 108
    assert f"{found['num_answers']} of 108 answers are in this page" in text
    kept = {row["arm"] for row in found["rows"] if row.get("pieces") or row.get("text")}
    assert kept == {"plain", "mtp-k3"}


def test_numbers_of_the_table_are_the_report_s(run, tmp_path):
    reader = store.open_run(str(run))
    report = fill_report(read_report(reader), reader)
    tags = Tags(page.render(report, lang="en"))
    spans = "".join(tags.texts["span"])
    for cell in report.cells:
        assert f"{cell.decode_tokens_per_s.point:.0f} " in spans or (
            f"{cell.decode_tokens_per_s.point:.1f} " in spans
        )
    assert report.requests is None
    assert "section-list" not in tags.ids


def test_cautions_stand_under_their_number(run, tmp_path):
    text = written(run, tmp_path)
    marked = re.findall(r'<td class="(\w+)"[^>]*><span>[^\n]*?<abbr class="flag"', text)
    cells = embedded(text)["report"]["cells"]
    assert bool(marked) == any(cell["cautions"] for cell in cells)
    assert text.count('<tr class="cautions"') == sum(bool(cell["cautions"]) for cell in cells)


@pytest.mark.parametrize(("value", "lang"), [("ja_JP.UTF-8", "ja"), ("C.UTF-8", "en")])
def test_the_language_is_the_locale_s(run, tmp_path, monkeypatch, value, lang):
    monkeypatch.setattr("locale.getlocale", lambda: (value.split(".")[0], "UTF-8"))
    assert f'<html lang="{lang}">' in written(run, tmp_path)


def test_the_founding_case_has_a_page(tmp_path):
    text = written("founding-case", tmp_path, "--lang", "ja")
    assert TEXTS["ja"]["published"] in text
    assert "損益分岐" in text
    assert embedded(text)["report"]["explanation"]["speculation"]


def test_the_map_in_the_terminal(run, capsys):
    assert main(["report", str(run), "--map", f"c1 {SCRIPT}"]) == 0
    out = capsys.readouterr().out
    assert "ja_chat x mtp-k3, turn 1, repeat 1" in out
    assert "こんにちは|3:、今日は|1:" in out
    assert "x plain" not in out


def test_the_map_of_an_unknown_conversation(run, capsys):
    assert main(["report", str(run), "--map", "c99"]) == 2
    assert "no conversation 'c99'" in capsys.readouterr().err
