"""Decisions on the embedded engine: the predicted draft length is the fastest; runs end themselves.

Acceptance is forced, so that only times are left to chance: a first draft that is nearly always
taken and later ones that hardly ever are make k = 1 the best draft length by a wide margin (on two
busy cores x1.15 against x0.65 at k = 2 and x0.47 at k = 4). Whether to draft at all is closer.
"""

import json

import msgspec
import pytest
import tomli_w

from sakiyomi.best_k import find_best_k, lengths_from_requests
from sakiyomi.calibration import cost_model
from sakiyomi.commands.decide_command import read_calibration, read_requests
from sakiyomi.commands.report_command import read_report
from sakiyomi.embedded import embedded_arms
from sakiyomi.engines import llamacpp
from sakiyomi.plan import Speculation
from sakiyomi.store import open_run

pytestmark = pytest.mark.live
pytest.importorskip("xllamacpp", reason="the extra `local`")
prune_gguf = pytest.importorskip("prune_gguf", reason="gguf and numpy")

RATES = (0.98, 0.05, 0.02, 0.01)


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """The embedded engine's model, and a draft of one of its layers."""
    plain, _ = embedded_arms(None, say=print)
    draft = tmp_path_factory.mktemp("draft") / "one-layer.gguf"
    prune_gguf.prune(plain.model, str(draft))
    return plain, str(draft)


def drafting(plain, draft, k, rates=None):
    """An arm with drafts of k tokens; forced acceptance where rates are given."""
    arm = msgspec.structs.replace(
        plain,
        name=f"draft-k{k}",
        speculation=Speculation(method="draft-simple", num_speculative_tokens=k, draft_model=draft),
    )
    return llamacpp.force_acceptance(arm, rates) if rates else arm


def write_plan(path, arms, num_requests, max_tokens, **plan):
    """A plan file of these arms on English chat, greedy, all arms up at once."""
    told = {
        "name": path.stem,
        "schedule": "alternate",
        "arms": [_without_none(msgspec.to_builtins(arm)) for arm in arms],
        "scenarios": [
            {
                "name": "en_chat",
                "num_requests": num_requests,
                "max_tokens": max_tokens,
                "temperature": 0.0,
            }
        ],
        **plan,
    }
    path.write_text(tomli_w.dumps(told))
    return str(path)


def _without_none(value):
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_none(item) for item in value]
    return value


def test_the_predicted_best_draft_length_is_the_fastest(models, sakiyomi, home, tmp_path):
    plain, draft = models
    costs = write_plan(
        tmp_path / "costs.toml",
        [plain, drafting(plain, draft, 4)],
        3,
        24,
        repeats=2,
        calibrate={"num_speculative_tokens": [1, 4], "num_conversations": 3, "max_tokens": 24},
    )
    done = sakiyomi("run", costs)
    assert done.returncode == 0, done.stderr
    arms = [plain, *(drafting(plain, draft, k, RATES[:k]) for k in (1, 2, 4))]
    work = write_plan(tmp_path / "work.toml", arms, 4, 32, repeats=2)
    done = sakiyomi("run", work)
    assert done.returncode == 0, done.stderr

    (fit,) = read_calibration("costs-calibration")
    assert fit.per_draft.point > 0.1  # a head and a layer of thirty, and a row to verify
    reader = open_run("work")
    lengths = lengths_from_requests(
        read_requests(reader)["en_chat", "draft-k4", "closed-1"], 4, seed=1
    )
    predicted = find_best_k(
        lengths,
        [cost_model(fit)],
        arm="draft-k4",
        method="draft-simple",
        source="calibration",
        measured=frozenset({1, 2, 4}),
    )
    measured = {
        int(comparison.arm[-1]): comparison.ratio.point
        for comparison in read_report(reader).comparisons
    }
    best = max(predicted.rows, key=lambda row: row.speedup.point)
    assert best.num_speculative_tokens == max(measured, key=measured.get) == 1, (best, measured)

    # Fiction is never recommended: every drafting arm is out.
    done = sakiyomi("decide", "work", "--calibration", "costs-calibration")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("en_chat: use plain")
    assert done.stdout.count("its acceptance is forced") == 3


def test_a_run_until_established_ends_by_itself(models, sakiyomi, home, tmp_path):
    plain, draft = models
    arms = [plain, drafting(plain, draft, 4, (0.0,) * 4)]  # nothing accepted: slow for certain
    plan = write_plan(tmp_path / "until.toml", arms, 8, 12)
    done = sakiyomi("run", plan, "--until-established", "--budget", "20m", "--repeats", "6")
    assert done.returncode == 0, done.stderr
    assert "every verdict is established" in done.stderr
    facts = json.loads((home / "runs" / "until" / "run.json").read_text())
    assert facts["looks"]["look"] < 5
    (comparison,) = read_report(open_run("until")).comparisons
    assert comparison.verdict == "slower"
