"""Draft length against the founding case and the levers computed by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sakiyomi import drafting
from sakiyomi.drafting import StepCost

CHAT = 92 / 255
CODE = 2795 / 3912


@pytest.mark.parametrize(
    ("rate", "length", "cost", "break_even", "iid"),
    [(CHAT, 2.082, 25.868 / 13.889, 0.2875, 0.571), (CODE, 3.143, 23.995 / 14.144, 0.2322, 0.841)],
)
def test_the_founding_case(rate, length, cost, break_even, iid):
    a = drafting.acceptance_from_rate(rate, 3)
    assert a == pytest.approx(iid, abs=0.001)
    assert drafting.expected_length(a, 3) == pytest.approx(length, abs=0.001)
    assert drafting.length_from_positions((rate,) * 3) == pytest.approx(length, abs=0.001)
    assert drafting.break_even_rate(cost, 3) == pytest.approx(break_even, abs=0.0002)


def test_bounds_of_the_first_position():
    assert drafting.first_position_bounds(3 * CHAT, 3) == pytest.approx((0.361, 1.0), abs=0.001)
    assert drafting.first_position_bounds(3 * CODE, 3) == pytest.approx((0.714, 1.0), abs=0.001)
    assert drafting.first_position_bounds(0.3, 3) == pytest.approx((0.1, 0.3))


@pytest.mark.parametrize(
    ("rate", "num_drafts", "sd", "half_width", "rate_points"),
    [(CHAT, 85, 1.14, 0.243, 8.1), (CODE, 1304, 1.16, 0.063, 2.1)],
)
def test_spread_of_a_draft(rate, num_drafts, sd, half_width, rate_points):
    positions = drafting.iid_positions(drafting.acceptance_from_rate(rate, 3), 3)
    assert drafting.accepted_sd(positions) == pytest.approx(sd, abs=0.01)
    width = drafting.length_half_width(positions, num_drafts)
    assert width == pytest.approx(half_width, abs=0.001)
    assert 100 * width / 3 == pytest.approx(rate_points, abs=0.05)


@pytest.mark.parametrize(
    ("rate", "cost", "per_draft", "fixed", "expected"),
    [
        (CHAT, 1.697, 0.232, 0.0, (1.27, 1.29, 1.23, 1.13, 1.04, 0.95)),
        (CHAT, 1.697, 0.163, 0.208, (1.15, 1.24, 1.23, 1.18, 1.11, 1.04)),
        (CHAT, 1.862, 0.287, 0.0, (1.22, 1.20, 1.12, 1.02, 0.92, 0.84)),
        (CHAT, 1.862, 0.163, 0.373, (1.02, 1.12, 1.12, 1.08, 1.03, 0.97)),
        (CODE, 1.697, 0.232, 0.0, (1.49, 1.74, 1.85, 1.89, 1.88, 1.85)),
        (CODE, 1.697, 0.163, 0.208, (1.34, 1.66, 1.85, 1.96, 2.01, 2.02)),
    ],
)
def test_levers_by_draft_length(rate, cost, per_draft, fixed, expected):
    model = StepCost(fixed=fixed, per_draft=per_draft)
    assert model.at(3) == pytest.approx(cost, abs=0.002)
    positions = drafting.iid_positions(drafting.acceptance_from_rate(rate, 3), 6)
    found = drafting.speedups(positions, model)
    assert found[0] == 1.0
    assert found[1:] == pytest.approx(expected, abs=0.01)
    best = drafting.best_num_speculative_tokens(positions, model)
    assert found[best] == max(found)
    assert found[best] == pytest.approx(max(expected), abs=0.01)


@pytest.mark.parametrize(
    ("saved_ms", "chat", "code"),
    [(0, 80.5, 131.0), (2.55, 89.3, 146.6), (3.40, 92.7, 152.6), (4.20, 96.1, 158.8)],
)
def test_levers_of_the_heads_format(saved_ms, chat, code):
    for rate, step_ms, expected in ((CHAT, 25.868, chat), (CODE, 23.995, code)):
        length = drafting.length_from_positions((rate,) * 3)
        assert drafting.speedup(length, step_ms - saved_ms) * 1e3 == pytest.approx(expected, abs=1)


def test_two_draft_lengths_part_fixed_from_per_draft_cost():
    truth = StepCost(fixed=0.2, per_draft=0.16)
    found = drafting.solve_step_cost((1, truth.at(1)), (3, truth.at(3)))
    assert (found.fixed, found.per_draft) == pytest.approx((0.2, 0.16))


@given(
    st.lists(st.floats(0, 1), min_size=2, max_size=8),
    st.floats(0, 1),
    st.floats(0.001, 1),
)
def test_the_rule_to_extend_is_the_comparison_of_speedups(conditional, fixed, per_draft):
    positions = drafting.marginal(conditional)
    cost = StepCost(fixed=fixed, per_draft=per_draft)
    values = drafting.speedups(positions, cost)
    for k in range(1, len(positions)):
        pays = drafting.extending_pays(positions[k], values[k], cost.at(k), cost.at(k + 1))
        if not math.isclose(values[k + 1], values[k], rel_tol=1e-9):
            assert pays == (values[k + 1] > values[k])
    if not math.isclose(values[1], 1.0, rel_tol=1e-9):
        assert drafting.first_draft_pays(positions[0], cost) == (values[1] > 1.0)


@given(st.floats(0, 1), st.integers(1, 16))
def test_iid_acceptance(a, k):
    length = drafting.expected_length(a, k)
    assert 1 <= length <= k + 1 + 1e-9
    if a < 0.999:
        assert length == pytest.approx((1 - a ** (k + 1)) / (1 - a))
    rate = drafting.rate_from_acceptance(a, k)
    assert drafting.rate_from_acceptance(
        drafting.acceptance_from_rate(rate, k), k
    ) == pytest.approx(rate, abs=1e-9)
    positions = drafting.iid_positions(a, k)
    assert list(positions) == sorted(positions, reverse=True)


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=8))
def test_conditional_is_the_inverse_of_marginal(conditional):
    assert drafting.conditional(drafting.marginal(conditional)) == pytest.approx(conditional)


def test_conditional_where_nothing_arrived():
    assert drafting.conditional((0.5, 0.0, 0.0)) == (0.5, 0.0, None)


def test_at_zero_acceptance_speculation_never_pays():
    assert max(drafting.speedups((0.0, 0.0, 0.0), StepCost(per_draft=0.1))) == 1.0
