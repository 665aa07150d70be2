"""The page: whole, small, in two languages, and deaf to what users and models write."""

import base64
import hashlib
import html.parser
import json
import re

import msgspec
import pytest
from page_run import IMAGE, SCRIPT, english, write_run, write_why

from sakiyomi import store
from sakiyomi.cli import main
from sakiyomi.commands.full_report import fill_report
from sakiyomi.commands.saved_report import read_report
from sakiyomi.record import Caution
from sakiyomi.report import html as page
from sakiyomi.report.passed_on import without_folders
from sakiyomi.report.words import TEXTS
from sakiyomi.run_writer import RunWriter

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


def visible(text):
    """What a reader sees without a script: no code, no styles."""
    parser = Tags(text)
    shown = {tag: texts for tag, texts in parser.texts.items() if tag not in HIDDEN}
    return "\n".join(text for texts in shown.values() for text in texts)


HIDDEN = ("script", "style", "code", "title", "h1")


def names_of(report):
    """Names that stand in a page as they are."""
    values = [report["name"], *report["environment"].values()]
    values += [cell[key] for cell in report["cells"] for key in ("scenario", "arm")]
    return [str(value) for value in values if value]


@pytest.mark.parametrize("kind", ["founding-case", "vllm", "llama.cpp", "compare"])
def test_the_japanese_page_has_no_english_sentence(tmp_path, monkeypatch, kind):
    monkeypatch.setenv("SAKIYOMI_HOME", str(tmp_path / "home"))
    if kind == "founding-case":
        text = written(kind, tmp_path, "--lang", "ja")
    elif kind == "compare":
        text = compared(tmp_path, "--lang", "ja")
    else:
        run = write_run(tmp_path / "run", engine=kind)
        write_why(run)
        text = written(run, tmp_path, "--lang", "ja")
    report = embedded(text)["report"]
    assert english(visible(text), names_of(report)) == []
    assert report["decision"] is None or "判断の根拠" in text
    words = "\n".join(embedded(text)["words"].values())
    assert english(words, ()) == []


def test_the_english_page_has_english_sentences(run, tmp_path):
    text = written(run, tmp_path, "--lang", "en")
    assert len(english(visible(text), names_of(embedded(text)["report"]))) > 10


@pytest.mark.parametrize(("lang", "said"), [("en", "drafted worse"), ("ja", "ドラフトが外れます")])
def test_what_entropy_says_stands_in_the_page(run, tmp_path, lang, said):
    assert "section-why" in written(run, tmp_path, "--lang", lang)
    assert embedded(written(run, tmp_path))["report"]["why"] is None
    write_why(run)
    text = written(run, tmp_path, "--lang", lang)
    why = embedded(text)["report"]["why"]
    assert said in visible(text)
    assert len(why["scenarios"]) == 2
    for one in why["scenarios"]:
        certain, uncertain = one["by_entropy"]
        assert (certain["low"], certain["rate"]["point"]) == (0.01, 1.0)
        assert (uncertain["low"], uncertain["rate"]["point"]) == (0.5, 0.0)
        assert certain["num_tokens"] + uncertain["num_tokens"] == one["num_tokens"]


def compared(tmp_path, *options):
    runs = [str(write_run(tmp_path / name)) for name in ("first", "second")]
    path = tmp_path / "compared.html"
    assert main(["compare", *runs, "-o", str(path), *options]) == 0
    return path.read_text(encoding="utf-8")


def test_several_runs_have_the_same_page(tmp_path, monkeypatch):
    monkeypatch.setenv("SAKIYOMI_HOME", str(tmp_path / "home"))
    text = compared(tmp_path, "--lang", "en")
    tags, report = Tags(text), embedded(text)["report"]
    for name in SECTIONS:
        assert tags.ids.count(f"section-{name}") == 1
    arms = ["first/plain", "first/mtp-k3", "second/plain", "second/mtp-k3"]
    assert [cell["arm"] for cell in report["cells"]][:4] == arms
    assert {c["verdict"] for c in report["comparisons"]} == {"same"}
    assert {one["arm"] for one in report["explanation"]["speculation"]} == {arms[1], arms[3]}
    assert {rate["arm"] for rate in report["segments"]["rates"]} == {arms[1], arms[3]}
    assert {row["arm"] for row in report["requests"]["rows"]} == set(arms)
    assert report["requests"]["num_requests"] == 96
    assert [run["run"] for run in report["runs"]] == ["first", "second"]
    assert "sakiyomi compare first second -o report.html --lang en" in text
    assert "a speculative step costs" in text


def test_runs_compared_by_force_say_in_what_they_differ(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SAKIYOMI_HOME", str(tmp_path / "home"))
    runs = [write_run(tmp_path / name) for name in ("first", "second")]
    facts = store.open_run(str(runs[1])).facts
    other = msgspec.structs.replace(facts.environment, cpu="another CPU")
    RunWriter(runs[1]).write_facts(msgspec.structs.replace(facts, environment=other))
    assert main(["compare", *map(str, runs)]) != 0
    assert main(["compare", *map(str, runs), "--force", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    (caution,) = [c for c in report["cautions"] if c["kind"] == "compared_by_force"]
    assert "another CPU" in caution["message"]


FOLDER = "/home/someone/secret-project"


@pytest.fixture
def secret_run(tmp_path, monkeypatch):
    """A run of somebody's plan: its folder's name stands in models, arguments, files and logs."""
    monkeypatch.setenv("SAKIYOMI_HOME", str(tmp_path / "home"))
    run = write_run(tmp_path / "secret-project" / "with a space" / "page-run", num_conversations=3)
    facts = store.open_run(str(run)).facts
    model, template = f"{FOLDER}/model.gguf", f"--chat-template={FOLDER}/my own/chat.jinja"
    plan = msgspec.structs.replace(
        facts.plan,
        arms=tuple(
            msgspec.structs.replace(arm, model=model, args=(template,)) for arm in facts.plan.arms
        ),
        scenarios=tuple(
            msgspec.structs.replace(ref, file=f"{FOLDER}/own.jsonl") for ref in facts.plan.scenarios
        ),
    )
    arms = tuple(
        msgspec.structs.replace(
            arm,
            model=model,
            model_path=model,
            argv=(f"{FOLDER}/.venv/bin/vllm", "serve", model, template),
        )
        for arm in facts.arms
    )
    caution = Caution(
        "suspect", f"see {FOLDER}/engine.log: broken", {"log": f"{FOLDER}/engine.log"}
    )
    RunWriter(run).write_facts(
        msgspec.structs.replace(facts, plan=plan, arms=arms, cautions=(caution,))
    )
    return run


@pytest.mark.parametrize("ending", ["html", "md", "csv", "json", "txt"])
def test_a_report_that_is_passed_on_has_no_folders(secret_run, tmp_path, ending):
    path = tmp_path / f"report.{ending}"
    assert main(["report", str(secret_run), "-o", str(path)]) == 0
    text = path.read_text(encoding="utf-8")
    assert "secret-project" not in text
    assert "with a space" not in text
    if ending in ("html", "json"):
        assert "my own" not in text
        assert "model.gguf" in text
        assert "chat.jinja" in text


def test_the_json_on_standard_output_has_no_folders(secret_run, capsys):
    assert main(["report", str(secret_run), "--json"]) == 0
    out = capsys.readouterr().out
    assert "secret-project" not in out
    assert json.loads(out)["arms"][0]["argv"][:3] == ["vllm", "serve", "model.gguf"]


def test_the_run_folder_keeps_its_paths(secret_run):
    assert FOLDER in (secret_run / "run.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sakiyomi run '/a/my plans/run/plan.toml' --tune", "sakiyomi run 'plan.toml' --tune"),
        ("--resume '/a/my plans/run' --repeats 6", "--resume 'run' --repeats 6"),
        ("see /a/b/engine.log: broken", "see engine.log: broken"),
        ("see ~/b/engine.log", "see engine.log"),
        (r"see C:\Users\me\engine.log", "see engine.log"),
        (r"see D:\my models\x.gguf", "see x.gguf"),
        ("POST /v1/chat/completions: 404", "POST /v1/chat/completions: 404"),
        ("http://127.0.0.1:8000/v1/models", "http://127.0.0.1:8000/v1/models"),
        (
            "https://github.com/vllm-project/vllm/issues/3",
            "https://github.com/vllm-project/vllm/issues/3",
        ),
        ("12 tok/s of org/name, 1/2, a/b/c", "12 tok/s of org/name, 1/2, a/b/c"),
        ("file:///a/b/c.txt", "c.txt"),
    ],
)
def test_paths_in_a_sentence_become_file_names(run, text, expected):
    reader = store.open_run(str(run))
    report = msgspec.structs.replace(read_report(reader), cautions=[Caution("suspect", text)])
    found = without_folders(report, ["/a/my plans/run", r"D:\my models\x.gguf"])
    assert found.cautions[0].message == expected
