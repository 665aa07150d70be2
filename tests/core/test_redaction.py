"""Secrets of a plan are known by their names, and nothing else is touched."""

from sakiyomi.plan import Arm, Plan, ScenarioRef
from sakiyomi.redaction import has_hidden, redact, redact_arm, redact_plan

ARM = Arm(
    name="a",
    engine="vllm",
    model="m",
    args=("--api-key", "sk-1", "--max-model-len", "4096"),
    command=("docker", "run", "--env", "HF_TOKEN=hf_2", "image", "{model}"),
    env={"HF_TOKEN": "hf_3", "VLLM_API_KEY": "sk-4", "CUDA_VISIBLE_DEVICES": "0"},
    request={"api_key": "sk-5", "extra": {"Authorization": "Bearer 6"}, "eos_token": "</s>"},
)


def test_secrets_of_an_arm_are_hidden_and_the_rest_stays():
    hidden = redact_arm(ARM)
    assert hidden.args == ("--api-key", "***", "--max-model-len", "4096")
    assert hidden.command == ("docker", "run", "--env", "HF_TOKEN=***", "image", "{model}")
    assert hidden.env == {"HF_TOKEN": "***", "VLLM_API_KEY": "***", "CUDA_VISIBLE_DEVICES": "0"}
    assert hidden.request == {
        "api_key": "***",
        "extra": {"Authorization": "***"},
        "eos_token": "</s>",
    }
    assert has_hidden(hidden)
    assert not has_hidden(ARM)
    assert redact_arm(hidden) == hidden


def test_a_plan_without_secrets_is_written_as_it_is():
    plan = Plan(
        name="p", arms=(Arm(name="a", url="http://h"),), scenarios=(ScenarioRef(name="ja_chat"),)
    )
    assert redact_plan(plan) == plan


def test_tokens_that_are_counts_are_no_secrets():
    argv = ("--num-speculative-tokens", "3", "--max-tokens=8", "--tokenizer", "t")
    assert tuple(redact(argv)) == argv
