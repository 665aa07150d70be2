"""A machine that was faster during one repeat gives no verdict, and the report says why."""

import msgspec
import pytest
from measured_run import fake, report_of, run_engines

from sakiyomi.analyse import analyse
from sakiyomi.store import RunReader


def quicker(record, factor):
    """The record as if everything after the request had taken `factor` of its time."""

    def moved(at_s):
        return None if at_s is None else record.sent_at_s + factor * (at_s - record.sent_at_s)

    return msgspec.structs.replace(
        record,
        closed_at_s=moved(record.closed_at_s),
        first_byte_at_s=moved(record.first_byte_at_s),
        event_at_s=[moved(at_s) for at_s in record.event_at_s],
    )


def test_one_quick_repeat_is_no_speedup(tmp_path):
    run_engines(tmp_path, {"plain": fake("openai", k=None), "other": fake("openai", k=None)})
    before = report_of(tmp_path).comparisons[0]
    reader = RunReader(tmp_path)
    records = [
        quicker(record, 0.4) if (record.key.arm, record.key.repeat) == ("other", 1) else record
        for record in reader.records()
    ]
    report = analyse(reader.facts, records, reader.snapshots())
    after = report.comparisons[0]
    assert after.verdict == "not_established"
    assert after.limited_by_repeats
    _, quick = after.repeat_ratios
    assert after.repeat_ratios == pytest.approx(
        [before.repeat_ratios[0], before.repeat_ratios[1] / 0.4]
    )
    cell = next(cell for cell in report.cells if cell.arm == "other")
    caution = next(c for c in cell.cautions if c.kind == "too_few_repeats")
    assert f"x{quick:.2f}" in caution.message
    assert "too_few_conversations" not in {c.kind for c in cell.cautions}
