"""Estimates against scipy, numpy, published values and simulated truth."""

import importlib.util
import math
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from sakiyomi import correlations, intervals, stats, verdicts
from sakiyomi.stats import Estimate

values = st.floats(0.001, 1000)
conversations = st.lists(st.lists(values, min_size=1, max_size=5), min_size=3, max_size=20)
proposed = st.integers(1, 500)
acceptance_units = st.lists(
    proposed.flatmap(lambda b: st.tuples(st.integers(0, b), st.just(b))), min_size=3, max_size=20
)
holds = st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=3, max_size=20)


def load_benchmark(name):
    path = Path(__file__).parents[2] / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


coverage = load_benchmark("coverage")


def ordered(estimate):
    return estimate.low <= estimate.point <= estimate.high


def ratio_estimate(low, high, n=16, point=None):
    return Estimate(point=point or math.sqrt(low * high), low=low, high=high, n=n)


few = settings(max_examples=30, deadline=None)

# ---- points


@few
@given(st.lists(st.floats(-100, 100), min_size=1), st.floats(0, 1))
def test_quantile_is_numpys(data, share):
    assert stats.quantile(sorted(data), share) == pytest.approx(np.quantile(data, share), abs=1e-9)
    assert stats.median(data) == pytest.approx(np.median(data), abs=1e-9)


def test_median_is_over_conversations_not_requests():
    # one long conversation must not outvote the others
    units = [[1.0], [2.0, 2.0, 4.0], [9.0] * 50]
    assert stats.estimate_median(units).point == 2.0


def test_ratio_is_of_sums_not_a_mean_of_ratios():
    estimate = stats.estimate_ratio([(1, 1), (0, 99), (9, 100)], seed=1, upper=1)
    assert estimate.point == pytest.approx(0.05)
    assert estimate.n == 3


def test_the_founding_case():
    # analytics.md section 8: 92 of 255 drafted tokens, k = 3; 177 tokens in 85 steps
    chat = stats.estimate_ratio([(92, 255)], seed=1, upper=1)
    assert chat.point == pytest.approx(0.3608, abs=1e-4)
    assert stats.estimate_mean_acceptance_length([(92, 85)], 1, k=3).point == pytest.approx(
        2.082, abs=1e-3
    )
    for tokens, steps, speed, plain, cost, rate in (
        (177, 85, 80.5, 72.0, 1.862, 0.2875),
        (4099, 1304, 131.0, 70.7, 1.696, 0.2322),
    ):
        step_cost = stats.estimate_step_cost([(tokens, steps, [math.log(speed / plain)])])
        assert step_cost.point == pytest.approx(cost, abs=1e-3)
        assert stats.break_even_rate(step_cost, 3).point == pytest.approx(rate, abs=3e-4)


def test_the_luck_of_acceptance_cancels_in_the_step_cost():
    # speculative steps take 1.7 plain ones in every conversation, acceptance is all over the place
    rng = random.Random(3)
    units = []
    for _ in range(16):
        steps = rng.randint(20, 200)
        tokens = steps + rng.randint(0, 3 * steps)
        units.append((tokens, steps, [math.log(tokens / steps / 1.7)]))
    estimate = stats.estimate_step_cost(units)
    assert estimate.low == pytest.approx(1.7)
    assert estimate.high == pytest.approx(1.7)
    assert stats.estimate_step_cost([*units, (0, 5, [0.1]), (5, 0, [0.1])]).n == 16


def test_repeats_combine_on_the_log_scale():
    doubled_and_halved = [[math.log(2), math.log(0.5)]] * 3
    assert stats.compare(doubled_and_halved).point == pytest.approx(1.0)


def test_swapping_the_arms_inverts_the_speedup():
    rng = random.Random(5)
    units = [[rng.gauss(0.1, 0.2) for _ in range(4)] for _ in range(17)]
    there = stats.compare(units)
    back = stats.compare([[-value for value in unit] for unit in units])
    assert (1 / back.high, 1 / back.point, 1 / back.low) == pytest.approx(
        (there.low, there.point, there.high)
    )


@few
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=3, max_size=25))
def test_rank_correlation_is_scipys(units):
    x, y = zip(*units, strict=True)
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert correlations.rank_correlation(units) is None
        assert stats.estimate_correlation(units) is None
    else:
        oracle = scipy.stats.spearmanr(x, y).statistic
        assert correlations.rank_correlation(units) == pytest.approx(oracle, abs=1e-9)
        assert stats.estimate_correlation(units).point == correlations.rank_correlation(units)


# ---- intervals: what they are made of


@few
@given(st.floats(0.5001, 0.9999), st.integers(1, 200))
def test_student_quantile_is_scipys(share, num_degrees):
    oracle = scipy.stats.t.ppf(share, num_degrees)
    assert intervals.student_quantile(share, num_degrees) == pytest.approx(oracle, rel=1e-7)


@pytest.mark.parametrize("n", [6, 7, 8, 16, 33, 64, 500, 2000])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_median_interval_is_between_the_binomial_ranks(n, level):
    # Hettmansperger & Sheather from scipy's binomial distribution; values = ranks
    def held(k):
        return 1 - 2 * scipy.stats.binom.cdf(k - 1, n, 0.5)

    k = max(k for k in range(1, n // 2 + 1) if held(k) >= level)
    part = (held(k) - level) / (held(k) - held(k + 1))
    weight = (n - k) * part / (k + (n - 2 * k) * part)
    low, high = intervals.median_interval([float(rank) for rank in range(1, n + 1)], level)
    assert low == pytest.approx(k + weight, abs=1e-6)
    assert high == pytest.approx(n + 1 - k - weight, abs=1e-6)


def test_a_level_beyond_the_extremes_has_no_median_interval():
    assert intervals.median_interval([float(x) for x in range(8)], 0.995) is None
    assert intervals.median_interval([float(x) for x in range(8)], 0.99) is not None


def test_few_conversations_use_students_t():
    low, high = intervals.median_interval([1.0, 2.0, 4.0, 5.0], 0.95)
    error = scipy.stats.t.ppf(0.975, 3) * np.std([1, 2, 4, 5], ddof=1) / 2
    assert (low, high) == pytest.approx((3 - 1.2 * error, 3 + 1.2 * error))
    assert stats.estimate_median([[1.0], [2.0], [4.0], [5.0]]).low == 0.0  # times are not negative
    assert stats.estimate_median([[1.0], [2.0], [4.0], [5.0]], signed=True).low == low
    assert stats.estimate_median([[-1.0], [-2.0], [-3.0]]).low < -3


def test_bootstrap_t_agrees_with_numpys():
    rng = np.random.default_rng(11)
    b = np.ceil(rng.gamma(2, 60, 24)) + 1
    a = rng.binomial(b.astype(int), rng.beta(4, 6, 24)).astype(float)
    index = rng.integers(0, 24, (20_000, 24))
    ratio = a.sum() / b.sum()
    draws = a[index].sum(1) / b[index].sum(1)
    residuals = a[index] - draws[:, None] * b[index]
    t = (draws - ratio) * b[index].sum(1) / np.sqrt((residuals**2).sum(1))
    without = (a.sum() - a) / (b.sum() - b)
    error = math.sqrt(23 / 24 * ((without - without.mean()) ** 2).sum())
    expected = ratio - np.quantile(t, [0.975, 0.025]) * error
    estimate = stats.estimate_ratio(list(zip(a.tolist(), b.tolist(), strict=True)), 1, upper=1)
    width = estimate.high - estimate.low
    assert estimate.low == pytest.approx(expected[0], abs=0.06 * width)
    assert estimate.high == pytest.approx(expected[1], abs=0.06 * width)


def test_ratio_of_few_units_is_students_t_on_the_logit_scale():
    units = [(10.0, 40.0), (30.0, 60.0), (20.0, 100.0)]
    without = np.array([50 / 160, 30 / 140, 40 / 100])
    error = math.sqrt(2 / 3 * ((without - without.mean()) ** 2).sum())
    spread = scipy.stats.t.ppf(0.975, 2) * error / (0.3 * 0.7)
    ends = [1 / (1 + math.exp(-(math.log(0.3 / 0.7) + sign * spread))) for sign in (-1, 1)]
    estimate = stats.estimate_ratio(units, seed=1, upper=1)
    assert (estimate.low, estimate.high) == pytest.approx(ends)
    on_log_scale = stats.estimate_ratio(units, seed=1)
    assert on_log_scale.low * on_log_scale.high == pytest.approx(0.3**2)


def test_rare_acceptance_does_not_blow_the_interval_up():
    estimate = stats.estimate_ratio([(10, 100)] + [(0, 100)] * 15, seed=1, upper=1)
    assert estimate.low == 0
    assert 0.012 < estimate.high < 0.1  # wider than twice the point, not everything


def test_units_that_do_not_differ_show_no_spread():
    forced = stats.estimate_ratio([(30, 30), (60, 60), (90, 90)] * 4, seed=1, upper=1)
    assert (forced.low, forced.point, forced.high) == (1.0, 1.0, 1.0)
    plain = stats.estimate_median([[1.0, 1.0]] * 9)
    assert (plain.low, plain.point, plain.high) == (1.0, 1.0, 1.0)


def test_share_of_independent_requests_is_wilsons():
    units = [[True]] * 1800 + [[False]] * 200
    oracle = scipy.stats.binomtest(1800, 2000).proportion_ci(method="wilson")
    estimate = stats.estimate_share(units)
    assert (estimate.low, estimate.high) == pytest.approx((oracle.low, oracle.high), abs=2e-4)


@pytest.mark.parametrize("outcome", [False, True])
def test_share_counts_conversations_where_all_requests_agree(outcome):
    estimate = stats.estimate_share([[outcome] * 16] * 16)
    other_end = 1 - estimate.low if outcome else estimate.high
    exact = scipy.stats.binomtest(0, 16).proportion_ci().high  # 16 units, not 256
    assert estimate.point == float(outcome)
    assert other_end == pytest.approx(exact, abs=0.03)


def test_clustered_requests_tell_less():
    scattered = [[True, True, True, index % 4 != 0] * 4 for index in range(16)]
    clustered = [[True] * 16] * 15 + [[False] * 16]
    loose, tight = stats.estimate_share(clustered), stats.estimate_share(scattered)
    assert loose.point == tight.point
    assert loose.high - loose.low > 1.5 * (tight.high - tight.low)


def test_a_high_quantile_of_few_conversations_has_no_interval():
    rng = random.Random(2)
    few = [[rng.lognormvariate(0, 1)] for _ in range(30)]
    many = [[rng.lognormvariate(0, 1)] for _ in range(200)]
    assert stats.estimate_quantile(few, 0.9).high is None
    estimate = stats.estimate_quantile(many, 0.9)
    assert ordered(estimate)
    flat = sorted(value for (value,) in many)
    # an exact interval: order statistics by the binomial distribution
    exact = [flat[int(scipy.stats.binom.ppf(p, 200, 0.9))] for p in (0.025, 0.975)]
    assert estimate.low == pytest.approx(exact[0], rel=0.1)
    assert estimate.high == pytest.approx(exact[1], rel=0.15)


def test_correlation_keeps_away_from_certainty():
    rising = stats.estimate_correlation([(x, x**2) for x in range(1, 9)])
    assert rising.point == 1.0
    assert 0.5 < rising.low < 1.0
    assert rising.high == 1.0
    assert stats.estimate_correlation([(1, 1), (2, 3), (3, 2)]).low is None
    assert stats.estimate_correlation([(0, 0)] * 4 + [(1, 1)]).low is None  # one pair makes it


# ---- contract: nulls


ESTIMATES = {
    "median": lambda n: stats.estimate_median([[float(i + 1)] for i in range(n)]),
    "speedup": lambda n: stats.compare([[0.1 * i] for i in range(n)]),
    "step cost": lambda n: stats.estimate_step_cost([(30 + i, 20, [0.1]) for i in range(n)]),
    "ratio": lambda n: stats.estimate_ratio([(i + 1, 9) for i in range(n)], 1),
    "length": lambda n: stats.estimate_mean_acceptance_length([(i, 9) for i in range(n)], 1, k=3),
    "share": lambda n: stats.estimate_share([[i % 2 == 0] for i in range(n)]),
    "quantile": lambda n: stats.estimate_quantile([[float(i)] * 30 for i in range(n)], 0.5),
    "correlation": lambda n: stats.estimate_correlation([(i, -i) for i in range(n)]),
}


@pytest.mark.parametrize("name", ESTIMATES)
def test_fewer_than_three_units_have_no_interval_and_none_no_estimate(name):
    assert ESTIMATES[name](0) is None
    two = ESTIMATES[name](2)
    assert (two.n, two.low, two.high, two.level) == (2, None, None, 0.95)
    twelve = ESTIMATES[name](12)
    if name != "quantile":
        assert ordered(twelve)
        assert twelve.low < twelve.high


def test_conversations_without_a_value_are_left_out():
    assert stats.estimate_median([[], [1.0], [2.0], [3.0]]).n == 3
    assert stats.compare([[], [0.1]]).n == 1
    assert stats.estimate_ratio([(0, 0), (1, 2)], 1).n == 1
    assert stats.estimate_ratio([(0, 0)], 1) is None
    assert stats.estimate_share([[], [True]]).n == 1
    assert stats.estimate_quantile([[], [1.0]], 0.9).n == 1
    assert stats.estimate_median([[], []]) is None


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_values_that_are_no_numbers_are_refused(bad):
    with pytest.raises(ValueError, match="conversation 1"):
        stats.estimate_median([[1.0], [bad]])


# ---- properties


@few
@given(conversations, st.randoms(use_true_random=False))
def test_median_properties(units, rng):
    estimate = stats.estimate_median(units)
    assert ordered(estimate)
    shuffled = [rng.sample(unit, len(unit)) for unit in rng.sample(units, len(units))]
    assert stats.estimate_median(shuffled) == estimate
    scaled = stats.estimate_median([[4 * value for value in unit] for unit in units])
    assert (scaled.low, scaled.point, scaled.high) == pytest.approx(
        (4 * estimate.low, 4 * estimate.point, 4 * estimate.high)
    )


@few
@given(acceptance_units, st.randoms(use_true_random=False))
def test_ratio_properties(units, rng):
    estimate = stats.estimate_ratio(units, seed=7, upper=1)
    again = stats.estimate_ratio(rng.sample(units, len(units)), seed=7, upper=1)
    assert again == estimate
    if estimate.low is not None:
        assert 0 <= estimate.low <= estimate.point <= estimate.high <= 1
        scaled = stats.estimate_ratio([(8 * a, 4 * b) for a, b in units], seed=7, upper=2)
        assert (scaled.low, scaled.point, scaled.high) == pytest.approx(
            (2 * estimate.low, 2 * estimate.point, 2 * estimate.high), abs=1e-9
        )


@few
@given(acceptance_units)
def test_mean_acceptance_length_lies_between_1_and_k_plus_1(units):
    per_draft = [(accepted * 3, drafts) for accepted, drafts in units]
    estimate = stats.estimate_mean_acceptance_length(per_draft, 1, k=3)
    assert 1 <= estimate.low <= estimate.point <= estimate.high <= 4


@few
@given(holds, st.randoms(use_true_random=False))
def test_share_properties(units, rng):
    estimate = stats.estimate_share(units)
    assert 0 <= estimate.low <= estimate.point <= estimate.high <= 1
    assert estimate.low < estimate.high
    assert stats.estimate_share(rng.sample(units, len(units))) == estimate
    other = stats.estimate_share([[not hold for hold in unit] for unit in units])
    assert (1 - other.high, 1 - other.low) == pytest.approx((estimate.low, estimate.high))


@few
@given(conversations, st.floats(0.1, 0.9), st.randoms(use_true_random=False))
def test_quantile_properties(units, share, rng):
    estimate = stats.estimate_quantile(units, share)
    assert stats.estimate_quantile(rng.sample(units, len(units)), share) == estimate
    assert estimate.low is None or ordered(estimate)


@few
@given(st.lists(st.tuples(values, values), min_size=4, max_size=12, unique=True))
def test_correlation_properties(units):
    estimate = stats.estimate_correlation(units)
    if estimate is not None and estimate.low is not None:
        assert -1 <= estimate.low <= estimate.point <= estimate.high <= 1
        flipped = stats.estimate_correlation([(x, -y) for x, y in units])
        assert (-flipped.high, -flipped.low) == pytest.approx((estimate.low, estimate.high))


@pytest.mark.parametrize("name", ["median", "speedup", "ratio of sums", "share", "correlation"])
def test_twice_the_data_narrow_by_the_root_of_two(name):
    draw, _, estimate = coverage.FIGURES[name]
    rng = np.random.default_rng(4)
    factors = []
    for _ in range(25):
        units = draw("lognormal", rng, 24).tolist()
        once, twice = estimate(units, "lognormal"), estimate(units * 2, "lognormal")
        factors.append((twice.high - twice.low) / (once.high - once.low))
    # skewed ratios gain more: their tails are better known
    assert np.median(factors) == pytest.approx(1 / math.sqrt(2), abs=0.1)


def test_the_seed_decides_and_hardly_matters():
    units = coverage.acceptance("gamma", np.random.default_rng(2), 32).tolist()
    first, same, other = (stats.estimate_ratio(units, seed, upper=1) for seed in (1, 1, 2))
    assert first == same
    assert first != other
    assert first.high - first.low == pytest.approx(other.high - other.low, rel=0.1)


# ---- coverage


@pytest.mark.parametrize(
    ("name", "kind", "n", "replicates"),
    [
        ("median", "gamma", 16, 1000),
        ("median", "lognormal", 64, 500),
        ("speedup", "gamma", 16, 1000),
        ("speedup, repeats differ", "gamma", 16, 600),
        ("step cost", "lognormal", 16, 1000),
        ("ratio of sums", "gamma", 8, 250),
        ("ratio of sums", "ties", 16, 150),
        ("correlation", "gamma", 16, 300),
        ("quantile 0.9", "lognormal", 64, 300),
    ],
)
def test_intervals_hold_what_they_say(name, kind, n, replicates, monkeypatch):
    monkeypatch.setattr(coverage, "TRUTH_UNITS", 100_000)
    row = coverage.measure(name, kind, n, replicates, seed=20)
    margin = 300 * math.sqrt(0.95 * 0.05 / replicates)  # three standard errors of the simulation
    assert 95 - margin < row["coverage"] < min(95 + margin, 99.5)


def test_the_yardstick_rejects_a_percentile_bootstrap(monkeypatch):
    monkeypatch.setattr(coverage, "TRUTH_UNITS", 100_000)
    margin = 300 * math.sqrt(0.95 * 0.05 / 1000)
    assert coverage.measure_percentile("ratio of sums", "gamma", 8, 1000, seed=20) < 95 - margin
    assert coverage.measure_percentile("ratio of sums", "ties", 16, 1000, seed=20) < 95 - margin


def test_shares_near_1_are_not_claimed_too_high(monkeypatch):
    monkeypatch.setattr(coverage, "TRUTH_UNITS", 100_000)
    row = coverage.measure("share", "gamma", 32, 800, seed=20)
    assert 93 < row["coverage"] < 98.5
    assert row["above"] < 4


# ---- verdicts


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1.001, 1.01, "faster"),  # the contract's order: above 1 comes first
        (1.2, 1.4, "faster"),
        (0.95, 0.999, "slower"),
        (0.98, 1.02, "same"),
        (0.96, 1.02, "not_established"),
        (0.98, 1.04, "not_established"),
        (1.0, 1.2, "not_established"),
    ],
)
def test_verdict(low, high, expected):
    assert verdicts.verdict(ratio_estimate(low, high)) == expected


def test_verdict_without_an_interval():
    assert verdicts.verdict(None) == "not_established"
    assert verdicts.verdict(Estimate(point=2.0, low=None, high=None, n=2)) == "not_established"


def test_verdict_takes_the_plans_band():
    assert verdicts.verdict(ratio_estimate(0.92, 1.08), min_gain=0.1) == "same"


# ---- how many more


def test_num_more_units_of_a_settled_verdict_is_none_at_all():
    assert verdicts.num_more_units(ratio_estimate(1.1, 1.3)) == 0
    assert verdicts.num_more_units(ratio_estimate(0.99, 1.01)) == 0


def test_num_more_units_without_an_answer():
    assert verdicts.num_more_units(None) is None
    assert verdicts.num_more_units(Estimate(point=1.1, low=None, high=None, n=2)) is None
    assert verdicts.num_more_units(ratio_estimate(0.5, 1.6, point=1.0305)) is None
    assert verdicts.num_more_units(Estimate(point=1.1, low=0.0, high=1.4, n=4)) is None


@pytest.mark.parametrize("point", [1.12, 1 / 1.12])
def test_num_more_units_has_the_power_it_promises(point):
    # n' such that 80 % of intervals leave 1: (1.96 + 0.84) standard errors = ln 1.12
    spread = 0.14
    error = spread / 1.959964
    estimate = Estimate(
        point=point, low=point * math.exp(-spread), high=point * math.exp(spread), n=16
    )
    expected = 16 * ((1.959964 + 0.841621) * error / math.log(1.12)) ** 2 - 16
    assert verdicts.num_more_units(estimate) == math.ceil(expected)
    wider = Estimate(
        point=point, low=point * math.exp(-2 * spread), high=point * math.exp(2 * spread), n=16
    )
    assert verdicts.num_more_units(wider) > 3 * verdicts.num_more_units(estimate)


def test_num_more_units_counts_what_same_needs():
    # no gain at all: the interval must shrink from +-6 % into +-3 %
    estimate = ratio_estimate(1 / 1.06, 1.06, n=16, point=1.0)
    needed = 16 * (1.4294 * math.log(1.06) / math.log(1.03)) ** 2 - 16
    assert verdicts.num_more_units(estimate) == pytest.approx(needed, rel=0.05)


def test_transform_swaps_the_ends_of_a_falling_function():
    time = stats.transform(ratio_estimate(2.0, 4.0), lambda rate: 1 / rate)
    assert (time.low, time.high) == (0.25, 0.5)
    assert ordered(time)
    assert stats.transform(Estimate(point=2.0, low=None, high=None, n=1), math.sqrt).low is None


@pytest.mark.parametrize(("n", "formed"), [(16, False), (29, False), (30, True), (64, True)])
def test_a_tail_needs_conversations_beyond_it(n, formed):
    """Requests that look independent do not make up for conversations: nine in ten takes thirty."""
    rng = random.Random(n)
    units = [[rng.random() for _ in range(40)] for _ in range(n)]
    estimate = stats.estimate_quantile(units, 0.9)
    assert estimate.point == pytest.approx(0.9, abs=0.05)
    assert (estimate.low is not None) == formed
