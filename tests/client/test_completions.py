"""Models without a chat template: the completions endpoint, from a plan or from the URL."""

import pytest
from measured_run import fake, measured, run_engines

from sakiyomi.errors import PlanError
from sakiyomi.plan import parse_plan


def test_prompts_are_text_and_the_numbers_are_the_servers(tmp_path):
    configs = {"plain": fake("vllm"), "mtp": fake("vllm", k=3, script=(2,))}
    completions = {"endpoint": "completions"}
    report, logs = run_engines(tmp_path, configs, arms=dict.fromkeys(configs, completions))
    for log in logs.values():
        assert {entry.path for entry in log} == {"/v1/completions"}
        assert all("messages" not in entry.body for entry in log)
    asked = [entry.body["prompt"] for entry in logs["mtp"] if entry.body["max_tokens"] == 40]
    assert len(set(asked)) == len(asked)  # marked, so that no cache knows them
    assert all(prompt.endswith(", please.") for prompt in asked)
    assert not any("chat_template_kwargs" in entry.body for entry in logs["mtp"])
    cell = next(cell for cell in report.cells if cell.arm == "mtp")
    assert cell.num_failed == 0
    assert cell.tokens == "server"
    assert cell.acceptance.draft_acceptance_rate.point == pytest.approx(2 / 3)
    assert cell.tokens_per_step.point == pytest.approx(3, rel=0.05)
    assert not measured(logs["mtp"])  # nothing went out as chat


@pytest.mark.parametrize("url", ["http://h/v1/completions", "http://h:8/x/v1/completions/"])
def test_a_url_can_mean_it(url):
    arms = [{"name": "a", "url": url}]
    plan = parse_plan({"name": "p", "arms": arms, "scenarios": [{"name": "en_chat"}]})
    assert plan.arms[0].asks_completions


def test_chat_and_completions_are_not_compared():
    arms = [
        {"name": "a", "url": "http://h/v1/chat/completions"},
        {"name": "b", "url": "http://g/v1", "endpoint": "completions"},
    ]
    with pytest.raises(PlanError, match=r"arms\[1\]\.endpoint: a and b ask chat and completions"):
        parse_plan({"name": "p", "arms": arms, "scenarios": [{"name": "en_chat"}]})
