"""One folder of each version of the run format; old runs stay readable and say the same."""

from pathlib import Path

import pytest

from sakiyomi.commands.saved_report import read_report
from sakiyomi.record import RUN_FORMAT
from sakiyomi.store import RunReader

RUNS = Path(__file__).parent / "runs"


def test_every_version_has_a_folder():
    assert sorted(path.name for path in RUNS.iterdir()) == [
        f"format-{number}" for number in range(1, RUN_FORMAT + 1)
    ]


def test_format_1():
    """A plain and a drafting fake engine: 3 answers of 16 tokens, steps of 10 ms, k = 2.

    Scripted 2, 1, 0 accepted in turn: the 15 tokens after the first take 7 steps, 8 accepted.
    """
    report = read_report(RunReader(RUNS / "format-1"))
    plain, mtp = report.cells
    assert (plain.arm, plain.num_requests, plain.num_output_tokens) == ("plain", 3, 48)
    assert plain.acceptance is None
    assert mtp.num_speculative_tokens == 2
    found = mtp.acceptance
    assert (found.num_drafts, found.num_draft_tokens) == (21, 42)
    assert found.num_accepted_tokens == 24
    assert found.per_position == [15 / 21, 9 / 21]
    assert mtp.decode_tokens_per_s.point == pytest.approx(15 / 0.070, rel=0.05)
    assert plain.decode_tokens_per_s.point == pytest.approx(100, rel=0.05)
    (compared,) = report.comparisons
    assert compared.ratio.point == pytest.approx(
        mtp.decode_tokens_per_s.point / plain.decode_tokens_per_s.point, rel=0.05
    )
