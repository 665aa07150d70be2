"""What a decision hands over: commands a shell takes, YAML a loader takes, rules on real names."""

import re
import shlex
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
import yaml
from decide_makers import PLAIN_RATE, arm_facts, drafted, group, make_facts, make_report, request
from hypothesis import given, settings
from hypothesis import strategies as st

from sakiyomi.alerts import acceptance_expression
from sakiyomi.decide import Known, decide
from sakiyomi.engines import ENGINES
from sakiyomi.handover import files
from sakiyomi.next_experiment import Source
from sakiyomi.path_lengths import BatchLengths
from sakiyomi.plan import ClosedLoad
from sakiyomi.yaml_text import to_yaml

ONE = (ClosedLoad(),)
ARMS = (arm_facts("plain"), arm_facts("mtp", k=2))


def command(arm, port):
    return ENGINES[arm.engine].command(arm, port)


def decided(gains, *, arms=ARMS, loads=ONE, cost=1.4):
    """A decision over scenarios; `gains[scenario]` is the speedup of the drafting arm."""
    requests = []
    for scenario, gain in gains.items():
        for load in loads:
            for index in range(12):
                common = {"scenario": scenario, "load": load.label}
                positions = ((gain * cost - 1) * 0.6, (gain * cost - 1) * 0.4)
                requests.append(request("plain", f"c{index}", 0, PLAIN_RATE, **common))
                requests.append(
                    request(
                        "mtp",
                        f"c{index}",
                        0,
                        PLAIN_RATE * gain,
                        counts=drafted(positions),
                        **common,
                    )
                )
    facts = make_facts(arms, scenarios=tuple(gains), loads=loads)
    grouped = group(requests)
    decision = decide(
        facts, make_report(facts, grouped), grouped, {}, Known(source=Source(run="r"))
    )
    return decision, facts


def test_two_arms_need_a_router_and_rules():
    decision, facts = decided({"ja_chat": 0.9, "code_agent": 1.6})
    written = files(decision, facts, command)
    assert sorted(written) == ["alerts.yaml", "launch.sh", "litellm.yaml"]
    models = yaml.safe_load(written["litellm.yaml"])["model_list"]
    assert [(m["model_name"], m["litellm_params"]["api_base"]) for m in models] == [
        ("ja_chat", "http://127.0.0.1:8000/v1"),
        ("code_agent", "http://127.0.0.1:8001/v1"),
    ]
    assert all(m["litellm_params"]["model"] == "openai/M" for m in models)


def test_the_launch_commands_are_what_a_shell_runs():
    decision, facts = decided({"ja_chat": 0.9, "code_agent": 1.6})
    lines = files(decision, facts, command)["launch.sh"].splitlines()
    commands = [shlex.split(line) for line in lines if line and not line.startswith("#")]
    arms = {arm.name: arm for arm in facts.plan.arms}
    assert commands == [command(arms["plain"], 8000), command(arms["mtp"], 8001)]


def test_one_arm_for_all_needs_no_router():
    decision, facts = decided({"ja_chat": 1.5, "code_agent": 1.6})
    assert "litellm.yaml" not in files(decision, facts, command)


def test_a_plain_choice_needs_no_alert():
    decision, facts = decided({"ja_chat": 0.8})
    assert sorted(files(decision, facts, command)) == ["launch.sh"]


def test_the_threshold_is_the_measured_break_even():
    decision, facts = decided({"code_agent": 1.6})
    (group_,) = yaml.safe_load(files(decision, facts, command)["alerts.yaml"])["groups"]
    (rule,) = group_["rules"]
    expression, threshold = rule["expr"].rsplit(" < ", 1)
    # C(2) = 1.4, so (C - 1) / k = 0.2
    assert float(threshold) == pytest.approx(0.2, abs=0.005)
    assert rule["for"] == "15m"
    assert expression.count("[5m]") == 2
    assert rule["labels"]["arm"] == "mtp"


@pytest.mark.parametrize(
    "engine", ["vllm", "dynamo", "lmdeploy", "llama.cpp", "tensorrt-llm", "sglang", "tgi"]
)
def test_rules_use_names_that_the_engine_readers_read(engine):
    expression = acceptance_expression(arm_facts("mtp", k=3, engine=engine), 3)
    names = set(re.findall(r"[a-z]+[:_][a-z_]+(?=[\[{])", expression))
    sources = ""
    for room in ("families", "vllm", "dynamo", "lmdeploy", "llamacpp", "trtllm", "sglang", "tgi"):
        module = __import__(f"sakiyomi.engines.{room}", fromlist=["x"])
        sources += Path(module.__file__).read_text(encoding="utf-8")
    assert names
    for name in names:
        # readers put names together from a prefix and an ending
        ending = re.sub(r"^(vllm|lmdeploy|llamacpp|sglang):(spec_decode_num_)?", "", name)
        assert ending.removesuffix("_sum").removesuffix("_count") in sources or name in sources, (
            name
        )


def test_engines_without_counters_have_no_rule():
    assert acceptance_expression(arm_facts("x", k=3, engine="ollama"), 3) is None


def with_arms(facts, **fields):
    """The facts of a run whose plan's arms have these values."""
    arms = tuple(msgspec.structs.replace(arm, **fields) for arm in facts.plan.arms)
    return msgspec.structs.replace(facts, plan=msgspec.structs.replace(facts.plan, arms=arms))


def test_an_attached_arm_is_named_by_its_url():
    decision, facts = decided({"ja_chat": 0.9, "code_agent": 1.6})
    facts = with_arms(facts, url="http://far:9/v1/")
    written = files(decision, facts, command)
    assert "# already served at http://far:9" in written["launch.sh"]
    models = yaml.safe_load(written["litellm.yaml"])["model_list"]
    assert [m["litellm_params"]["api_base"] for m in models] == ["http://far:9/v1"] * 2


def test_the_router_sends_the_key_and_the_body_keys_of_an_arm():
    decision, facts = decided({"ja_chat": 0.9, "code_agent": 1.6})
    facts = with_arms(facts, api_key_env="KEY", request={"num_draft_tokens": 3})
    for model in yaml.safe_load(files(decision, facts, command)["litellm.yaml"])["model_list"]:
        assert model["litellm_params"]["api_key"] == "os.environ/KEY"
        assert model["litellm_params"]["extra_body"] == {"num_draft_tokens": 3}


def test_a_quote_in_a_model_name_does_not_end_the_selector():
    expression = acceptance_expression(arm_facts("a", k=3, model='a"b\\c'), 3)
    assert expression.count(r'{model_name="a\"b\\c"}') == 2


def test_rules_that_count_the_same_servers_say_so():
    arms = (arm_facts("plain"), arm_facts("mtp", k=2), arm_facts("other", k=3))
    decision, facts = decided({"code_agent": 1.6}, arms=arms)
    assert "count together" not in files(decision, facts, command)["alerts.yaml"]
    (choice,) = decision.choices
    candidates = tuple(
        msgspec.structs.replace(c, arm="other") if c.arm == "mtp" else c for c in choice.candidates
    )
    second = msgspec.structs.replace(choice, scenario="ja_chat", arm="other", candidates=candidates)
    both = msgspec.structs.replace(decision, choices=(choice, second))
    assert "add labels that tell their servers apart" in files(both, facts, command)["alerts.yaml"]


def with_break_even(decision, rate):
    """The decision with this break-even rate of the drafting arm on every path."""

    def changed(candidate):
        if candidate.break_even_rate is None:
            return candidate
        point = msgspec.structs.replace(candidate.break_even_rate, point=rate)
        return msgspec.structs.replace(candidate, break_even_rate=point)

    choices = tuple(
        msgspec.structs.replace(c, candidates=tuple(map(changed, c.candidates)))
        for c in decision.choices
    )
    return msgspec.structs.replace(decision, choices=choices)


@pytest.mark.parametrize(
    ("rate", "words"),
    [
        (1.07, "107.0% acceptance, which no drafter exceeds"),
        (-0.05, "-5.0% acceptance, below which"),
    ],
)
def test_a_break_even_that_acceptance_cannot_cross_has_no_rule_and_says_why(rate, words):
    decision, facts = decided({"code_agent": 1.6})
    text = files(with_break_even(decision, rate), facts, command)["alerts.yaml"]
    assert yaml.safe_load(text) == {"groups": []}
    assert '# No rule for "mtp" on "code_agent": it breaks even at ' + words in text


def test_a_path_that_cannot_cross_does_not_set_the_threshold_of_another():
    decision, facts = decided({"ja_chat": 1.5, "code_agent": 1.6})
    never = with_break_even(decision, 1.2).choices[0]
    mixed = msgspec.structs.replace(decision, choices=(never, *decision.choices[1:]))
    text = files(mixed, facts, command)["alerts.yaml"]
    (rule,) = yaml.safe_load(text)["groups"][0]["rules"]
    assert float(rule["expr"].rsplit(" < ", 1)[1]) == pytest.approx(0.2, abs=0.005)
    assert rule["annotations"]["summary"].endswith(" on code_agent")
    assert 'No rule for "mtp" on "ja_chat"' in text


def test_a_name_with_braces_does_not_break_the_alerts_template():
    arms = (arm_facts("plain"), arm_facts("a{{b", k=2))
    requests = []
    for index in range(12):
        requests.append(request("plain", f"c{index}", 0, PLAIN_RATE, scenario="p{{q"))
        drafts = drafted((0.6, 0.4))
        requests.append(
            request("a{{b", f"c{index}", 0, PLAIN_RATE * 1.6, counts=drafts, scenario="p{{q")
        )
    facts = make_facts(arms, scenarios=("p{{q",), loads=ONE)
    grouped = group(requests)
    decision = decide(facts, make_report(facts, grouped), grouped, {}, Known())
    text = files(decision, facts, command)["alerts.yaml"]
    (rule,) = yaml.safe_load(text)["groups"][0]["rules"]
    brace = '{{ "{{" }}'
    assert rule["labels"]["arm"] == f"a{brace}b"
    assert rule["annotations"]["summary"] == (
        f"a{brace}b: drafts cost more than they bring on p{brace}q"
    )


def test_k_by_batch_size_is_that_of_a_path_that_the_arm_serves():
    decision, facts = decided({"ja_chat": 0.9, "code_agent": 1.6})
    tables = {"ja_chat": ((1, 2, 1), (3, 8, 0)), "code_agent": ((1, 4, 2), (5, 8, 1))}
    batches = tuple(
        BatchLengths(scenario=path, arm="mtp", ranges=ranges, stops_paying_at=None, pays_at={})
        for path, ranges in tables.items()
    )
    decision = msgspec.structs.replace(decision, batch_lengths=batches)
    text = files(decision, facts, command)["launch.sh"]
    assert text.count("num_speculative_tokens_per_batch_size") == 1
    assert "[[1,4,2],[5,8,1]]" in text
    assert "# predicted for code_agent: draft length by batch size" in text


def test_k_by_batch_size_in_vllms_own_form():
    loads = (ClosedLoad(max_concurrency=1), ClosedLoad(max_concurrency=16))
    requests = []
    for load, cost in zip(loads, (1.3, 2.9), strict=True):
        for index in range(12):
            positions, common = (0.8, 0.5), {"load": load.label, "scenario": "code_agent"}
            rate = PLAIN_RATE * 2.3 / cost
            requests.append(request("plain", f"c{index}", 0, PLAIN_RATE, **common))
            requests.append(
                request("mtp", f"c{index}", 0, rate, counts=drafted(positions), **common)
            )
    facts, grouped = make_facts(ARMS, scenarios=("code_agent",), loads=loads), group(requests)
    decision = decide(facts, make_report(facts, grouped), grouped, {})
    text = files(decision, facts, command)["launch.sh"]
    (line,) = [
        line for line in text.splitlines() if "num_speculative_tokens_per_batch_size" in line
    ]
    argv = shlex.split(line.removeprefix("# "))
    config = yaml.safe_load(argv[argv.index("--speculative-config") + 1])
    ranges = config["num_speculative_tokens_per_batch_size"]
    assert ranges == [list(row) for row in decision.batch_lengths[0].ranges]
    assert config["num_speculative_tokens"] == max(k for _, _, k in ranges)
    assert ranges[0][0] == 1
    assert all(after[0] == before[1] + 1 for before, after in pairwise(ranges))


names = st.text(alphabet="abcdefgh_", min_size=1, max_size=6).map(lambda key: "k" + key)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-99, 99), st.text(max_size=12)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3)),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.dictionaries(names, values, min_size=1, max_size=4))
def test_the_yaml_reads_back_as_it_was(value):
    assert yaml.safe_load(to_yaml(value)) == value
