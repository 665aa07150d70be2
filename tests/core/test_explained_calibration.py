"""A calibration beside the bytes of the founding case's model, and beside what scenarios show."""

import msgspec
import pytest
from decide_makers import PLAIN_RATE, arm_facts, drafted, group, make_facts, make_report, request
from test_best_k import calibration_facts, calibration_requests

from sakiyomi.calibration import fit_calibration
from sakiyomi.commands.explain_command import explain_run, with_explanation
from sakiyomi.explained_calibration import agree
from sakiyomi.report import explanation_text, markdown
from sakiyomi.report.language import JA
from sakiyomi.stats import Estimate

MODEL = "ThinkingCap-Qwen3.6-27B-NVFP4"
FIXED, PER_DRAFT = 0.15, 0.25


def calibrated(**fields):
    requests = group(calibration_requests(FIXED, PER_DRAFT))
    (fit,) = fit_calibration(calibration_facts(), requests)
    return msgspec.structs.replace(fit, run="costs", model=MODEL, **fields)


def workload(cost):
    """A plain arm and one whose steps cost `cost`; both of the founding case's dense model."""
    arms = (arm_facts("plain", model=MODEL), arm_facts("mtp", k=3, model=MODEL))
    requests, positions = [], (0.9, 0.5, 0.3)
    for index in range(12):
        own = PLAIN_RATE * (1 + index / 500)
        requests.append(request("plain", f"c{index}", 0, own))
        rate = own * (1 + sum(positions)) / cost
        requests.append(request("mtp", f"c{index}", 0, rate, counts=drafted(positions)))
    facts = make_facts(arms)
    return facts, make_report(facts, group(requests))


def explained(cost, *fits):
    facts, report = workload(cost)
    explanation, levers = explain_run(facts, report, {}, None, fits)
    return report, explanation, levers


def test_the_fit_stands_beside_what_bytes_say():
    report, explanation, levers = explained(1.9, calibrated())
    (found,) = explanation.calibrations
    assert found.arms == ("mtp",)
    assert (found.fixed.point, found.per_draft.point) == pytest.approx((FIXED, PER_DRAFT), abs=0.01)
    # analytics, section 8: C(3) by bytes is 1.643, and each draft adds the same bytes
    assert found.predicted_fixed == pytest.approx(0, abs=1e-9)
    assert found.predicted_per_draft == pytest.approx(0.643 / 3, abs=0.001)
    assert [step.num_speculative_tokens for step in found.at] == [1, 3]
    assert [step.measured.point for step in found.at] == pytest.approx([1.4, 1.9], abs=0.01)
    assert [step.predicted for step in found.at] == pytest.approx([1.214, 1.643], abs=0.001)

    text = " ".join(explanation_text.render(explanation, levers).split())
    assert "Calibration costs (vllm, mtp): a speculative step costs 0.15" in text
    assert "By bytes it is 0.00 once and 0.214 per draft: C(1) = 1.21, C(3) = 1.64." in text
    assert "Of a draft's cost 0.0358 plain steps are not its bytes." in text
    assert "Without text such a step costs 1.90" in text
    assert "較正 costs" in " ".join(explanation_text.sentences(explanation, JA))
    filled = with_explanation(report, explanation, levers)
    (stored,) = filled.explanation["calibrations"]
    assert stored["predicted_per_draft"] == found.predicted_per_draft
    assert "Calibration costs (vllm, mtp)" in markdown.render(filled)


@pytest.mark.parametrize(("cost", "same"), [(1.9, True), (1.95, True), (1.6, False), (2.4, False)])
def test_a_scenario_that_parts_from_the_calibration_is_called_disturbed(cost, same):
    _, explanation, levers = explained(cost, calibrated())
    (one,) = explanation.speculation
    assert one.calibration == "costs"
    assert one.calibrated_step_cost.point == pytest.approx(1.9, abs=0.01)
    assert one.agrees_with_calibration is same
    text = " ".join(explanation_text.summary(explanation, levers))
    assert ("the two agree" in text) is same
    assert ("the two part" in text) is not same


def test_other_draft_lengths_are_priced_by_the_calibrated_draft():
    (bare, fitted) = (
        {lever.change: lever for lever in explained(1.9, *fits)[2]}
        for fits in ((), (calibrated(),))
    )
    assert "0.300 or 0.214 plain steps" in bare["k = 2 in place of 3"].assumption
    lever = fitted["k = 2 in place of 3"]
    assert "cost per draft 0.250 plain steps, as calibrated" in lever.assumption
    # E(2) / (1.9 - 0.25) against E(3) / 1.9
    assert lever.gain == pytest.approx(2.4 / 1.65 / (2.7 / 1.9) - 1, abs=0.01)


def test_a_calibration_of_another_way_of_drafting_is_not_used(capsys):
    _, explanation, _ = explained(1.9, calibrated(method="eagle3"))
    assert explanation.calibrations == ()
    assert explanation.speculation[0].calibrated_step_cost is None
    assert "costs: no arm here drafts like it (vllm, ThinkingCap" in capsys.readouterr().err


def test_a_calibration_run_explains_itself():
    facts, requests = calibration_facts(), group(calibration_requests(FIXED, PER_DRAFT))
    report = make_report(facts, requests)
    explanation, levers = explain_run(facts, report, {}, None, fit_calibration(facts, requests))
    (found,) = explanation.calibrations
    assert (found.predicted_fixed, found.at[0].predicted) == (None, None)  # model M: not known
    assert levers == ()  # acceptance was forced
    assert all(one.calibrated_step_cost is None for one in explanation.speculation)


def test_costs_agree_when_intervals_meet_or_points_nearly_do():
    def cost(point, low=None, high=None):
        return Estimate(point=point, low=low, high=high, n=5)

    assert agree(cost(1.70), cost(1.74))
    assert not agree(cost(1.70), cost(1.86))
    assert agree(cost(1.70, 1.6, 1.8), cost(1.86, 1.75, 1.95))
    assert not agree(cost(1.70, 1.6, 1.7), cost(1.86, 1.75, 1.95))
