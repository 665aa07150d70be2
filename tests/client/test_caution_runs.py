"""Cautions of whole runs against servers with a known fault. Ids: the collection of real reports."""

import asyncio
import contextlib
import json

import pytest
from measured_run import fake, make_job, report_of, run_engines, scenario

from sakiyomi.drive import measure
from sakiyomi.fake_engine import serve
from sakiyomi.plan import Arm, Plan, ScenarioRef
from sakiyomi.scenario import parse_scenario

LONG_PROMPTS = parse_scenario(
    [json.dumps({"id": f"c{i}", "turns": [f"Tell me of {i}. " * 40]}) for i in range(4)], "mine", ""
)


def run_one(folder, config, *, max_tokens=40, **options):
    asked = {"mine": scenario(max_tokens=max_tokens)}
    report, logs = run_engines(folder, {"a": config}, scenarios=asked, **options)
    return report.cells[0], logs["a"]


def caution(cell, kind):
    return next((c for c in cell.cautions if c.kind == kind), None)


def test_f04_the_whole_budget_spent_on_thinking(tmp_path):
    cell, _ = run_one(tmp_path, fake("vllm", reasoning_tokens=80), repeats=1)
    assert caution(cell, "no_answer_text").detail["num_requests"] == 4
    assert cell.ttft_s.point > 0
    assert cell.decode_tokens_per_s.point > 0
    assert cell.time_to_answer_s is None
    assert cell.num_output_tokens == 160


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_f06_the_same_prompts_again_are_told_from_fresh_ones(tmp_path, dialect):
    """The second run repeats the first one's prompts: a warm cache."""

    async def main():
        async with serve(fake(dialect, prefix_cache=True)) as server:
            for folder in (tmp_path / "cold", tmp_path / "warm"):
                arm = Arm(name="a", url=server.url)
                refs = (ScenarioRef(name="mine"),)
                plan = Plan(name="run", arms=(arm,), scenarios=refs, repeats=1)
                job = make_job(plan, folder, {"mine": LONG_PROMPTS})
                with contextlib.closing(job.writer):
                    await measure(job)

    asyncio.run(main())
    cold, warm = (report_of(tmp_path / name).cells[0] for name in ("cold", "warm"))
    assert caution(cold, "warm_prefix_cache") is None
    assert caution(warm, "warm_prefix_cache").detail["cached_share"] > 0.5
    assert (cold.cached_prompt_share or 0) < 0.1
    assert warm.cached_prompt_share is None or warm.cached_prompt_share > 0.5


def test_f09_a_first_repeat_that_is_still_cold_is_said(tmp_path):
    """Probe and warm-up are two requests; the four of the first repeat are slow as well."""
    config = fake("openai", step_s=0.01, faults=("cold_start=6",))
    cell, _ = run_one(tmp_path, config, repeats=2)
    assert caution(cell, "drift").detail["change"] == pytest.approx(0.6, abs=0.2)


def test_f17_tool_calls_sent_whole_leave_the_other_answers_alone(tmp_path):
    """Most answers are a tool call that a parser held to its end: no buffer, no time of theirs."""
    cell, log = run_one(tmp_path, fake("vllm", faults=("tool_call@6-",)))
    asked = log[-8:]
    streamed = [e for e in asked if len(e.token_events) > 1]
    assert 0 < len(streamed) < 4
    assert caution(cell, "buffered_stream") is None
    assert caution(cell, "tool_calls_at_once").detail["num_whole"] == 8 - len(streamed)
    assert cell.num_without_decode_rate == 8 - len(streamed)
    rates = [entry.decode_tokens_per_s for entry in streamed]
    assert min(rates) * 0.9 < cell.decode_tokens_per_s.point < max(rates) * 1.1


def test_f20_single_tokens_have_no_rate_and_spoil_none(tmp_path):
    cell, _ = run_one(tmp_path, fake("vllm"), max_tokens=1, repeats=1)
    assert cell.decode_tokens_per_s is None
    assert cell.ttft_s.n == 4
    assert cell.num_failed == 0


def test_f21_timings_of_zero_are_no_rate(tmp_path):
    config = fake("llama.cpp", k=3, faults=("timings_zero",))
    cell, _ = run_one(tmp_path, config, repeats=1)
    assert cell.decode_tokens_per_s.point > 0
    assert caution(cell, "rates_disagree") is None


def test_f26_without_usage_the_count_is_an_estimate_and_said(tmp_path):
    cell, _ = run_one(tmp_path, fake("openai", faults=("no_usage",)), repeats=1)
    assert cell.tokens == "estimated"
    assert caution(cell, "tokens_estimated").detail == {"num_estimated": 4}


def test_f29_answers_that_stop_early_are_counted_as_they_are(tmp_path):
    cell, log = run_one(tmp_path, fake("vllm", faults=("stop_early=9",)), repeats=1)
    assert caution(cell, "ended_too_early").detail == {"median_num_tokens": 9}
    assert cell.finish_reasons == {"stop": 4}
    assert cell.num_output_tokens == 36 == sum(e.completion_tokens for e in log[-4:])


def test_f29_f39_errors_after_tokens_are_failures_outside_every_average(tmp_path):
    config = fake("vllm", faults=("error_after_tokens=7@4",))
    cell, _ = run_one(tmp_path, config, repeats=1)
    assert (cell.num_requests, cell.num_failed) == (4, 1)
    assert caution(cell, "requests_failed").detail["reasons"] == {"error_in_stream": 1}
    assert cell.ttft_s.n == cell.decode_tokens_per_s.n == 3
    assert cell.num_output_tokens == 120
