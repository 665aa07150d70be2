"""The `bytes` command: 80 columns, JSON, options."""

import json

import pytest
from model_families import FAMILIES, dense, hybrid, moe
from model_makers import write_folder

from sakiyomi.commands.bytes_report import bytes_command
from sakiyomi.errors import CheckpointError, PlanError


@pytest.fixture
def folder(tmp_path):
    def write(name, family):
        write_folder(tmp_path / name, family.config, family.spec)
        return str(tmp_path / name)

    return write


@pytest.mark.parametrize("name", FAMILIES)
def test_text_fits_80_columns(folder, name):
    text = bytes_command([folder("m", FAMILIES[name])], device="4090", context=4096)
    assert max(map(len, text.splitlines())) <= 80
    assert "a plain step reads" in text
    assert "RTX 4090" in text


def test_text_says_what_is_not_read_and_what_a_draft_costs(folder):
    text = bytes_command([folder("m", hybrid)])
    assert "vision tower" in text
    assert "not read in text decode" in text
    assert "one draft reads" in text
    assert "the target's head" in text
    rows = [line.split() for line in text.splitlines() if line.strip()[:1].isdigit()]
    assert [row[0] for row in rows[-8:]] == [str(k) for k in range(1, 9)]


def test_experts_show_both_costs(folder):
    text = bytes_command([folder("m", moe)], k=3)
    assert "2 of 8" in text
    assert "upper bound" in text
    assert "0.69" in text


def test_a_dense_model_without_a_drafter_verifies_for_nothing(folder):
    assert "C(k) = 1 at every k" in bytes_command([folder("m", dense)])


def test_json_holds_the_same_numbers(folder):
    document = json.loads(
        bytes_command([folder("m", hybrid)], device="4090", context=128, batch=2, k=3, json=True)
    )
    (model,) = document["models"]
    assert document["schema"] == "sakiyomi.bytes/1"
    assert document["device"]["name"] == "RTX 4090 24GB"
    plain, step = model["steps"]
    assert (plain["k"], step["k"]) == (0, 3)
    assert step["step_bytes"] == step["verify_bytes"] + 3 * step["draft_bytes"]
    assert step["step_cost"] == pytest.approx(step["step_bytes"] / plain["plain_bytes"])
    assert sum(step["shares"].values()) == pytest.approx(1)
    assert model["resident_bytes"] == sum(group["num_bytes"] for group in model["groups"])


def test_two_models_side_by_side(folder):
    models = [folder("first", dense), folder("second", moe)]
    text = bytes_command(models, tokens_per_s=[50.0, 120.0])
    assert "reads" in text
    assert "attainment" in text
    document = json.loads(bytes_command(models, json=True))
    (ratio,) = document["ratios"]
    plain = [model["steps"][0]["plain_bytes"] for model in document["models"]]
    assert ratio["bytes_ratio"] == pytest.approx(plain[0] / plain[1], rel=1e-12)


def test_kv_bits_change_the_cache_alone(folder):
    model = folder("m", dense)
    wide, narrow = (
        json.loads(bytes_command([model], context=1000, k=0, kv_bits=bits, json=True))
        for bits in (16, 8)
    )
    saved = wide["models"][0]["steps"][0]["plain_bytes"]
    saved -= narrow["models"][0]["steps"][0]["plain_bytes"]
    assert saved == 1000 * 2 * (2 * 2 * 64)


def test_a_separate_draft_model(folder):
    text = bytes_command([folder("m", dense)], draft=folder("d", FAMILIES["tied"]), k=2)
    assert "its own head" in text


def test_an_incomplete_model_shows_what_is_stored(tmp_path):
    write_folder(tmp_path, dense.config, dense.spec)
    (tmp_path / "config.json").unlink()
    text = bytes_command([str(tmp_path)])
    assert "cannot be told" in text
    assert "output head" in text


@pytest.mark.parametrize(
    "options",
    [
        {"batch": 0},
        {"context": -1},
        {"k": -1},
        {"kv_bits": 0.0},
        {"assume_bits": 100.0},
        {"tokens_per_s": [1.0, 2.0]},
        {"tokens_per_s": [0.0]},
    ],
)
def test_impossible_options_are_refused(folder, options):
    with pytest.raises(PlanError):
        bytes_command([folder("m", dense)], **options)


def test_a_published_model_needs_no_file():
    text = bytes_command(["ThinkingCap-Qwen3.6-27B-NVFP4"], device="rtx pro 6000", k=3)
    assert "derived from published facts" in text
    assert "20.55 GB" in text
    assert "1.643" in text


def test_measuring_stamps_no_other_device():
    with pytest.raises(PlanError, match="this machine"):
        bytes_command(["ThinkingCap-Qwen3.6-27B-NVFP4"], device="4090", measure=True)


def test_no_model_and_no_such_device(folder):
    with pytest.raises(PlanError):
        bytes_command([])
    for device in ("Voodoo 2", ""):
        with pytest.raises(CheckpointError):
            bytes_command([folder("m", dense)], device=device)


def test_a_misspelt_published_name_finds_the_right_one():
    with pytest.raises(CheckpointError) as caught:
        bytes_command(["ThinkingCap-Qwen3.6-27B"])
    assert caught.value.hint == "did you mean ThinkingCap-Qwen3.6-27B-NVFP4?"


def test_what_others_reached_is_not_called_a_measured_ceiling(folder):
    text = bytes_command([folder("m", dense)], device="4090")
    assert "768 GB/s reached: e2e decode" in text
    assert "measured" not in text
    assert "GB/s measured: " in bytes_command([folder("m", dense)], device="3090")
