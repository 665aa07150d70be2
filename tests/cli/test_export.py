"""`sakiyomi export`: a table that other tools read."""

import sys

import pytest
from page_run import SCRIPT, write_run

from sakiyomi.cli import main


def test_one_row_a_request(tmp_path, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setenv("SAKIYOMI_HOME", str(tmp_path / "home"))
    run = write_run(tmp_path / "run")
    assert main(["export", str(run), "--parquet", str(tmp_path / "run.parquet")]) == 0
    rows = parquet.read_table(tmp_path / "run.parquet").to_pylist()
    assert len(rows) == 48
    fast = [row for row in rows if row["arm"] == "mtp-k3"]
    assert {row["completion_tokens"] for row in fast} == {72}
    assert {row["num_steps"] for row in fast} == {31.0}
    assert {row["num_accepted_tokens"] for row in fast} == {72 - 1 - 31.0}
    assert all(row["ttft_s"] == pytest.approx(0.05) for row in rows)
    assert all(SCRIPT in row["text"] and row["error_kind"] is None for row in rows)


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SAKIYOMI_HOME", str(tmp_path / "home"))
    run = write_run(tmp_path / "run")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["export", str(run), "--parquet", str(tmp_path / "x.parquet")]) == 1
    assert "pip install 'sakiyomi[parquet]'" in capsys.readouterr().err


def test_a_folder_that_is_not_there(tmp_path, monkeypatch, capsys):
    pytest.importorskip("pyarrow")
    monkeypatch.setenv("SAKIYOMI_HOME", str(tmp_path / "home"))
    run = write_run(tmp_path / "run")
    assert main(["export", str(run), "--parquet", str(tmp_path / "no" / "x.parquet")]) != 0
    assert "choose another file" in capsys.readouterr().err
