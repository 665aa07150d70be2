"""Spec-Bench and SPEED-Bench from files of their shape: imported, run, shown in their form."""

import json

import pytest

SPECULATES = ("--k", "3", "--script", "2,0,3", "--step-cost", "1.5")
QUICK = ("--ttft", "0.002", "--step", "0.002")


@pytest.fixture
def run_set(sakiyomi, fake_engine, tmp_path):
    """Imports a file by category and runs every scenario on two fake engines; the run folder."""

    def run(path, name):
        done = sakiyomi(
            *("scenarios", "import", str(path), "--name", name, "--per-category"),
            *("-o", str(tmp_path / f"{name}.jsonl")),
        )
        assert done.returncode == 0, done.stderr
        files = sorted(tmp_path.glob(f"{name}_*.jsonl"))
        words = [word for file in files for word in ("--scenario", str(file))]
        for arm, options in (("plain", ()), ("eagle", SPECULATES)):
            words += ["--url", f"{arm}={fake_engine(*QUICK, *options)}"]
        folder = str(tmp_path / "run")
        asked = ("--repeats", "1", "--max-tokens", "31", "--out", folder)
        done = sakiyomi("run", *words, *asked)
        assert done.returncode == 0, done.stderr
        return folder, done.stdout

    return run


def spec_bench(path):
    rows = [
        {
            "question_id": number,
            "category": category,
            "turns": [f"A question of {category}, number {number}: what is it?"],
            "reference": [],
        }
        for number, category in enumerate(("rag", "translation", "qa") * 4)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def speed_bench(path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [
        {
            "question_id": f"q{number}",
            "category": category,
            "sub_category": None,
            "turns": [f"A question of {category}, number {number}: what is it?"],
            "source": "x",
            "src_id": str(number),
            "difficulty": "easy",
            "multiturn": False,
        }
        for number, category in enumerate(("roleplay", "coding", "multilingual") * 4)
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def cells_of(sakiyomi, folder):
    report = json.loads(sakiyomi("report", folder, "--json").stdout)
    ratios = {(c["scenario"], c["arm"]): c["ratio"]["point"] for c in report["comparisons"]}
    return {(c["scenario"], c["arm"]): c for c in report["cells"]}, ratios


def test_spec_bench_by_task(run_set, sakiyomi, tmp_path):
    path = tmp_path / "question.jsonl"
    spec_bench(path)
    folder, printed = run_set(path, "own")
    assert "in the form of Spec-Bench (closed-1)" in printed
    table = printed[printed.index("in the form of Spec-Bench") :]
    assert "#mean accepted tokens" in table
    cells, ratios = cells_of(sakiyomi, folder)
    places = [table.index(f"\n{category} ") for category in ("translation", "qa", "rag")]
    assert places == sorted(places)
    for category in ("translation", "qa", "rag"):
        plain, eagle = table[table.index(f"\n{category} ") :].split("\n")[1:3]
        cell, base = cells[f"own_{category}", "eagle"], cells[f"own_{category}", "plain"]
        # 30 tokens after the first in steps of 3, 1, 4: the script repeats
        assert cell["tokens_per_step"]["point"] == pytest.approx(30 / 12, rel=0.1)
        expected = [
            cell["tokens_per_step"]["point"],
            cell["decode_tokens_per_s"]["point"],
            base["decode_tokens_per_s"]["point"],
            ratios[f"own_{category}", "eagle"],
        ]
        found = [float(word.rstrip("x")) for word in eagle.split()[1:]]
        assert found == pytest.approx(expected, rel=0.01)
        assert plain.split()[-1] == "1x"
        assert plain.split()[2] == "1.00"


def test_speed_bench_in_markdown(run_set, sakiyomi, tmp_path):
    path = tmp_path / "test.parquet"
    speed_bench(path)
    folder, _ = run_set(path, "own")
    out = tmp_path / "report.md"
    assert sakiyomi("report", folder, "-o", str(out)).returncode == 0
    text = out.read_text()
    head = "| category | arm | acceptance length | acceptance rate | speedup |"
    assert "## By category, in the form of SPEED-Bench (closed-1)" in text
    rows = text[text.index(head) :].split("\n")[2:8]
    cells, ratios = cells_of(sakiyomi, folder)
    names = [row.split("|")[1].strip() for row in rows]
    assert [name for name in names if name] == ["coding", "multilingual", "roleplay"]
    for name, row in zip(names[::2], rows[1::2], strict=True):
        _, _, arm, length, rate, speedup, _ = (word.strip() for word in row.split("|"))
        found = cells[f"own_{name}", "eagle"]["acceptance"]
        assert arm == "eagle"
        assert float(length) == pytest.approx(found["mean_acceptance_length"]["point"], rel=0.01)
        assert float(rate.split("%")[0]) == pytest.approx(
            100 * found["draft_acceptance_rate"]["point"], abs=0.51
        )
        assert float(speedup.rstrip("x")) == pytest.approx(ratios[f"own_{name}", "eagle"], rel=0.01)
    assert "eleven categories" in text


def test_other_scenarios_have_no_such_table(sakiyomi, fake_engine, tmp_path):
    url = fake_engine(*QUICK, *SPECULATES)
    words = ("--scenario", "ja_translate", "--scenario", "rag_qa", "--requests", "2")
    done = sakiyomi("run", "--url", url, *words, "--repeats", "1", "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert "in the form of" not in done.stdout
