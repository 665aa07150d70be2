"""`sakiyomi run` as a user starts it: the embedded engine, its explanation, and its page."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.live
pytest.importorskip("xllamacpp", reason="the extra `local`")
ARTIFACTS = os.environ.get("SAKIYOMI_ARTIFACTS")
"""A folder that keeps the pages, for people to look at."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One short run; returns a function that runs the command on it."""
    home = tmp_path_factory.mktemp("home")

    def sakiyomi(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", "sakiyomi.cli", *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, "SAKIYOMI_HOME": str(home), "COLUMNS": "80"},
            check=False,
        )
        print(done.stdout, done.stderr[-2000:])
        assert done.returncode == 0
        return done.stdout

    sakiyomi(
        "run", "--scenario", "en_chat", "--requests", "3", "--max-tokens", "48", "--name", "short"
    )
    return sakiyomi


def test_the_table_of_a_real_engine(run):
    report = json.loads(run("report", "short", "--json"))
    plain, ngram = report["cells"]
    for cell in (plain, ngram):
        assert cell["num_failed"] == 0
        assert cell["tokens"] == "server"
        assert cell["decode_tokens_per_s"]["point"] > 0
        kinds = {caution["kind"] for caution in cell["cautions"]}
        assert not kinds & {"other_traffic", "sources_disagree", "impossible_counts"}
    assert plain["tokens_per_step"]["point"] == 1.0
    assert report["environment"]["engine"] == "llama.cpp"


def test_no_step_beats_the_measured_ceiling(run):
    """Read bytes of the model's own headers against the bandwidth measured on this machine."""
    report = json.loads(run("explain", "short", "--measure", "--json"))
    steps = report["explanation"]["steps"]
    assert {step["arm"] for step in steps} == {"plain", "ngram"}
    for step in steps:
        print(step["arm"], step["read_bytes"], step["attained_measured"])
        assert step["read_bytes"] > 96_000_000
        assert 0 < step["attained_measured"] <= 1


def test_the_page(run, tmp_path):
    folder = Path(ARTIFACTS) if ARTIFACTS else tmp_path
    for lang in ("en", "ja"):
        path = folder / f"embedded-{lang}.html"
        run("report", "short", "-o", str(path), "--lang", lang)
        assert path.stat().st_size < 2_000_000
