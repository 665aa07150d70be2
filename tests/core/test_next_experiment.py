"""The advised command, read by the command line's own parser, asks what the advice says."""

import random
import shlex

import msgspec
import pytest
from decide_makers import arm_facts, group, make_facts, make_report, request, two_arms

from sakiyomi.cli import VERBS, build_parser
from sakiyomi.commands.decide_command import _source
from sakiyomi.commands.run_command import _plan
from sakiyomi.commands.run_plan import RunFlags, override, too_few
from sakiyomi.decide import Known, decide
from sakiyomi.next_experiment import Source, for_draft_length, for_gain
from sakiyomi.plan import Arm, ClosedLoad, Plan, ScenarioRef, Speculation
from sakiyomi.plan_files import read_plan, read_scenario
from sakiyomi.run_writer import RunWriter
from sakiyomi.stats import Estimate
from sakiyomi.store import open_run
from sakiyomi.tuning import tunable_arms

ARMS = '[[arms]]\nname = "plain"\nurl = "http://h:1"\n[[arms]]\nname = "fast"\nurl = "http://h:2"\n'
JA_CHAT = read_scenario(ScenarioRef(name="ja_chat"))
NUM_AVAILABLE = len(JA_CHAT.conversations)


def advised(spread, ran, plan_file, *, gain=0.1, loads=("closed-1",)):
    """The next experiment after a run of these conversations, whose turns are all asked."""
    requests = []
    for load in loads:
        found = two_arms(gain, conversations=len(ran), spread=spread, scenario="ja_chat", load=load)
        names = {f"c{index}": conversation for index, conversation in enumerate(ran)}
        for one in found:
            conversation = names[one.key.conversation_id]
            requests += [
                with_turn(one, conversation.conversation_id, turn)
                for turn in range(len(conversation.turns))
            ]
    arms = (arm_facts("plain"), arm_facts("fast"))
    kinds = tuple(ClosedLoad(max_concurrency=int(load.split("-")[1])) for load in loads)
    facts = make_facts(arms, scenarios=("ja_chat",), loads=kinds)
    source = Source(plan=str(plan_file), num_available={"ja_chat": NUM_AVAILABLE}, can_resume=False)
    grouped = group(requests)
    decision = decide(facts, make_report(facts, grouped), grouped, {}, Known(source=source))
    return decision.choices[-1].next_experiment


def with_turn(measured, conversation_id, turn):
    key = msgspec.structs.replace(measured.key, conversation_id=conversation_id, turn=turn)
    return msgspec.structs.replace(measured, key=key)


def plan_of(command):
    """The plan that `sakiyomi run ...` makes of the command."""
    words = shlex.split(command)
    assert words[:2] == ["sakiyomi", "run"]
    verb = next(verb for verb in VERBS if verb[0] == "run")
    return _plan(build_parser(verb).parse_args(words[2:]), None)


@pytest.mark.parametrize("cut", ["num_conversations = 8", "num_requests = 8"])
def test_an_advised_number_of_conversations_is_what_is_asked(tmp_path, cut):
    plan_file = tmp_path / "my plan.toml"
    plan_file.write_text(f'name = "p"\n{ARMS}[[scenarios]]\nname = "ja_chat"\n{cut}\n')
    ran = read_scenario(read_plan(plan_file).scenarios[0]).conversations
    experiment = advised(0.08, ran, plan_file)
    assert experiment.kind == "more_conversations"
    plan = plan_of(experiment.command)
    asked = read_scenario(plan.scenarios[0]).conversations
    assert len(asked) == 8 + experiment.num_more
    # the same kind of work: whole conversations stay whole, first turns go on as first turns
    assert asked[:8] == ran
    assert {len(c.turns) > 1 for c in asked} == {len(c.turns) > 1 for c in ran}
    assert plan.arms == read_plan(plan_file).arms


@pytest.mark.parametrize("gain", [0.05, 0.0])  # more than there are would settle it, or too many
def test_few_of_many_conversations_asks_those_that_are_there_first(tmp_path, gain):
    plan_file = tmp_path / "plan.toml"
    plan_file.write_text(
        f'name = "p"\n{ARMS}[[scenarios]]\nname = "ja_chat"\nnum_conversations = 4\n'
    )
    ran = read_scenario(read_plan(plan_file).scenarios[0]).conversations
    experiment = advised(0.2, ran, plan_file, gain=gain)
    assert experiment.kind == "all_conversations"
    assert experiment.num_asked == NUM_AVAILABLE
    plan = plan_of(experiment.command)
    assert len(read_scenario(plan.scenarios[0]).conversations) == NUM_AVAILABLE


def test_more_than_the_scenario_has_comes_from_own_logs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan_file = tmp_path / "plan.toml"
    scenario = '[[scenarios]]\nname = "ja_chat"\nnum_requests = 72\nmax_tokens = 24\n'
    plan_file.write_text(f'name = "p"\n{ARMS}{scenario}')
    experiment = advised(0.3, JA_CHAT.conversations, plan_file)
    assert experiment.kind == "own_conversations"
    wanted = NUM_AVAILABLE + experiment.num_more
    take, measure = experiment.command.split(" && ")
    words = shlex.split(take)
    verb = next(verb for verb in VERBS if verb[0] == "scenarios")
    arguments = build_parser(verb).parse_args(words[2:])
    assert (arguments.num_conversations, arguments.output) == (wanted, "ja_chat.jsonl")
    lines = [f'{{"id": "{i}", "turns": ["Number {i}."]}}' for i in range(wanted)]
    (tmp_path / arguments.output).write_text("\n".join(lines))
    (ref,) = plan_of(measure).scenarios
    assert (ref.name, ref.max_tokens) == ("ja_chat", 24)
    assert len(read_scenario(ref).conversations) == wanted


def test_one_load_of_several_is_run_again(tmp_path):
    plan_file = tmp_path / "plan.toml"
    loads = '[[loads]]\nmodel = "closed"\n[[loads]]\nmodel = "closed"\nmax_concurrency = 4\n'
    scenario = '[[scenarios]]\nname = "ja_chat"\nnum_conversations = 8\n'
    plan_file.write_text(f'name = "p"\n{ARMS}{loads}{scenario}')
    ran = JA_CHAT.conversations[:8]
    experiment = advised(0.08, ran, plan_file, loads=("closed-1", "closed-4"))
    plan = plan_of(experiment.command)
    assert plan.loads == (ClosedLoad(max_concurrency=4),)
    assert len(read_scenario(plan.scenarios[0]).conversations) == 8 + experiment.num_more


def test_asking_more_requests_than_there_are_is_said():
    ref = ScenarioRef(name="ja_chat", num_requests=500)
    plan = Plan(name="p", arms=(), scenarios=(ref,))
    turns = sum(len(conversation.turns) for conversation in JA_CHAT.conversations)
    (note,) = too_few(plan, {"ja_chat": read_scenario(ref)})
    assert f"500 requests asked, its {NUM_AVAILABLE} conversations have {turns}" in note
    assert not too_few(plan, {"ja_chat": with_turns(500)})


def with_turns(num_turns):
    one = msgspec.structs.replace(JA_CHAT.conversations[0], turns=("Go on.",) * num_turns)
    return msgspec.structs.replace(JA_CHAT, conversations=(one,))


@pytest.mark.parametrize(
    ("flags", "cut"),
    [({"num_requests": 5}, (5, None)), ({"num_conversations": 5}, (None, 5)), ({}, (3, 2))],
)
def test_a_flag_takes_the_place_of_both_cuts_of_the_plan(flags, cut):
    ref = ScenarioRef(name="ja_chat", num_requests=3, num_conversations=2)
    plan = Plan(name="p", arms=(Arm(name="a", url="http://h:1"),), scenarios=(ref,))
    (found,) = override(plan, RunFlags(**flags)).scenarios
    assert (found.num_requests, found.num_conversations) == cut


def test_only_a_launched_arm_is_tuned():
    spec = Speculation(method="mtp", num_speculative_tokens=3)
    far = Arm(name="far", url="http://h:1", speculation=spec)
    near = Arm(name="near", engine="vllm", model="M", speculation=spec)
    assert tunable_arms(Plan(name="p", arms=(far, near), scenarios=())) == [near]
    command = for_draft_length("my chat", Source(plan="a b.toml")).command
    assert shlex.split(command)[2:] == ["a b.toml", "--scenario", "my chat", "--tune"]


@pytest.mark.parametrize("secret", [{}, {"KEY": "***"}])
def test_a_plan_whose_secrets_were_not_kept_is_the_users_own_file(tmp_path, secret):
    facts = make_facts((arm_facts("plain"), arm_facts("fast")), scenarios=("ja_chat",))
    arms = tuple(msgspec.structs.replace(arm, env=secret) for arm in facts.plan.arms)
    plan = msgspec.structs.replace(facts.plan, arms=arms)
    writer = RunWriter.create("p", tmp_path / "run")
    writer.write_facts(msgspec.structs.replace(facts, plan=plan))
    writer.close()
    source = _source(open_run(str(tmp_path / "run")))
    assert source.num_available == {"ja_chat": NUM_AVAILABLE}
    kept = str(tmp_path / "run" / "plan.toml")
    assert source.plan == ("PLAN.toml" if secret else kept)
    rng = random.Random(1)  # noise alone: repeats average it away
    requests = [
        request(arm, f"c{index}", repeat, rate * rng.uniform(0.9, 1.1), scenario="ja_chat")
        for index in range(16)
        for repeat in range(2)
        for arm, rate in (("plain", 50.0), ("fast", 52.0))
    ]
    ratio = Estimate(point=1.03, low=0.995, high=1.065, n=16)
    place, arms = ("ja_chat", "closed-1"), ("fast", "plain")
    experiment = for_gain(place, arms, ratio, group(requests), source, 0.03)
    assert experiment.kind == "more_repeats"
    words = shlex.split(experiment.command)
    assert words[2:-2] == [*(["PLAN.toml"] if secret else []), "--resume", str(tmp_path / "run")]
    assert words[-2:] == ["--repeats", str(2 + experiment.num_more)]
