import json

import pytest

from sakiyomi.errors import ScenarioError
from sakiyomi.plan import ScenarioRef
from sakiyomi.scenario import apply_ref, parse_scenario


def lines(*objects):
    return [json.dumps(one, ensure_ascii=False) for one in objects]


def test_both_forms_of_a_conversation():
    scenario = parse_scenario(
        lines(
            {"scenario": {"language": "ja", "sampling": {"temperature": 0.7, "max_tokens": 256}}},
            {"id": "a", "system": "s", "turns": ["一", "二"], "language": "ja"},
            {
                "messages": [
                    {"role": "system", "content": "be brief"},
                    {"role": "user", "content": "one"},
                    {"role": "assistant", "content": "dropped"},
                    {"role": "user", "content": "two"},
                ]
            },
        ),
        "own",
        "own.jsonl",
    )
    assert scenario.sampling.temperature == 0.7
    assert scenario.sampling.max_tokens == 256
    first, second = scenario.conversations
    assert (first.conversation_id, first.turns, first.system) == ("a", ("一", "二"), "s")
    assert (second.conversation_id, second.turns) == ("own-3", ("one", "two"))
    assert second.system == "be brief"


def test_without_sampling_temperature_is_0_and_the_cap_512():
    scenario = parse_scenario(lines({"turns": ["x"]}), "own", "f")
    assert (scenario.sampling.temperature, scenario.sampling.max_tokens) == (0.0, 512)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (["{"], "f:1: not JSON"),
        (["", '{"turns": ["a"]}', "[1]"], "f:3: list instead of an object"),
        (['{"turns": []}'], "f:1: no user text"),
        (['{"turns": ["  "]}'], "f:1: no user text"),
        (['{"turns": "a"}'], "f:1:"),
        (
            ['{"id": 1, "turns": ["a"]}', '{"id": 1, "turns": ["b"]}'],
            "f:2: id '1' was used on line 1",
        ),
        ([""], "f: no conversations"),
        (['{"turns": ["a"]}', '{"scenario": {}}'], "f:2: the scenario line must come first"),
        (['{"scenario": {"sampling": {"temperatur": 1}}}'], "f:1:"),
    ],
)
def test_a_broken_line_is_named(text, message):
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(text, "own", "f")
    assert message in caught.value.message


def test_the_plan_has_the_last_word():
    scenario = parse_scenario(lines(*({"turns": [str(i)]} for i in range(4))), "own", "f")
    ref = ScenarioRef(name="mine", num_conversations=2, max_tokens=7, enable_thinking=True)
    changed = apply_ref(scenario, ref)
    assert (changed.name, len(changed.conversations)) == ("mine", 2)
    assert (changed.sampling.max_tokens, changed.sampling.enable_thinking) == (7, True)
    with pytest.raises(ScenarioError, match="num_conversations 5 asked, it has 4"):
        apply_ref(scenario, ScenarioRef(name="mine", num_conversations=5))


def test_first_turns_come_before_second_ones():
    scenario = parse_scenario(
        lines({"turns": ["a", "b", "c"]}, {"turns": ["d"]}, {"turns": ["e", "f"]}), "own", "f"
    )
    counts = {
        n: [
            len(c.turns)
            for c in apply_ref(scenario, ScenarioRef(name="x", num_requests=n)).conversations
        ]
        for n in (1, 3, 4, 5, 99)
    }
    assert counts == {1: [1], 3: [1, 1, 1], 4: [2, 1, 1], 5: [2, 1, 2], 99: [3, 1, 2]}


def test_the_content_hash_sees_what_is_asked_and_how():
    one = parse_scenario(lines({"turns": ["a"]}), "own", "f")
    other = parse_scenario(lines({"turns": ["b"]}), "own", "f")
    warm = apply_ref(one, ScenarioRef(name="own", temperature=1.0))
    assert len({one.content_hash, other.content_hash, warm.content_hash}) == 3


@pytest.mark.parametrize(
    ("sampling", "path"),
    [
        ('{"max_tokens": 0}', "max_tokens"),
        ('{"max_tokens": "many"}', "max_tokens"),
        ('{"temperature": -1}', "temperature"),
        ('{"top_p": 2}', "top_p"),
        ('{"top_k": 2}', "top_k"),
    ],
)
def test_sampling_that_cannot_be_meant_is_refused_with_its_line(sampling, path):
    with pytest.raises(ScenarioError, match=rf"f\.jsonl:1: .*{path}"):
        parse_scenario(
            [f'{{"scenario": {{"sampling": {sampling}}}}}', '{"turns": ["a"]}'], "s", "f.jsonl"
        )
