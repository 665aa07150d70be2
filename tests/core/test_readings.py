"""Readings to rows, by values and by properties: no clock, no network."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sakiyomi.live_rows import rows
from sakiyomi.readings import MAX_UNITS, PageReading, Subject, advance
from sakiyomi.record import EngineMetrics, SeriesCounters, SpecDecodeCounters, SpecDecodeGauge
from sakiyomi.report import watch_text
from sakiyomi.stats import estimate_ratio

VLLM = Subject("a", "http://a/metrics", "vllm", "m")


def page(drafts=0, accepted=(0, 0), tokens=0, k=2, **more):
    """vLLM's page of one engine after `drafts` drafts of k tokens."""
    spec = SpecDecodeCounters(
        num_drafts=float(drafts),
        num_draft_tokens=float(k * drafts),
        num_accepted_tokens=float(sum(accepted)),
        accepted_per_position=tuple(map(float, accepted)),
    )
    series = {"engine=0": SeriesCounters(speculation=spec, num_generated_tokens=float(tokens))}
    return EngineMetrics(series=series, num_speculative_tokens=k, **more)


def reading(metrics, at_s, subject=VLLM):
    return PageReading(
        server=subject.server, page=subject.page, at_s=at_s, found={subject: metrics}
    )


def failed(problem="gone", subject=VLLM):
    return PageReading(server=subject.server, page=subject.page, problem=problem)


def watch(*readings, limits=None):
    """The only row after these readings."""
    tracks = {}
    for one in readings:
        tracks = advance(tracks, [one])
    (row,) = rows(tracks, [readings[-1]], limits)
    return row


def pages(*metrics, every_s=5.0):
    return [reading(one, at * every_s) for at, one in enumerate(metrics)]


def test_the_last_interval_and_since_the_start():
    row = watch(*pages(page(), page(10, (8, 5), 23), page(20, (12, 6), 38)))
    assert row.interval.seconds == 5
    assert row.interval.draft_acceptance_rate.point == 5 / 20
    assert row.interval.mean_acceptance_length.point == 1.5
    assert row.interval.per_position == (0.4, 0.1)
    assert row.interval.drafts_per_s == 2
    assert row.interval.generated_tokens_per_s == 3
    assert row.since_start.seconds == 10
    assert row.since_start.draft_acceptance_rate.point == 18 / 40
    assert row.since_start.per_position == (0.6, 0.3)
    assert row.since_start.generated_tokens_per_s == 3.8
    assert (row.engine, row.model, row.num_readings) == ("vLLM", "m", 3)


def test_what_was_counted_before_the_watch_is_not_in_it():
    row = watch(*pages(page(1000, (1000, 1000), 9), page(1010, (1000, 1000), 9)))
    assert row.since_start.draft_acceptance_rate.point == 0


def test_no_drafts_is_no_rate():
    row = watch(*pages(page(10, (5, 5)), page(10, (5, 5))))
    assert row.interval.num_drafts == 0
    assert row.interval.draft_acceptance_rate is None
    assert row.interval.mean_acceptance_length is None
    assert row.interval.per_position is None
    assert row.interval.drafts_per_s == 0


def test_readings_are_the_units_and_two_are_too_few():
    grown = [page(), page(10, (9, 5)), page(20, (13, 6)), page(20, (13, 6)), page(40, (28, 17))]
    two = watch(*pages(*grown[:3])).since_start.draft_acceptance_rate
    assert (two.n, two.low, two.high) == (2, None, None)
    row = watch(*pages(*grown))
    expected = estimate_ratio([(14, 20), (5, 20), (26, 40)], 1, upper=1.0)
    assert row.since_start.draft_acceptance_rate == expected  # the idle reading is no unit
    assert expected.low < expected.point < expected.high
    assert row.unit == "reading"


@given(st.lists(st.integers(0, 9), min_size=1, max_size=200))
def test_the_sums_do_not_depend_on_how_often_it_is_read(steps):
    grown, drafts, accepted = [page()], 0, 0
    for number in steps:
        drafts, accepted = drafts + 10, accepted + number
        grown.append(page(drafts, (accepted, 0), drafts + accepted))
    every = pages(*grown)
    often, once = watch(*every), watch(every[0], every[-1])
    for field in ("seconds", "num_drafts", "num_accepted_tokens", "per_position"):
        assert getattr(often.since_start, field) == getattr(once.since_start, field)
    rate = often.since_start.draft_acceptance_rate
    assert rate.point == once.since_start.draft_acceptance_rate.point
    assert rate.n <= MAX_UNITS
    assert rate.n == math.ceil(len(steps) / often.readings_per_unit)
    if rate.low is not None:
        assert 0 <= rate.low <= rate.point <= rate.high <= 1


def test_a_fall_is_in_no_sum_and_the_next_interval_counts_again():
    grown = [page(50, (50, 0)), page(60, (55, 0)), page(4, (4, 4)), page(14, (4, 4))]
    fallen = watch(*pages(*grown[:3]))
    assert fallen.interval is None
    assert fallen.note == "no rates: counters fell (engine=0): the server restarted"
    assert fallen.since_start.num_drafts == 10
    after = watch(*pages(*grown))
    assert after.interval.num_drafts == 10
    assert after.since_start.num_drafts == 20
    assert after.since_start.seconds == 10
    assert after.num_void == 1


def test_a_restart_that_counts_higher_is_seen_by_its_start():
    row = watch(*pages(page(5, process_start_s=1.0), page(9, process_start_s=2.0)))
    assert row.interval is None
    assert "restarted" in row.last_void


def test_processes_that_answer_in_turn():
    one, other = page(100, (50, 0)), page(60, (30, 0))
    row = watch(*pages(one, other, one, other, one))
    assert row.interval is row.since_start is None
    assert row.num_void == 4
    assert row.last_void == "counters fell and rose again: several processes answer in turn"


def without_drafts(metrics):
    series = {
        key: msgspec.structs.replace(one, speculation=None) for key, one in metrics.series.items()
    }
    return msgspec.structs.replace(metrics, series=series)


def test_counters_that_vanish_and_come_back_are_never_counted_whole():
    grown = [page(1000, (900, 0)), without_drafts(page(1000)), without_drafts(page(1000))]
    gone = watch(*pages(*grown[:2]))
    assert gone.interval is None
    assert gone.last_void == "series vanished: engine=0"
    still = watch(*pages(*grown))
    assert still.interval.num_drafts is None
    assert still.note == "series vanished: engine=0"
    back = watch(*pages(*grown, page(1010, (905, 0))))
    assert back.interval is None
    assert back.last_void == "series are back: engine=0"
    again = watch(*pages(*grown, page(1010, (905, 0)), page(1020, (906, 0))))
    assert again.interval.num_drafts == again.since_start.num_drafts == 10
    assert "vanished" not in (again.note or "")


def test_impossible_counts_are_in_no_sum():
    row = watch(*pages(page(), page(10, (5, 8)), page(20, (10, 10))))
    assert row.num_void == 1
    assert row.last_void.startswith("impossible counts: position 1 accepted more often")
    assert row.since_start.num_drafts == 10


def test_a_missed_reading_makes_the_next_interval_longer():
    missed = [reading(page(), 0), failed(), reading(page(10, (5, 5)), 10)]
    row = watch(*missed[:2])
    assert (row.problem, row.interval, row.since_start) == ("gone", None, None)
    row = watch(*missed)
    assert row.problem is None
    assert row.interval.seconds == 10
    assert row.interval.drafts_per_s == 1
    assert (row.num_readings, row.num_missed) == (2, 1)


def test_a_model_that_left_the_page_keeps_its_row():
    other = Subject("a", "http://a/metrics", "vllm", "n")
    both = PageReading(
        server="a", page="http://a/metrics", at_s=0, found={VLLM: page(), other: page()}
    )
    after = reading(page(3), 5)
    tracks = advance(advance({}, [both]), [after])
    found = {row.model: row for row in rows(tracks, [after])}
    assert found["m"].interval.num_drafts == 3
    assert found["n"].note == "its series vanished from the page"


def test_a_page_that_never_told_anything_is_a_row_with_its_problem():
    row = watch(failed("HTTP 404"))
    assert (row.server, row.engine, row.problem) == ("a", None, "HTTP 404")


def test_a_running_average_is_marked_as_such():
    gauge = SpecDecodeGauge(mean_acceptance_length=2.5, draft_acceptance_rate=0.5)
    subject = Subject("a", "http://a/metrics", "sglang", None)
    metrics = EngineMetrics(series={"": SeriesCounters(num_generated_tokens=0.0)}, gauge=gauge)
    row = watch(*(reading(metrics, at_s, subject) for at_s in (0, 5)))
    assert (row.interval.source, row.interval.quality) == ("gauge", "estimated")
    assert row.interval.draft_acceptance_rate.point == 0.5
    assert row.since_start.draft_acceptance_rate is None
    assert any(note.startswith("~ a running average") for note in row.notes)


@pytest.mark.parametrize(
    ("accepted", "below"),
    [((1, 1, 1), True), ((1, 1, 9), False), ((9, 1, 1, 1), True), ((1, 1), None)],
)
def test_below_the_break_even_is_said_after_three_readings_in_a_row(accepted, below):
    grown, total = [page()], 0
    for number, count in enumerate(accepted, start=1):
        total += count
        grown.append(page(10 * number, (total, 0)))
    row = watch(*pages(*grown), limits={"a": (0.2, 0.3)})
    assert row.below_break_even is below
    assert row.break_even_rate == (0.2, 0.3)
    assert watch(*pages(*grown), limits={"b": (0.2, 0.3)}).below_break_even is None


def shown():
    """Rows of a server that was read four times, of one that is gone, of one never seen."""
    grown = [page(), page(10, (9, 5)), page(20, (13, 6)), page(40, (28, 17), 85)]
    loaded = msgspec.structs.replace(
        grown[3], num_requests_running=3.0, num_requests_waiting=1.0, kv_cache_usage=0.414
    )
    subject = Subject("日本語のとても長い名前", "http://b/metrics", "vllm", "m")
    tracks = advance({}, [reading(grown[0], 0, subject)])
    for one in pages(*grown[:3], loaded):
        latest = [one, failed("it is gone", subject), failed("HTTP 404", Subject("c", "", "", ""))]
        tracks = advance(tracks, latest)
    return rows(tracks, latest, {"a": (0.41, 0.52)})


def test_the_table():
    text = watch_text.table(shown(), "reading 4, every 5 s, Ctrl-C ends it")
    assert (
        text
        == """\
reading 4, every 5 s, Ctrl-C ends it

                     accepted     even    length  drafts/s  tok/s  run+wait   KV
a                    65%          41-52%    2.30      4.00   17.0       3+1  41%
  since start        56% (14-91)            2.12      2.67   5.67
日本語のとても長い…  -                         -         -      -         -    -
  since start        -                         -         -      -
c                    -                         -         -      -         -    -

a: by position 75% 55%; since start 70% 42%
! 日本語のとても長い名前: it is gone
! c: HTTP 404"""
    )


def test_the_summary():
    assert (
        watch_text.summary(shown(), 3725, 4)
        == """\
watched 1 h 2 min 5 s, 4 readings
a: accepted 56% (14-91), length 2.12, drafts/s 2.67, tok/s 5.67
  by position 70% 42%
日本語のとても長い名前: accepted -, length -, drafts/s -, tok/s -
  4 of 5 readings failed
  last: it is gone
c: nothing
  last: HTTP 404
intervals: 95 %, over readings as units"""
    )


def test_the_lines():
    assert [watch_text.line(row, row.server, "now") for row in shown()] == [
        "now a: accepted 65%, length 2.30, drafts/s 4.00, tok/s 17.0, by position 75% 55%, running 3, waiting 1, KV 41%, break-even 41-52%; since start accepted 56% (14-91), length 2.12, drafts/s 2.67, tok/s 5.67",
        "now 日本語のとても長い名前: no reading: it is gone",
        "now c: no reading: HTTP 404",
    ]
