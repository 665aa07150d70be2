"""Whole runs against every dialect over sockets: engine, source, quality and counts are right."""

import asyncio
import contextlib

import msgspec
import pytest
from measured_run import fake, make_job, measured, report_of, run_engines, scenario

from sakiyomi import acceptance_evidence, cell_acceptance
from sakiyomi.counter_windows import Window
from sakiyomi.drive import measure
from sakiyomi.engines import find_engine
from sakiyomi.errors import NotComparable
from sakiyomi.fake_engine import serve
from sakiyomi.plan import Arm, ClosedLoad, Plan, ScenarioRef, Speculation
from sakiyomi.record import ArmFacts
from sakiyomi.run_writer import RunWriter
from sakiyomi.store import RunReader

K = 3
SPECULATES = {"speculation": Speculation(method="draft_model", num_speculative_tokens=K)}
UNTOLD = {"drift", "cut_by_cap", "k_unknown", "rates_disagree", "client_lag", "buffered_stream"}
"""Of a short run on a busy machine: about speed and length, not about acceptance."""

DIALECTS = {
    # dialect: engine, source, quality, of engines.md section 8
    "vllm": ("vllm", "counters", "exact"),
    "llama.cpp": ("llama.cpp", "per_request", "exact"),
    "sglang": ("sglang", "per_request", "exact"),
    "tensorrt-llm": ("tensorrt-llm", "counters", "exact"),
    "lmdeploy": ("lmdeploy", "counters", "derived"),
    "tgi": ("tgi", "counters", "derived"),
}
BURSTS = {"mlx-lm": "mlx-lm", "ollama": "ollama", "openai": "openai"}
PIECES = {"ovms": "openvino"}


class Truth:
    """The sums of a server's log over the measured requests."""

    def __init__(self, log):
        requests = measured(log)
        self.num_requests = len(requests)
        self.num_drafts = sum(len(r.drafted) for r in requests)
        self.num_draft_tokens = sum(r.num_draft_tokens for r in requests)
        self.num_accepted_tokens = sum(r.num_accepted_tokens for r in requests)
        self.num_steps = sum(len(r.steps) - 1 for r in requests)
        self.num_decoded = sum(r.completion_tokens - 1 for r in requests)
        self.num_delivered = self.num_decoded - self.num_steps  # accepted and delivered

    @property
    def tokens_per_step(self):
        return self.num_decoded / self.num_steps


def run_one(folder, config, *, arm=None, repeats=1, **options):
    options["repeats"] = repeats
    report, logs = run_engines(folder, {"a": config}, arms={"a": arm or {}}, **options)
    return report, report.cells[0], Truth(logs["a"])


def kinds(report):
    return {
        c.kind for c in [*report.cautions, *(c for cell in report.cells for c in cell.cautions)]
    }


@pytest.mark.parametrize("dialect", DIALECTS)
def test_acceptance_is_the_engines_own(tmp_path, dialect):
    engine, source, quality = DIALECTS[dialect]
    report, cell, truth = run_one(tmp_path, fake(dialect, k=K), repeats=2)
    found = cell.acceptance
    assert report.arms[0]["engine"] == engine
    assert (found.source, found.quality) == (source, quality)
    assert truth.num_requests == cell.num_requests == 8
    counts_before_the_cut = dialect != "tgi"
    assert found.num_accepted_tokens == (
        truth.num_accepted_tokens if counts_before_the_cut else truth.num_delivered
    )
    if dialect != "tgi":
        assert found.num_drafts == truth.num_drafts
        assert found.num_draft_tokens == truth.num_draft_tokens
        assert cell.num_speculative_tokens == report.arms[0]["num_speculative_tokens"] == K
        assert found.draft_acceptance_rate.point == pytest.approx(
            found.num_accepted_tokens / truth.num_draft_tokens
        )
    assert cell.tokens_per_step.point == pytest.approx(truth.tokens_per_step)
    expected = {"acceptance_estimated"} if quality == "estimated" else set()
    assert kinds(report) - UNTOLD == expected


@pytest.mark.parametrize("dialect", ["vllm", "sglang", "llama.cpp", "tensorrt-llm", "lmdeploy"])
def test_positions_are_the_engines_own(tmp_path, dialect):
    script = (3, 0, 1, 2, 0, 3)
    _, cell, _ = run_one(tmp_path, fake(dialect, k=K, script=script))
    positions = cell.acceptance.per_position
    assert positions == sorted(positions, reverse=True)
    accepted, drafts = cell.acceptance.num_accepted_tokens, cell.acceptance.num_drafts
    assert sum(positions) == pytest.approx(accepted / drafts)
    assert cell.acceptance.mean_acceptance_length.point == pytest.approx(1 + accepted / drafts)


def test_vllm_tells_each_request_when_asked(tmp_path):
    config = fake("vllm", k=K, per_request="summary")
    report, cell, truth = run_one(tmp_path, config)
    assert (cell.acceptance.source, cell.acceptance.quality) == ("per_request", "exact")
    assert cell.acceptance.num_accepted_tokens == truth.num_accepted_tokens
    assert cell.acceptance.cross_check["source"] == "counters"
    assert cell.acceptance.cross_check["agrees"]
    assert kinds(report) - UNTOLD == set()


@pytest.mark.parametrize("dialect", BURSTS)
def test_bursts_are_steps_where_nothing_else_tells(tmp_path, dialect):
    config = fake(dialect, k=K, step_s=0.03, acceptance_rates=(0.8, 0.6, 0.4))
    asked = {"mine": scenario(num_conversations=3, max_tokens=36)}
    report, cell, truth = run_one(tmp_path, config, arm=SPECULATES, scenarios=asked)
    assert report.arms[0]["engine"] == BURSTS[dialect]
    if dialect == "openai":  # chunks of several tokens without a count
        assert cell.acceptance is None
        assert "bursts_ambiguous" in kinds(report)
        return
    assert (cell.acceptance.source, cell.acceptance.quality) == ("bursts", "estimated")
    assert cell.tokens_per_step.point == pytest.approx(truth.tokens_per_step, rel=0.1)
    assert cell.acceptance.num_drafts == pytest.approx(truth.num_steps, rel=0.1)
    assert kinds(report) - UNTOLD == {"acceptance_estimated"}


def run_switched(folder, config, arms, **options):
    """Two arms on one server, told apart by their body keys. (report, server's log)."""

    async def main():
        async with serve(config) as server:
            plan = Plan(
                name="run",
                arms=tuple(Arm(name=name, url=server.url, **more) for name, more in arms.items()),
                scenarios=(ScenarioRef(name="mine"),),
                repeats=2,
            )
            job = make_job(plan, folder, **options)
            with contextlib.closing(job.writer):
                await measure(job)
            return list(server.log)

    log = asyncio.run(main())
    return report_of(folder), log


def test_mlx_switches_drafts_by_request(tmp_path):
    """The one popular engine with a true A/B without a restart.

    Steps far apart: a busy machine may hold a burst back for some tens of milliseconds.
    """
    config = fake("mlx-lm", k=K, step_s=0.1, script=(2, 1, 3))
    arms = {
        name: {"engine": "mlx-lm", "request": {"num_draft_tokens": k}}
        for name, k in (("plain", 0), ("draft-k3", 3))
    }
    asked = {"mine": scenario(num_conversations=2, max_tokens=25)}
    report, log = run_switched(tmp_path, config, arms, scenarios=asked)
    plain, drafted = report.cells
    assert plain.acceptance is None
    assert drafted.acceptance.source == "bursts"
    truth = Truth([entry for entry in log if entry.body.get("num_draft_tokens") == 3])
    assert drafted.tokens_per_step.point == pytest.approx(truth.tokens_per_step, rel=0.1)
    assert report.comparisons[0].ratio.point > 1.5
    assert report.comparisons[0].step_cost.point == pytest.approx(1, rel=0.3)


def test_a_server_that_reloads_is_warmed_up_after_each_switch(tmp_path):
    arms = {
        name: {"engine": "ollama", "request": {"options": {"draft_num_predict": k}}}
        for name, k in (("plain", 0), ("draft", 3))
    }
    _, log = run_switched(tmp_path, fake("ollama", k=K), arms)
    asked = [(e.body["options"]["draft_num_predict"], "hello" in str(e.body)) for e in log]
    turns = [k for k, is_probe in asked if not is_probe]
    # warm-ups of both, then plain (again warmed up), draft (warmed up), draft, plain (warmed up)
    assert turns == [0, 3, *[0] * 5, *[3] * 5, *[3] * 4, *[0] * 5]


@pytest.mark.parametrize("dialect", PIECES)
def test_pieces_of_unknown_size_are_no_steps(tmp_path, dialect):
    report, cell, _ = run_one(tmp_path, fake(dialect, k=K), arm=SPECULATES)
    assert report.arms[0]["engine"] == PIECES[dialect]
    assert cell.acceptance is None
    assert cell.tokens_per_step is None
    refused = next(c for c in cell.cautions if c.kind == "bursts_ambiguous")
    assert "several" in refused.detail["reason"]


def test_tabbyapi_counts_drafts_beside_the_usage(tmp_path):
    _, cell, truth = run_one(tmp_path, fake("tabbyapi", k=K))
    found = cell.acceptance
    assert (found.source, found.quality) == ("per_request", "exact")
    assert found.num_draft_tokens == truth.num_draft_tokens
    assert found.num_accepted_tokens == truth.num_accepted_tokens
    assert cell.tokens_per_step.point == pytest.approx(truth.tokens_per_step)


def test_older_tabbyapi_has_chunks_alone(tmp_path):
    config = fake("tabbyapi", k=K, faults=("no_draft_details",))
    report, cell, truth = run_one(tmp_path, config)
    found = cell.acceptance
    assert (found.source, found.quality) == ("events", "estimated")
    assert found.num_accepted_tokens == truth.num_delivered
    assert found.num_drafts == truth.num_drafts
    assert kinds(report) - UNTOLD == {"acceptance_estimated"}


def test_lm_studio_counts_and_does_not_tell_steps(tmp_path):
    report, cell, truth = run_one(tmp_path, fake("lmstudio", k=K), repeats=2)
    found = cell.acceptance
    assert report.arms[0]["engine"] == "lm-studio"
    assert (report.arms[0]["speculative_method"], cell.num_speculative_tokens) == ("mtp", K)
    assert (found.source, found.quality) == ("per_request", "exact")
    assert found.num_draft_tokens == truth.num_draft_tokens
    assert found.num_accepted_tokens == truth.num_accepted_tokens
    assert found.num_drafts is None
    assert found.mean_acceptance_length is None
    assert cell.tokens_per_step is None
    assert kinds(report) - UNTOLD == set()


def test_counts_that_no_answer_can_have_are_said(tmp_path):
    """One report of LM Studio has 480 accepted tokens beside an answer of 200."""
    config = fake("lmstudio", k=K, faults=("draft_counts_times=4",))
    _, cell, truth = run_one(tmp_path, config)
    assert cell.acceptance.num_accepted_tokens > truth.num_decoded
    said = next(c for c in cell.cautions if c.kind == "impossible_counts")
    assert f"of {truth.num_decoded + truth.num_requests} answered" in said.message


def test_several_streams_hide_bursts(tmp_path):
    config = fake("mlx-lm", k=K, step_s=0.02)
    _, cell, _ = run_one(tmp_path, config, arm=SPECULATES, loads=(ClosedLoad(max_concurrency=2),))
    assert cell.acceptance is None
    refused = next(c for c in cell.cautions if c.kind == "bursts_ambiguous")
    assert "several streams" in refused.message


@pytest.mark.parametrize("dialect", ["vllm", "sglang", "mlx-lm", "openai"])
def test_a_plain_arm_has_no_acceptance(tmp_path, dialect):
    report, cell, truth = run_one(tmp_path, fake(dialect))
    assert cell.acceptance is None
    if cell.tokens_per_step is not None:
        assert cell.tokens_per_step.point == truth.tokens_per_step == 1.0
    assert kinds(report) - UNTOLD <= {"metrics_unavailable"}


@pytest.mark.parametrize("method", ["ngram", "mtp"])
@pytest.mark.parametrize("server_info", [True, False])
def test_steps_without_a_draft_are_steps(tmp_path, method, server_info):
    config = fake("vllm", k=K, method=method, draft_coverage=0.5, server_info=server_info)
    report, cell, truth = run_one(tmp_path, config)
    found = cell.acceptance
    assert truth.num_drafts < truth.num_steps
    assert (found.source, found.quality) == ("counters", "exact")
    assert (found.num_drafts, found.num_draft_tokens) == (truth.num_drafts, truth.num_draft_tokens)
    assert found.mean_acceptance_length.point == pytest.approx(
        1 + truth.num_accepted_tokens / truth.num_drafts
    )
    assert cell.tokens_per_step.point == pytest.approx(truth.tokens_per_step)
    assert cell.tokens_per_step.point < found.mean_acceptance_length.point - 0.2
    assert found.draft_coverage == pytest.approx(truth.num_drafts / truth.num_steps)
    assert kinds(report) - UNTOLD == set()


def test_older_sglang_counts_verify_calls(tmp_path):
    """Without the field of 0.5.20: accepted = generated - requests - verify calls."""
    config = fake("sglang", k=K, reject_unknown=True)
    report, cell, truth = run_one(tmp_path, config)
    found = cell.acceptance
    assert "fields_refused" in kinds(report)
    assert (found.source, found.quality) == ("counters", "derived")
    assert found.num_drafts == truth.num_drafts
    assert found.num_accepted_tokens == truth.num_delivered
    assert found.draft_acceptance_rate is None  # proposed tokens are not counted
    assert cell.tokens_per_step.point == pytest.approx(truth.tokens_per_step)


def test_a_running_average_is_the_last_resort():
    engine = find_engine("sglang")
    text = (
        "# TYPE sglang:spec_accept_length gauge\n"
        'sglang:spec_accept_length{model_name="m",tp_rank="0"} 2.5\n'
        "# TYPE sglang:generation_tokens_total counter\n"
        'sglang:generation_tokens_total{model_name="m"} 100\n'
        "# TYPE sglang:num_requests_total counter\n"
        'sglang:num_requests_total{model_name="m"} 4\n'
    )
    page = engine.read_metrics(text, None)
    window = Window(
        scenario="s", arm="a", load="closed-1", repeat=0, before={"u": page}, after={"u": page}
    )
    facts = ArmFacts(name="a", engine="sglang", url="u", num_speculative_tokens=3)
    evidence = acceptance_evidence.gather([], [window], facts, engine.qualities)
    found = cell_acceptance.report(evidence, facts, 1)
    assert (found.source, found.quality) == ("gauge", "estimated")
    assert found.mean_acceptance_length.point == 2.5
    assert found.mean_acceptance_length.low is None
    assert found.num_drafts is None


@pytest.mark.parametrize(
    ("dialect", "fault", "words"),
    [
        ("vllm", "metrics_404", "--disable-log-stats"),
        ("vllm", "metrics_401", "--api-key-env"),
        ("llama.cpp", "metrics_501", "--metrics"),
        ("sglang", "metrics_404", "--enable-metrics"),
        ("vllm", "metrics_html", "metrics"),
    ],
)
def test_a_missing_metrics_page_is_said_with_its_remedy(tmp_path, dialect, fault, words):
    report, cell, truth = run_one(tmp_path, fake(dialect, k=K, faults=(fault,)))
    missing = next(c for c in report.cautions if c.kind == "metrics_unavailable")
    assert words in missing.message
    assert cell.num_failed == 0
    if dialect == "vllm":  # MTP drafts in every step: the stream still tells
        assert (cell.acceptance.source, cell.acceptance.quality) == ("events", "derived")
        assert cell.acceptance.num_drafts == truth.num_steps
    else:
        assert cell.acceptance.source == "per_request"
        assert cell.acceptance.num_accepted_tokens == truth.num_accepted_tokens


def test_a_counter_reset_gives_way_to_the_stream(tmp_path):
    config = fake("vllm", k=K, faults=("counter_reset=5",))
    report, cell, truth = run_one(tmp_path, config)
    assert "counter_reset" in kinds(report)
    assert (cell.acceptance.source, cell.acceptance.quality) == ("events", "derived")
    assert cell.acceptance.num_drafts == truth.num_drafts
    assert cell.acceptance.num_accepted_tokens == truth.num_delivered


def test_traffic_of_others_gives_way_to_the_stream(tmp_path):
    config = fake("vllm", k=K, faults=("other_traffic=200",))
    report, cell, truth = run_one(tmp_path, config)
    assert "other_traffic" in kinds(report)
    assert cell.acceptance.source == "events"
    assert cell.acceptance.num_accepted_tokens == truth.num_delivered
    assert not cell.acceptance.cross_check["agrees"]


def test_shared_counters_alone_are_estimated(tmp_path):
    config = fake("tgi", k=K, faults=("other_traffic=400",))
    _, cell, _ = run_one(tmp_path, config)
    assert (cell.acceptance.source, cell.acceptance.quality) == ("counters", "estimated")


def test_the_own_model_is_counted(tmp_path):
    config = fake("vllm", k=K, faults=("extra_model",))
    report, cell, truth = run_one(tmp_path, config, arm={"model": "fake-model"})
    assert cell.acceptance.num_accepted_tokens == truth.num_accepted_tokens
    assert kinds(report) - UNTOLD == set()


def test_data_parallel_engines_are_added_up(tmp_path):
    _, cell, truth = run_one(tmp_path, fake("vllm", k=K, num_engines=2))
    assert cell.acceptance.source == "counters"
    assert cell.acceptance.num_drafts == truth.num_drafts
    assert cell.acceptance.num_accepted_tokens == truth.num_accepted_tokens


def test_requests_without_their_record_leave_it_to_the_counters(tmp_path):
    """A stop string drops vLLM's record of a request (vLLM 0.29 - 0.33)."""
    config = fake("vllm", k=K, per_request="summary", num_tokens=30)
    arm = {"request": {"stop": ["\n", " "]}}
    _, cell, truth = run_one(tmp_path, config, arm=arm)
    assert cell.finish_reasons.get("stop")
    assert cell.acceptance is None or cell.acceptance.source != "per_request"
    if cell.acceptance is not None:
        assert cell.acceptance.num_drafts == truth.num_drafts


def test_tensorrts_metrics_are_not_emptied_behind_a_back(tmp_path):
    """Its JSON /metrics is a queue: whoever reads it takes it away from its other readers."""

    async def main():
        async with serve(fake("tensorrt-llm", k=K)) as server:
            server.state.iterations.append({"iter": "of another reader"})
            plan = Plan(
                name="run",
                arms=(Arm(name="a", url=server.url),),
                scenarios=(ScenarioRef(name="mine"),),
                repeats=1,
            )
            job = make_job(plan, tmp_path)
            with contextlib.closing(job.writer):
                await measure(job)
            return server.state.iterations[0]

    assert asyncio.run(main()) == {"iter": "of another reader"}
    assert report_of(tmp_path).arms[0]["engine"] == "tensorrt-llm"


def test_openvino_is_found_below_its_folder(tmp_path):
    report, cell, _ = run_one(tmp_path, fake("ovms", k=None))
    assert report.arms[0]["engine"] == "openvino"
    assert report.arms[0]["engine_version"]
    assert cell.num_failed == 0


def test_another_version_is_not_comparable(tmp_path):
    configs = {"plain": fake("vllm", version="0.33.0"), "mtp": fake("vllm", k=K, version="0.32.0")}
    with pytest.raises(NotComparable, match=r"engine_version \(0\.33\.0 against 0\.32\.0\)"):
        run_engines(tmp_path, configs)


def test_another_version_has_no_verdict_unless_forced(tmp_path):
    configs = {
        "plain": fake("vllm", version="0.33.0"),
        "mtp": fake("vllm", k=K, version="0.32.0", script=(3,)),
    }
    report, _ = run_engines(tmp_path, configs, forced=True)
    assert report.comparisons[0].verdict == "faster"
    assert "arms_differ" in kinds(report)
    facts = RunReader(tmp_path).facts
    with contextlib.closing(RunWriter(tmp_path)) as writer:
        writer.write_facts(msgspec.structs.replace(facts, forced=False))
    report = report_of(tmp_path)
    assert report.comparisons[0].verdict == "not_established"
    barred = next(c for c in report.cautions if c.kind == "not_comparable")
    assert barred.detail["differences"] == [
        {"field": "engine_version", "baseline": "0.33.0", "arm": "0.32.0"}
    ]


def test_what_arms_differ_in_is_said(tmp_path):
    configs = {
        "plain": fake("vllm", prefix_cache=True),
        "ngram": fake("vllm", k=K, method="ngram"),
    }
    report, _ = run_engines(tmp_path, configs, repeats=1)
    differ = next(c for c in report.cautions if c.kind == "arms_differ")
    fields = {d["field"]: (d["baseline"], d["arm"]) for d in differ.detail["differences"]}
    assert fields == {
        "scheduling": ("asynchronous", "synchronous"),
        "cache_config.enable_prefix_caching": (True, False),
    }
