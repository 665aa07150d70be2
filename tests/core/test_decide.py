"""Decisions: the rule, its properties, the founding case."""

import random

import msgspec
import pytest
from decide_makers import (
    PLAIN_RATE,
    arm_facts,
    drafted,
    group,
    make_facts,
    make_report,
    request,
    two_arms,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from sakiyomi import store
from sakiyomi.commands.saved_report import read_report
from sakiyomi.decide import Known, decide, judge_regression, with_regression
from sakiyomi.errors import NotComparable
from sakiyomi.lossless import TextCheck
from sakiyomi.models.published import published_model
from sakiyomi.models.roofline import predict
from sakiyomi.next_experiment import Source
from sakiyomi.plan import ClosedLoad, Slo
from sakiyomi.report import decision_text, experiment_text
from sakiyomi.results import Comparison
from sakiyomi.stats import Estimate

ARMS = (arm_facts("plain"), arm_facts("fast", k=3))


def decide_on(requests, *, arms=ARMS, slo=None, known=None, **facts):
    made = make_facts(arms, **facts)
    grouped = group(requests)
    return decide(made, make_report(made, grouped), grouped, slo or {}, known)


def only(decision):
    (choice,) = decision.choices
    return choice


def test_an_established_gain_wins():
    choice = only(decide_on(two_arms(0.3)))
    assert (choice.arm, choice.verdict, choice.reason) == ("fast", "established", "wins")
    assert choice.chosen.ratio.low > 1


def test_a_small_gain_stays_with_the_baseline_though_it_is_established():
    choice = only(decide_on(two_arms(0.02, spread=0.005)))
    assert choice.candidates[1].verdict == "faster"
    assert (choice.arm, choice.verdict, choice.reason) == ("plain", "established", "no_gain")


def test_a_loss_stays_with_the_baseline():
    choice = only(decide_on(two_arms(-0.2)))
    assert (choice.arm, choice.verdict) == ("plain", "established")


def test_a_gain_in_words():
    def gain(point, low, high):
        return decision_text.gain(Estimate(point=point, low=low, high=high, n=16))

    assert gain(1.85, 1.82, 1.89) == "85% faster (82% to 89%)"
    assert gain(0.59, 0.47, 0.76) == "41% slower (24% to 53%)"
    assert gain(1.12, 0.99, 1.25) == "12% faster (-1% to +25%)"
    assert gain(0.98, 0.66, 1.60) == "2% slower (-34% to +60%)"


def test_what_is_open_is_not_decided_and_says_what_to_run():
    decision = decide_on(
        two_arms(0.06, spread=0.2),
        known=Known(source=Source(run="r", plan="r/plan.toml", num_available={"chat": 1000})),
    )
    choice = only(decision)
    assert (choice.arm, choice.verdict, choice.reason) == ("plain", "not_established", "gain_open")
    assert decision.answer == "cannot_tell"
    experiment = choice.next_experiment
    assert experiment.kind == "more_conversations"
    assert experiment.num_more > 16
    assert (
        experiment.command
        == f"sakiyomi run r/plan.toml --scenario chat --requests {16 + experiment.num_more}"
    )
    assert experiment.minutes == pytest.approx((16 + experiment.num_more) / 16 * 4 * 5 / 60)
    first, command = experiment_text.settle_lines(decision)
    assert first.startswith(f"to settle chat: about {experiment.num_more} more conversations")
    assert command == f"  {experiment.command}"
    assert experiment_text.settle_lines(decide_on(two_arms(0.2))) == []


def test_the_advised_number_of_conversations_does_establish_the_gain():
    first = only(decide_on(two_arms(0.06, spread=0.12)))
    wanted = first.next_experiment.num_more + 16
    settled = sum(
        only(
            decide_on(two_arms(0.06, spread=0.12, seed=seed, conversations=wanted, drawn=True))
        ).verdict
        == "established"
        for seed in range(20)
    )
    assert settled >= 12  # the advice aims at 80 %, from an estimate of gain and spread


def test_noise_within_conversations_asks_for_repeats():
    rng = random.Random(5)
    requests = []
    for index in range(16):
        for repeat in range(2):
            requests.append(request("plain", f"c{index}", repeat, PLAIN_RATE))
            rate = PLAIN_RATE * 1.05 * 2.718281828 ** rng.gauss(0, 0.2)
            requests.append(request("fast", f"c{index}", repeat, rate))
    experiment = only(decide_on(requests, known=Known(source=Source(run="r")))).next_experiment
    if experiment.kind == "more_repeats":
        assert experiment.command == f"sakiyomi run --resume r --repeats {2 + experiment.num_more}"
    else:
        assert experiment.kind in ("own_conversations", "more_conversations", "open")


@given(gains=st.lists(st.floats(-0.3, 0.5), min_size=2, max_size=2), seed=st.integers(0, 50))
@settings(max_examples=30, deadline=None)
def test_a_decision_is_monotone_in_the_gain(gains, seed):
    low, high = (
        only(decide_on(two_arms(gain, seed=seed, drawn=True))).arm for gain in sorted(gains)
    )
    assert (low, high) != ("fast", "plain")


def test_the_order_of_conversations_does_not_matter():
    requests = two_arms(0.1, spread=0.1, ttft_s=0.2)
    slo = {"chat": Slo(ttft_s=0.3)}
    shuffled = requests[:]
    random.Random(4).shuffle(shuffled)
    assert msgspec.json.encode(decide_on(requests, slo=slo)) == msgspec.json.encode(
        decide_on(shuffled, slo=slo)
    )


def test_more_of_the_same_data_narrows_the_interval():
    requests = two_arms(0.1, spread=0.1)
    twice = requests + [
        msgspec.structs.replace(
            one, key=msgspec.structs.replace(one.key, conversation_id=one.key.conversation_id + "b")
        )
        for one in requests
    ]
    once, doubled = (only(decide_on(r)).candidates[1].ratio for r in (requests, twice))
    assert doubled.point == pytest.approx(once.point)
    ratio = (doubled.high - doubled.low) / (once.high - once.low)
    assert 0.5 < ratio < 0.95  # 1 / sqrt(2) but for the steps of order statistics


def test_repeated_answers_of_the_same_conversations_do_not_narrow_it():
    requests = two_arms(0.1, spread=0.1)
    again = requests + [
        msgspec.structs.replace(
            one, key=msgspec.structs.replace(one.key, repeat=one.key.repeat + 2)
        )
        for one in requests
    ]
    once, doubled = (only(decide_on(r)).candidates[1].ratio for r in (requests, again))
    assert (doubled.low, doubled.high) == pytest.approx((once.low, once.high))


def test_limits_are_held_with_their_interval():
    slo = {"chat": Slo(ttft_s=0.1)}
    few = only(decide_on(two_arms(0.3, conversations=16), slo=slo))
    assert {c.standing for c in few.candidates} == {"cannot_tell"}
    assert (few.verdict, few.reason) == ("not_established", "limit_open")
    assert few.next_experiment.reason == "limit"
    many = only(decide_on(two_arms(0.3, conversations=48), slo=slo))
    assert {c.standing for c in many.candidates} == {"holds"}
    assert (many.arm, many.verdict) == ("fast", "established")


def test_an_arm_that_fails_a_limit_is_out_however_fast():
    requests = [
        msgspec.structs.replace(one, latency=msgspec.structs.replace(one.latency, ttft_s=0.5))
        if one.key.arm == "fast"
        else one
        for one in two_arms(0.5, conversations=48)
    ]
    choice = only(decide_on(requests, slo={"chat": Slo(ttft_s=0.1)}))
    assert (choice.arm, choice.verdict, choice.reason) == ("plain", "established", "limit_decides")
    assert choice.candidates[1].standing == "fails"


def test_no_arm_holds_the_limits():
    decision = decide_on(two_arms(0.5, conversations=48), slo={"chat": Slo(ttft_s=0.01)})
    choice = only(decision)
    assert (choice.arm, choice.verdict, choice.reason) == (None, "none", "none_holds")
    assert decision.answer == "no"
    assert "does not hold ttft_s" in decision_text.verdict_sentence(choice)


def test_a_faster_arm_wins_over_a_baseline_that_fails():
    requests = [
        msgspec.structs.replace(one, latency=msgspec.structs.replace(one.latency, e2e_s=9.0))
        if one.key.arm == "plain"
        else one
        for one in two_arms(0.0, conversations=48)
    ]
    choice = only(decide_on(requests, slo={"chat": Slo(e2e_s=5.0)}))
    assert (choice.arm, choice.reference, choice.verdict) == ("fast", "fast", "established")


def test_failed_requests_hold_no_limit():
    requests = two_arms(0.3, conversations=48)
    broken = [
        request(one.key.arm, one.key.conversation_id, one.key.repeat, 50.0, failed=True)
        if one.key.arm == "fast"
        and one.key.conversation_id
        in ("c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8", "c9", "c10", "c11")
        else one
        for one in requests
    ]
    choice = only(decide_on(broken, slo={"chat": Slo(ttft_s=0.1)}))
    assert choice.candidates[1].standing in ("fails", "cannot_tell")
    assert choice.candidates[1].limits[0].share.point == pytest.approx(37 / 48)


def test_voice_limits_count_underruns():
    requests = [
        msgspec.structs.replace(
            one, latency=msgspec.structs.replace(one.latency, speech_margin_s=-0.5)
        )
        for one in two_arms(0.3, conversations=48)
    ]
    choice = only(decide_on(requests, slo={"chat": Slo(speech_margin_s=0.0)}))
    assert choice.verdict == "none"
    (check,) = choice.candidates[0].limits
    assert (check.standing, check.share.point, check.observed.point) == ("fails", 0.0, -0.5)


@pytest.mark.parametrize("field", ["forced_acceptance", "lossy_acceptance"])
def test_fiction_is_never_recommended(field):
    arms = (arm_facts("plain"), arm_facts("fast", k=3, **{field: True}))
    choice = only(decide_on(two_arms(0.5), arms=arms))
    assert choice.arm == "plain"
    assert choice.candidates[1].excluded == field


def test_a_calibration_is_no_workload():
    with pytest.raises(NotComparable, match="kind is calibration"):
        decide_on(two_arms(0.5), kind="calibration")


def test_an_arm_whose_text_differs_is_not_recommended():
    check = TextCheck(
        scenario="chat",
        arm="fast",
        baseline="plain",
        load="closed-1",
        share_equal=Estimate(point=0.1, low=0.0, high=0.3, n=16),
        num_compared=16,
        num_diverged=14,
        num_near_ties=0,
        num_not_told=14,
        divergences_per_token=0.3,
        first=None,
        verdict="differs",
    )
    choice = only(decide_on(two_arms(0.5), known=Known(texts=(check,))))
    assert choice.arm == "plain"
    assert choice.candidates[1].excluded == "text_differs"


def test_a_model_swap_is_decided_like_any_other_arm():
    arms = (arm_facts("plain", model="dense"), arm_facts("fast", model="moe"))
    choice = only(decide_on(two_arms(1.4), arms=arms))
    assert (choice.arm, choice.verdict) == ("fast", "established")
    assert choice.chosen.model == "moe"


def test_the_fastest_of_several_winners_is_taken():
    requests = two_arms(0.3)
    requests += [
        msgspec.structs.replace(
            one,
            key=msgspec.structs.replace(one.key, arm="faster"),
            latency=msgspec.structs.replace(
                one.latency, decode_tokens_per_s=one.latency.decode_tokens_per_s * 1.2
            ),
        )
        for one in requests
        if one.key.arm == "fast"
    ]
    choice = only(decide_on(requests, arms=(*ARMS, arm_facts("faster", k=2))))
    assert choice.arm == "faster"


def test_the_founding_case():
    reader = store.open_run("founding-case")
    report = read_report(reader)
    read = published_model("ThinkingCap-Qwen3.6-27B-NVFP4")
    predicted = predict(read, None, context=0, batch=1, k=1)
    known = Known(
        draft_costs={"mtp-k3": predicted.draft_bytes / predicted.plain_bytes},
        source=Source(is_published=True),
    )
    decision = decide(reader.facts, report, {}, {}, known)
    chat, code = decision.choices
    assert (chat.arm, chat.verdict) == ("plain", "not_established")
    assert chat.draft_lengths[0].best_k.best == 2
    assert chat.advised_k == 2
    assert (code.arm, code.verdict) == ("mtp-k3", "established")
    assert code.draft_lengths[0].best_k.best > 3
    assert decision.answer == "cannot_tell"
    mtp, moe = chat.candidates[1:]
    assert mtp.break_even_rate.point == pytest.approx(0.2875, abs=0.0002)
    assert moe.ratio.point == pytest.approx(177 / 72.0)
    assert chat.speech.times == pytest.approx(72.0 / 7.0)


def test_the_founding_case_without_bytes_still_decides():
    reader = store.open_run("founding-case")
    decision = decide(reader.facts, read_report(reader), {}, {})
    assert [choice.arm for choice in decision.choices] == ["plain", "mtp-k3"]


def test_draft_length_by_concurrency_and_where_it_stops_paying():
    arms = (arm_facts("plain"), arm_facts("mtp", k=2))
    loads = (ClosedLoad(max_concurrency=1), ClosedLoad(max_concurrency=16))
    requests = []
    for load, cost in ((loads[0], 1.4), (loads[1], 2.6)):
        for index in range(12):
            positions = (0.8, 0.5)
            rate = PLAIN_RATE * (1 + sum(positions)) / cost
            common = {"load": load.label}
            requests.append(request("plain", f"c{index}", 0, PLAIN_RATE, **common))
            requests.append(
                request("mtp", f"c{index}", 0, rate, counts=drafted(positions), **common)
            )
    decision = decide_on(requests, arms=arms, loads=loads)
    (batch,) = decision.batch_lengths
    assert batch.pays_at == {1: True, 16: False}
    # speedups 2.3 / 1.4 and 2.3 / 2.6 on the logarithm of concurrency
    share = (2.3 / 1.4 - 1) / (2.3 / 1.4 - 2.3 / 2.6)
    assert batch.stops_paying_at == pytest.approx(16**share)
    assert batch.ranges[0][2] >= 2
    assert batch.ranges[-1] == (5, 16, 0)


@pytest.mark.parametrize(
    ("verdicts", "answer"),
    [
        (["same", "faster"], "yes"),
        (["same", "slower", "not_established"], "no"),
        (["faster", "not_established"], "cannot_tell"),
        ([], "cannot_tell"),
    ],
)
def test_a_regression_turns_the_gate(verdicts, answer):
    comparisons = [
        Comparison(
            scenario="chat",
            arm="new/plain",
            baseline="old/plain",
            load=ClosedLoad(),
            metric="decode_tokens_per_s",
            ratio=Estimate(point=1.0, low=0.9, high=1.1, n=16),
            verdict=verdict,
        )
        for verdict in verdicts
    ]
    regression = judge_regression("new", "old", comparisons)
    assert regression.answer == answer
    assert with_regression(decide_on(two_arms(0.3)), regression).answer == answer


def test_every_decision_is_json_and_reads_in_80_columns():
    from sakiyomi.commands.decide_command import with_decision

    requests = two_arms(0.06, spread=0.2)
    made = make_facts(ARMS)
    grouped = group(requests)
    report = make_report(made, grouped)
    decision = decide(made, report, grouped, {"chat": Slo(ttft_s=0.1, tpot_s=0.05)})
    text = decision_text.render(decision)
    assert max(map(len, text.splitlines())) <= 80
    filled = with_decision(report, decision)
    raw = msgspec.json.decode(msgspec.json.encode(filled))["decision"]
    assert raw["answer"] == decision.answer
    assert raw["summary"]
    assert all(sentence in raw["summary"] for sentence in decision_text.closing(decision))
