"""Same text or not: divergences, near ties, what cannot be compared."""

import msgspec
import pytest
from decide_makers import arm_facts, make_facts

from sakiyomi.lossless import (
    MAX_TIE_RATE,
    Text,
    check_texts,
    collect_texts,
    find_divergence,
    plain_twin,
    settle_texts,
)
from sakiyomi.plan import Plan
from sakiyomi.record import RequestError, RequestKey, RequestRecord

ARMS = (arm_facts("plain"), arm_facts("mtp", k=3))
LONG = "the quick brown fox jumps over the lazy dog and runs away from here "


def record(arm, conversation, text, *, turn=0, repeat=0, logprobs=None, **fields):
    return RequestRecord(
        key=RequestKey(
            request_id=f"{arm}/{conversation}/{turn}",
            scenario="chat",
            conversation_id=conversation,
            turn=turn,
            arm=arm,
            load="closed-1",
            repeat=repeat,
            scheduled_at_s=0.0,
        ),
        sent_at_s=0.0,
        closed_at_s=1.0,
        event_at_s=[0.1] * 40,
        event_text=[text],
        completion_tokens=40,
        finish_reason="stop",
        evidence={"logprobs": logprobs} if logprobs else {},
        **fields,
    )


def checked(records, arms=ARMS, **facts):
    return check_texts(make_facts(arms, **facts), collect_texts(records))


def pairs(changes, num=16):
    """`num` conversations in both arms; `changes[i]` is the other text of conversation i."""
    found = []
    for index in range(num):
        found.append(record("plain", f"c{index}", LONG))
        found.append(record("mtp", f"c{index}", changes.get(index, LONG)))
    return found


def test_equal_texts_are_the_same():
    (check,) = checked(pairs({}))
    assert (check.verdict, check.share_equal.point, check.first) == ("same", 1.0, None)
    assert check.num_compared == 16


def test_the_first_divergence_has_its_context():
    other = LONG[:20] + "leaps over"
    (check,) = checked(pairs({3: other}))
    assert check.share_equal.point == pytest.approx(15 / 16)
    assert check.first.conversation_id == "c3"
    assert check.first.character == 20
    assert check.first.before == LONG[:20]
    assert check.first.baseline.startswith("jumps")
    assert check.first.arm == "leaps over"
    assert check.verdict == "not_told"


def test_texts_that_part_at_once_are_not_near_ties():
    (check,) = checked(pairs(dict.fromkeys(range(12), "Something else entirely")))
    assert check.divergences_per_token > MAX_TIE_RATE
    assert check.verdict == "differs"


def logprobs(gap):
    """Tokens of LONG up to `jumps`, whose alternative `leaps` is `gap` nats less likely."""
    words = ["the ", "quick ", "brown ", "fox "]
    tokens = [{"token": word, "logprob": -0.1, "top_logprobs": []} for word in words]
    rivals = [{"token": "jumps", "logprob": -0.7}, {"token": "leaps", "logprob": -0.7 - gap}]
    return [*tokens, {"token": "jumps", "logprob": -0.7, "top_logprobs": rivals}]


def diverging(gap):
    return [
        record("plain", "c0", LONG, logprobs=logprobs(gap)),
        record("mtp", "c0", LONG[:20] + "leaps"),
        *(record(arm, f"c{i}", LONG) for i in range(1, 4) for arm in ("plain", "mtp")),
    ]


@pytest.mark.parametrize(("gap", "verdict"), [(0.1, "near_ties"), (3.0, "differs")])
def test_logprobs_tell_near_ties_from_faults(gap, verdict):
    (check,) = checked(diverging(gap))
    assert check.first.gap_nats == pytest.approx(gap)
    assert check.verdict == verdict


def test_a_token_that_no_alternative_offers_is_no_near_tie():
    records = [
        record("plain", "c0", LONG, logprobs=logprobs(0.5)),
        record("mtp", "c0", LONG[:20] + "zebra"),
    ]
    (check,) = checked(records)
    assert check.first.gap_nats == pytest.approx(0.5)
    assert check.verdict == "differs"


def test_turns_after_a_divergence_are_not_compared():
    records = [
        record("plain", "c0", LONG),
        record("mtp", "c0", LONG[:-5]),
        record("plain", "c0", "one", turn=1),
        record("mtp", "c0", "two", turn=1),
    ]
    (check,) = checked(records)
    assert (check.num_compared, check.num_diverged) == (1, 1)


def test_a_cut_at_the_cap_is_no_divergence():
    place = ("c", 0, 0)
    whole = Text(text=LONG, num_tokens=40, finish_reason="length")
    cut = Text(text=LONG[:-4], num_tokens=40, finish_reason="length")
    assert find_divergence(place, whole, cut) is None
    stopped = Text(text=LONG[:-4], num_tokens=40, finish_reason="stop")
    ended = Text(text=LONG, num_tokens=40, finish_reason="stop")
    assert find_divergence(place, ended, stopped).character == len(LONG) - 4


def test_only_greedy_arms_of_one_model_are_compared():
    records = pairs({})
    other_model = (arm_facts("plain", model="A"), arm_facts("mtp", k=3, model="B"))
    assert checked(records, arms=other_model) == ()
    facts = make_facts(ARMS)
    warm = type(facts.scenarios[0])(
        name="chat",
        num_conversations=16,
        sampling=type(facts.scenarios[0].sampling)(temperature=0.7),
        content_hash="x",
    )
    warm_facts = msgspec.structs.replace(facts, scenarios=(warm,))
    assert check_texts(warm_facts, collect_texts(records)) == ()
    assert plain_twin(ARMS[1], ARMS).name == "plain"


def test_arms_that_share_a_server_have_other_prompts():
    facts = make_facts(ARMS)
    arms = tuple(type(arm)(name=arm.name, url="http://h:1") for arm in facts.plan.arms)
    plan = Plan(name="p", arms=arms, scenarios=facts.plan.scenarios)
    shared = msgspec.structs.replace(facts, plan=plan)
    assert check_texts(shared, collect_texts(pairs({}))) == ()


def test_failed_requests_are_left_out():
    broken = record("mtp", "c0", "", error=RequestError(kind="reset", message="gone"))
    assert checked([record("plain", "c0", LONG), broken]) == ()


def test_a_pass_with_logprobs_settles_what_the_run_left_open():
    (near,) = checked(diverging(0.1))
    (gross,) = checked(diverging(3.0))
    (open_,) = checked(pairs({3: LONG[:20] + "leaps over"}))
    (same,) = checked(pairs({}))
    verdicts = [
        settle_texts(run, told, ["closed-1"])[0].verdict
        for run, told in (
            ([open_], [near]),
            ([open_], [gross]),
            ([open_], [same]),
            ([same], [gross]),
            ([same], [near]),
            ([], [near]),
        )
    ]
    assert verdicts == ["near_ties", "differs", "not_told", "differs", "same", "near_ties"]
    assert [c.load for c in settle_texts([], [gross], ["closed-1", "closed-4"])] == [
        "closed-1",
        "closed-4",
    ]


def test_a_character_in_several_tokens_leaves_a_near_tie_untold():
    """vLLM shows the first bytes of a character as nothing: which token parted is not known."""
    told = [
        {"token": token, "logprob": -0.7, "top_logprobs": [{"token": other, "logprob": -2.0}]}
        for token, other in (("猫", "犬"), ("", "は"), ("\N{REPLACEMENT CHARACTER}が", "の"))
    ]
    plain = record("plain", "c0", "", logprobs=told)
    plain = msgspec.structs.replace(plain, event_text=["猫", "", "が"], event_tokens=[1, 1, 1])
    (check,) = checked([plain, record("mtp", "c0", "猫の")])
    assert check.first.character == 1
    assert check.first.gap_nats is None
    (check,) = checked([plain, record("mtp", "c0", "犬が")])
    assert check.first.gap_nats == pytest.approx(1.3)
