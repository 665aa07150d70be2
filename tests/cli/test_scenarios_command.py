"""`sakiyomi scenarios list|show|import`: what a person and what a script sees."""

import json
import re

import pytest

from sakiyomi.cli import main
from sakiyomi.plan import ScenarioRef
from sakiyomi.plan_files import built_in_scenarios, read_scenario


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log.jsonl"
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"Case {n}: write to taro@kaisha.jp about it."}
            ],
            "temperature": 0.7,
            "usage": {"prompt_tokens": 20, "completion_tokens": 30},
        }
        for n in range(12)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "{broken\n", "utf-8")
    return path


def test_list_names_every_built_in_scenario(capsys):
    assert main(["scenarios"]) == 0
    out = capsys.readouterr().out
    for name in built_in_scenarios():
        assert re.search(rf"^{name} ", out, re.MULTILINE)
    assert "estimated" in out
    assert max(map(len, out.split("\n"))) <= 80


def test_list_as_json(capsys):
    assert main(["scenarios", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == built_in_scenarios()
    chat = next(row for row in rows if row["name"] == "ja_chat")
    scenario = read_scenario(ScenarioRef(name="ja_chat"))
    assert chat["num_conversations"] == len(scenario.conversations)
    assert chat["content_hash"] == scenario.content_hash
    assert chat["sampling"]["max_tokens"] == scenario.sampling.max_tokens
    assert chat["prompt_tokens"]["estimated"] is True


def test_show_prints_the_conversations(capsys):
    assert main(["scenarios", "show", "ja_voice"]) == 0
    out = capsys.readouterr().out
    for conversation in read_scenario(ScenarioRef(name="ja_voice")).conversations:
        assert conversation.conversation_id in out
        assert all(turn.split("\n")[0] in out for turn in conversation.turns)


def test_show_as_json(capsys):
    assert main(["scenarios", "show", "ja_voice", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    scenario = read_scenario(ScenarioRef(name="ja_voice"))
    assert [c["turns"] for c in row["conversations"]] == [
        list(c.turns) for c in scenario.conversations
    ]


def test_import_writes_a_scenario_that_a_plan_can_name(log, tmp_path, capsys):
    output = tmp_path / "support.jsonl"
    arguments = ["scenarios", "import", str(log), "-o", str(output), "--name", "support"]
    assert main([*arguments, "--num-conversations", "5", "--seed", "3"]) == 0
    out = capsys.readouterr().out
    assert "kept 5 of 12 conversations" in out
    assert "masked     mail 5" in out
    assert "log.jsonl:13" in out
    assert "temperature 0.7 (in 100% of the requests)" in out
    assert "not measured by sakiyomi" in out
    scenario = read_scenario(ScenarioRef(name="support", file=str(output)))
    assert len(scenario.conversations) == 5
    assert scenario.sampling.temperature == 0.7
    assert "kaisha" not in output.read_text("utf-8")
    baseline = json.loads((tmp_path / "support.baseline.json").read_text("utf-8"))
    assert baseline["quantities"]["completion_tokens"]["median"] == 30
    assert baseline["quantities"]["completion_tokens"]["n"] == 12


def test_the_same_seed_writes_the_same_bytes(log, tmp_path):
    written = []
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        output = tmp_path / f"{name}.jsonl"
        arguments = ["scenarios", "import", str(log), "-o", str(output), "--name", "x"]
        assert main([*arguments, "--num-conversations", "4", "--seed", seed]) == 0
        written.append(output.read_bytes())
    assert written[0] == written[1] != written[2]


def test_import_as_json_and_without_names(log, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path / "..")
    monkeypatch.chdir(tmp_path)
    assert main(["scenarios", "import", str(log), "-o", "own.jsonl", "--no-mask", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["files"] == ["own.jsonl", "own.baseline.json"]
    assert report["scenarios"][0]["name"] == "own"
    assert report["masked"] == {}
    assert report["num_rows"] == 13
    assert report["skipped"][0]["num_rows"] == 1
    assert "kaisha" in (tmp_path / "own.jsonl").read_text("utf-8")


def test_a_scenario_for_each_category(tmp_path, capsys):
    path = tmp_path / "question.jsonl"
    rows = [
        {
            "question_id": n,
            "category": kind,
            "turns": [f"{kind} question number {n}?"],
            "reference": [],
        }
        for kind in ("math", "rag")
        for n in range(3)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    output = tmp_path / "spec.jsonl"
    arguments = ["scenarios", "import", str(path), "-o", str(output), "--per-category"]
    assert main(arguments) == 0
    assert 'name = "spec_math"' in capsys.readouterr().out
    for kind in ("math", "rag"):
        scenario = read_scenario(ScenarioRef(name=kind, file=str(tmp_path / f"spec_{kind}.jsonl")))
        assert len(scenario.conversations) == 3
    assert not output.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show"], "no scenario named"),
        (["show", "nothing_such"], "not built in"),
        (["show", "gone.jsonl"], "no such file"),
        (["import"], "no file named"),
        (["import", "gone.jsonl"], "no such file"),
        (["import", "{log}", "-o", "{log}"], "is one of the logs"),
        (["import", "{log}", "--num-conversations", "0"], "must be at least 1"),
        (["import", "{log}", "--column", "frage=x"], "not FIELD=NAME"),
        (["import", "{log}", "--column", "system=x"], "no prompt among"),
    ],
)
def test_wrong_usage_is_told(log, capsys, arguments, message):
    status = main(["scenarios", *(text.replace("{log}", str(log)) for text in arguments)])
    captured = capsys.readouterr()
    assert status == 2
    assert message in captured.err
    assert "hint:" in captured.err
    assert captured.out == ""
