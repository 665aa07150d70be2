"""Entropy against acceptance: by hand, and with a truth that is known."""

import math
import random

import msgspec
import pytest

from sakiyomi import drafted_tokens, why
from sakiyomi.plan import Arm, Plan, ScenarioRef
from sakiyomi.record import ArmFacts, Environment, RequestKey, RequestRecord, RunFacts
from sakiyomi.stream import TokenStream
from sakiyomi.token_logprobs import uncertainty

PLAIN = ArmFacts(name="plain", engine="vllm", url="")
MTP = ArmFacts(
    name="mtp", engine="vllm", url="", speculative_method="mtp", num_speculative_tokens=3
)
FACTS = RunFacts(
    format=1,
    run_id="r",
    created="",
    plan=Plan(
        name="p", arms=(Arm(name="plain"), Arm(name="mtp")), scenarios=(ScenarioRef(name="s"),)
    ),
    environment=Environment(tool_version="0"),
    arms=(PLAIN, MTP),
)


def entry(*shares, token="x"):
    logs = [math.log(p) for p in shares]
    options = [{"token": token + "'" * i, "logprob": value} for i, value in enumerate(logs)]
    return {"token": token, "logprob": logs[0], "top_logprobs": options}


def record(steps, entries, *, conversation="c", scenario="s", arm="mtp", draft=3):
    """`steps`: tokens of each event; the first is prefill's."""
    accepted = [n - 1 for n in steps[1:]]
    metrics = {
        "speculative_decoding": {
            "num_accepted_draft_tokens": sum(accepted),
            "per_step_accepted": accepted,
            "per_step_drafted": [draft] * len(accepted),
        }
    }
    return RequestRecord(
        key=RequestKey(
            request_id=f"{scenario}{arm}{conversation}",
            scenario=scenario,
            turn=0,
            arm=arm,
            conversation_id=conversation,
            load="closed-1",
            repeat=0,
            scheduled_at_s=0.0,
        ),
        sent_at_s=0.0,
        closed_at_s=9.0,
        event_at_s=[0.1 * i for i in range(len(steps))],
        event_tokens=list(steps),
        event_kind=["answer"] * len(steps),
        event_text=["x" * n for n in steps],
        completion_tokens=sum(steps),
        evidence={"logprobs": entries, "metrics": metrics},
    )


def test_entropy_and_surprisal_of_a_token():
    found = uncertainty(entry(0.5, 0.25, 0.25))
    assert found.entropy == pytest.approx(1.5 * math.log(2))
    assert found.surprisal == pytest.approx(math.log(2))
    assert found.unlisted == pytest.approx(0)
    found = uncertainty(entry(0.5, 0.25))  # the rest is one more alternative
    assert found.entropy == pytest.approx(1.5 * math.log(2))
    assert found.unlisted == pytest.approx(0.25)
    found = uncertainty(entry(0.5, 0.1))  # no unlisted one is likelier than 0.1: at least four
    assert found.entropy == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(10))
    assert uncertainty({"logprob": 0.0, "top_logprobs": []}) is None


def test_which_tokens_a_draft_reached():
    entries = [entry(0.9, 0.1), *[entry(0.8, 0.2)] * 3, entry(0.5, 0.5), *[entry(0.7, 0.3)] * 4]
    found, num_reached = drafted_tokens.token_facts(record([1, 3, 1, 4], entries), MTP)
    assert num_reached == 7
    # 2 accepted + a rejection; a rejection; 3 accepted and a bonus token that no draft reached
    assert [t.accepted for t in found] == [True, True, False, False, True, True, True]
    assert found[3].entropy == pytest.approx(math.log(2))


def test_a_plain_arm_lends_its_alternatives():
    silent = [{"token": "x", "logprob": 0.0, "top_logprobs": []}] * 4
    plain = record([1, 1, 1, 1], [entry(0.6, 0.4)] * 4, arm="plain")
    assert "no alternatives" in drafted_tokens.token_facts(record([1, 1, 1, 1], silent), MTP)
    found, num_reached = drafted_tokens.token_facts(record([1, 1, 1, 1], silent), MTP, plain)
    assert [t.accepted for t in found] == [False] * 3
    assert num_reached == 3


def made(scenario, uncertain_share, seed):
    """Answers in which a certain token is accepted 9 of 10 times, an uncertain one 2 of 10."""
    rng = random.Random(seed)
    records = []
    for number in range(14):
        steps, entries = [1], [entry(0.99, 0.01)]
        for _ in range(60):
            n = 1
            while True:
                uncertain = rng.random() < uncertain_share
                entries.append(entry(0.4, 0.35, 0.25) if uncertain else entry(0.97, 0.02, 0.01))
                if n > 3 or rng.random() >= (0.2 if uncertain else 0.9):
                    break
                n += 1
            steps.append(n)
        records.append(record(steps, entries, conversation=f"c{number}", scenario=scenario))
    return records


def test_a_known_truth_comes_back():
    found = why.find_why(FACTS, made("code", 0.1, 1) + made("chat", 0.6, 2))
    code, chat = found.scenarios
    assert code.within.high < 0
    assert chat.within.high < 0
    assert code.entropy_of_accepted.point < code.entropy_of_rejected.point
    (gap,) = found.gaps
    assert (gap.higher, gap.lower) == ("code", "chat")
    assert gap.gap.low > 0.2
    assert gap.explained.low > 0.2  # entropy alone decides here
    assert gap.share == pytest.approx(1, abs=0.15)


def test_entropy_that_decides_nothing_explains_nothing():
    mixed = made("code", 0.3, 3)
    other = [
        msgspec.structs.replace(r, key=msgspec.structs.replace(r.key, scenario="chat"))
        for r in made("code", 0.3, 4)
    ]
    (gap,) = why.find_why(FACTS, mixed + other).gaps
    assert not gap.is_established
    assert gap.share is None
    assert gap.explained.low <= 0 <= gap.explained.high or abs(gap.explained.point) < 0.05


def test_a_silent_server_is_named():
    found = why.find_why(FACTS, [record([1, 2, 2], [])])
    assert found.scenarios == ()
    assert "no logprobs came" in found.silent["s x mtp"]


def test_logprobs_of_a_stream_are_kept_without_their_bytes():
    decoder = TokenStream()
    raw = {
        "token": "a",
        "logprob": -0.1,
        "bytes": [97],
        "top_logprobs": [
            {"token": "a", "logprob": -0.1, "bytes": [97]},
            {"token": "b", "logprob": -3.0},
        ],
    }
    chunk = {"choices": [{"delta": {"content": "a"}, "logprobs": {"content": [raw]}}]}
    decoder.feed(b"data: " + msgspec.json.encode(chunk) + b"\n\ndata: [DONE]\n\n", 1.0)
    (kept,) = decoder.fields()["evidence"]["logprobs"]
    assert kept["token"] == "a"
    assert [o["token"] for o in kept["top_logprobs"]] == ["a", "b"]
    assert "bytes" not in kept
    assert "bytes" not in kept["top_logprobs"][0]
