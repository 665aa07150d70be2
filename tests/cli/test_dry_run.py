"""`sakiyomi run PLAN --dry-run`: the plan of the contract, and the exact command lines."""

import shlex

import pytest

PLAN = """
name = "dense 27B against the MoE"
repeats = 4
seed = 1

[[arms]]                       # the first is the baseline
name = "plain"
engine = "vllm"                # vllm | llama.cpp | sglang | tensorrt-llm | ... ; "openai" = any
model = "ThinkingCap-Qwen3.6-27B-NVFP4"
args = ["--kv-cache-dtype", "fp8"]      # launch it; or url = "http://..." to attach to it

[[arms]]
name = "mtp-k3"
engine = "vllm"
model = "ThinkingCap-Qwen3.6-27B-NVFP4"
args = ["--kv-cache-dtype", "fp8"]
speculation = { method = "mtp", num_speculative_tokens = 3 }

[[loads]]
model = "closed"               # closed: max_concurrency; open: request_rate
max_concurrency = 1

[[scenarios]]
name = "ja_chat"               # built in; with file = "path.jsonl" an own one under this name
[[scenarios]]
name = "code_agent"
num_conversations = 8          # optional, as are max_tokens, temperature, top_p, enable_thinking

[slo.ja_chat]                  # per path
quantile = 0.9                 # the share of requests that must hold each limit
ttft_s = 0.3
time_to_first_sentence_s = 0.8
"""


@pytest.fixture
def dry_run(sakiyomi, tmp_path):
    def run(text):
        path = tmp_path / "plan.toml"
        path.write_text(text)
        return sakiyomi("run", str(path), "--dry-run")

    return run


def test_the_plan_of_the_contract(dry_run, home):
    done = dry_run(PLAN)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == (
        "plan dense 27B against the MoE: 2 scenarios x 2 arms x 4 repeats; one arm is up at a time "
        "(A, B, B, A), restarts are part of the repeats"
    )
    plain, mtp = (
        shlex.split(lines[lines.index(line) + 1])
        for line in lines
        if line.startswith("arm ") and "launch vLLM" in line
    )
    served = ["vllm", "serve", "ThinkingCap-Qwen3.6-27B-NVFP4", "--host", "127.0.0.1"]
    assert plain == [*served, "--port", "8000", "--kv-cache-dtype", "fp8"]
    config = '{"method":"mtp","num_speculative_tokens":3}'
    assert mtp == [
        *served,
        "--port",
        "8000",
        "--speculative-config",
        config,
        "--kv-cache-dtype",
        "fp8",
    ]
    assert "scenario code_agent: 8 conversations" in done.stdout
    order = [word.split("/")[0] for word in lines[-1].split(": ")[1].split()]
    assert order == ["plain"] * 2 + ["mtp-k3"] * 4 + ["plain"] * 2
    assert not (home / "runs").exists()


def test_environment_config_file_and_own_command(dry_run):
    done = dry_run(
        """
        name = "others"
        [[arms]]
        name = "trt"
        engine = "tensorrt-llm"
        model = "m"
        env = { HF_TOKEN = "hf_secret", CUDA_VISIBLE_DEVICES = "1" }
        speculation = { method = "mtp", num_speculative_tokens = 2 }
        [[arms]]
        name = "ollama"
        engine = "ollama"
        model = "qwen3:8b"
        [[arms]]
        name = "docker"
        engine = "vllm"
        model = "m"
        command = ["docker", "run", "-p", "{port}:8000", "vllm/vllm-openai", "--model", "{model}"]
        [[scenarios]]
        name = "en_chat"
        """
    )
    assert done.returncode == 0, done.stderr
    assert "hf_secret" not in done.stdout
    trt = next(line for line in done.stdout.splitlines() if "trtllm-serve" in line)
    assert shlex.split(trt)[:3] == ["HF_TOKEN=***", "CUDA_VISIBLE_DEVICES=1", "trtllm-serve"]
    assert "--config" in shlex.split(trt)
    assert "{config} is a file in the run folder:" in done.stdout
    assert '"max_draft_len":2' in done.stdout.replace(" ", "")
    assert "OLLAMA_HOST=127.0.0.1:8000 ollama serve" in done.stdout
    docker = next(line for line in done.stdout.splitlines() if "docker run" in line)
    assert shlex.split(docker) == [
        *("docker", "run", "-p", "8000:8000", "vllm/vllm-openai", "--model", "m")
    ]


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (("num_speculative_tokens = 3", "num_speculative_tokens = 0"), "arms[1].speculation"),
        (("max_concurrency = 1", "max_concurency = 1"), "loads[0].max_concurency"),
        (('engine = "vllm"                #', 'engine = "vlm"  #'), "vllm"),
        (("quantile = 0.9 ", "quantile = 9 "), "slo"),
    ],
)
def test_what_cannot_be_meant_is_refused(dry_run, change, where):
    done = dry_run(PLAN.replace(*change))
    assert done.returncode == 2
    assert done.stdout == ""
    assert where in done.stderr
