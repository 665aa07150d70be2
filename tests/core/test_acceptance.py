"""Counts of speculation against the reports that went wrong elsewhere (ids: docs of the faults)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sakiyomi import acceptance, steps
from sakiyomi.acceptance import agree, check
from sakiyomi.counter_growth import add, delta, total_speculation
from sakiyomi.record import (
    EngineMetrics,
    RequestKey,
    RequestRecord,
    SeriesCounters,
    SpecDecodeCounters,
    Step,
)


def spec(drafts=None, drafted=None, accepted=None, positions=None, num_steps=None):
    return SpecDecodeCounters(
        num_drafts=drafts,
        num_draft_tokens=drafted,
        num_accepted_tokens=accepted,
        accepted_per_position=positions,
        num_steps=num_steps,
    )


def page(start=None, **series):
    return EngineMetrics(
        process_start_s=start,
        series={key: SeriesCounters(speculation=counts) for key, counts in series.items()},
    )


def record(**fields):
    key = RequestKey(
        request_id="r",
        scenario="s",
        conversation_id="c",
        turn=0,
        arm="a",
        load="closed-1",
        repeat=0,
        scheduled_at_s=0.0,
    )
    return RequestRecord(key=key, sent_at_s=0.0, closed_at_s=1.0, **fields)


def test_a_reset_hidden_by_another_engine_is_a_lower_bound():
    # F44: engine 0 restarted; the aggregate difference would be 20 of 250 = 8 %.
    before = page(e0=spec(1000, None, 700), e1=spec(1000, None, 600))
    after = page(e0=spec(50, None, 20), e1=spec(2200, None, 1300))
    found = delta(before, after)
    assert found.resets == ("e0",)
    assert found.lower_bound
    assert found.counters.speculation == spec(1250, None, 720)
    rate = acceptance.draft_acceptance_rate(
        delta(page(e0=spec(0, 0, 0)), page(e0=spec(1250, 1250, 720))).counters.speculation
    )
    assert rate == pytest.approx(0.576)


def test_a_restarted_process_is_a_reset_even_when_no_counter_fell():
    before = page(start=100.0, e0=spec(10, 30, 5))
    after = page(start=200.0, e0=spec(40, 120, 60))
    found = delta(before, after)
    assert (found.resets, found.lower_bound) == (("e0",), True)
    assert found.counters.speculation == spec(40, 120, 60)
    assert not delta(page(start=1.0, e0=spec(1, 1, 1)), page(start=1.0, e0=spec(2, 2, 2))).resets


def test_a_fall_at_one_position_is_a_reset():
    before = page(e0=spec(10, 30, 5, (4.0, 1.0)))
    assert delta(before, page(e0=spec(20, 60, 9, (9.0, 0.0)))).resets == ("e0",)


def test_a_series_that_appears_started_at_zero_and_one_that_vanishes_voids():
    found = delta(page(e0=spec(1, 3, 1)), page(e0=spec(2, 6, 3), e1=spec(5, 15, 9)))
    assert found.new_series == ("e1",)
    assert found.counters.speculation == spec(6, 18, 11)
    assert not found.lower_bound
    found = delta(page(e0=spec(1, 3, 1), e1=spec(5, 15, 9)), page(e0=spec(2, 6, 3)))
    assert found.missing_series == ("e1",)
    assert found.lower_bound


def test_nothing_to_read_is_not_zero():
    # E05: a failed or empty scrape is not available, never 0.
    found = delta(EngineMetrics(), EngineMetrics())
    assert found.counters == SeriesCounters()
    assert found.counters.speculation is None
    assert found.counters.num_generated_tokens is None


def test_positions_that_appear_during_the_window_count_from_zero():
    before, after = page(e=spec(0, 0, 0)), page(e=spec(10, 39, 36, (10.0, 9.0, 9.0, 8.0)))
    counts = delta(before, after).counters.speculation
    assert counts.accepted_per_position == (10.0, 9.0, 9.0, 8.0)
    longer = delta(page(e=spec(1, 1, 1, (1.0,))), page(e=spec(3, 6, 4, (3.0, 1.0))))
    assert longer.counters.speculation.accepted_per_position == (2.0, 1.0)
    gone = delta(page(e=spec(1, 1, 1, (1.0,))), page(e=spec(3, 6, 4)))
    assert gone.counters.speculation.accepted_per_position is None


counts = st.integers(0, 10_000)


@st.composite
def growing_pages(draw):
    """Three pages in time of the same series; counters only grow."""
    keys = draw(st.lists(st.sampled_from(["", "engine=0", "engine=1"]), min_size=1, unique=True))
    width = draw(st.integers(0, 4))
    pages = []
    now = {key: [0.0] * (4 + width) for key in keys}
    for _ in range(3):
        now = {key: [v + draw(counts) for v in values] for key, values in now.items()}
        pages.append(
            EngineMetrics(
                series={
                    key: SeriesCounters(
                        num_generated_tokens=v[3],
                        speculation=spec(v[0], v[1], v[2], tuple(v[4:]) if width else None),
                    )
                    for key, v in now.items()
                }
            )
        )
    return pages


@given(growing_pages())
def test_windows_add_up(pages):
    a, b, c = pages
    whole, halves = delta(a, c), add(delta(a, b), delta(b, c))
    assert whole == halves
    assert not whole.lower_bound


@given(growing_pages())
def test_a_page_against_itself_grew_by_nothing(pages):
    counters = delta(pages[0], pages[0]).counters
    assert counters.num_generated_tokens == 0
    assert counters.speculation.num_drafts == 0
    assert acceptance.draft_acceptance_rate(counters.speculation) is None
    assert acceptance.mean_acceptance_length(counters.speculation) is None


def test_the_bonus_token_is_in_no_rate():
    # F50: 10 verify steps, k = 3, 24 accepted, 34 emitted.
    told = spec(10, 30, 24)
    assert acceptance.draft_acceptance_rate(told) == pytest.approx(0.80)
    assert acceptance.mean_acceptance_length(told) == pytest.approx(3.40)
    assert check(told, 3) == []
    wrong = check(spec(10, 30, 34), 3)
    assert wrong[0] == "more accepted than proposed: 34 of 30 (113%)"
    assert acceptance.draft_acceptance_rate(spec(10, 30, 34)) == pytest.approx(34 / 30)


@pytest.mark.parametrize(
    ("told", "length", "rate"),
    [
        (spec(65, 975, 89), 2.37, 0.0913),
        (spec(26407, 26407, 22021), 1.83, 0.834),
        (spec(11043, 88344, 38611), 4.50, 0.437),
    ],
)
def test_the_rate_falls_with_k_while_the_length_tells(told, length, rate):
    # F52
    assert acceptance.mean_acceptance_length(told) == pytest.approx(length, abs=0.005)
    assert acceptance.draft_acceptance_rate(told) == pytest.approx(rate, abs=0.0005)


def test_positions_sum_to_the_length():
    # F52: k = 15; per position .600 .385 .215 .108 .062 of 65 drafts.
    positions = (39.0, 25.0, 14.0, 7.0, 4.0, *(0.0,) * 10)
    told = spec(65, 975, 89, positions)
    assert check(told, 15) == []
    rates = acceptance.position_rates(told)
    assert rates[:5] == pytest.approx((0.600, 0.385, 0.215, 0.108, 0.062), abs=0.0005)
    assert 1 + sum(rates) == pytest.approx(acceptance.mean_acceptance_length(told))
    assert acceptance.position_rates(spec(0, 0, 0, (0.0,))) is None


def test_accepted_beyond_the_end_of_the_reply_has_two_views():
    # F53: predicted_n 2, one round, 7 proposed, 6 accepted.
    told = spec(1, 7, 6)
    assert check(told, 7) == []
    assert acceptance.draft_acceptance_rate(told) == pytest.approx(0.857, abs=0.0005)
    assert acceptance.mean_acceptance_length(told) == 7.0


def test_steps_without_a_draft_lower_tokens_per_step_not_the_length():
    # F54: 5376 tokens, 993 drafts, 4960 proposed, 3562 accepted, 821 plain steps.
    told = spec(993, 4960, 3562, num_steps=993 + 821)
    assert acceptance.mean_acceptance_length(told) == pytest.approx(4.59, abs=0.005)


def test_others_traffic_is_a_share_of_the_servers_count():
    # F55: 20 own requests and 2000 tokens, while the server counted 75 and 9000.
    assert acceptance.foreign_share(2000, 9000) == pytest.approx(0.778, abs=0.0005)
    assert acceptance.foreign_share(20, 75) == pytest.approx(0.733, abs=0.0005)
    assert acceptance.foreign_share(2000, 9000) > acceptance.MAX_FOREIGN_SHARE
    assert acceptance.foreign_share(2000, 2010) < acceptance.MAX_FOREIGN_SHARE
    assert acceptance.foreign_share(2010, 2000) == 0.0
    assert acceptance.foreign_share(None, 2000) is None
    assert acceptance.foreign_share(2000, None) is None


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (spec(-1, 3, 1), "num_drafts is negative"),
        (spec(10, 30, 35), "more accepted than proposed"),
        (spec(10, 0, 5), "more accepted than proposed: 5 of 0"),
        (spec(0, None, 5), "5 accepted tokens without a draft"),
        (spec(10, 50, 38), "mean acceptance length 4.80 above k + 1 = 4"),
        (
            spec(10, 30, 21, (6.0, 8.0, 7.0)),
            "position 1 accepted more often (8) than position 0 (6)",
        ),
        (spec(10, 30, 20, (11.0, 8.0, 1.0)), "position 0 accepted in 11 of 10 drafts"),
        (spec(10, 30, 20, (9.0, 8.0, 1.0)), "positions sum to 18, accepted is 20"),
    ],
)
def test_the_impossible_is_named(told, words):
    assert any(words in wrong for wrong in check(told, 3)), check(told, 3)


def test_the_length_is_unlimited_where_k_is_unknown():
    assert check(spec(10, 50, 38)) == []


def test_sources_may_differ_by_the_last_step_of_each_request():
    told, delivered = spec(100, 300, 200), spec(100, 300, 188)
    assert agree(told, delivered, num_requests=4, num_speculative_tokens=3) is None
    reason = agree(told, spec(100, 300, 187), num_requests=4, num_speculative_tokens=3)
    assert reason is not None
    assert "num_accepted_tokens: 200 against 187" in reason
    assert "num_drafts" in agree(told, spec(110, 300, 200), 4, 3)
    assert agree(told, SpecDecodeCounters(), 4, 3) is None
    with_positions = spec(100, 300, 200, (90.0, 70.0, 40.0))
    assert agree(with_positions, delivered, num_requests=4) is None


def test_counts_of_several_requests_are_summed_by_position():
    told = spec(10, 30, 20, (8.0, 7.0, 5.0))
    assert total_speculation([told, told]) == spec(20, 60, 40, (16.0, 14.0, 10.0))


def test_a_sum_never_mixes_coverage():
    found = total_speculation([spec(10, 30, 20, (1.0,)), spec(None, 30, 20)])
    assert found == spec(None, 60, 40)
    assert total_speculation([]) == SpecDecodeCounters()


def test_event_tokens_give_the_counts_of_a_request():
    told = steps.from_event_tokens(record(event_tokens=[1, 4, 4, 1, 2]))
    assert steps.count(told, 3, every_step_drafts=True) == spec(4, 12, 7, (3.0, 2.0, 2.0), 4)
    assert not steps.from_event_tokens(record(event_tokens=[1]))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1))
def test_counts_of_any_steps_are_sound(drawn):
    made = [
        Step(num_tokens=min(a, d) + 1, num_draft_tokens=d, num_accepted_tokens=min(a, d))
        for a, d in drawn
    ]
    counted = steps.count(made, 5)
    assert check(counted, 5) == []
    length = acceptance.mean_acceptance_length(counted)
    assert length is None or 1 <= length <= 6
    rate = acceptance.draft_acceptance_rate(counted)
    assert rate is None or 0 <= rate <= 1
