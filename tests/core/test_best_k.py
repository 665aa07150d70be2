"""The best draft length: predictions against the levers computed by hand, calibrations, tuning."""

import functools
import importlib.util
import math
import random
from pathlib import Path

import pytest
import scipy.stats
from decide_makers import PLAIN_RATE, arm_facts, drafted, group, make_facts, make_report, request

from sakiyomi import drafting
from sakiyomi.best_k import find_best_k, lengths_from_cell, lengths_from_requests, predict
from sakiyomi.calibration import calibration_plan, cost_model, find_fit, fit_calibration
from sakiyomi.cost_models import (
    LEAST_COST,
    CostModel,
    OwnCost,
    fit_line,
    one_cost_models,
    several_costs_model,
)
from sakiyomi.decide import Known, decide
from sakiyomi.drafting import StepCost
from sakiyomi.engines import ENGINES
from sakiyomi.errors import NotComparable, PlanError
from sakiyomi.plan import Arm, Calibrate, Plan, ScenarioRef, Speculation
from sakiyomi.results import Acceptance
from sakiyomi.stats import Estimate, compare
from sakiyomi.tuning import choose_lengths, confirm, tunable_arm, tuning_plan


def exact(point, width=0.0):
    return Estimate(point=point, low=point - width, high=point + width, n=16)


def load_benchmark(name):
    path = Path(__file__).parents[2] / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lengths_of(positions, k=None):
    requests = [
        request("mtp", f"c{index}", 0, 50.0, counts=drafted(positions)) for index in range(12)
    ]
    return lengths_from_requests(requests, k or len(positions), 1)


# analytics, section 9: speedup by k under A (all cost per draft) and B (c = .163), tolerance .01
LEVERS = [
    (0.571, 1.697, "A", (1.27, 1.29, 1.23, 1.13, 1.04, 0.95)),
    (0.571, 1.697, "B", (1.15, 1.24, 1.23, 1.18, 1.11, 1.04)),
    (0.571, 1.862, "A", (1.22, 1.20, 1.12, 1.02, 0.92, 0.84)),
    (0.571, 1.862, "B", (1.02, 1.12, 1.12, 1.08, 1.03, 0.97)),
    (0.841, 1.697, "A", (1.49, 1.74, 1.85, 1.89, 1.88, 1.85)),
    (0.841, 1.697, "B", (1.34, 1.66, 1.85, 1.96, 2.01, 2.02)),
]


@pytest.mark.parametrize(("acceptance", "cost", "name", "speedups"), LEVERS)
def test_the_levers_of_the_founding_case(acceptance, cost, name, speedups):
    lengths = lengths_of(drafting.iid_positions(acceptance, 3))
    models = one_cost_models(exact(cost), 3, 0.163)
    best = find_best_k(
        lengths, models, arm="mtp", method="mtp", source="one_k", measured=frozenset({3})
    )
    (key,) = [model.name for model in models if model.name.startswith(name)]
    assert [row.by_hypothesis[key] for row in best.rows] == pytest.approx(speedups, abs=0.012)
    assert [row.extrapolated for row in best.rows] == [False] * 3 + [True] * 3
    assert best.rows[2].measured


def test_smaller_k_rest_on_measured_positions():
    lengths = lengths_of((0.9, 0.4, 0.1))
    points = [estimate.point for estimate in lengths.estimates]
    assert points[:3] == pytest.approx([1.9, 2.3, 2.4])
    # the last conditional acceptance, 0.1 / 0.4, is carried on
    assert points[3:] == pytest.approx([2.4 + 0.025, 2.425 + 0.00625, 2.43125 + 0.0015625])


def test_steps_without_a_draft_count():
    counts = drafted((0.8, 0.6), num_steps=40)
    counts = type(counts)(
        num_drafts=40,
        num_draft_tokens=80,
        num_accepted_tokens=counts.num_accepted_tokens,
        accepted_per_position=counts.accepted_per_position,
        num_steps=100,
    )
    requests = [request("ngram", f"c{index}", 0, 50.0, counts=counts) for index in range(12)]
    lengths = lengths_from_requests(requests, 2, 1)
    assert lengths.estimates[0].point == pytest.approx(1 + 0.4 * 0.8)
    assert lengths.estimates[1].point == pytest.approx(1 + 0.4 * 1.4)


def test_without_positions_the_iid_model_says_so():
    rate = exact(0.5, 0.05)
    acceptance = Acceptance(
        source="counters",
        quality="exact",
        num_drafts=100,
        num_draft_tokens=300,
        num_accepted_tokens=150,
        draft_acceptance_rate=rate,
        mean_acceptance_length=exact(2.5, 0.15),
        per_position=None,
    )
    lengths = lengths_from_cell(acceptance, 3)
    assert lengths.positions == "iid"
    assert lengths.estimates[2].point == pytest.approx(2.5)
    assert (lengths.estimates[2].low, lengths.estimates[2].high) == pytest.approx((2.35, 2.65))
    assert lengths_from_cell(None, 3) is None


def test_the_best_k_and_the_cost_of_being_one_off():
    model = CostModel(name="known", cost=StepCost(fixed=0.1, per_draft=0.2))
    best = find_best_k(
        lengths_of((0.9, 0.7, 0.05, 0.01)),
        [model],
        arm="mtp",
        method="mtp",
        source="calibration",
        measured=frozenset({4}),
    )
    speeds = [row.speedup.point for row in best.rows]
    assert speeds[:4] == pytest.approx([1.9 / 1.3, 2.6 / 1.5, 2.65 / 1.7, 2.66 / 1.9])
    assert best.best == 2
    assert best.one_shorter == pytest.approx((1.9 / 1.3) / (2.6 / 1.5) - 1)
    assert best.one_longer == pytest.approx((2.65 / 1.7) / (2.6 / 1.5) - 1)


def test_no_draft_is_best_when_none_pays():
    model = CostModel(name="known", cost=StepCost(per_draft=1.0))
    best = find_best_k(
        lengths_of((0.5, 0.2)),
        [model],
        arm="m",
        method="m",
        source="several_k",
        measured=frozenset({2}),
    )
    assert best.best == 0
    assert best.best_by_hypothesis == {"known": 0}


def scattered(seed=3, count=24):
    """Requests whose acceptance differs by conversation."""
    rng = random.Random(seed)
    return [
        request(
            "mtp", f"c{i}", 0, 50.0, counts=drafted((rng.uniform(0.5, 0.9), rng.uniform(0.1, 0.5)))
        )
        for i in range(count)
    ]


def test_the_costs_of_other_conversations_add_their_error():
    lengths = lengths_from_requests(scattered(), 2, 1)
    narrow, wide = (
        predict(lengths, CostModel(name="m", cost=StepCost(), at={2: exact(1.4, width)}), 2)
        for width in (0.0, 0.3)
    )
    alone = compare([[math.log(own[1])] for own in lengths.own.values()])
    assert (narrow.low, narrow.point) == pytest.approx((alone.low / 1.4, alone.point / 1.4))
    # of 24 and 16 conversations: standard errors, and Welch's degrees of freedom
    quantile = functools.partial(scipy.stats.t.ppf, 0.975)
    errors = math.log(alone.point / alone.low) / quantile(23), math.log(1.7 / 1.4) / quantile(15)
    degrees = sum(e**2 for e in errors) ** 2 / (errors[0] ** 4 / 23 + errors[1] ** 4 / 15)
    ratio = quantile(math.floor(degrees)) * math.hypot(*errors)
    assert wide.low == pytest.approx(wide.point / math.exp(ratio))


def test_at_the_measured_k_the_prediction_is_the_measured_speedup():
    """Acceptance, cost and repeats scatter, and long answers accept more: the two still agree."""
    rng = random.Random(5)
    requests = []
    for index in range(16):
        counts = drafted((rng.uniform(0.4, 0.9), rng.uniform(0.1, 0.4)), num_steps=20 + 20 * index)
        own = rng.uniform(1.2, 2.0)
        for repeat in range(3):
            plain = PLAIN_RATE * rng.uniform(0.9, 1.1)
            rate = plain * (1 + counts.num_accepted_tokens / counts.num_steps) / own
            name = f"c{index}"
            requests.append(request("plain", name, repeat, plain))
            requests.append(
                request("mtp", name, repeat, rate * rng.uniform(0.9, 1.1), counts=counts)
            )
    facts, grouped = make_facts((arm_facts("plain"), arm_facts("mtp", k=2))), group(requests)
    report = make_report(facts, grouped)
    ((path,),) = [choice.draft_lengths for choice in decide(facts, report, grouped, {}).choices]
    predicted, measured = path.best_k.rows[1].speedup, report.comparisons[0].ratio
    # steps are whole tokens, positions are not
    assert predicted.point == pytest.approx(measured.point, rel=0.005)
    assert (predicted.low, predicted.high) == pytest.approx(
        (measured.low, measured.high), rel=0.005
    )
    assert predicted.n == 16


def test_one_cost_split_two_ways_keeps_its_relation_to_k():
    per_draft, per_step = one_cost_models(exact(1.6, 0.12), 3, None)
    found = per_draft.estimate(1)
    assert (found.low, found.point, found.high) == pytest.approx((1.16, 1.2, 1.24))
    found = per_step.estimate(1)
    assert (found.low, found.point, found.high) == pytest.approx((1.48, 1.6, 1.72))


def test_a_cost_is_never_carried_on_below_nothing():
    own = OwnCost(line=StepCost(per_draft=-0.4), measured={1: 0.6})
    assert (own.at(1), own.at(4)) == (0.6, LEAST_COST)


@pytest.mark.parametrize("costs", ["one cost", "two costs", "calibrated"])
def test_predicted_speedups_hold_their_level(costs):
    """Skewed costs, long answers that accept more; the full table: benchmarks/coverage.py."""
    row = load_benchmark("coverage").measure(f"k=2, {costs}", "lognormal", 32, 400)
    assert row["formed"] == 100
    assert 92 <= row["coverage"] <= 99  # binomial(400, 0.95): outside in 1 of 200


def test_several_measured_costs_give_a_line():
    model = several_costs_model({1: exact(1.3), 3: exact(1.7)})
    assert (model.cost.fixed, model.cost.per_draft) == pytest.approx((0.1, 0.2))
    assert model.estimate(2).point == pytest.approx(1.5)
    assert fit_line([(3.0, 1.6)]) == pytest.approx((0.2, 1.0))


def calibration_requests(fixed, per_draft, *, noise=0.0, lengths=(1, 3), seed=1):
    """Requests of forced arms whose steps cost 1 + fixed + per_draft k plain ones."""
    rng = random.Random(seed)
    found = []
    for index in range(12):
        own = 2.718281828 ** rng.gauss(0, noise)
        found.append(request("plain", f"c{index}", 0, PLAIN_RATE))
        for k in lengths:
            for name, share in (("none", 0.0), ("all", 1.0)):
                cost = (1 + fixed + per_draft * k) * own
                counts = drafted((share,) * k)
                rate = PLAIN_RATE * (1 + share * k) / cost
                arm = f"mtp-k{k}-{name}"
                found.append(request(arm, f"c{index}", 0, rate, counts=counts))
    return found


def calibration_facts(lengths=(1, 3), **fields):
    arms = [arm_facts("plain")] + [
        arm_facts(f"mtp-k{k}-{name}", k=k, forced_acceptance=True)
        for k in lengths
        for name in ("none", "all")
    ]
    return make_facts(arms, kind="calibration", **fields)


def test_a_calibration_parts_the_fixed_from_the_per_draft_cost():
    requests = group(calibration_requests(0.15, 0.2))
    (fit,) = fit_calibration(calibration_facts(), requests)
    assert fit.fixed.point == pytest.approx(0.15, abs=0.01)
    assert fit.per_draft.point == pytest.approx(0.2, abs=0.01)
    assert fit.at[3].point == pytest.approx(1.75, abs=0.01)
    assert [row.forced for row in fit.arms] == ["none", "all", "none", "all"]
    assert cost_model(fit).estimate(2).point == pytest.approx(1.55, abs=0.01)


def test_the_intervals_of_a_calibration_hold_their_level():
    held = 0
    for seed in range(60):
        requests = group(calibration_requests(0.15, 0.2, noise=0.05, seed=seed))
        (fit,) = fit_calibration(calibration_facts(), requests)
        held += fit.per_draft.low <= 0.2 <= fit.per_draft.high
    assert held >= 52  # binomial(60, 0.95): 52 or fewer in 1 of 100


def test_a_workload_is_no_calibration():
    facts = make_facts([arm_facts("plain"), arm_facts("mtp", k=3)])
    with pytest.raises(NotComparable, match="kind is workload"):
        fit_calibration(facts, {})


def test_one_draft_length_is_no_calibration():
    requests = group(calibration_requests(0.1, 0.2, lengths=(3,)))
    with pytest.raises(NotComparable, match="fewer than two draft lengths"):
        fit_calibration(calibration_facts(lengths=(3,)), requests)


def test_a_decision_uses_the_calibration_of_its_way_of_drafting():
    (fit,) = fit_calibration(calibration_facts(), group(calibration_requests(0.1, 0.15)))
    arms = (arm_facts("plain"), arm_facts("mtp", k=3))
    requests = []
    for index in range(12):
        positions = (0.9, 0.5, 0.02)
        requests.append(request("plain", f"c{index}", 0, PLAIN_RATE))
        rate = PLAIN_RATE * (1 + sum(positions)) / 1.55
        requests.append(request("mtp", f"c{index}", 0, rate, counts=drafted(positions)))
    facts, grouped = make_facts(arms), group(requests)
    report = make_report(facts, grouped)
    decision = decide(facts, report, grouped, {}, Known(calibrations=(fit,)))
    best = decision.choices[0].draft_lengths[0].best_k
    assert (best.source, best.best) == ("calibration", 2)
    assert best.rows[1].speedup.point == pytest.approx(2.4 / 1.4, abs=0.02)
    other = find_fit([fit], engine="vllm", model="M", method="eagle3", load="closed-1")
    assert other is None


PLAN = Plan(
    name="p",
    arms=(
        Arm(name="plain", engine="vllm", model="M"),
        Arm(
            name="mtp",
            engine="vllm",
            model="M",
            speculation=Speculation(method="mtp", num_speculative_tokens=3),
        ),
    ),
    scenarios=(ScenarioRef(name="ja_chat"), ScenarioRef(name="code_agent")),
)


def test_the_calibration_plan_forces_none_and_all():
    plan = calibration_plan(PLAN, ENGINES)
    assert [arm.name for arm in plan.arms] == [
        "plain",
        "mtp-k1-none",
        "mtp-k1-all",
        "mtp-k3-none",
        "mtp-k3-all",
    ]
    options = plan.arms[3].speculation.options
    assert options["rejection_sample_method"] == "synthetic"
    assert options["synthetic_acceptance_rates"] == [0.0, 0.0, 0.0]
    assert [ref.name for ref in plan.scenarios] == ["ja_chat"]
    assert plan.scenarios[0].num_requests == Calibrate().num_conversations
    assert all(ENGINES["vllm"].read_arm(arm).forced_acceptance for arm in plan.arms[1:])


def test_an_engine_that_cannot_force_runs_real_lengths():
    arms = tuple(
        Arm(name=arm.name, engine="lmdeploy", model="M", speculation=arm.speculation)
        for arm in PLAN.arms
    )
    plan = calibration_plan(Plan(name="p", arms=arms, scenarios=PLAN.scenarios), ENGINES)
    assert [arm.name for arm in plan.arms] == ["plain", "mtp-k1-real", "mtp-k3-real"]


def test_a_plan_without_a_plain_arm_gets_one():
    plan = calibration_plan(Plan(name="p", arms=PLAN.arms[1:], scenarios=PLAN.scenarios), ENGINES)
    assert (plan.arms[0].name, plan.arms[0].speculation) == ("plain", None)


@pytest.mark.parametrize(
    ("arms", "message"),
    [
        (PLAN.arms[:1], "no arm says how it drafts"),
        (
            (
                Arm(
                    name="far",
                    url="http://h:1",
                    speculation=Speculation(method="mtp", num_speculative_tokens=3),
                ),
            ),
            "running server",
        ),
    ],
)
def test_what_cannot_be_calibrated_is_refused(arms, message):
    with pytest.raises(PlanError, match=message):
        calibration_plan(Plan(name="p", arms=arms, scenarios=PLAN.scenarios), ENGINES)


def path_lengths_of(positions, cost, k=3):
    arms = (arm_facts("plain"), arm_facts("mtp", k=k))
    requests = []
    for index in range(12):
        requests.append(request("plain", f"c{index}", 0, PLAIN_RATE))
        rate = PLAIN_RATE * (1 + sum(positions)) / cost
        requests.append(request("mtp", f"c{index}", 0, rate, counts=drafted(positions)))
    facts, grouped = make_facts(arms), group(requests)
    decision = decide(facts, make_report(facts, grouped), grouped, {})
    return [path for choice in decision.choices for path in choice.draft_lengths]


def test_tuning_confirms_the_best_two():
    paths = path_lengths_of((0.6, 0.3, 0.1), 1.5)
    lengths = choose_lengths(paths, "mtp")
    assert len(lengths) == 2
    best = paths[0].best_k
    assert best.best in lengths
    arm = tunable_arm(PLAN)
    plan = tuning_plan(PLAN, arm, lengths)
    assert [a.name for a in plan.arms] == ["plain", *(f"mtp-at-k{k}" for k in lengths)]
    assert plan.arms[1].speculation.num_speculative_tokens == lengths[0]
    arms = [arm_facts("plain"), *(arm_facts(f"mtp-at-k{k}", k=k) for k in lengths)]
    requests = [request("plain", f"c{i}", 0, PLAIN_RATE) for i in range(12)]
    for k in lengths:
        requests += [request(f"mtp-at-k{k}", f"c{i}", 0, PLAIN_RATE * 1.2) for i in range(12)]
    facts, grouped = make_facts(arms), group(requests)
    rows = confirm(paths, "mtp", make_report(facts, grouped))
    assert [row.num_speculative_tokens for row in rows] == list(lengths)
    for row in rows:
        predicted = best.rows[row.num_speculative_tokens - 1].speedup.point
        assert row.error == pytest.approx(1.2 / predicted - 1)


def test_tuning_needs_a_launched_arm():
    with pytest.raises(PlanError, match="no launched arm"):
        tunable_arm(Plan(name="p", arms=PLAN.arms[:1], scenarios=PLAN.scenarios))
