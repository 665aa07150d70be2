"""The engines beside vLLM and llama.cpp: argv, pages, per-request evidence, information pages."""

from pathlib import Path

import msgspec
import pytest

from sakiyomi.acceptance import (
    check,
    draft_acceptance_rate,
    mean_acceptance_length,
)
from sakiyomi.counter_growth import delta
from sakiyomi.engines import (
    dynamo,
    find_engine,
    lmdeploy,
    lmstudio,
    mlx_lm,
    ollama,
    openai,
    ovms,
    recognise,
    sglang,
    tabbyapi,
    tgi,
    trtllm,
)
from sakiyomi.engines.engine import CONFIG_FILE, no_metrics
from sakiyomi.errors import MetricsError, PlanError
from sakiyomi.plan import Arm, Speculation
from sakiyomi.record import RequestKey, RequestRecord, SpecDecodeCounters, SpecDecodeGauge, Step

GOLDEN = Path(__file__).parent / "golden"
KEY = RequestKey(
    request_id="r", scenario="s", conversation_id="c", turn=0, arm="a", load="closed-1", repeat=0,
    scheduled_at_s=0.0,
)  # fmt: skip
MTP = Speculation(method="mtp", num_speculative_tokens=3)


def record(**fields):
    return RequestRecord(key=KEY, sent_at_s=0.0, closed_at_s=1.0, **fields)


def arm(**fields):
    return Arm(name="a", engine="x", **({"model": "org/model"} | fields))


def window(engine, folder):
    texts = [
        (GOLDEN / folder / f"metrics-{moment}.txt").read_text() for moment in ("before", "after")
    ]
    assert recognise(dict.fromkeys(engine.ENGINE.metrics_paths, texts[1])) == engine.ENGINE.name
    before, after = (engine.read_metrics(text) for text in texts)
    return delta(before, after), after


# SGLang


def tokens_per_step(counters):
    """A request's first token is prefill's."""
    first = counters.num_requests_finished or 0
    num_steps = counters.num_decode_steps or counters.speculation.num_steps
    return (counters.num_generated_tokens - first) / num_steps


def test_sglang_page():
    grown, after = window(sglang, "sglang-0.5.23")
    # (generation - requests) / verify calls = 990 / 330 = 3.0
    assert mean_acceptance_length(grown.counters.speculation) == pytest.approx(3.0)
    assert tokens_per_step(grown.counters) == pytest.approx(3.0)
    assert grown.counters.speculation.num_draft_tokens is None
    assert grown.counters.num_generated_tokens == 1000
    assert grown.counters.prefix_cache_hits == 120
    # one of two tensor ranks, and the total without its priorities
    assert after.num_requests_running == 1
    assert after.kv_cache_usage == 0.25
    assert after.num_speculative_tokens == 3
    assert after.gauge == SpecDecodeGauge(mean_acceptance_length=2.97, draft_acceptance_rate=0.66)
    assert not grown.lower_bound


def test_sglang_without_speculation_shows_no_acceptance():
    # the gauges exist with 0 when speculation is off
    plain = (
        'sglang:generation_tokens_total{model_name="m"} 50\n'
        'sglang:num_requests_total{model_name="m"} 1\n'
        'sglang:spec_accept_length{model_name="m"} 0.0\n'
        'sglang:spec_num_steps{model_name="m"} 0.0\n'
    )
    metrics = sglang.read_metrics(plain)
    assert metrics.gauge is None
    assert metrics.series[""].speculation is None
    assert metrics.num_speculative_tokens is None
    zero = sglang.read_metrics(plain + "sglang:spec_verify_calls_total 0\n")
    assert zero.series[""].speculation.num_accepted_tokens == 0


def test_sglang_ranks_that_know_nothing_are_left_out_of_the_mean():
    text = "".join(
        f'sglang:spec_accept_length{{dp_rank="{rank}"}} {value}\n'
        for rank, value in enumerate([0.0, 0.0, 2.90, 3.67, 0.0, 4.64])
    )
    metrics = sglang.read_metrics(text)
    assert metrics.gauge.mean_acceptance_length == pytest.approx((2.90 + 3.67 + 4.64) / 3)
    assert "0.5.13" in metrics.notes[0]


SGLANG_NAMES = {
    "0.5.23": ("spec_num_correct_drafts", "spec_num_proposed_drafts", "spec_correct_drafts_histogram"),
    "0.5.12": ("spec_accepted_drafts", "spec_proposed_drafts", "spec_accept_histogram"),
    "0.5.10": ("spec_accept_token_num", "spec_draft_token_num", "spec_accept_histogram"),
}  # fmt: skip


@pytest.mark.parametrize("version", SGLANG_NAMES)
@pytest.mark.parametrize("shape", ["sglext", "list", "meta_info"])
def test_sglang_answers_of_all_versions(version, shape):
    accepted, proposed, histogram = SGLANG_NAMES[version]
    told = {
        "spec_verify_ct": 10,
        accepted: 24,
        proposed: 30,
        histogram: [1, 1, 1, 7],
        "spec_accept_rate": 0.8,
    }
    evidence = {
        "sglext": {"sglext": {"spec_tokens_details": told}},
        "list": {"sglext": {"spec_tokens_details": [told]}},
        "meta_info": {"meta_info": told},
    }[shape]
    counts = sglang.read_response(record(evidence=evidence))
    assert counts == SpecDecodeCounters(
        num_drafts=10,
        num_draft_tokens=30,
        num_accepted_tokens=24,
        accepted_per_position=(9.0, 8.0, 7.0),
        num_steps=10,
    )
    # F50: neither 34/30 nor (accepted + 1)/(k + 1)
    assert draft_acceptance_rate(counts) == pytest.approx(0.8)
    assert check(counts, 3) == []


@pytest.mark.parametrize(
    "evidence",
    [
        {},
        {"sglext": None},
        {"sglext": {"spec_tokens_details": None}},
        {"sglext": {"spec_tokens_details": [{"spec_verify_ct": 1}, {"spec_verify_ct": 2}]}},
        {"meta_info": {"spec_verify_ct": 5}},
    ],
)
def test_sglang_answers_that_do_not_tell(evidence):
    assert sglang.read_response(record(evidence=evidence)) is None


def test_sglang_argv():
    assert sglang.command(arm(), 30000) == [
        "python", "-m", "sglang.launch_server", "--model-path", "org/model", "--host", "127.0.0.1",
        "--port", "30000", "--enable-metrics",
    ]  # fmt: skip
    assert sglang.command(arm(speculation=MTP, args=("--tp", "2")), 1)[10:] == [
        "--speculative-algorithm", "NEXTN", "--speculative-num-steps", "3",
        "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4", "--tp", "2",
    ]  # fmt: skip
    tree = Speculation(
        method="eagle3",
        num_speculative_tokens=4,
        draft_model="org/draft",
        options={"eagle_topk": 8, "speculative_num_draft_tokens": 32},
    )
    assert sglang.command(arm(speculation=tree), 1)[10:] == [
        "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "org/draft",
        "--speculative-num-steps", "4", "--speculative-eagle-topk", "8",
        "--speculative-num-draft-tokens", "32",
    ]  # fmt: skip
    ngram = Speculation(method="ngram", num_speculative_tokens=7)
    assert sglang.command(arm(speculation=ngram), 1)[10:] == [
        "--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "8",
    ]  # fmt: skip


def test_sglang_forced_and_lossy_acceptance():
    forced = sglang.force_acceptance(arm(speculation=MTP, env={"A": "1"}), (1.0, 1.0))
    assert forced.env["SGLANG_SIMULATE_ACC_LEN"] == "3"
    assert forced.env["A"] == "1"
    assert forced.speculation.num_speculative_tokens == 2
    assert sglang.read_arm(forced).forced_acceptance
    assert sglang.force_acceptance(arm(), (1.0,)) is None
    lossy = Speculation(method="mtp", options={"accept_threshold_single": 0.9})
    assert sglang.read_arm(arm(speculation=lossy)).lossy_acceptance
    assert not sglang.read_arm(arm(speculation=MTP)).lossy_acceptance


def test_sglang_information():
    info = {
        "version": "0.5.23",
        "model_path": "/models/m",
        "speculative_algorithm": "EAGLE",
        "speculative_num_steps": 3,
        "speculative_num_draft_tokens": 4,
        "speculative_accept_threshold_single": 1.0,
        "speculative_accept_threshold_acc": 0.9,
        "attention_backend": "fa3",
        # F43: elements can be null
        "internal_states": [
            None,
            {"avg_spec_accept_length": None},
            {"avg_spec_accept_length": 2.5},
        ],
    }
    pages = {
        "/server_info": msgspec.json.encode(info).decode(),
        "/v1/models": '{"data":[{"id":"m","owned_by":"sglang","max_model_len":4096}]}',
    }
    assert recognise(pages) == "sglang"
    facts = sglang.read_server(pages)
    assert (facts.engine_version, facts.num_speculative_tokens) == ("0.5.23", 3)
    assert facts.speculative_method == "EAGLE"
    assert facts.lossy_acceptance
    assert facts.settings["avg_spec_accept_length"] == 2.5
    assert facts.settings["max_model_len"] == 4096
    ngram = {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 8}
    older = {"/get_server_info": msgspec.json.encode(ngram).decode()}
    assert sglang.read_server(older).num_speculative_tokens == 7


def test_sglang_behind_a_router_is_unknown_not_an_error():
    # E06: another shape behind a prefill/decode router
    text = '{"prefill": [{"internal_states": null}], "decode": [{"internal_states": [null]}]}'
    facts = sglang.read_server({"/server_info": text})
    assert facts.speculative_method is None
    assert facts.num_speculative_tokens is None
    assert "avg_spec_accept_length" not in facts.settings
    states = '{"speculative_algorithm": "EAGLE", "internal_states": {"a": 1}}'
    assert sglang.read_server({"/server_info": states}).settings == {}


# TensorRT-LLM


def test_trtllm_page_has_its_own_denominators():
    grown, after = window(trtllm, "tensorrt-llm-main")
    counts = grown.counters.speculation
    # the totals over iterations (21 proposed, 12 accepted) undercount and are left alone
    assert counts == SpecDecodeCounters(
        num_drafts=100,
        num_draft_tokens=290,
        num_accepted_tokens=140,
        accepted_per_position=(80.0, 60.0, 0.0),
    )
    assert check(counts, 3) == []
    assert after.num_speculative_tokens == 3
    assert after.num_requests_running == 1
    assert after.gauge == SpecDecodeGauge(mean_acceptance_length=2.4)
    assert grown.counters.num_requests_finished == 1


def test_trtllm_iteration_json_is_no_page():
    with pytest.raises(MetricsError):
        trtllm.read_metrics('[{"iter":1,"inflightBatchingStats":{}}]')
    assert "/metrics" not in trtllm.ENGINE.metrics_paths


def test_trtllm_average_per_iteration():
    # 100 tokens in 40 iterations, the first of them prefill
    counts = trtllm.read_response(
        record(evidence={"avg_decoded_tokens_per_iter": 2.5}, completion_tokens=100)
    )
    assert counts == SpecDecodeCounters(num_accepted_tokens=60, num_steps=39)
    for evidence, tokens in (({}, 5), ({"avg_decoded_tokens_per_iter": 2.0}, None)):
        assert trtllm.read_response(record(evidence=evidence, completion_tokens=tokens)) is None
    zero = {"avg_decoded_tokens_per_iter": 0.0}
    assert trtllm.read_response(record(evidence=zero, completion_tokens=5)) is None


def test_trtllm_launch():
    spec = Speculation(
        method="eagle3", num_speculative_tokens=4, draft_model="org/d", options={"eagle3_one_model": True}
    )  # fmt: skip
    one = arm(speculation=spec, args=("--tp_size", "2"))
    assert trtllm.command(one, 8000) == [
        "trtllm-serve", "org/model", "--host", "127.0.0.1", "--port", "8000", "--config",
        CONFIG_FILE, "--tp_size", "2",
    ]  # fmt: skip
    assert msgspec.json.decode(trtllm.config_file(one)) == {
        "return_perf_metrics": True,
        "enable_iter_perf_stats": True,
        "speculative_config": {
            "decoding_type": "Eagle3",
            "max_draft_len": 4,
            "speculative_model": "org/d",
            "eagle3_one_model": True,
        },
    }
    plain = msgspec.json.decode(trtllm.config_file(arm()))
    assert "speculative_config" not in plain
    own = arm(args=("--config=mine.yaml",))
    assert trtllm.config_file(own) is None
    assert CONFIG_FILE not in trtllm.command(own, 1)
    with pytest.raises(PlanError):
        trtllm.command(arm(speculation=spec, args=("--config", "mine.yaml")), 1)


def test_trtllm_forced_acceptance_leaves_out_the_bonus():
    forced = trtllm.force_acceptance(arm(speculation=MTP), (1.0, 0.78))
    assert forced.env == {"TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS": "1.78"}
    assert trtllm.read_arm(forced).forced_acceptance
    assert trtllm.force_acceptance(arm(), (1.0,)) is None
    relaxed = Speculation(method="mtp", options={"use_relaxed_acceptance_for_thinking": True})
    assert trtllm.read_arm(arm(speculation=relaxed)).lossy_acceptance


def test_trtllm_information():
    facts = trtllm.read_server({"/version": '{"version": "1.3.0rc5"}'})
    assert facts.engine_version == "1.3.0rc5"


# LMDeploy


def test_lmdeploy_page():
    grown, after = window(lmdeploy, "lmdeploy-0.18.0")
    assert grown.counters.speculation == SpecDecodeCounters(
        num_drafts=40,
        num_draft_tokens=120,
        num_accepted_tokens=90,
        accepted_per_position=(38.0, 30.0, 22.0),
    )
    assert check(grown.counters.speculation, 3) == []
    assert tokens_per_step(grown.counters) == pytest.approx(130 / 40)
    assert after.models == ("m",)
    assert after.num_speculative_tokens == 3


def test_lmdeploy_argv_keeps_both_arms_on_one_engine():
    assert lmdeploy.command(arm(), 23333) == [
        "lmdeploy", "serve", "api_server", "org/model", "--server-name", "127.0.0.1",
        "--server-port", "23333", "--backend", "pytorch",
    ]  # fmt: skip
    spec = Speculation(method="mtp", num_speculative_tokens=2, draft_model="org/d")
    argv = lmdeploy.command(arm(speculation=spec, args=("--backend", "turbomind")), 1)
    assert argv[8:] == [
        "--speculative-algorithm", "deepseek_mtp", "--speculative-draft-model", "org/d",
        "--speculative-num-draft-tokens", "2", "--backend", "turbomind",
    ]  # fmt: skip


# TGI


def test_tgi_page():
    grown, after = window(tgi, "tgi-3.3.7")
    # before: 9 steps of one request; after: 41 of three. 32 steps, 2 of them prefill, 15 skipped
    assert grown.counters.num_decode_steps == 30
    assert grown.counters.num_generated_tokens == 32 + 15
    assert tokens_per_step(grown.counters) == pytest.approx(45 / 30)
    counts = grown.counters.speculation
    assert counts.num_accepted_tokens == 15
    assert counts.accepted_per_position == (10.0, 5.0)
    assert (counts.num_drafts, counts.num_draft_tokens) == (None, None)
    assert after.num_requests_running == 0


def test_tgi_summary_without_buckets():
    text = "tgi_request_skipped_tokens_sum 5\ntgi_request_skipped_tokens_count 20\n"
    series = tgi.read_metrics(text).series[""]
    assert series.speculation.accepted_per_position is None
    assert series.num_decode_steps == 20
    assert tgi.read_metrics("tgi_queue_size 0\n").series[""].speculation is None


def test_tgi_launch_and_information():
    assert tgi.command(arm(speculation=Speculation(method="ngram")), 80)[-2:] == [
        "--speculate",
        "2",
    ]
    info = '{"model_id": "org/model", "version": "3.3.7", "max_concurrent_requests": 128}'
    assert recognise({"/info": info}) == "tgi"
    facts = tgi.read_server({"/info": info})
    assert (facts.engine_version, facts.models) == ("3.3.7", ("org/model",))


# The silent ones


def test_mlx_lm():
    spec = Speculation(method="draft_model", num_speculative_tokens=2, draft_model="org/d")
    assert mlx_lm.command(arm(speculation=spec), 8080) == [
        "mlx_lm.server", "--model", "org/model", "--host", "127.0.0.1", "--port", "8080",
        "--draft-model", "org/d", "--num-draft-tokens", "2",
    ]  # fmt: skip
    assert mlx_lm.read_arm(arm(speculation=spec)).num_speculative_tokens == 2
    off = arm(speculation=spec, request={"num_draft_tokens": 0})
    assert mlx_lm.read_arm(off).speculative_method is None
    assert mlx_lm.read_arm(arm()).num_speculative_tokens is None
    default = Speculation(method="draft_model", draft_model="org/d")
    assert mlx_lm.read_arm(arm(speculation=default)).num_speculative_tokens == 3
    attached = Arm(name="a", url="http://h", request={"num_draft_tokens": 4})
    assert mlx_lm.read_arm(attached).num_speculative_tokens == 4


def test_ollama():
    assert ollama.command(arm(), 11434) == ["ollama", "serve"]
    assert ollama.launch_env(arm(), 11434) == {"OLLAMA_HOST": "127.0.0.1:11434"}
    with pytest.raises(PlanError) as caught:
        ollama.command(arm(speculation=Speculation(method="mtp", options={"x": 1})), 1)
    assert "draft_num_predict" in caught.value.hint
    pages = {
        "/api/version": '{"version":"0.33.0"}',
        "/v1/models": '{"data":[{"id":"qwen3","owned_by":"library"}]}',
    }
    assert recognise(pages) == "ollama"
    assert ollama.read_server(pages).engine_version == "0.33.0"
    assert (
        ollama.read_arm(arm(speculation=Speculation(method="draft_model"))).num_speculative_tokens
        == 4
    )
    assert ollama.read_arm(arm(speculation=MTP)).num_speculative_tokens == 3
    assert find_engine("ollama").thinking_field(False) == {"reasoning_effort": "none"}


COUNTS = {
    "total_draft_tokens_count": 492,
    "accepted_draft_tokens_count": 176,
    "rejected_draft_tokens_count": 316,
}
"""Of an answer of 300 tokens by LM Studio 0.4.24: 1 + 123 drafts of 4 + 176 accepted."""


@pytest.mark.parametrize("place", ["stats", "usage"])
def test_lm_studio_counts_per_request(place):
    told = {"completion_tokens": 300, **COUNTS}
    counts = lmstudio.read_response(record(evidence={place: told, "model_info": {}}))
    assert counts == SpecDecodeCounters(num_draft_tokens=492, num_accepted_tokens=176)
    ignored = {**told, "ignored_draft_tokens_count": 4}
    assert lmstudio.read_response(record(evidence={place: ignored})).num_draft_tokens == 488


def test_lm_studio_without_drafts_says_nothing():
    for evidence in ({}, {"stats": {}}, {"stats": {"tokens_per_second": 50}}, {"usage": None}):
        assert lmstudio.read_response(record(evidence=evidence)) is None


LM_STUDIO_MODELS = {
    "models": [
        {
            "type": "llm",
            "key": "q",
            "quantization": {"name": "Q6_K", "bits_per_weight": 6},
            "loaded_instances": [
                {
                    "id": "q",
                    "config": {
                        "context_length": 65536,
                        "parallel": 4,
                        "flash_attention": True,
                        "speculative_draft_mtp": True,
                        "speculative_draft_model": "",
                        "speculative_draft_max_tokens": 2,
                    },
                }
            ],
        },
        {"type": "embedding", "key": "e", "quantization": None, "loaded_instances": [{"id": "e"}]},
        {"type": "llm", "key": "r", "loaded_instances": []},
    ]
}


def test_lm_studio_tells_how_its_model_was_loaded():
    """`/api/v1/models` of 0.4, shortened from what a user published."""
    pages = {"/api/v1/models": msgspec.json.encode(LM_STUDIO_MODELS).decode()}
    assert recognise(pages) == "lm-studio"
    facts = lmstudio.read_server(pages)
    assert (facts.speculative_method, facts.num_speculative_tokens) == ("mtp", 2)
    assert facts.settings == {
        "quantization": "Q6_K",
        "context_length": 65536,
        "parallel": 4,
        "flash_attention": True,
    }
    model = LM_STUDIO_MODELS["models"][0]
    config = model["loaded_instances"][0]["config"]
    for changes, method in (
        ({"speculative_draft_mtp": False}, None),
        ({"speculative_draft_mtp": False, "speculative_draft_model": "d"}, "draft_model"),
    ):
        other = {**model, "loaded_instances": [{"id": "q", "config": {**config, **changes}}]}
        text = msgspec.json.encode({"models": [other]}).decode()
        assert lmstudio.read_server({"/api/v1/models": text}).speculative_method == method
    both = msgspec.json.encode({"models": [model, model]}).decode()
    assert lmstudio.read_server({"/api/v1/models": both}).settings == {}  # which one answers?


def test_older_lm_studio():
    pages = {
        "/v1/models": '{"data":[{"id":"q","owned_by":"organization_owner"}]}',
        "/api/v0/models": '{"data":[{"id":"q","state":"loaded","compatibility_type":"gguf",'
        '"quantization":"Q4_K_M","loaded_context_length":4096},{"id":"r","state":"not-loaded"}]}',
    }
    assert recognise(pages) == "lm-studio"
    facts = lmstudio.read_server(pages)
    assert facts.settings == {"quantization": "Q4_K_M", "context_length": 4096}
    assert facts.speculative_method is None
    assert find_engine("lm-studio").thinking_field(False) == {"reasoning_effort": "none"}


def test_tabbyapi():
    pages = {
        "/v1/models": '{"data":[{"id":"a","owned_by":"tabbyAPI"},{"id":"b","owned_by":"tabbyAPI"}]}',
        "/v1/model": '{"id":"a","owned_by":"tabbyAPI","parameters":{"max_seq_len":4096,"draft":{"id":"d"}}}',
    }
    assert recognise(pages) == "tabbyapi"
    facts = tabbyapi.read_server(pages)
    assert (facts.models, facts.speculative_method) == (("a",), "draft_model")
    assert facts.settings == {"max_seq_len": 4096}
    assert tabbyapi.read_server({"/v1/models": pages["/v1/models"]}).models == ("a", "b")


def test_tabbyapi_counts_per_request():
    details = {"accepted_prediction_tokens": 30, "rejected_prediction_tokens": 12}
    told = record(evidence={"usage": {"completion_tokens_details": details}})
    counts = SpecDecodeCounters(num_draft_tokens=42, num_accepted_tokens=30)
    assert tabbyapi.read_response(told) == counts
    for usage in (None, {}, {"completion_tokens_details": None}):
        assert tabbyapi.read_response(record(evidence={"usage": usage})) is None


def test_openvino():
    spec = Speculation(method="draft_model", draft_model="org/d")
    assert ovms.command(arm(speculation=spec), 8000) == [
        "ovms", "--rest_bind_address", "127.0.0.1", "--rest_port", "8000", "--source_model",
        "org/model", "--task", "text_generation", "--metrics_enable", "--draft_source_model",
        "org/d",
    ]  # fmt: skip
    with_options = Speculation(method="draft_model", draft_model="org/d", options={"cache_size": 4})
    assert ovms.command(arm(speculation=with_options), 1)[-2:] == ["--cache_size", "4"]
    with pytest.raises(PlanError, match="no flag for prompt lookup"):
        ovms.command(arm(speculation=Speculation(method="prompt_lookup")), 1)
    metrics = ovms.read_metrics(
        'ovms_requests_success{api="OpenAI",method="ChatCompletions"} 3\novms_current_requests 1\n'
    )
    assert metrics.series == {}
    assert metrics.num_requests_running == 1
    assert ovms.read_arm(arm(speculation=spec)).num_speculative_tokens == 5
    asked = arm(speculation=spec, request={"num_assistant_tokens": 3})
    assert ovms.read_arm(asked).num_speculative_tokens == 3
    dynamic = arm(speculation=spec, request={"assistant_confidence_threshold": 0.4})
    assert ovms.read_arm(dynamic).num_speculative_tokens is None
    assert ovms.read_arm(arm()).num_speculative_tokens is None
    text = '{"name":"OpenVINO Model Server","version":"2026.3"}'
    assert recognise({"/v2": text}) == "openvino"
    assert ovms.read_server({"/v2": text}).engine_version == "2026.3"


def test_dynamo():
    worker = (GOLDEN / "dynamo-1.6.1" / "worker.txt").read_text()
    front = (GOLDEN / "dynamo-1.6.1" / "frontend.txt").read_text()
    assert recognise({"/metrics": front}) == "dynamo"
    metrics = dynamo.read_metrics(worker, "m")
    assert metrics.series["engine=0"].speculation == SpecDecodeCounters(
        num_drafts=10,
        num_draft_tokens=30,
        num_accepted_tokens=21,
        accepted_per_position=(9.0, 7.0, 5.0),
    )
    assert metrics.num_speculative_tokens == 3
    metrics = dynamo.read_metrics(front)
    assert (metrics.num_requests_running, metrics.num_requests_waiting) == (2, 1)
    assert "--metrics-url" in metrics.notes[0]
    for folder, drafts in (("sglang-0.5.23", 363), ("tensorrt-llm-main", 100)):
        text = (GOLDEN / folder / "metrics-after.txt").read_text()
        metrics = dynamo.read_metrics(text)
        assert metrics.series[""].speculation.num_drafts == drafts
        assert metrics.num_requests_running == 1


def test_an_unknown_server():
    text = "process_start_time_seconds 1.7e9\nsome_total 5\n"
    assert "name it" in openai.read_metrics(text).notes[0]
    marks = record(event_tokens=[1, 1, 1], event_step_mark=[1.0, 2.0, 2.0])
    assert openai.group_steps(marks) == [Step(num_tokens=2)]
    assert openai.group_steps(record(event_tokens=[1, 2])) is None
    assert openai.read_response(marks) is None
    facts = openai.read_server({"/version": '{"version":{"a":1}}', "/v1/models": "{}"})
    assert facts.engine_version is None


def test_engines_without_a_page_say_so():
    with pytest.raises(MetricsError):
        no_metrics("anything")
