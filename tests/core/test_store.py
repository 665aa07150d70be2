import errno
import json
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from sakiyomi import store
from sakiyomi.errors import PlanError, ScenarioError, StoreError
from sakiyomi.plan import Arm, Plan, ScenarioRef
from sakiyomi.plan_files import read_plan, read_scenario
from sakiyomi.record import (
    RUN_FORMAT,
    Environment,
    RequestKey,
    RequestRecord,
    RunFacts,
    Snapshot,
)
from sakiyomi.run_writer import RunWriter

PLAN = Plan(
    name="日本語 Run!",
    arms=(Arm(name="plain", url="http://h:1"),),
    scenarios=(ScenarioRef(name="ja_chat"),),
)


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("SAKIYOMI_HOME", str(tmp_path / "home"))


def facts(**changes):
    return RunFacts(
        **{
            "format": RUN_FORMAT,
            "run_id": "r",
            "created": "2026-12-01T00:00:00+00:00",
            "plan": PLAN,
            "environment": Environment(tool_version="0"),
            **changes,
        }
    )


def record(number=0, text="文"):
    key = RequestKey(f"q{number}", "ja_chat", "c", 0, "plain", "closed-1", 0, 1.0)
    return RequestRecord(
        key=key,
        sent_at_s=1.0,
        closed_at_s=2.0,
        event_at_s=[1.5],
        event_tokens=[None],
        event_kind=["answer"],
        event_text=[text],
    )


def test_a_run_comes_back_as_it_was_written():
    writer = RunWriter.create(PLAN.name)
    writer.write_facts(facts())
    snapshot = Snapshot(
        at_s=1.0,
        url="u",
        arm="plain",
        scenario="ja_chat",
        load="closed-1",
        repeat=0,
        moment="before",
        status=200,
        text="# HELP\n",
    )
    writer.append(record())
    writer.append(snapshot)
    writer.close()
    reader = store.open_run(writer.folder.name)
    assert reader.facts == facts()
    assert list(reader.records()) == [record()]
    assert list(reader.snapshots()) == [snapshot]
    assert read_plan(writer.folder / "plan.toml") == PLAN


def test_each_record_is_on_disk_when_append_returns():
    writer = RunWriter.create("r")
    writer.append(record(1))
    assert writer.folder.joinpath("requests.jsonl").read_bytes().endswith(b"\n")
    writer.close()


def test_a_line_cut_by_a_kill_is_left_out_and_the_next_stands_alone():
    writer = RunWriter.create("r")
    writer.write_facts(facts())
    writer.append(record(1))
    writer.close()
    path = writer.folder / "requests.jsonl"
    path.write_bytes(path.read_bytes() + b'{"key":{"request_id":"q2"')
    resumed = RunWriter(writer.folder)
    resumed.append(record(3))
    resumed.close()
    ids = [r.key.request_id for r in store.RunReader(writer.folder).records()]
    assert ids == ["q1", "q3"]


def cut_lines():
    """Lines that a kill may leave: cut in a key, a character, a number, after a brace."""
    line = msgspec.json.encode(record(2, "文"))
    inside = line.index("文".encode()) + 1
    number = line.index(b"1.0") + 2
    brace = line.index(b"}") + 1
    return [line[:cut] for cut in (1, 9, inside, number, brace, len(line) - 1)]


def one_record():
    """The record file of a new run folder, and its one line."""
    writer = RunWriter.create("r")
    writer.write_facts(facts())
    writer.append(record(1))
    writer.close()
    path = writer.folder / "requests.jsonl"
    return path, path.read_bytes()


@pytest.mark.parametrize("cut", cut_lines())
def test_any_cut_is_a_cut(cut):
    path, whole = one_record()
    path.write_bytes(whole + cut + b"\n" + whole + cut)
    assert len(list(store.RunReader(path.parent).records())) == 2


@pytest.mark.parametrize("damage", [b"\0\0\0", b"what is this", b'{"key": \xff\xfe}', b"[1]"])
def test_damage_in_the_middle_is_named_with_its_line(damage):
    path, whole = one_record()
    path.write_bytes(whole + damage + b"\n" + whole)
    with pytest.raises(StoreError, match=r"requests\.jsonl:2: ") as caught:
        list(store.RunReader(path.parent).records())
    assert "damaged" in caught.value.hint


def test_a_finished_run_without_its_requests_is_incomplete():
    writer = RunWriter.create("r")
    writer.write_facts(facts(finished=False))
    assert list(store.RunReader(writer.folder).records()) == []
    writer.write_facts(facts(finished=True))
    with pytest.raises(StoreError, match=r"requests\.jsonl: no such file"):
        store.RunReader(writer.folder).records()


def test_a_broken_history_costs_only_its_broken_lines():
    writer = RunWriter.create("r")
    writer.write_facts(facts())
    path = store.home() / "history.txt"
    path.write_bytes(b"\0bad\n\xff\n/none\n" + path.read_bytes())
    assert [reader.folder.name for reader in store.history()] == ["r"]


def test_secrets_are_never_written():
    arm = Arm(name="a", url="http://h", args=("--api-key", "sk-1"), env={"HF_TOKEN": "hf_2"})
    plan = Plan(name="p", arms=(arm,), scenarios=PLAN.scenarios)
    writer = RunWriter.create("r")
    writer.write_facts(facts(plan=plan))
    for name in ("plan.toml", "run.json"):
        text = (writer.folder / name).read_text()
        assert "sk-1" not in text
        assert "hf_2" not in text
        assert text.count("***") == 2


def test_runs_that_start_together_have_folders_of_their_own():
    with ThreadPoolExecutor(8) as pool:
        writers = list(pool.map(RunWriter.create, ["same"] * 8))
    assert len({writer.folder for writer in writers}) == 8


def test_a_home_that_cannot_be_written_costs_only_the_history(tmp_path, monkeypatch):
    monkeypatch.setenv("SAKIYOMI_HOME", "/proc/none")
    writer = RunWriter.create("r", tmp_path / "out")
    writer.write_facts(facts())
    assert store.RunReader(tmp_path / "out").facts == facts()
    with pytest.raises(StoreError, match="/proc/none") as caught:
        RunWriter.create("r")
    assert "--out" in caught.value.hint


def test_a_user_without_a_home_is_told_the_way_out(tmp_path, monkeypatch):
    def no_home():
        raise RuntimeError

    monkeypatch.delenv("SAKIYOMI_HOME")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr(store.Path, "home", no_home)
    with pytest.raises(StoreError) as caught:
        RunWriter.create("r")
    assert "SAKIYOMI_HOME" in caught.value.hint
    assert store.history() == []
    assert RunWriter.create("r", tmp_path / "out").folder.is_dir()


@pytest.mark.parametrize("run", ["x" * 5000, "", "a\0b", "../none"])
def test_a_name_that_no_run_can_have_is_no_run(run):
    with pytest.raises(StoreError, match="no run folder"):
        store.open_run(run)


def test_a_full_disk_says_what_is_kept(monkeypatch):
    writer = RunWriter.create("r")
    writer.append(record(1))

    class Full:
        def write(self, _data):
            raise OSError(errno.ENOSPC, "No space left on device")

    writer.close()
    monkeypatch.setitem(writer._files, "requests.jsonl", Full())
    with pytest.raises(StoreError, match=r"No space left.*kept") as caught:
        writer.append(record(2))
    assert "--resume" in caught.value.hint


def test_names_are_made_free_and_found_again(tmp_path):
    one, two = RunWriter.create("r"), RunWriter.create("r")
    assert one.folder.name == "r"
    assert two.folder.name == "r-2"
    elsewhere = RunWriter.create("r", tmp_path / "elsewhere")
    for writer in (one, two, elsewhere):
        writer.write_facts(facts())
    assert {reader.folder.name for reader in store.history()} == {"r", "r-2", "elsewhere"}
    assert store.open_run("elsewhere").folder == elsewhere.folder
    with pytest.raises(StoreError, match="a run is already there"):
        RunWriter.create("r", tmp_path / "elsewhere")
    with pytest.raises(StoreError) as caught:
        store.open_run("no-such-run")
    assert "r-2" in caught.value.hint
    assert "founding-case" in caught.value.hint


def test_a_newer_format_is_refused_and_newer_keys_are_read(tmp_path):
    writer = RunWriter.create("r")
    writer.write_facts(facts())
    path = writer.folder / "run.json"
    raw = json.loads(path.read_text())
    path.write_text(json.dumps({**raw, "a_key_of_the_future": 1}))
    assert store.RunReader(writer.folder).facts == facts()
    path.write_text(json.dumps({**raw, "format": RUN_FORMAT + 1}))
    with pytest.raises(StoreError, match=r"upgrade|format"):
        store.RunReader(writer.folder)
    for damage in ({**raw, "format": "x"}, [raw], {**raw, "plan": 5}):
        path.write_text(json.dumps(damage))
        with pytest.raises(StoreError, match=r"run\.json"):
            store.RunReader(writer.folder)


TEXT = 'name = "計画"\n[[arms]]\nname = "a"\nurl = "http://h"\n[[scenarios]]\nname = "ja_chat"\n'


@pytest.mark.parametrize(
    "raw",
    [
        TEXT.encode(),
        b"\xef\xbb\xbf" + TEXT.encode(),
        TEXT.replace("\n", "\r\n").encode(),
        TEXT.encode("utf-16"),
    ],
    ids=["utf-8", "bom", "crlf", "utf-16"],
)
def test_a_plan_in_any_unicode_form_is_the_same(tmp_path, raw):
    path = tmp_path / "p.toml"
    path.write_bytes(raw)
    assert read_plan(path).name == "計画"


def test_shift_jis_is_named_with_its_line_and_the_way_out(tmp_path):
    path = tmp_path / "p.toml"
    path.write_bytes(("# ok\n" + TEXT).encode("cp932"))
    with pytest.raises(PlanError) as caught:
        read_plan(path)
    assert f"{path}:2: not UTF-8" in caught.value.message
    assert "Shift_JIS" in caught.value.message
    assert "iconv -f CP932" in caught.value.hint
    scenario = tmp_path / "s.jsonl"
    scenario.write_bytes('{"turns": ["a"]}\n{"turns": ["日本"]}\n'.encode("cp932"))
    with pytest.raises(ScenarioError, match=":2: not UTF-8"):
        read_scenario(ScenarioRef(name="s", file=str(scenario)))


def test_broken_toml_is_named_with_its_line(tmp_path):
    path = tmp_path / "p.toml"
    path.write_text('name = "a"\narms = [\n')
    with pytest.raises(PlanError, match=r"p\.toml.*(line|end)"):
        read_plan(path)
    with pytest.raises(PlanError, match="no such file") as caught:
        read_plan(tmp_path / "q.toml")
    assert "p.toml" in caught.value.hint


def test_scenario_files_are_taken_from_the_plans_folder(tmp_path):
    (tmp_path / "own.jsonl").write_text('\ufeff{"turns": ["a\u2028b"]}\r\n\r\n{"turns": ["c"]}')
    (tmp_path / "p.toml").write_text(TEXT.replace('"ja_chat"', '"own"\nfile = "own.jsonl"'))
    ref = read_plan(tmp_path / "p.toml").scenarios[0]
    scenario = read_scenario(ref)
    assert [c.turns for c in scenario.conversations] == [("a\u2028b",), ("c",)]


def test_an_unknown_scenario_lists_those_that_ship():
    with pytest.raises(ScenarioError) as caught:
        read_scenario(ScenarioRef(name="nope"))
    assert "ja_chat" in caught.value.hint


def test_the_founding_case_ships():
    reader = store.open_run("founding-case")
    assert reader.facts.provenance == "published"
    assert list(reader.records()) == []
