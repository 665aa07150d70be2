"""Steps guessed from arrivals: right on clear bursts, refused on everything else."""

import random

import pytest

from sakiyomi.bursts import from_bursts
from sakiyomi.record import RequestKey, RequestRecord, Step

KEY = RequestKey(
    request_id="r",
    scenario="s",
    conversation_id="c",
    turn=0,
    arm="a",
    load="closed-1",
    repeat=0,
    scheduled_at_s=0.0,
)


def stream(sizes, *, start=0.0, step_s=0.030, inside_s=0.0003, jitter=0.2, seed=1):
    """One event a token; the tokens of a step come in a burst. The first event is prefill's."""
    rng = random.Random(seed)
    at, now = [start + 0.1], start + 0.1
    for size in sizes:
        now += step_s * rng.uniform(1 - jitter, 1 + jitter)
        at.append(now)
        for _ in range(size - 1):
            now += inside_s * rng.uniform(0.5, 1.5)
            at.append(now)
    return RequestRecord(
        key=KEY,
        sent_at_s=start,
        closed_at_s=now + 0.01,
        event_at_s=at,
        event_tokens=[None] * len(at),
    )


def sizes(seed, number=40, k=3):
    rng = random.Random(seed)
    return [rng.randint(1, k + 1) for _ in range(number)]


def test_clear_bursts_are_the_steps():
    first, second = sizes(1), sizes(2)
    one = stream(first)
    two = stream(second, start=one.closed_at_s + 1, seed=5)
    found = from_bursts([one, two], 3)
    assert not isinstance(found, str)
    assert found.steps == tuple(
        tuple(Step(num_tokens=size) for size in truth) for truth in (first, second)
    )
    assert 0.0006 < found.threshold_s < 0.024


def test_events_of_one_read_have_no_gap():
    truth = sizes(3)
    found = from_bursts([stream(truth, inside_s=0.0)], 3)
    assert [step.num_tokens for step in found.steps[0]] == truth


def test_known_token_counts_are_used():
    record = stream([2] * 40)
    counted = RequestRecord(
        key=KEY,
        sent_at_s=0.0,
        closed_at_s=record.closed_at_s,
        event_at_s=record.event_at_s,
        event_tokens=[2] * len(record.event_at_s),
    )
    found = from_bursts([counted], 3)
    assert {step.num_tokens for step in found.steps[0]} == {4}


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([stream([1] * 80)], "not of two clear kinds"),
        ([stream([4] * 5)], "too few"),
        ([stream(sizes(1)), stream(sizes(2))], "several streams"),
        ([stream(sizes(4, 80), inside_s=0.012, jitter=0.9)], "not of two clear kinds"),
        ([stream([1] * 80, jitter=0.0)], "one kind"),
        ([stream([8] * 40)], "more than k + 1 = 4"),
    ],
)
def test_is_refused_with_the_reason(records, reason):
    found = from_bursts(records, 3)
    assert isinstance(found, str)
    assert reason in found


def test_an_unknown_k_sets_no_limit():
    found = from_bursts([stream([8] * 40)])
    assert {step.num_tokens for step in found.steps[0]} == {8}
