"""vLLM: argv, pages of one and of several engines, per-request evidence, information pages."""

import pytest

from sakiyomi.acceptance import mean_acceptance_length, position_rates
from sakiyomi.counter_growth import delta
from sakiyomi.engines import vllm
from sakiyomi.errors import PlanError
from sakiyomi.plan import Arm, Speculation
from sakiyomi.record import RequestKey, RequestRecord, SpecDecodeCounters, Step

KEY = RequestKey(
    request_id="r", scenario="s", conversation_id="c", turn=0, arm="a", load="closed-1", repeat=0,
    scheduled_at_s=0.0,
)  # fmt: skip


def record(**fields):
    return RequestRecord(key=KEY, sent_at_s=0.0, closed_at_s=1.0, **fields)


def arm(**fields):
    return Arm(name="mtp-k3", engine="vllm", model="org/model", **fields)


MTP = Speculation(method="mtp", num_speculative_tokens=3)


def test_argv_of_a_plain_arm():
    assert vllm.command(arm(args=("--kv-cache-dtype", "fp8")), 8000) == [
        "vllm", "serve", "org/model", "--host", "127.0.0.1", "--port", "8000",
        "--kv-cache-dtype", "fp8",
    ]  # fmt: skip


def test_argv_of_a_speculative_arm():
    spec = Speculation(
        method="qwen3_5_mtp", num_speculative_tokens=2, options={"draft_sample_method": "greedy"}
    )
    assert vllm.command(arm(speculation=spec), 8001)[7:] == [
        "--speculative-config",
        '{"method":"qwen3_5_mtp","num_speculative_tokens":2,"draft_sample_method":"greedy"}',
    ]
    draft = Speculation(method="draft_model", draft_model="org/small", num_speculative_tokens=4)
    assert '"model":"org/small"' in vllm.command(arm(speculation=draft), 1)[-1]
    ngram = Speculation(method="ngram", options={"prompt_lookup_max": 4})
    assert vllm.command(arm(speculation=ngram), 1)[-1] == '{"method":"ngram","prompt_lookup_max":4}'


@pytest.mark.parametrize("given", ["--speculative-config", "--speculative-config={}", "-sc"])
def test_speculation_said_twice_is_refused(given):
    with pytest.raises(PlanError, match="speculation is set too"):
        vllm.command(arm(speculation=MTP, args=(given, "{}")), 1)


@pytest.mark.parametrize(
    ("version", "speculation", "args", "added"),
    [
        ("0.32.0", MTP, (), ["--per-request-spec-decode-metrics", "summary"]),
        ("0.29.0rc1", MTP, (), ["--per-request-spec-decode-metrics", "summary"]),
        ("0.28.1", MTP, (), []),
        ("0.32.0", None, (), []),
        ("0.32.0", MTP, ("--per-request-spec-decode-metrics", "detailed"), []),
        ("1.0", MTP, (), ["--per-request-spec-decode-metrics", "summary"]),
        ("main", MTP, (), []),
    ],
)
def test_exact_counts_are_asked_only_where_the_server_starts_with_it(
    version, speculation, args, added
):
    # 0.29+; with it and without speculation vLLM refuses to start
    assert vllm.optional_args(arm(speculation=speculation, args=args), version) == added


def test_forced_acceptance_sets_rates_and_their_length():
    forced = vllm.force_acceptance(arm(speculation=MTP), (0.8, 0.5))
    assert forced.speculation.num_speculative_tokens == 2
    assert forced.speculation.options == {
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": [0.8, 0.5],
    }
    assert vllm.read_arm(forced).forced_acceptance
    assert vllm.force_acceptance(arm(), (0.5,)) is None


def test_what_the_plan_says_of_an_arm():
    facts = vllm.read_arm(arm(speculation=MTP))
    assert (facts.speculative_method, facts.num_speculative_tokens) == ("mtp", 3)
    assert not facts.forced_acceptance
    config = '{"method":"eagle3","num_speculative_tokens":5,"rejection_sample_method":"fly"}'
    for args in (("--speculative-config", config), (f"--speculative-config={config}",)):
        facts = vllm.read_arm(arm(args=args))
        assert (facts.speculative_method, facts.num_speculative_tokens) == ("eagle3", 5)
        assert facts.lossy_acceptance
    assert vllm.read_arm(arm(args=("--speculative-config",))).speculative_method is None


def page(*, engine="0", model="m", drafts, drafted, accepted, positions, created=False):
    labels = f'engine="{engine}",model_name="{model}"'
    lines = []
    for name, value in (
        ("drafts", drafts),
        ("draft_tokens", drafted),
        ("accepted_tokens", accepted),
    ):
        lines.append(f"# TYPE vllm:spec_decode_num_{name}_total counter")
        lines.append(f"vllm:spec_decode_num_{name}_total{{{labels}}} {value}")
        if created:
            lines.append(f"# TYPE vllm:spec_decode_num_{name}_created gauge")
            lines.append(f"vllm:spec_decode_num_{name}_created{{{labels}}} 1.77692439403224e+09")
    for position, value in enumerate(positions):
        name = "vllm:spec_decode_num_accepted_tokens_per_pos"
        lines.append(f'{name}_total{{{labels},position="{position}"}} {value}')
        if created:
            lines.append(f'{name}_created{{{labels},position="{position}"}} 1.77692439403224e+09')
    lines.append(f"vllm:num_requests_running{{{labels}}} 1.0")
    lines.append(f"vllm:num_requests_waiting{{{labels}}} 2.0")
    lines.append(f"vllm:kv_cache_usage_perc{{{labels}}} 0.{engine}5")
    return "\n".join(lines) + "\n"


def test_created_gauges_are_never_counted():
    # F42: values of 1.78e9 beside the counters; a series that is new in the second scrape
    before = vllm.read_metrics(
        page(drafts="6.491797e+06", drafted="1.9475391e+07", accepted="1.2e+07",
             positions=["6e+06", "4e+06", "2e+06"], created=True)
    )  # fmt: skip
    after = vllm.read_metrics(
        page(drafts="6.491897e+06", drafted="1.9475691e+07", accepted="1.20002e+07",
             positions=["6.000100e+06", "4.000060e+06", "2.000040e+06", "0.0"], created=True)
    )  # fmt: skip
    grown = delta(before, after).counters.speculation
    assert (grown.num_drafts, grown.num_draft_tokens, grown.num_accepted_tokens) == (100, 300, 200)
    assert grown.accepted_per_position == (100, 60, 40, 0)


def test_engines_are_summed():
    # F43: position 0 engine 0 = 8 of 10, engine 1 = 18 of 20; the largest series says 60 %
    text = page(drafts=10, drafted=10, accepted=8, positions=[8]) + page(
        engine="1", drafts=20, drafted=20, accepted=18, positions=[18]
    )
    metrics = vllm.read_metrics(text)
    assert set(metrics.series) == {"engine=0", "engine=1"}
    counters = delta(vllm.read_metrics("vllm:num_requests_running 0\n"), metrics).counters
    assert position_rates(counters.speculation) == pytest.approx((26 / 30,))
    assert mean_acceptance_length(counters.speculation) == pytest.approx(1 + 26 / 30)
    assert (metrics.num_requests_running, metrics.num_requests_waiting) == (2, 4)
    assert metrics.kv_cache_usage == 0.15
    assert metrics.num_speculative_tokens == 1


def test_models_are_told_apart():
    # F43: two models on one page
    text = page(model="a", drafts=10, drafted=30, accepted=8, positions=[8]) + page(
        model="b", drafts=99, drafted=99, accepted=99, positions=[99]
    )
    chosen = vllm.read_metrics(text, "a")
    assert chosen.models == ("a", "b")
    assert chosen.series["engine=0"].speculation.num_drafts == 10
    both = vllm.read_metrics(text)
    assert set(both.series) == {"model_name=a,engine=0", "model_name=b,engine=0"}
    assert vllm.read_metrics(text, "lora-adapter").series.keys() == both.series.keys()


def test_several_engines_without_series_give_a_version_hint():
    # E12
    text = "".join(
        f'vllm:generation_tokens_total{{engine="{e}",model_name="m"}} 5\n' for e in range(2)
    )
    metrics = vllm.read_metrics(text)
    assert "#23776" in metrics.notes[0]
    one = vllm.read_metrics('vllm:generation_tokens_total{engine="0",model_name="m"} 5\n')
    assert one.notes == ()


def test_a_page_without_families_names_the_flag():
    assert "--disable-log-stats" in vllm.read_metrics("python_info 1\n").notes[0]


def test_steps_come_from_the_latency_histogram_under_both_names():
    base = 'vllm:generation_tokens_total{engine="0"} 60\nvllm:request_success_total{engine="0",finished_reason="stop"} 1\nvllm:request_success_total{engine="0",finished_reason="length"} 2\n'
    for name in ("inter_token_latency_seconds", "time_per_output_token_seconds"):
        text = base + f'vllm:{name}_count{{engine="0"}} 35\nvllm:{name}_sum{{engine="0"}} 0.587\n'
        series = vllm.read_metrics(text).series["engine=0"]
        assert series.num_decode_steps == 35
        assert series.num_requests_finished == 3
        assert series.num_generated_tokens == 60


def told(**fields):
    return {"metrics": {"speculative_decoding": fields}}


def test_per_request_summary():
    # 12 steps: 2 with none, 1 with one, 4 with two, 5 with three accepted: 24 accepted of 36
    counts = vllm.read_response(
        record(
            evidence=told(
                mean_acceptance_length=3.0,
                draft_acceptance_rate=24 / 36,
                acceptance_histogram=[2, 1, 4, 5],
                num_spec_steps=12,
                num_accepted_draft_tokens=24,
                num_draft_tokens=36,
                num_spec_tokens=3,
            )
        )
    )
    assert counts == SpecDecodeCounters(
        num_drafts=12,
        num_draft_tokens=36,
        num_accepted_tokens=24,
        accepted_per_position=(10.0, 9.0, 5.0),
    )
    assert mean_acceptance_length(counts) == 3.0


@pytest.mark.parametrize(
    "evidence",
    [
        {},
        {"metrics": None},
        {"metrics": {"time_to_first_token_ms": 12.0}},
        {"metrics": {"speculative_decoding": None}},
        told(num_accepted_draft_tokens=True),
        told(num_accepted_draft_tokens="24"),
    ],
)
def test_no_evidence_is_none(evidence):
    # a stop string drops the object and leaves the times (0.29 - 0.33)
    assert vllm.read_response(record(evidence=evidence)) is None


def test_counts_without_a_histogram():
    counts = vllm.read_response(record(evidence=told(num_accepted_draft_tokens=2)))
    assert counts == SpecDecodeCounters(num_accepted_tokens=2)


def test_chunks_are_steps_and_detailed_arrays_add_their_drafts():
    # live: per_step_accepted ends in 3 while one token was delivered
    plain = record(event_tokens=[1, 1, 4, 2])
    assert [s.num_tokens for s in vllm.group_steps(plain)] == [1, 4, 2]
    detailed = record(
        event_tokens=[1, 1, 4, 2],
        evidence=told(per_step_accepted=[0, 3, 3], per_step_drafted=[3, 3, 3]),
    )
    assert vllm.group_steps(detailed)[-1] == Step(
        num_tokens=2, num_draft_tokens=3, num_accepted_tokens=3
    )
    uneven = record(
        event_tokens=[1, 1, 4],
        evidence=told(per_step_accepted=[0, 3, 3], per_step_drafted=[3, 3, 3]),
    )
    assert vllm.group_steps(uneven)[0] == Step(num_tokens=1)
    assert vllm.group_steps(record(event_tokens=[1, None])) is None


def test_information_pages():
    facts = vllm.read_server(
        {
            "/version": '{"version": "0.32.0"}',
            "/v1/models": '{"object":"list","data":[{"id":"m","owned_by":"vllm","root":"/models/m","max_model_len":8192}]}',
            vllm.INFO_PATH: '{"vllm_config": {"speculative_config": {"method": "mtp", "num_speculative_tokens": 3, "rejection_sample_method": "synthetic"}, "scheduler_config": {"async_scheduling": true, "policy": "fcfs", "nested": {"a": 1}}}}',
        }
    )
    assert facts.engine_version == "0.32.0"
    assert facts.models == ("m",)
    assert facts.model_path == "/models/m"
    assert (facts.speculative_method, facts.num_speculative_tokens) == ("mtp", 3)
    assert facts.forced_acceptance
    assert not facts.lossy_acceptance
    assert facts.settings["scheduler_config"] == {"async_scheduling": True, "policy": "fcfs"}
    assert facts.settings["max_model_len"] == 8192
    plain = vllm.read_server({"/version": '{"version": "0.24.0"}'})
    assert (plain.engine_version, plain.speculative_method) == ("0.24.0", None)
