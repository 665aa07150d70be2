import tomllib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sakiyomi.errors import PlanError
from sakiyomi.plan import Arm, ClosedLoad, OpenLoad, Plan, ScenarioRef, parse_plan

HEAD = 'name = "a"\n'
ARM = '[[arms]]\nname = "plain"\nurl = "http://h:8000"\n'
SCENARIO = '[[scenarios]]\nname = "ja_chat"\n'

CONTRACT = """
name = "dense 27B against the MoE"
repeats = 4
seed = 1

[[arms]]
name = "plain"
engine = "vllm"
model = "ThinkingCap-Qwen3.6-27B-NVFP4"
args = ["--kv-cache-dtype", "fp8"]

[[arms]]
name = "mtp-k3"
engine = "vllm"
model = "ThinkingCap-Qwen3.6-27B-NVFP4"
args = ["--kv-cache-dtype", "fp8"]
speculation = { method = "mtp", num_speculative_tokens = 3 }

[[loads]]
model = "closed"
max_concurrency = 1

[[scenarios]]
name = "ja_chat"
[[scenarios]]
name = "code_agent"
num_conversations = 8

[slo.ja_chat]
quantile = 0.9
ttft_s = 0.3
time_to_first_sentence_s = 0.8
"""


def parse(text):
    return parse_plan(tomllib.loads(text), "p.toml")


def test_the_contracts_plan():
    plan = parse(CONTRACT)
    assert [arm.name for arm in plan.arms] == ["plain", "mtp-k3"]
    assert plan.arms[1].speculation.num_speculative_tokens == 3
    assert plan.loads == (ClosedLoad(max_concurrency=1),)
    assert plan.scenarios[1].num_conversations == 8
    assert plan.slo["ja_chat"].time_to_first_sentence_s == 0.8
    assert plan.min_gain == 0.03


def test_loads_are_a_tagged_union():
    plan = parse(HEAD + ARM + SCENARIO + '[[loads]]\nmodel = "open"\nrequest_rate = 2.5\n')
    assert plan.loads == (OpenLoad(request_rate=2.5),)
    assert plan.loads[0].label == "open-2.5"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (HEAD + ARM + SCENARIO + "repeat = 3\n", "scenarios[0].repeat: unknown key"),
        ("repeat = 3\n" + HEAD + ARM + SCENARIO, "repeat: unknown key"),
        (HEAD + ARM + "kolour = 1\n" + SCENARIO, "arms[0].kolour: unknown key"),
        (
            HEAD + ARM + SCENARIO + '[[loads]]\nmodel = "closed"\nrequest_rat = 1\n',
            "loads[0].request_rat: unknown key",
        ),
        (
            HEAD + ARM + SCENARIO + '[[loads]]\nmodel = "closed"\nmax_concurrency = 0\n',
            "loads[0].max_concurrency:",
        ),
        (HEAD + ARM + SCENARIO + "max_tokens = 'many'\n", "scenarios[0].max_tokens:"),
        (
            HEAD
            + ARM
            + "speculation = { method = 'mtp', num_speculative_tokens = 0 }\n"
            + SCENARIO,
            "arms[0].speculation.num_speculative_tokens:",
        ),
        (HEAD + ARM + ARM + SCENARIO, "arms[1]: 'plain' is named twice"),
        (HEAD + ARM + SCENARIO + "[slo.chat]\nttft_s = 1\n", "slo.chat: no scenario"),
        (HEAD + ARM + SCENARIO + "[slo.ja_chat]\nttft_s = -1\n", "slo.ja_chat.ttft_s:"),
        (HEAD + "[[arms]]\nname = 'x'\nurl = '::1:8000'\n" + SCENARIO, "arms[0].url:"),
        (HEAD + "[[arms]]\nname = 'x'\n" + SCENARIO, "arms[0]: nothing to attach to"),
        (HEAD + "[[arms]]\nname = 'x'\nengine = 'vllm'\n" + SCENARIO, "arms[0].model:"),
        (HEAD + "[[arms]]\nname = 'x'\nurl = 'http://h'\ncommand = ['a']\n" + SCENARIO, "exclude"),
        (HEAD + "arms = []\n" + SCENARIO, "arms:"),
        ("repeats = 99999999999999999999\n" + HEAD + ARM + SCENARIO, "repeats:"),
        (HEAD + ARM + SCENARIO + "max_tokens = 1000000000000\n", "scenarios[0].max_tokens:"),
        (HEAD + ARM + SCENARIO + "temperature = inf\n", "scenarios[0].temperature:"),
        (
            HEAD + ARM + SCENARIO + '[[loads]]\nmodel = "open"\nrequest_rate = inf\n',
            "loads[0].request_rate:",
        ),
        (
            HEAD + ARM + SCENARIO + "[slo.ja_chat]\nspeech_margin_s = nan\n",
            "slo.ja_chat.speech_margin_s:",
        ),
        (HEAD + SCENARIO, "arms"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_path(text, path):
    with pytest.raises(PlanError) as caught:
        parse(text)
    assert path in caught.value.message
    assert caught.value.message.startswith("p.toml")
    assert caught.value.hint


names = st.text(st.characters(categories=("L", "N")), min_size=1, max_size=8)


@given(
    st.builds(
        Plan,
        name=names,
        arms=st.lists(
            st.builds(Arm, name=names, url=st.just("http://h"), args=st.tuples(names)),
            min_size=1,
            max_size=3,
            unique_by=lambda arm: arm.name,
        ).map(tuple),
        scenarios=st.lists(
            st.builds(ScenarioRef, name=names, max_tokens=st.integers(1, 9)),
            min_size=1,
            max_size=3,
            unique_by=lambda ref: ref.name,
        ).map(tuple),
        loads=st.sampled_from([(ClosedLoad(),), (OpenLoad(request_rate=1.0), ClosedLoad())]),
        repeats=st.integers(1, 9),
    )
)
def test_a_plan_survives_a_round_trip(plan):
    assert parse_plan(msgspec.to_builtins(plan)) == plan
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Plan) == plan
