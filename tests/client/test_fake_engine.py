"""The fake engine's truth, checked by a bare client of its own and by prometheus_client."""

import argparse
import asyncio
import json
import signal
import ssl
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
import trustme
from bare_client import chunks_of, events_of, get, json_of, post, token_counts, until
from prometheus_client.parser import text_string_to_metric_families

from sakiyomi.errors import PlanError
from sakiyomi.fake_engine import FakeEngine, add_arguments, serve
from sakiyomi.fake_engine.command import config_of

VLLM_FIELDS = {
    "return_token_ids": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}
SCRIPT = (3, 0, 2, -1, 1, 3)
"""Steps of 4, 1, 3, 1, 2, 4 tokens."""


def run(scenario):
    asyncio.run(scenario)


def samples(text):
    """(name, labels as a frozenset) -> value, by prometheus_client's parser."""
    return {
        (s.name, frozenset(s.labels.items())): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def total(text, name):
    return sum(value for (found, _), value in samples(text).items() if found == name)


def by_label(text, name, label):
    found = {}
    for (sample, labels), value in samples(text).items():
        if sample == name:
            key = dict(labels)[label]
            found[key] = found.get(key, 0) + value
    return found


def test_vllm_sends_one_chunk_per_step_with_all_its_tokens():
    async def scenario():
        config = FakeEngine(k=3, script=SCRIPT, per_request="detailed", step_s=0.002)
        async with serve(config) as server:
            answer = await post(server.url, max_tokens=16, **VLLM_FIELDS)
        chunks = chunks_of(answer)
        role, *tokens, usage = chunks
        assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert role["usage"]["completion_tokens"] == 0
        assert len(role["prompt_token_ids"]) == role["usage"]["prompt_tokens"]
        assert [len(c["choices"][0]["token_ids"]) for c in tokens] == [1, 4, 1, 3, 1, 2, 4]
        assert [c["usage"]["completion_tokens"] for c in tokens] == [1, 5, 6, 9, 10, 12, 16]
        assert [c["choices"][0]["finish_reason"] for c in tokens] == [None] * 6 + ["length"]
        assert usage["choices"] == []
        assert usage["usage"]["completion_tokens"] == 16
        record = usage["metrics"]["speculative_decoding"]
        assert record["per_step_accepted"] == [3, 0, 2, 1, 3]
        assert record["acceptance_histogram"] == [1, 1, 1, 2]
        assert record["num_spec_steps"] == 5
        assert record["num_accepted_draft_tokens"] == 9
        assert record["draft_acceptance_rate"] == pytest.approx(9 / 15)
        assert record["mean_acceptance_length"] == pytest.approx(1 + 9 / 5)
        assert events_of(answer)[-1] == "[DONE]"

    run(scenario())


def test_vllm_counts_accepted_tokens_before_the_cap_cuts_them():
    """The example of the engine notes: k=3, cap 60, A=27 and 25 delivered."""

    async def scenario():
        # 35 decode steps deliver 59 tokens; the last one accepts 3 and delivers 1
        script = (*[3] * 8, *[-1] * 25, 0, 3)
        config = FakeEngine(k=3, script=script, step_s=0.0005)
        async with serve(config) as server:
            answer = await post(server.url, max_tokens=60, **VLLM_FIELDS)
            page = (await get(server.url, "/metrics")).text
            logged = server.log[0]
        assert sum(token_counts(answer, "token_ids")) == 60
        assert total(page, "vllm:spec_decode_num_accepted_tokens_total") == 27
        assert total(page, "vllm:spec_decode_num_drafts_total") == 10
        assert total(page, "vllm:generation_tokens_total") == 60
        assert total(page, "vllm:inter_token_latency_seconds_count") == 35
        delivered = sum(s.num_tokens - 1 for s in logged.drafted)
        assert (logged.num_accepted_tokens, delivered) == (27, 24)

    run(scenario())


def test_vllm_counters_agree_with_the_log_and_with_each_other():
    async def scenario():
        config = FakeEngine(
            k=4,
            acceptance_rates=(0.9, 0.6, 0.4, 0.1),
            draft_coverage=0.7,
            num_engines=2,
            step_s=0.0002,
            ttft_s=0.001,
        )
        async with serve(config) as server:
            before = (await get(server.url, "/metrics")).text
            for index in range(4):
                await post(server.url, f"prompt {index}", max_tokens=100, **VLLM_FIELDS)
            page = (await get(server.url, "/metrics")).text
            log = server.log
        positions = by_label(
            before, "vllm:spec_decode_num_accepted_tokens_per_pos_total", "position"
        )
        assert positions == {"0": 0, "1": 0, "2": 0, "3": 0}
        drafts = sum(len(r.drafted) for r in log)
        steps = sum(len(r.steps) - 1 for r in log)
        accepted = sum(r.num_accepted_tokens for r in log)
        cut = sum(s.num_accepted_tokens + 1 - s.num_tokens for r in log for s in r.steps[1:])
        assert total(page, "vllm:spec_decode_num_drafts_total") == drafts
        assert total(page, "vllm:spec_decode_num_draft_tokens_total") == 4 * drafts
        assert total(page, "vllm:spec_decode_num_accepted_tokens_total") == accepted
        positions = by_label(page, "vllm:spec_decode_num_accepted_tokens_per_pos_total", "position")
        assert sum(positions.values()) == accepted
        assert list(positions.values()) == sorted(positions.values(), reverse=True)
        assert total(page, "vllm:inter_token_latency_seconds_count") == steps
        # every decode step brings a bonus token and its accepted drafts, less what the cap cut
        assert total(page, "vllm:generation_tokens_total") == 4 + steps + accepted - cut == 400
        engines = by_label(page, "vllm:generation_tokens_total", "engine")
        assert engines == {"0": 200, "1": 200}
        assert by_label(page, "vllm:request_success_total", "finished_reason")["length"] == 4
        assert total(page, "vllm:num_requests_running") == 0
        assert 0.5 < drafts / steps < 0.9
        created = by_label(page, "vllm:spec_decode_num_drafts_created", "engine")
        assert min(created.values()) > 1.7e9

    run(scenario())


def test_without_speculation_the_page_has_no_such_series():
    async def scenario():
        async with serve(FakeEngine(step_s=0.0005)) as server:
            answer = await post(server.url, max_tokens=5, **VLLM_FIELDS)
            page = (await get(server.url, "/metrics")).text
        assert token_counts(answer, "token_ids") == [1] * 5
        assert "spec_decode" not in page

    run(scenario())


def test_drawn_acceptance_has_the_unconditional_rates():
    """Many steps: the share of drafts with at least i+1 accepted tokens is P_i, within 4 sigma."""
    rates = (0.8, 0.6, 0.25)

    async def scenario():
        config = FakeEngine(k=3, acceptance_rates=rates, step_s=0.0, ttft_s=0.0)
        async with serve(config) as server:
            await asyncio.gather(
                *(post(server.url, f"p{i}", stream=False, max_tokens=1500) for i in range(2))
            )
            drafted = [step for r in server.log for step in r.drafted]
        assert len(drafted) > 1000
        for position, rate in enumerate(rates):
            share = sum(s.num_accepted_tokens > position for s in drafted) / len(drafted)
            assert abs(share - rate) < 4 * (rate * (1 - rate) / len(drafted)) ** 0.5

    run(scenario())


def test_the_same_seed_draws_the_same_answer_whatever_else_runs():
    async def texts(order):
        async with serve(FakeEngine(k=2, step_s=0.0, ttft_s=0.0, seed=5)) as server:
            found = {}
            for prompt in order:
                answer = await post(server.url, prompt, max_tokens=30, **VLLM_FIELDS)
                found[prompt] = token_counts(answer, "token_ids")
            return found

    async def scenario():
        assert await texts(["a", "b", "c"]) == await texts(["c", "a", "b"])

    run(scenario())


def test_written_instants_keep_to_absolute_deadlines():
    """Deadlines are t0 + ttft + steps, exactly; writing follows them and never precedes them."""

    async def scenario():
        config = FakeEngine(k=1, script=(1, -1), ttft_s=0.03, step_s=0.004, step_cost=1.5)
        async with serve(config) as server:
            answer = await post(server.url, max_tokens=31, **VLLM_FIELDS)
            logged = server.log[0]
        due = [step.due_at_s for step in logged.steps]
        assert due[0] - logged.received_at_s == pytest.approx(0.03)
        gaps = [later - earlier for earlier, later in pairwise(due)]
        assert gaps == pytest.approx([0.006, 0.004] * 10)
        written = [event.written_at_s for event in logged.token_events]
        assert all(w >= d for w, d in zip(written, due, strict=True))
        assert len(written) == len(due) == 21
        # what arrives was written before, on the same clock
        arrivals = [at_s for at_s, _ in answer.reads]
        assert arrivals[-1] >= written[-1]
        assert answer.sent_at_s <= logged.received_at_s
        expected = 30 / (written[-1] - written[0])
        assert logged.decode_tokens_per_s == pytest.approx(expected)
        assert logged.ttft_s == pytest.approx(written[0] - logged.received_at_s)

    run(scenario())


def test_llamacpp_sends_one_chunk_per_token_and_the_same_time_for_a_step():
    """As in the engine notes: 48 tokens, 10 verify steps and 1 plain, D=10, A=36, P=39."""

    async def scenario():
        # 9 full drafts; the tenth is capped to 9 remaining tokens - 1, the last step has none left
        config = FakeEngine(dialect="llama.cpp", k=4, script=(4,) * 9 + (0,), step_s=0.0005)
        async with serve(config) as server:
            before = (await get(server.url, "/metrics")).text
            fields = {"timings_per_token": True, "stream_options": {"include_usage": True}}
            answer = await post(server.url, max_tokens=48, **fields)
            page = (await get(server.url, "/metrics")).text
            logged = server.log[0]
        role, *tokens, finish, usage = chunks_of(answer)
        assert role["choices"][0]["delta"] == {"role": "assistant", "content": None}
        assert len(tokens) == 48
        assert finish["choices"][0] == {"index": 0, "delta": {}, "finish_reason": "length"}
        assert usage["choices"] == []
        steps = {}
        for chunk in tokens:
            mark = chunk["timings"]["predicted_ms"]
            steps[mark] = steps.get(mark, 0) + 1
        assert list(steps.values()) == [s.num_tokens for s in logged.steps]
        last = usage["timings"]
        assert last["predicted_n"] == 48
        assert last["draft_n"] == logged.num_draft_tokens
        assert last["draft_n_accepted"] == logged.num_accepted_tokens
        assert "per_pos" not in before
        assert total(page, "llamacpp:spec_decode_num_drafts_total") == len(logged.drafted)
        assert total(page, "llamacpp:spec_decode_num_draft_tokens_total") == last["draft_n"]
        assert (
            total(page, "llamacpp:spec_decode_num_accepted_tokens_total")
            == last["draft_n_accepted"]
        )
        plain = len(logged.steps) - 1 - len(logged.drafted)
        # no over-run at the cap: drafts are capped to the remaining tokens - 1
        assert 1 + len(logged.drafted) + last["draft_n_accepted"] + plain == 48
        positions = by_label(
            page, "llamacpp:spec_decode_num_accepted_tokens_per_pos_total", "position"
        )
        assert positions == {"0": 9, "1": 9, "2": 9, "3": 9}

    run(scenario())


def test_llamacpp_counters_move_when_the_request_ends():
    async def scenario():
        config = FakeEngine(dialect="llama.cpp", k=2, script=(2,), step_s=0.01)
        async with serve(config) as server:
            task = asyncio.create_task(post(server.url, max_tokens=60))
            await until(lambda: server.log and len(server.log[0].steps) >= 5)
            during = (await get(server.url, "/metrics")).text
            await task
            after = (await get(server.url, "/metrics")).text
        assert total(during, "llamacpp:requests_processing") == 1
        assert total(during, "llamacpp:spec_decode_num_drafts_total") == 0
        assert total(during, "llamacpp:tokens_predicted_total") == 0
        assert total(after, "llamacpp:tokens_predicted_total") == 60
        assert total(after, "llamacpp:requests_processing") == 0

    run(scenario())


def test_sglang_counts_at_the_end_and_tells_details_when_asked():
    async def scenario():
        config = FakeEngine(dialect="sglang", k=3, script=SCRIPT, step_s=0.0005)
        async with serve(config) as server:
            fields = {"return_spec_tokens_details": True} | VLLM_FIELDS
            answer = await post(server.url, max_tokens=16, **fields)
            page = (await get(server.url, "/metrics")).text
            info = json_of(await get(server.url, "/server_info"))
            native = json_of(
                await post(
                    server.url,
                    path="/generate",
                    raw={"text": "x", "sampling_params": {"max_new_tokens": 16}},
                )
            )
        *_, finish, details, usage = chunks_of(answer)
        assert finish["choices"][0]["finish_reason"] == "length"
        assert finish["choices"][0]["delta"]["reasoning_content"] is None
        found = details["sglext"]["spec_tokens_details"]
        assert details["choices"] == usage["choices"] == []
        assert found["spec_verify_ct"] == 5
        assert found["spec_num_correct_drafts"] == 9
        assert found["spec_num_proposed_drafts"] == 15
        assert found["spec_correct_drafts_histogram"] == [1, 1, 1, 2]
        assert total(page, "sglang:spec_verify_calls_total") == 5
        assert total(page, "sglang:generation_tokens_total") == 16
        assert total(page, "sglang:num_requests_total") == 1
        assert total(page, "sglang:realtime_tokens_total") == 15 + usage["usage"]["prompt_tokens"]
        assert total(page, "sglang:cuda_graph_passes_total") == 6
        # per token, the opposite of vLLM
        assert total(page, "sglang:inter_token_latency_seconds_count") == 15
        assert total(page, "sglang:spec_accept_length") == 0  # 40 steps have not passed
        assert info["speculative_num_draft_tokens"] == 4
        assert native["meta_info"]["spec_verify_ct"] == 5
        assert native["meta_info"]["completion_tokens"] == 16

    run(scenario())


def test_sglang_gauge_is_the_mean_of_the_last_forty_steps():
    async def scenario():
        config = FakeEngine(
            dialect="sglang", k=2, script=(*[2] * 40, *[0] * 39), step_s=0.0, ttft_s=0.0
        )
        async with serve(config) as server:
            await post(server.url, max_tokens=1 + 120 + 39)
            page = (await get(server.url, "/metrics")).text
        # 40 steps of 2 accepted; the 39 of 0 are no full window yet: stale
        assert total(page, "sglang:spec_accept_length") == 3
        assert total(page, "sglang:spec_accept_rate") == 1

    run(scenario())


def test_tensorrt_llm_refuses_unknown_keys_and_counts_by_position():
    async def scenario():
        config = FakeEngine(dialect="tensorrt-llm", k=3, script=SCRIPT, step_s=0.0005)
        async with serve(config) as server:
            refused = await post(server.url, max_tokens=16, **VLLM_FIELDS)
            fields = {"stream_options": {"continuous_usage_stats": True}}
            answer = await post(server.url, max_tokens=16, **fields)
            page = (await get(server.url, "/prometheus/metrics")).text
            drained = json_of(await get(server.url, "/metrics"))
            again = json_of(await get(server.url, "/metrics"))
            perf = json_of(await get(server.url, "/perf_metrics"))
        assert refused.status == 400
        assert "Extra inputs are not permitted" in refused.text
        chunks = chunks_of(answer)
        assert chunks[-1]["usage"]["completion_tokens"] == 16  # include_usage by default
        lengths = [c["choices"][0]["avg_decoded_tokens_per_iter"] for c in chunks[1:-1]]
        assert lengths[-1] == pytest.approx(16 / 7)
        drafted = by_label(page, "trtllm_spec_decode_drafted_tokens_total", "token_position")
        accepted = by_label(page, "trtllm_spec_decode_accepted_tokens_total", "token_position")
        assert drafted == {"0": 5, "1": 5, "2": 5}
        assert accepted == {"0": 4, "1": 3, "2": 2}
        # the collector saw the last iteration only
        assert total(page, "trtllm_spec_decode_num_accepted_tokens_total") == 3
        assert sum(i["specDecodingStats"]["numAcceptedTokens"] for i in drained) == 9
        assert again == []
        record = perf[0]["perf_metrics"]["speculative_decoding"]
        assert record["total_accepted_draft_tokens"] == 9

    run(scenario())


def test_lmdeploy_tells_output_ids_and_live_counters():
    async def scenario():
        config = FakeEngine(dialect="lmdeploy", k=3, script=SCRIPT, step_s=0.0005)
        async with serve(config) as server:
            before = (await get(server.url, "/metrics")).text
            answer = await post(server.url, max_tokens=16, **VLLM_FIELDS)
            page = (await get(server.url, "/metrics")).text
        assert token_counts(answer, "output_ids") == [1, 4, 1, 3, 1, 2, 4]
        assert all("usage" not in c for c in chunks_of(answer)[:-1])
        assert "per_pos" not in before
        assert total(page, "lmdeploy:spec_decode_num_accepted_tokens_total") == 9
        assert total(page, "lmdeploy:spec_decode_mean_accept_length") == pytest.approx(2.8)
        assert total(page, "lmdeploy:iter_token_latency_count") == 6

    run(scenario())


def test_tgi_histogram_of_skipped_tokens():
    async def scenario():
        config = FakeEngine(dialect="tgi", k=3, script=SCRIPT, step_s=0.0005)
        async with serve(config) as server:
            answer = await post(server.url, max_tokens=16, stream_options={"include_usage": True})
            page = (await get(server.url, "/metrics")).text
        assert len(chunks_of(answer)) == 1 + 16 + 1
        assert total(page, "tgi_request_skipped_tokens_sum") == 9
        assert total(page, "tgi_request_skipped_tokens_count") == 7  # six steps and the prefill
        buckets = by_label(page, "tgi_request_skipped_tokens_bucket", "le")
        assert buckets == {"0": 3, "1": 4, "2": 5, "3": 7, "+Inf": 7}
        # prometheus_client would add `_total` to this name
        assert 'tgi_request_success{method="generate"} 1.0' in page.splitlines()

    run(scenario())


def test_lm_studio_counts_drafts_beside_the_usage():
    async def scenario():
        for k, found in (
            (3, {"total_draft": 6, "accepted_draft": 6, "rejected_draft": 0}),
            (None, {}),
        ):
            config = FakeEngine(dialect="lmstudio", k=k, script=(3,) if k else ())
            async with serve(config) as server:
                stream = chunks_of(await post(server.url, max_tokens=9, **VLLM_FIELDS))
                whole = json_of(await post(server.url, max_tokens=9, stream=False))
                told = json_of(await get(server.url, "/api/v1/models"))["models"]
            counts = {f"{name}_tokens_count": value for name, value in found.items()}
            assert stream[-1]["stats"] == whole["stats"] == counts
            assert stream[-1]["system_fingerprint"] == "fake-model"
            (loaded,) = [one["config"] for model in told for one in model["loaded_instances"]]
            assert loaded["speculative_draft_mtp"] == bool(k)

    run(scenario())


@pytest.mark.parametrize("dialect", ["mlx-lm", "ollama", "tabbyapi", "lmstudio", "openai"])
def test_engines_without_evidence_show_bursts_only(dialect):
    async def scenario():
        config = FakeEngine(dialect=dialect, k=3, script=(3,), step_s=0.002)
        async with serve(config) as server:
            answer = await post(server.url, max_tokens=9, **VLLM_FIELDS, timings_per_token=True)
            page = await get(server.url, "/metrics")
            logged = server.log[0]
        assert page.status == 404
        assert [s.num_tokens for s in logged.steps] == [1, 4, 4]
        for chunk in chunks_of(answer):
            assert chunk.keys() & {"timings", "metrics", "sglext"} == set()
            assert all(not c.keys() & {"token_ids", "output_ids"} for c in chunk["choices"])
        usage = [c["usage"] for c in chunks_of(answer) if c.get("usage")]
        assert [u["completion_tokens"] for u in usage] == [9]
        last = chunks_of(answer)[-1]
        assert bool(last["choices"]) == (dialect == "tabbyapi")

    run(scenario())


@pytest.mark.parametrize(
    ("dialect", "body", "sizes"),
    [
        ("mlx-lm", {"num_draft_tokens": 0}, [1] * 9),
        ("mlx-lm", {}, [1, 4, 4]),
        ("ollama", {"options": {"draft_num_predict": 0}}, [1] * 9),
        ("ovms", {"num_assistant_tokens": 1}, [1, 2, 2, 2, 2]),
        ("vllm", {"num_draft_tokens": 0}, [1, 4, 4]),
    ],
)
def test_a_request_sets_its_own_draft_length_where_the_engine_lets_it(dialect, body, sizes):
    async def scenario():
        async with serve(FakeEngine(dialect=dialect, k=3, script=(3,), step_s=0.0)) as server:
            await post(server.url, max_tokens=9, **body)
            assert [s.num_tokens for s in server.log[0].steps] == sizes

    run(scenario())


@pytest.mark.parametrize(
    ("dialect", "path", "found"),
    [
        ("vllm", "/version", {"version": "0.33.0"}),
        ("sglang", "/get_server_info", {"version": "0.5.23"}),
        ("tensorrt-llm", "/version", {"version": "1.3.0"}),
        ("tgi", "/info", {"version": "3.3.7-native"}),
        ("ollama", "/api/version", {"version": "0.33.0"}),
        ("ovms", "/v2", {"name": "OpenVINO Model Server"}),
        ("tabbyapi", "/v1/model", {"id": "fake-model"}),
        ("llama.cpp", "/props", {"total_slots": 4}),
        ("lmstudio", "/v1/models", {"object": "list"}),
        ("mlx-lm", "/v1/models", {"object": "list"}),
        ("lmdeploy", "/v1/models", {"object": "list"}),
    ],
)
def test_information_endpoints(dialect, path, found):
    async def scenario():
        async with serve(FakeEngine(dialect=dialect, k=2)) as server:
            assert json_of(await get(server.url, path)).items() >= found.items()
            models = json_of(await get(server.url, "/v1/models"))["data"]
            assert [m["id"] for m in models] == ["fake-model"]
            assert (await get(server.url, "/nothing")).status == 404

    run(scenario())


def test_vllm_server_info_names_the_speculation():
    async def scenario():
        config = FakeEngine(k=2, method="eagle3", rejection_sample_method="synthetic")
        async with serve(config) as server:
            info = json_of(await get(server.url, "/server_info?config_format=json"))
        assert info["vllm_config"]["speculative_config"] == {
            "method": "eagle3",
            "num_speculative_tokens": 2,
            "rejection_sample_method": "synthetic",
        }

    run(scenario())


@pytest.mark.parametrize(
    ("dialect", "field"),
    [("vllm", "reasoning"), ("llama.cpp", "reasoning_content"), ("mlx-lm", "reasoning")],
)
def test_reasoning_comes_first_and_in_its_own_field(dialect, field):
    async def scenario():
        config = FakeEngine(dialect=dialect, reasoning_tokens=4, step_s=0.0)
        async with serve(config) as server:
            answer = await post(server.url, max_tokens=10)
            off = await post(
                server.url, max_tokens=10, chat_template_kwargs={"enable_thinking": False}
            )
            kinds = [e.kind for e in server.log[0].token_events]
        deltas = [c["choices"][0]["delta"] for c in chunks_of(answer) if c["choices"]]
        assert [bool(d.get(field)) for d in deltas][1:11] == [True] * 4 + [False] * 6
        assert kinds == ["reasoning"] * 4 + ["answer"] * 6
        assert all(not c["choices"][0]["delta"].get(field) for c in chunks_of(off) if c["choices"])

    run(scenario())


@pytest.mark.parametrize(
    ("config", "body", "tokens", "reason"),
    [
        ({}, {"max_tokens": 7}, 7, "length"),
        ({"num_tokens": 5}, {"max_tokens": 7}, 5, "stop"),
        ({"num_tokens": 5}, {"max_tokens": 7, "ignore_eos": True}, 7, "length"),
        ({"num_tokens": 9}, {"max_completion_tokens": 7}, 7, "length"),
        ({"num_tokens": 1, "eos_token": True}, {"max_tokens": 7}, 1, "stop"),
        ({"num_tokens": 0}, {"max_tokens": 7}, 0, "stop"),
        ({"text": "one two STOP three"}, {"max_tokens": 7, "stop": "STOP"}, 3, "stop"),
    ],
)
def test_answers_end_as_asked(config, body, tokens, reason):
    async def scenario():
        async with serve(FakeEngine(step_s=0.0, language="en", **config)) as server:
            answer = await post(server.url, **body, stream_options={"include_usage": True})
            whole = json_of(await post(server.url, stream=False, **body))
        chunks = chunks_of(answer)
        assert chunks[-1]["usage"]["completion_tokens"] == tokens
        reasons = [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]]
        assert [r for r in reasons if r] == [reason]
        assert whole["usage"]["completion_tokens"] == tokens
        assert whole["choices"][0]["finish_reason"] == reason
        text = "".join(
            c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"]
        )
        assert (whole["choices"][0]["message"]["content"] or "") == text
        if config.get("eos_token") or not tokens:
            assert text == ""

    run(scenario())


def test_a_stop_string_drops_the_per_request_record():
    async def scenario():
        config = FakeEngine(k=2, per_request="summary", text="a b STOP c", step_s=0.0)
        async with serve(config) as server:
            stopped = await post(server.url, stop=["STOP"], max_tokens=30, **VLLM_FIELDS)
            capped = await post(server.url, max_tokens=30, **VLLM_FIELDS)
        assert "metrics" not in chunks_of(stopped)[-1]
        assert "speculative_decoding" in chunks_of(capped)[-1]["metrics"]

    run(scenario())


def test_completions_route():
    async def scenario():
        async with serve(FakeEngine(k=2, script=(2,), step_s=0.0)) as server:
            answer = await post(
                server.url, path="/v1/completions", raw={"prompt": "x"}, max_tokens=7, **VLLM_FIELDS
            )
        *tokens, usage = chunks_of(answer)
        assert [len(c["choices"][0]["token_ids"]) for c in tokens] == [1, 3, 3]
        assert all(c["choices"][0]["text"] for c in tokens)
        assert usage["usage"]["completion_tokens"] == 7

    run(scenario())


def test_slots_make_requests_wait():
    async def scenario():
        config = FakeEngine(max_concurrency=1, ttft_s=0.02, step_s=0.01)
        async with serve(config) as server:
            tasks = [asyncio.create_task(post(server.url, f"{i}", max_tokens=5)) for i in range(3)]
            await until(lambda: server.state.num_waiting == 2)
            page = (await get(server.url, "/metrics")).text
            await asyncio.gather(*tasks)
            log = server.log
        assert total(page, "vllm:num_requests_running") == 1
        assert total(page, "vllm:num_requests_waiting") == 2
        starts = sorted((r.started_at_s, r.closed_at_s) for r in log)
        assert all(a[1] <= b[0] for a, b in pairwise(starts))

    run(scenario())


def test_other_running_requests_slow_a_step():
    async def scenario():
        config = FakeEngine(batch_cost=1.0, ttft_s=0.1, step_s=0.003)
        async with serve(config) as server:
            await post(server.url, "alone", max_tokens=6)
            await asyncio.gather(*(post(server.url, f"{i}", max_tokens=30) for i in range(2)))
            log = server.log
        alone, *both = ([b.due_at_s - a.due_at_s for a, b in pairwise(r.steps)] for r in log)
        assert alone == pytest.approx([0.003] * 5)
        assert 0.006 in [round(gap, 6) for gaps in both for gap in gaps]
        assert {round(gap, 6) for gaps in both for gap in gaps} <= {0.003, 0.006}

    run(scenario())


def test_a_warm_prefix_is_counted_and_quicker():
    async def scenario():
        config = FakeEngine(prefix_cache=True, ttft_s=0.04, step_s=0.0)
        prompt = "a long prompt " * 40
        async with serve(config) as server:
            cold = await post(server.url, prompt, max_tokens=2, **VLLM_FIELDS)
            warm = await post(server.url, prompt, max_tokens=2, **VLLM_FIELDS)
            page = (await get(server.url, "/metrics")).text
            log = server.log
        assert chunks_of(cold)[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
        cached = chunks_of(warm)[-1]["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached % 16 == 0
        assert cached > 100
        assert total(page, "vllm:prefix_cache_hits_total") == cached
        assert total(page, "vllm:prefix_cache_queries_total") == 2 * log[0].prompt_tokens
        first = log[1].steps[0].due_at_s - log[1].received_at_s
        assert first == pytest.approx(0.04 * (1 - cached / log[1].prompt_tokens))

    run(scenario())


def test_japanese_answers_have_emoji_and_bytes_that_latin1_splits_at():
    async def scenario():
        async with serve(FakeEngine(step_s=0.0, ttft_s=0.0)) as server:
            answer = await post(server.url, "こんにちは", max_tokens=200)
        text = "".join(c["choices"][0]["delta"]["content"] for c in chunks_of(answer))
        assert b"\x85" in text.encode()
        assert any(ord(character) > 0xFFFF for character in text)

    run(scenario())


def test_tls_key_and_base_path(tmp_path):
    authority = trustme.CA()
    pem = tmp_path / "server.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(pem))
    context = ssl.create_default_context()
    authority.configure_trust(context)

    async def scenario():
        config = FakeEngine(tls_certificate=str(pem), api_key="key", base_path="/proxy", step_s=0.0)
        async with serve(config) as server:
            assert server.url.startswith("https://127.0.0.1:")
            assert server.url.endswith("/proxy")
            refused = await post(server.url, max_tokens=3, tls=context)
            answer = await post(server.url, max_tokens=3, tls=context, key="key")
            outside = await get(server.url.removesuffix("/proxy"), "/metrics", tls=context)
            inside = await get(server.url, "/metrics", tls=context)
            ends = [(r.status, r.end) for r in server.log]
        assert refused.status == 401
        assert len(chunks_of(answer)) == 4
        assert outside.status == 404
        assert inside.status == 200
        assert ends == [(401, "refused"), (200, "complete")]

    run(scenario())


def test_connections_are_kept_and_requests_found_by_their_bodies():
    async def scenario():
        async with serve(FakeEngine(step_s=0.0)) as server:
            first = await post(server.url, "a", max_tokens=3, keep=True)
            second = await post(server.url, "b", max_tokens=4, connection=first.connection)
            found = server.request(second.body_hash)
        assert len(chunks_of(first)) == 4
        assert found.completion_tokens == 4
        assert found.ordinal == 2

    run(scenario())


def test_a_client_that_leaves_is_an_abort():
    async def scenario():
        async with serve(FakeEngine(step_s=0.005)) as server:
            task = asyncio.create_task(post(server.url, max_tokens=500))
            await until(lambda: server.log and len(server.log[0].steps) >= 3)
            task.cancel()
            await until(lambda: server.log[0].end)
            page = (await get(server.url, "/metrics")).text
            assert server.log[0].end == "client_gone"
            assert len(server.log[0].steps) < 500
        assert by_label(page, "vllm:request_success_total", "finished_reason")["abort"] == 1
        assert total(page, "vllm:num_requests_running") == 0

    run(scenario())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"k": 2, "acceptance_rates": (0.5,)}, "1 acceptance rates for k=2"),
        ({"k": 2, "acceptance_rates": (0.5, 0.6)}, "increase"),
        ({"k": 2, "script": (3,)}, "accepts more than k=2"),
        ({"per_request": "summary"}, "without speculation"),
        ({"faults": ("gzp",)}, "unknown fault 'gzp'"),
        ({"faults": ("cut_after_tokens=x",)}, "'x' is no int"),
        ({"faults": ("gzip=3",)}, "takes no value"),
    ],
)
def test_impossible_configurations_are_refused(fields, message):
    with pytest.raises(PlanError, match=message.replace("(", r"\(")):
        FakeEngine(**fields)


def test_the_command_prints_its_url_logs_the_truth_and_ends_on_sigterm(tmp_path):
    path = tmp_path / "truth.jsonl"
    argv = [sys.executable, "-m", "sakiyomi.fake_engine", "--dialect", "vllm", "--k", "3"]
    argv += ["--acceptance", "0.8,0.6,0.4", "--script=3,-1", "--step", "0", "--log", str(path)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        url = process.stdout.readline().strip()
        answer = asyncio.run(post(url, max_tokens=10, **VLLM_FIELDS))
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.stdout.close()
        process.wait()
    assert token_counts(answer, "token_ids") == [1, 4, 1, 4]
    [line] = path.read_text().splitlines()
    logged = json.loads(line)
    assert logged["body_hash"] == answer.body_hash
    assert [s["num_tokens"] for s in logged["steps"]] == [1, 4, 1, 4]
    assert all(e["written_at_s"] <= time.perf_counter() for e in logged["events"])
    assert Path(path).stat().st_size


def test_a_dead_engine_ends_its_process_with_status_1():
    argv = [sys.executable, "-m", "sakiyomi.fake_engine", "--step", "0", "--fault"]
    process = subprocess.Popen([*argv, "die_after_requests=1"], stdout=subprocess.PIPE, text=True)
    try:
        url = process.stdout.readline().strip()
        answer = asyncio.run(post(url, max_tokens=3))
        assert process.wait(20) == 1
    finally:
        process.kill()
        process.stdout.close()
        process.wait()
    assert events_of(answer)[-1] == "[DONE]"


def test_the_fingerprint_tells_two_arms_apart():
    async def scenario():
        found = []
        for k in (None, 1, 1):
            async with serve(FakeEngine(k=k, step_s=0.0)) as server:
                answer = await post(server.url, max_tokens=2)
                assert "system_fingerprint" not in chunks_of(answer)[0]  # vLLM signs the last one
                found.append(chunks_of(answer)[-1]["system_fingerprint"])
        assert found[0] != found[1] == found[2]
        assert found[0].startswith("vllm-0.33.0-")

    run(scenario())


def test_an_ipv6_address_stands_in_brackets():
    async def scenario():
        try:
            async with serve(FakeEngine(host="::1", step_s=0.0)) as server:
                assert server.url.startswith("http://[::1]:")
                return await post(server.url, max_tokens=2)
        except OSError:
            return None

    answer = asyncio.run(scenario())
    if answer is None:
        pytest.skip("no IPv6 here")
    assert len(chunks_of(answer)) == 3


def test_options_become_a_configuration():
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    argv = "--k 2 --acceptance 0.8,0.5 --acceptance-for ja=0.4,0.1 --fault gzip@2 --no-metrics"
    config = config_of(parser.parse_args(argv.split()))
    assert config == FakeEngine(
        k=2,
        acceptance_rates=(0.8, 0.5),
        acceptance_rates_by_language={"ja": (0.4, 0.1)},
        faults=("gzip@2",),
        metrics=False,
    )
    for wrong in ("--k x", "--acceptance-for fr=1", "--port 99999"):
        with pytest.raises(PlanError, match="fake engine: "):
            config_of(parser.parse_args(wrong.split()))


def test_languages_have_their_own_rates():
    rates = {"ja": (0.0, 0.0), "code": (1.0, 1.0)}

    async def scenario():
        config = FakeEngine(k=2, acceptance_rates_by_language=rates, step_s=0.0)
        async with serve(config) as server:
            await post(server.url, "こんにちは", max_tokens=10)
            await post(server.url, "```python\nx```", max_tokens=10)
            return [[step.num_tokens for step in r.steps] for r in server.log]

    assert asyncio.run(scenario()) == [[1] * 10, [1, 3, 3, 3]]
