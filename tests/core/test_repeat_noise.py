"""Effects that all conversations of a repeat share."""

import math
import random

import numpy as np
import pytest

from sakiyomi import sequential, stats, verdicts
from sakiyomi.repeat_noise import repeat_means, repeat_variance, shared_half_width


def table(rng, num_conversations, num_repeats, *, shared, own=0.1, noise=0.05, gain=0.0):
    effects = [rng.gauss(0, shared) for _ in range(num_repeats)]
    return [
        [gain + mine + effect + rng.gauss(0, noise) for effect in effects]
        for mine in (rng.gauss(0, own) for _ in range(num_conversations))
    ]


def test_the_variance_is_that_of_a_two_way_analysis():
    rows = np.array(table(random.Random(2), 12, 4, shared=0.2))
    n, t = rows.shape
    residual = rows - rows.mean(1, keepdims=True) - rows.mean(0) + rows.mean()
    between = n * rows.mean(0).var(ddof=1)
    expected = (between - (residual**2).sum() / ((n - 1) * (t - 1))) / n
    assert repeat_variance(rows.tolist()) == pytest.approx(expected)
    assert repeat_means(rows.tolist()) == pytest.approx(list(rows.mean(0)))


def test_the_variance_is_right_on_average():
    rng = random.Random(4)
    found = [repeat_variance(table(rng, 8, 4, shared=0.1)) for _ in range(600)]
    assert math.fsum(found) / 600 == pytest.approx(0.01, rel=0.15)


@pytest.mark.parametrize(
    "rows", [[], [[]], [[0.1, 0.2]], [[0.1], [0.3], [0.2]], [[0.1, 0.1]] * 4, [[0.2, 0.1], [0.3]]]
)
def test_nothing_is_seen_where_nothing_can_be(rows):
    assert repeat_variance(rows) == 0.0


def test_a_conversation_that_misses_a_repeat_is_left_out_of_it():
    rows = table(random.Random(6), 8, 3, shared=0.2)
    assert repeat_variance([*rows, [0.5, 0.5], []]) == repeat_variance(rows)


def test_few_repeats_are_taken_for_few():
    assert shared_half_width(0.01, 2, 0.95) == pytest.approx(12.706 * 0.1 / math.sqrt(2), rel=1e-3)
    assert shared_half_width(0.01, 4, 0.95) == pytest.approx(3.182 * 0.1 / 2, rel=1e-3)
    assert shared_half_width(0.01, 1, 0.95) == 0.0


def test_an_accident_of_the_machine_is_no_speedup():
    """One repeat was 50 % faster for all eight conversations, the other showed nothing."""
    rng = random.Random(8)
    rows = [[0.4 + rng.gauss(0, 0.02), rng.gauss(0, 0.02)] for _ in range(8)]
    assert verdicts.verdict(stats.compare_conversations(rows)) == "faster"
    assert verdicts.verdict(stats.compare(rows)) == "not_established"
    assert stats.is_limited_by_repeats(rows)
    assert not stats.is_limited_by_repeats(table(rng, 8, 4, shared=0.0, own=0.2))
    assert not stats.is_limited_by_repeats([[0.1], [0.2]])


def test_repeats_that_agree_cost_nothing():
    rows = [[0.3 + 0.01 * i, 0.3 + 0.01 * i] for i in range(8)]
    assert stats.compare(rows) == stats.compare_conversations(rows)


def test_swapping_the_repeats_changes_nothing():
    rows = table(random.Random(9), 10, 3, shared=0.2)
    swapped = [[c, a, b] for a, b, c in rows]
    there, back = stats.compare(rows), stats.compare(swapped)
    assert (back.low, back.point, back.high) == pytest.approx((there.low, there.point, there.high))


def test_no_false_verdict_after_looking_where_repeats_differ():
    """2.5 % on each side may be wrong; from conversations alone it is a multiple of that."""
    rng = random.Random(10)
    wrong = naive = 0
    for _ in range(400):
        rows = table(rng, 16, 4, shared=0.1)
        looks = [[row[:look] for row in rows] for look in range(2, 5)]
        wrong += any(
            sequential.sequential_verdict(seen, look, 4) in ("faster", "slower")
            for look, seen in enumerate(looks, start=2)
        )
        naive += any(
            verdicts.verdict(stats.compare_conversations(seen)) in ("faster", "slower")
            for seen in looks
        )
    assert wrong / 400 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)
    assert naive / 400 > 0.25


def test_more_repeats_are_what_helps_where_repeats_disagree():
    rng = random.Random(11)
    rows = table(rng, 8, 3, shared=0.08, own=0.03, noise=0.02, gain=0.15)
    widths = [math.log(e.high / e.low) for e in (stats.after_repeats(rows, n) for n in (3, 6, 12))]
    assert widths == sorted(widths, reverse=True)
    assert stats.after_repeats(rows, 3) == stats.compare(rows)
    assert not verdicts.is_likely_settled(stats.compare(rows))
    assert verdicts.is_likely_settled(stats.after_repeats(rows, 12))
