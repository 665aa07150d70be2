"""Looking after every repeat: the error stays within 5 %, whatever differs."""

import importlib.util
import math
import random
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sakiyomi import sequential, stats, verdicts


def load_benchmark(name):
    path = Path(__file__).parents[2] / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


bench = load_benchmark("sequential")


def draw(gain, between, noise, n, num_repeats, seed=1):
    rng = random.Random(seed)
    own = [rng.gauss(math.log1p(gain), between) for _ in range(n)]
    return [[rng.gauss(effect, noise) for _ in range(num_repeats)] for effect in own]


@settings(deadline=None)
@given(st.integers(0, 2000), st.integers(1, 40), st.sampled_from([0.9, 0.95, 0.99]))
def test_the_looks_together_spend_the_allowed_error(n, max_looks, level):
    levels = sequential.look_levels(n, max_looks, level)
    spent = [1 - look_level for look_level in levels if look_level is not None]
    assert len(levels) == max_looks
    assert sum(spent) == pytest.approx(1 - level)
    assert levels[-1] is not None
    if len(spent) > 1:  # each can decide when all conversations agree
        assert min(spent) >= 2 * 0.5**n


def test_few_conversations_look_less_often():
    assert sequential.look_levels(5, 4) == (None, None, None, 0.95)
    assert sequential.look_levels(7, 4) == pytest.approx((None, 0.975, None, 0.975))
    assert [level is not None for level in sequential.look_levels(8, 8)] == [
        look in (2, 4, 6, 8) for look in range(1, 9)
    ]
    assert sequential.look_levels(16, 1) == (0.95,)
    assert all(sequential.look_levels(16, 8))


def test_a_look_is_wider_than_a_single_one_and_the_last_hardly():
    units = draw(0.1, 0.05, 0.1, 16, 4)
    plain = stats.compare(units)
    first = sequential.sequential_estimate(units, 1, 4)
    last = sequential.sequential_estimate(units, 4, 4)
    assert first.low < last.low < plain.low < plain.point == first.point == last.point
    assert first.high > last.high > plain.high
    assert first.level == last.level == 0.95
    assert sequential.sequential_estimate(units, 1, 1) == plain


def test_a_look_that_cannot_decide_has_no_interval():
    units = draw(0.5, 0.0, 0.01, 5, 2)
    estimate = sequential.sequential_estimate(units, 2, 4)
    assert estimate.point == pytest.approx(1.5, abs=0.05)
    assert (estimate.low, estimate.high, estimate.n) == (None, None, 5)
    assert sequential.sequential_verdict(units, 2, 4) == "not_established"
    assert sequential.sequential_verdict(units, 4, 4) == "faster"


def test_without_a_value_there_is_no_estimate():
    assert sequential.sequential_estimate([[], []], 1, 4) is None
    assert sequential.sequential_verdict([], 1, 4) == "not_established"


@pytest.mark.parametrize("look", [0, 5])
def test_looks_beyond_the_plan_are_refused(look):
    with pytest.raises(ValueError, match="fixed before"):
        sequential.sequential_estimate([[0.1]] * 8, look, 4)


def test_the_verdict_takes_the_plans_band():
    units = draw(0.0, 0.0, 0.02, 32, 4)
    assert sequential.sequential_verdict(units, 4, 4, min_gain=0.03) == "same"
    assert sequential.sequential_verdict(units, 4, 4, min_gain=0.001) == "not_established"


# ---- the simulation: thousands of experiments


@pytest.mark.parametrize("spread", bench.SPREADS)
@pytest.mark.parametrize(("n", "max_looks"), [(16, 4), (8, 8)])
def test_false_verdicts_stay_within_5_percent_under_looks(spread, n, max_looks):
    experiments = 500
    row = bench.simulate(0.0, bench.SPREADS[spread], n, max_looks, experiments)
    noise = 100 * math.sqrt(0.05 * 0.95 / experiments)
    assert row["established"] < 5 + 2.5 * noise
    assert row["naive"] > 5 + 3 * noise  # what looking at 95 % each time does


def test_gains_are_found_in_few_repeats():
    noisy = {gain: bench.simulate(gain, (0.05, 0.1), 16, 8, 100) for gain in (0.03, 0.1, 0.3)}
    assert noisy[0.3]["repeats"] < 1.2
    assert noisy[0.1]["established"] > 95
    assert noisy[0.1]["repeats"] < 3.5
    assert noisy[0.03]["repeats"] > noisy[0.1]["repeats"] > noisy[0.3]["repeats"]
    assert all(row["wrong_way"] < 3 for row in noisy.values())


# ---- whether to go on


def test_repeats_cannot_settle_what_the_conversations_differ_by():
    units = draw(0.03, 0.15, 0.01, 16, 2)
    assert sequential.sequential_verdict(units, 2, 8) == "not_established"
    assert not sequential.can_be_established(units, 2, 8)
    assert verdicts.num_more_units(stats.compare(units)) is not None


def test_repeats_can_settle_noise():
    units = draw(0.06, 0.0, 0.12, 16, 1, seed=4)
    assert sequential.can_be_established(units, 1, 8)
    assert sequential.chance_to_establish(units, 1, 8) > 0.3


def test_sameness_can_be_established_too():
    half = draw(0.0, 0.001, 0.06, 16, 2)
    units = [*half, *([-value for value in unit] for unit in half)]  # the estimate is 1
    assert sequential.chance_to_establish(units, 2, 8) > 0.9
    assert sequential.chance_to_establish(units, 2, 8, min_gain=0.001) < 0.3


def test_no_looks_or_no_interval_left_is_no_chance():
    units = draw(0.3, 0.0, 0.01, 16, 4)
    assert sequential.chance_to_establish(units, 4, 4) == 0.0
    assert sequential.chance_to_establish(units[:2], 1, 4) == 0.0
    assert sequential.chance_to_establish([], 1, 4) == 0.0


def test_units_that_agree_are_certain():
    assert sequential.chance_to_establish([[0.1, 0.1]] * 8, 2, 4) == pytest.approx(1.0)
    assert sequential.chance_to_establish([[0.0, 0.0]] * 8, 2, 4) == pytest.approx(1.0)  # same


@pytest.mark.parametrize("gain", [0.0, 0.05, 0.15])
def test_the_predicted_chance_is_what_happens(gain):
    rng = random.Random(17)
    predicted, settled = [], []
    for _ in range(250):
        units = draw(gain, 0.08, 0.15, 16, 4, seed=rng.random())
        early = [unit[:2] for unit in units]
        predicted.append(sequential.chance_to_establish(early, 2, 4))
        settled.append(sequential.sequential_verdict(units, 4, 4) != "not_established")
    assert sum(predicted) / 250 == pytest.approx(sum(settled) / 250, abs=0.12)
