"""`sakiyomi explain RUN --calibration RUN` over real sockets: forced acceptance, a fit, the check."""

import json
from pathlib import Path

import pytest
from fake_llama import FIXED, PER_DRAFT
from test_decide_command import CALIBRATE, plan_file

MODEL = str(Path(__file__).parents[1] / "live" / "models" / "tiny-qwen3.5-mtp")


def test_the_measured_step_stands_beside_the_calibrated_and_the_predicted_one(
    sakiyomi, home, tmp_path
):
    assert sakiyomi("run", plan_file(tmp_path, "costs", extra=CALIBRATE)).returncode == 0
    assert sakiyomi("run", plan_file(tmp_path), "--name", "work").returncode == 0
    flags = ("--model-dir", MODEL, "--calibration", "costs-calibration")
    done = sakiyomi("explain", "work", *flags, "--json")
    assert done.returncode == 0, done.stderr
    explanation = json.loads(done.stdout)["explanation"]
    (fit,) = explanation["calibrations"]
    assert fit["per_draft"]["point"] == pytest.approx(PER_DRAFT, abs=0.08)
    assert fit["fixed"]["point"] == pytest.approx(FIXED, abs=0.15)
    # tiny-qwen3.5-mtp: C(3) by bytes is 2.275 without context, 2.393 with 1,024 tokens of it
    assert 0.425 < fit["predicted_per_draft"] < 0.464
    (one,) = explanation["speculation"]
    expected = 1 + FIXED + 4 * PER_DRAFT
    assert one["calibrated_step_cost"]["point"] == pytest.approx(expected, rel=0.15)
    assert one["calibration"] == fit["run"]
    text = sakiyomi("explain", "work", *flags).stdout
    assert "Calibration costs-calibration" in " ".join(text.split())
    assert "Without text such a step costs" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80

    own = sakiyomi("explain", "costs-calibration", "--model-dir", MODEL)
    assert "By bytes it is" in " ".join(own.stdout.split())
    page = tmp_path / "costs.md"
    done = sakiyomi("report", "costs-calibration", "-o", str(page))
    assert done.returncode == 0, done.stderr
    assert "Calibration costs-calibration" in page.read_text()
    refused = sakiyomi("explain", "work", "--calibration", "work")
    assert refused.returncode == 2
    assert "kind is workload" in refused.stderr
