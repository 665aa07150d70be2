"""Steps from what events tell."""

from sakiyomi import steps
from sakiyomi.record import RequestKey, RequestRecord, SpecDecodeCounters, Step

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


def record(**fields):
    return RequestRecord(key=KEY, sent_at_s=0.0, closed_at_s=1.0, **fields)


def test_chunks_after_the_first_are_steps():
    # vLLM, live: sizes 1,1,...,4,4,4,1; F16: the first may hold several and stays prefill's.
    assert steps.from_event_tokens(record(event_tokens=[2, 1, 4, 0, 4])) == [
        Step(num_tokens=1),
        Step(num_tokens=4),
        Step(num_tokens=4),
    ]
    assert steps.from_event_tokens(record(event_tokens=[None, 3])) == [Step(num_tokens=3)]
    assert steps.from_event_tokens(record(event_tokens=[1])) == []
    assert steps.from_event_tokens(record(event_tokens=[1, None, 3])) is None
    assert steps.from_event_tokens(record()) is None


def test_events_with_one_mark_are_one_step():
    found = steps.from_step_marks(
        record(
            event_step_mark=[0.1, 5.0, 5.0, 5.0, 9.0, 12.0, 12.0],
            event_tokens=[1] * 7,
            event_num_draft_tokens=[None, 3, 3, 3, 3, 6, 6],
            event_num_accepted_tokens=[None, 2, 2, 2, 2, 3, 3],
        )
    )
    assert found == [
        Step(num_tokens=3, num_draft_tokens=3, num_accepted_tokens=2),
        Step(num_tokens=1, num_draft_tokens=0, num_accepted_tokens=0),
        Step(num_tokens=2, num_draft_tokens=3, num_accepted_tokens=1),
    ]
    counted = steps.count(found)
    assert counted == SpecDecodeCounters(
        num_drafts=2,
        num_draft_tokens=6,
        num_accepted_tokens=3,
        accepted_per_position=(2.0, 1.0),
        num_steps=3,
    )


def test_marks_must_be_complete():
    assert steps.from_step_marks(record()) is None
    assert steps.from_step_marks(record(event_step_mark=[1.0, None])) is None
    assert steps.from_step_marks(record(event_step_mark=[1.0, 2.0])) == [Step(num_tokens=1)]


def test_steps_that_do_not_tell_their_drafts():
    made = [Step(num_tokens=4), Step(num_tokens=1), Step(num_tokens=2)]
    plain = steps.count(made)
    assert (plain.num_drafts, plain.num_draft_tokens, plain.num_steps) == (None, None, 3)
    assert plain.num_accepted_tokens == 4
    assert plain.accepted_per_position == (2.0, 1.0, 1.0)
    constant = steps.count(made, num_speculative_tokens=3, every_step_drafts=True)
    assert (constant.num_drafts, constant.num_draft_tokens) == (3, 9)
    assert steps.count(made, every_step_drafts=True).num_draft_tokens is None


def test_histogram_to_positions():
    # 2 steps with none, 1 with one, 3 with two accepted.
    assert steps.reversed_cumulative((2, 1, 3)) == (4.0, 3.0)
    assert steps.reversed_cumulative((5,)) == ()
