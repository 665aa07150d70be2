"""Looks of a run that ends itself: how many, and what each of them says. No clock, no engine."""

import random

import pytest
from decide_makers import PLAIN_RATE, arm_facts, group, make_facts, make_report, request, two_arms

from sakiyomi import sequential, terminal
from sakiyomi.commands.until_established import judge, num_repeats_within, parse_time
from sakiyomi.errors import PlanError
from sakiyomi.pairing import compare_arms, pair
from sakiyomi.record import Looks

ARMS = (arm_facts("plain"), arm_facts("fast", k=3))
FACTS = make_facts(ARMS)
PLACE = ("chat", "fast", "closed-1")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("1h30m", 5400), ("45", 45), ("0.5h", 1800)]
)
def test_budgets(text, seconds):
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["", "ten", "10 m", "5d", "0s", "m10"])
def test_what_is_no_budget(text):
    with pytest.raises(PlanError, match="--budget"):
        parse_time(text)


def test_repeats_that_fit_the_budget():
    assert num_repeats_within(600, 70, 60, 24) == 1 + 8
    assert num_repeats_within(600, 70, 10, 24) == 24
    assert num_repeats_within(60, 70, 60, 24) == 1


def test_a_clear_gain_is_established_at_an_early_look():
    requests = group(two_arms(0.5, conversations=16))
    assert judge(requests, FACTS.plan, Looks(look=1, max_looks=4)) == {PLACE: "established"}


def test_no_difference_is_hopeless_at_some_look_and_never_established():
    rng = random.Random(2)
    requests = []
    for index in range(16):
        own = rng.gauss(0, 0.3)  # conversations differ: repeats cannot narrow that
        for repeat in range(3):
            requests.append(request("plain", f"c{index}", repeat, PLAIN_RATE))
            rate = PLAIN_RATE * 2.718281828 ** (own + rng.gauss(0, 0.01))
            requests.append(request("fast", f"c{index}", repeat, rate))
    looks = Looks(look=2, max_looks=8)
    assert judge(group(requests), FACTS.plan, looks) == {PLACE: "hopeless"}


def test_hopeless_is_said_only_where_the_look_has_an_interval():
    requests = group(two_arms(0.0, conversations=6, spread=0.3))
    levels = sequential.look_levels(6, 8)
    for look in range(1, 9):
        standing = judge(requests, FACTS.plan, Looks(look=look, max_looks=8))[PLACE]
        if levels[look - 1] is None:
            assert standing == "open"


def test_the_report_prints_the_sequential_interval():
    requests = group(two_arms(0.1, spread=0.1))
    once, looked = (
        compare_arms(FACTS.plan, {a.name: a for a in ARMS}, requests, cells_of(requests), looks)[0]
        for looks in (None, Looks(look=2, max_looks=4))
    )
    units = [
        unit.log_ratios for unit in pair(requests[PLACE], requests["chat", "plain", "closed-1"])
    ]
    assert looked.ratio == sequential.sequential_estimate(units, 2, 4)
    assert looked.ratio.low < once.ratio.low
    assert looked.ratio.high > once.ratio.high
    assert looked.ratio.point == once.ratio.point


def cells_of(requests):
    return make_report(FACTS, requests).cells


def test_stopping_at_the_first_verdict_keeps_the_error():
    """No difference, up to 6 repeats, a look after each from the second on."""
    num_false = 0
    num_experiments = 150
    for seed in range(num_experiments):
        rng = random.Random(seed)
        own = [rng.gauss(0, 0.05) for _ in range(16)]
        requests = []
        for repeat in range(6):
            for index in range(16):
                requests.append(request("plain", f"c{index}", repeat, PLAIN_RATE))
                rate = PLAIN_RATE * 2.718281828 ** (own[index] + rng.gauss(0, 0.1))
                requests.append(request("fast", f"c{index}", repeat, rate))
            if repeat:
                looks = Looks(look=repeat, max_looks=5)
                units = group(requests)
                verdict = sequential.sequential_verdict(
                    [u.log_ratios for u in pair(units[PLACE], units["chat", "plain", "closed-1"])],
                    looks.look,
                    looks.max_looks,
                )
                if verdict in ("faster", "slower"):
                    num_false += 1
                    break
    assert num_false <= 15  # 5 % of 150 is 7.5; more than 15 in 1 of 200


def test_the_time_left_is_that_of_the_repeats_within_the_budget(capsys, monkeypatch):
    monkeypatch.setattr(terminal, "PLAIN_LINE_EVERY_S", 0.0)
    progress = terminal.Progress()
    progress.start(24 * 16)
    progress.advance("first repeat", 16)
    progress.expect_times(4)
    progress.advance("second repeat", 16)
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("16/384 requests, first repeat")
    assert second.startswith("32/64 requests, second repeat")
