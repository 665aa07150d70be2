from itertools import pairwise
from statistics import mean

from hypothesis import given
from hypothesis import strategies as st

from sakiyomi.plan import Arm, ClosedLoad, OpenLoad, Plan, ScenarioRef
from sakiyomi.scenario import Conversation, Sampling
from sakiyomi.workload import (
    arrivals,
    choose_schedule,
    make_nonce,
    opening,
    passes,
    request_body,
)


def plan(num_arms=2, repeats=4, launched=False):
    where = {"command": ("x",)} if launched else {"url": "http://h"}
    return Plan(
        name="p",
        arms=tuple(Arm(name="ABC"[i], **where) for i in range(num_arms)),
        scenarios=(ScenarioRef(name="s"), ScenarioRef(name="t")),
        repeats=repeats,
    )


def test_arms_alternate_so_that_drift_cancels():
    order = [(p.repeat, p.scenario, p.arm) for p in passes(plan(repeats=2), "alternate")]
    assert order == [
        (0, "s", "A"),
        (0, "s", "B"),
        (0, "t", "A"),
        (0, "t", "B"),
        (1, "s", "B"),
        (1, "s", "A"),
        (1, "t", "B"),
        (1, "t", "A"),
    ]


def test_blocks_go_a_b_b_a_with_the_fewest_starts():
    order = [p.arm for p in passes(plan(), "blocks")]
    runs = [arm for arm, before in zip(order, [None, *order], strict=False) if arm != before]
    assert runs == ["A", "B", "A", "B", "A"]


@given(st.integers(2, 3), st.integers(1, 6), st.sampled_from(["alternate", "blocks"]))
def test_every_pass_comes_once(num_arms, repeats, schedule):
    order = list(passes(plan(num_arms, repeats), schedule))
    assert len(set(order)) == len(order) == num_arms * repeats * 2
    assert [p.repeat for p in order] == sorted(p.repeat for p in order)


def test_the_schedule_is_chosen_from_the_arms():
    assert choose_schedule(plan(), fits_together=False) == "alternate"
    assert choose_schedule(plan(launched=True), fits_together=False) == "blocks"
    assert choose_schedule(plan(launched=True), fits_together=True) == "alternate"


def test_an_open_loop_arrives_at_its_rate():
    times = arrivals(OpenLoad(request_rate=5.0), 4000, seed=3)
    gaps = [b - a for a, b in pairwise(times)]
    assert abs(mean(gaps) - 0.2) < 0.01
    assert times == sorted(times)
    assert times == arrivals(OpenLoad(request_rate=5.0), 4000, seed=3)
    assert arrivals(ClosedLoad(), 3, seed=1) == [0.0, 0.0, 0.0]


def test_a_prompt_is_unique_and_its_content_left_alone():
    talk = Conversation(conversation_id="c", turns=("hello",), system="be kind")
    nonces = {make_nonce(run, "c", repeat) for run in ("r", "q") for repeat in range(3)}
    assert len(nonces) == 6
    messages = opening(talk, "abc")
    assert messages[0]["content"].startswith("[abc]\n")
    assert messages[0]["content"].endswith("be kind")
    assert messages[1]["content"] == "hello"
    bare = opening(Conversation(conversation_id="c", turns=("hello",)), "abc")
    assert bare == [{"role": "user", "content": "[abc]\nhello"}]


def test_optional_fields_are_merged_key_by_key():
    body = request_body(
        [],
        Sampling(max_tokens=5),
        model="m",
        fields=[
            {"stream_options": {"include_usage": True}},
            {"stream_options": {"continuous_usage_stats": True}},
            {"x": 1},
        ],
    )
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert (body["max_tokens"], body["stream"], body["x"]) == (5, True, 1)
    assert "top_p" not in body
