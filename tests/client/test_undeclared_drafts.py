"""A server that drafts and tells neither method nor k: its counters say that it does."""

import pytest
from measured_run import fake, run_engines, scenario

from sakiyomi.explain import explain
from sakiyomi.plan import Speculation
from sakiyomi.report import explanation_text


@pytest.mark.parametrize("declared", [False, True])
def test_tgi_has_a_step_cost_from_bursts_whether_or_not_the_plan_declares_drafts(
    tmp_path, declared
):
    told = {"speculation": Speculation(method="ngram", num_speculative_tokens=2)}
    report, _ = run_engines(
        tmp_path / "run",
        {
            "plain": fake("tgi", step_s=0.02),
            "drafts": fake("tgi", step_s=0.02, step_cost=1.5, k=2, acceptance_rates=(0.8, 0.6)),
        },
        arms={"drafts": told if declared else {}},
        scenarios={"mine": scenario(num_conversations=4, max_tokens=40)},
    )
    cell = report.cells[1]
    assert (cell.acceptance.source, cell.acceptance.cross_check["source"]) == ("counters", "bursts")
    (compared,) = report.comparisons
    assert compared.step_cost.point == pytest.approx(1.5, rel=0.2)
    assert (compared.break_even_rate is None) is not declared
    text = " ".join(explanation_text.render(explain(report, {}, None), ()).split())
    assert f"costs C({'2' if declared else 'k'}) = " in text
