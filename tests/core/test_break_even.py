"""The break-even rate where only some steps have a draft."""

import math

import msgspec
import pytest

from sakiyomi.commands.saved_report import read_report
from sakiyomi.pairing import proposed_per_step
from sakiyomi.store import open_run


@pytest.fixture(scope="module")
def cell():
    report = read_report(open_run("founding-case"))
    return next(c for c in report.cells if c.arm == "mtp-k3")


def with_drafts(cell, **changes):
    found = msgspec.structs.replace(cell.acceptance, **changes)
    return msgspec.structs.replace(cell, acceptance=found)


def test_every_step_drafts_k(cell):
    assert proposed_per_step(cell) == 3
    assert proposed_per_step(with_drafts(cell, draft_coverage=1.0)) == 3


def test_a_draft_in_one_step_of_five(cell):
    """40 drafts of 3 in 200 steps propose 0.6 tokens a step; at C = 1.3 half of them must hold."""
    some = with_drafts(cell, draft_coverage=0.2, num_drafts=40.0, num_draft_tokens=120.0)
    assert math.isclose(proposed_per_step(some), 0.6)
    tokens_per_step = 1 + 0.5 * proposed_per_step(some)
    assert math.isclose(tokens_per_step, 1.3)


def test_unknown_counts_tell_nothing(cell):
    assert proposed_per_step(with_drafts(cell, draft_coverage=0.2, num_drafts=None)) is None
