"""Which source tells a cell's acceptance: order, quality, and what is left aside."""

import pytest
from msgspec.structs import replace

from sakiyomi import acceptance_evidence, cell_acceptance, cell_steps, steps
from sakiyomi.analyse import analyse
from sakiyomi.counter_windows import Window
from sakiyomi.engines import find_engine
from sakiyomi.engines.engine import QUALITIES
from sakiyomi.measured import measure_request, with_burst_steps
from sakiyomi.pairing import pair
from sakiyomi.plan import Arm, Plan, ScenarioRef
from sakiyomi.record import (
    RUN_FORMAT,
    ArmFacts,
    EngineMetrics,
    Environment,
    RequestKey,
    RequestRecord,
    RunFacts,
    SeriesCounters,
    Snapshot,
    SpecDecodeCounters,
)


def facts(engine="vllm", **fields):
    return ArmFacts(**{"name": "a", "engine": engine, "url": "u", **fields})


def record(sizes, *, conversation="c", gap_s=0.02, start_s=0.0, counted=True, **fields):
    """An answer of one event a step: the first event is prefill's token."""
    at = [start_s + 0.1 + gap_s * i for i in range(len(sizes) + 1)]
    total = 1 + sum(sizes)
    return RequestRecord(
        key=RequestKey(
            request_id=f"{conversation}-{start_s}",
            scenario="s",
            conversation_id=conversation,
            turn=0,
            arm="a",
            load="closed-1",
            repeat=0,
            scheduled_at_s=start_s,
            window=1,
        ),
        sent_at_s=start_s,
        closed_at_s=at[-1],
        event_at_s=at,
        event_tokens=[1, *sizes] if counted else [None] * len(at),
        event_kind=["answer"] * len(at),
        event_text=["x"] * len(at),
        completion_tokens=total,
        finish_reason="length",
        done=True,
        **fields,
    )


def measure(one, arm, engine=None):
    return measure_request(one, find_engine(engine or arm.engine), arm, language=None)


def window(before, after):
    return Window(
        scenario="s",
        arm="a",
        load="closed-1",
        repeat=0,
        before={"u": EngineMetrics(series={"": before})},
        after={"u": EngineMetrics(series={"": after})},
    )


def counters(drafts, drafted, accepted, generated, num_steps=None):
    return SeriesCounters(
        speculation=SpecDecodeCounters(
            num_drafts=drafts, num_draft_tokens=drafted, num_accepted_tokens=accepted
        ),
        num_generated_tokens=generated,
        num_decode_steps=num_steps,
        num_requests_finished=1.0 if generated else 0.0,
    )


ZERO = counters(0.0, 0.0, 0.0, 0.0, 0.0)
MTP = {"speculative_method": "mtp", "num_speculative_tokens": 3}


def gather(requests, windows, arm):
    return acceptance_evidence.gather(requests, windows, arm, QUALITIES)


def sources(evidence):
    return [(one.source, one.quality) for one in evidence.found]


def test_a_step_without_a_draft_is_not_a_draft_of_none():
    """Chunks of 1 may be either. The server says: 6 steps, 4 with a draft (faults, F54)."""
    arm = facts(**MTP)
    one = measure(record([4, 1, 1, 2, 1, 3]), arm)
    assert one.steps.num_drafts == 6  # what MTP would mean
    evidence = gather([one], [window(ZERO, counters(4.0, 12.0, 6.0, 13.0, 6.0))], arm)
    assert sources(evidence) == [("counters", "exact"), ("events", "estimated")]
    assert evidence.found[1].total.num_drafts is None
    assert evidence.found[1].total.num_accepted_tokens == 6
    assert evidence.disagreement is None
    found = cell_acceptance.report(evidence, arm, 1)
    assert found.mean_acceptance_length.point == 1 + 6 / 4
    assert found.draft_coverage == pytest.approx(4 / 6)
    per_step = cell_steps.tokens_per_step([one], [], 1)
    assert per_step.point == 12 / 6


def test_counters_confirm_what_the_stream_cannot_tell():
    """An unknown method with a draft of 3 in every step: conversations can be the units."""
    arm = facts(num_speculative_tokens=3)
    requests = [measure(record([4, 1, 2], conversation=c, start_s=s), arm) for s, c in ((0, "c"),)]
    evidence = gather(requests, [window(ZERO, counters(3.0, 9.0, 4.0, 8.0))], arm)
    assert sources(evidence) == [("counters", "exact"), ("events", "derived")]
    assert evidence.found[1].total.num_draft_tokens == 9
    varying = gather(requests, [window(ZERO, counters(3.0, 7.0, 4.0, 8.0))], arm)
    assert sources(varying) == [("counters", "exact"), ("events", "estimated")]


@pytest.mark.parametrize("told", [False, True])
def test_counters_do_not_cover_a_pass_that_was_killed(told):
    """Like is held against like: the killed pass has requests, and no page after it."""
    arm = facts(**MTP)
    metrics = {"num_spec_steps": 3, "num_draft_tokens": 9, "num_accepted_draft_tokens": 4}
    evidence = {"metrics": {"speculative_decoding": metrics}} if told else {}
    ended, killed = (
        measure(record([4, 1, 2], start_s=at, evidence=evidence), arm) for at in (0, 9)
    )
    killed = replace(killed, key=replace(killed.key, window=2))
    page = window(ZERO, counters(3.0, 9.0, 4.0, 8.0, 3.0))
    half = replace(page, number=2, after={})
    found = gather([ended, killed], [replace(page, number=1), half], arm)
    assert found.disagreement is None
    assert found.foreign_share == 0
    accepted = cell_acceptance.report(found, arm, 1)
    assert (accepted.source, accepted.quality) == ("per_request" if told else "counters", "exact")
    assert accepted.num_drafts == (6 if told else 3)
    assert accepted.draft_coverage == 1
    assert accepted.unit == "conversation"


def test_real_disagreement_is_said():
    arm = facts(**MTP)
    one = measure(record([4, 4, 4, 4]), arm)
    evidence = gather([one], [window(ZERO, counters(4.0, 12.0, 2.0, 17.0, 4.0))], arm)
    assert "num_accepted_tokens: 2 against 12" in evidence.disagreement


def test_a_reset_puts_counters_behind_the_stream():
    arm = facts(**MTP)
    one = measure(record([4, 1, 2]), arm)
    evidence = gather([one], [window(counters(90.0, 270.0, 9.0, 99.0), ZERO)], arm)
    assert evidence.lower_bound
    assert sources(evidence)[0] == ("events", "derived")


def test_merged_chunks_are_no_steps():
    arm = facts(**MTP)
    one = measure(record([8, 1, 2]), arm)
    evidence = gather([one], [], arm)
    assert sources(evidence) == [("events", "estimated")]
    assert cell_steps.tokens_per_step([one], [], 1) is None
    served = [window(ZERO, counters(4.0, 12.0, 7.0, 12.0, 4.0))]
    assert cell_steps.tokens_per_step([one], served, 1).point == 11 / 4


def test_merged_chunks_give_no_step_cost():
    """Two steps an event: the second answer shows none of more than k + 1 tokens, and has some."""
    arm = facts(**MTP)
    ours = [measure(record(sizes, conversation=c), arm) for c, sizes in (("c", [8, 2]), ("d", [4]))]
    theirs = [measure(record([1] * 9, conversation=c), facts()) for c in "cd"]
    assert [unit.num_steps for unit in pair(ours[1:], theirs)] == [1]
    units = pair(ours, theirs)
    assert [(unit.num_step_tokens, unit.num_steps) for unit in units] == [(0, 0), (0, 0)]
    assert all(unit.log_ratios for unit in units)


def test_the_servers_own_steps_stand_where_events_hold_several():
    """Japanese on SGLang: five steps, of which two brought half a character and no event."""
    arm = facts("sglang", **MTP)
    told = {"spec_verify_ct": 5, "spec_num_proposed_drafts": 15, "spec_num_correct_drafts": 5}
    one = measure(record([3, 1, 6], evidence={"sglext": {"spec_tokens_details": told}}), arm)
    assert one.decoding == (10, 5)
    assert cell_steps.tokens_per_step([one], [], 1).point == 2
    (paired,) = pair([one], [measure(record([1] * 10), facts("sglang"))])
    assert (paired.num_step_tokens, paired.num_steps) == (10, 5)


def test_a_one_token_answer_is_no_record_of_its_drafts():
    one = measure(record([]), facts(**MTP))
    assert one.response is None


def bursts(sizes, **fields):
    """One event a token: those of a step 0.2 ms apart, steps 20 ms."""
    one = record([], **fields)
    at = [one.sent_at_s + 0.1]
    for size in sizes:
        at += [at[-1] + 0.02 + 0.0002 * i for i in range(size)]
    kinds = {"event_kind": ["answer"] * len(at), "event_text": ["x"] * len(at)}
    changes = {
        "event_at_s": at,
        "event_tokens": [1] * len(at),
        "closed_at_s": at[-1],
        "completion_tokens": len(at),
        **kinds,
    }
    return RequestRecord(**{f: getattr(one, f) for f in one.__struct_fields__} | changes)


def test_bursts_of_a_cell_share_one_threshold():
    arm = facts("mlx-lm", speculative_method="draft_model", num_speculative_tokens=3)
    told = [([4, 1, 2, 3, 4, 1, 2], 0), ([1, 3, 4, 4, 2, 1, 3], 10)]
    each = [measure(bursts(sizes, start_s=float(at)), arm) for sizes, at in told]
    assert all(one.arrivals is not None and one.steps is None for one in each)
    found = with_burst_steps(each, arm)
    assert all(one.arrivals is None for one in found)
    for (sizes, _), one in zip(told, found, strict=True):
        assert one.steps_from == "bursts"
        assert one.steps == steps.count(
            [steps.Step(num_tokens=size) for size in sizes], 3, every_step_drafts=True
        )
    evidence = gather(found, [], arm)
    assert sources(evidence) == [("bursts", "estimated")]


def test_bursts_need_tokens_that_are_counted():
    arm = facts("lm-studio", speculative_method="draft_model", num_speculative_tokens=3)
    one = measure(record([4] * 40, counted=False), arm)
    (refused,) = with_burst_steps([one], arm)
    assert refused.steps is None
    assert "120 of 161 tokens" in refused.bursts_refused
    assert gather([refused], [], arm).bursts_refused == refused.bursts_refused


def test_no_bursts_are_looked_for_in_a_plain_arm():
    assert measure(bursts([4, 1, 2]), facts("mlx-lm")).arrivals is None


def test_tabbyapi_counts_chunks():
    arm = facts("tabbyapi", speculative_method="draft_model", num_speculative_tokens=3)
    one = measure(record([4, 2, 3], counted=False), arm)
    assert (one.steps.num_steps, one.steps.num_accepted_tokens) == (3, 6)
    assert one.steps.accepted_per_position is None
    assert one.num_step_tokens == 9
    assert sources(
        acceptance_evidence.gather([one], [], arm, find_engine("tabbyapi").qualities)
    ) == [("events", "estimated")]


def test_k_is_found_where_it_shows_first():
    """LMDeploy shows the labels of the positions only after the first draft."""
    head = "# TYPE lmdeploy:spec_decode_num_drafts_total counter\n"
    count = "lmdeploy:spec_decode_num_{}_total{{}} {}\n"
    before = head + count.format("drafts", 0)
    after = head + "".join(
        [
            count.format("drafts", 2),
            count.format("draft_tokens", 4),
            count.format("accepted_tokens", 3),
            'lmdeploy:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 2\n',
            'lmdeploy:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 1\n',
        ]
    )
    arm = facts("lmdeploy")
    run = RunFacts(
        format=RUN_FORMAT,
        run_id="r",
        created="",
        plan=Plan(
            name="p", arms=(Arm(name="a", url="http://h"),), scenarios=(ScenarioRef(name="s"),)
        ),
        environment=Environment(tool_version="0"),
        arms=(arm,),
    )
    pages = [
        Snapshot(
            at_s=0.0,
            url="u",
            arm="a",
            scenario="s",
            load="closed-1",
            repeat=0,
            moment=moment,
            window=1,
            status=200,
            text=text,
        )
        for moment, text in (("before", before), ("after", after))
    ]
    report = analyse(run, [record([2, 3])], pages)
    assert report.cells[0].num_speculative_tokens == 2
    assert report.arms[0]["num_speculative_tokens"] == 2
    assert "k_unknown" not in {c.kind for c in report.cells[0].cautions}
    assert run.arms[0].num_speculative_tokens is None  # facts stay as they were
