"""Cards through the real `pynvml` over a stand-in for the driver's library."""

import json
import sys
from pathlib import Path

import nvml_library
import pynvml
import pytest

from sakiyomi.environment import read_environment, read_gpu
from sakiyomi.models import bandwidth
from sakiyomi.models.devices import find_device, find_reported

STAND_IN = str(Path(__file__).with_name("stand_in"))
GIB = 1 << 30


def card(name, number, **more):
    return {"name": name, "uuid": f"GPU-{number}1de65a2-ae67", "total": 96 * GIB, **more}


PRO = card(
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
    1,
    used=80 * GIB,
    clock1=2310,
    clock2=13365,
    max_clock2=14001,
    bus_bits=512,
    power_mw=412_500,
)
SMALL = card(
    "NVIDIA GeForce RTX 3090", 2, used=GIB, clock1=210, clock2=405, max_clock2=9751, bus_bits=384
)
SLICE = {
    "name": "NVIDIA A100-SXM4-80GB MIG 1g.10gb",
    "uuid": "MIG-5a",
    "total": 10 * GIB,
    "used": 0,
}
SPLIT = card(
    "NVIDIA A100-SXM4-80GB", 3, used=0, max_clock2=1593, bus_bits=5120, power_mw=0, slices=[SLICE]
)


@pytest.fixture
def driver(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    yield nvml_library.install
    nvml_library.remove()


def test_a_card_tells_its_name_bandwidth_clocks_and_power(driver):
    library = driver([PRO])
    device = find_device("auto")
    assert device.name == PRO["name"]
    assert device.nominal_bytes_per_s == 512 / 8 * 14001e6 * 2  # 1,792 GB/s
    assert device.measured_bytes_per_s == 1495e9  # of its kind, by the table
    gpu = read_gpu()
    assert (gpu.name, gpu.driver, gpu.memory_bytes) == (PRO["name"], "590.48.01", 96 * GIB)
    assert (gpu.clock_mhz, gpu.memory_clock_mhz, gpu.power_w) == (2310, 13365, 412.5)
    assert read_environment().device == PRO["name"]
    assert library.num_open == 0


@pytest.mark.parametrize(
    ("visible", "first", "busiest"),
    [
        (None, "3090", "PRO 6000"),  # `auto` is CUDA's first card, the run's is the one that works
        ("0", "3090", "3090"),
        ("1,0", "PRO 6000", "PRO 6000"),
        ("GPU-11de", "PRO 6000", "PRO 6000"),  # the start of a UUID is enough for CUDA
        ("0,7,1", "3090", "3090"),  # CUDA stops at the first name that is none
        ("", None, None),
        ("-1", None, None),
        ("GPU-9", None, None),
    ],
)
def test_cards_are_those_that_cuda_would_use(driver, monkeypatch, visible, first, busiest):
    driver([SMALL, PRO])
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    device, gpu = find_device("auto"), read_gpu()
    if first is None:
        assert gpu is None
        assert "NVIDIA" not in device.name
        return
    assert first in device.name
    assert busiest in gpu.name
    assert ("cards here" in device.note) == (visible in (None, "1,0"))


@pytest.mark.parametrize("visible", [None, "MIG-5a"])
def test_a_slice_has_not_the_bandwidth_of_its_card(driver, monkeypatch, visible):
    driver([SPLIT])
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert read_gpu().memory_bytes == 10 * GIB
        assert read_gpu().power_w is None
    device = find_device("auto")
    assert device.nominal_bytes_per_s is None
    assert device.measured_bytes_per_s is None
    assert "MIG" in device.note


def test_what_is_not_supported_is_unknown(driver):
    driver([card("NVIDIA GB10", 4)])
    gpu = read_gpu()
    assert (gpu.name, gpu.power_w, gpu.clock_mhz, gpu.memory_bytes) == ("NVIDIA GB10", *[None] * 3)
    device = find_device("auto")
    assert device.name == "NVIDIA GB10"
    assert device.nominal_bytes_per_s == 273e9  # its own bus tells nothing: the table does


def test_measuring_a_card_without_a_bus_measures_no_processor(driver, monkeypatch):
    driver([card("NVIDIA GB10", 4)])
    monkeypatch.setattr(bandwidth, "measure_gpu", lambda: (2.3e11, "streaming read"))
    assert bandwidth.measure(find_device("auto")).measured_bytes_per_s == 2.3e11


@pytest.mark.parametrize(
    "code",
    [
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_UNKNOWN,
    ],
)
def test_a_driver_that_fails_is_no_card(driver, code):
    driver([PRO], init=code)
    assert read_gpu() is None
    assert "NVIDIA" not in find_device("auto").name


def test_without_the_extra_there_is_no_card(driver, monkeypatch):
    driver([PRO])
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert read_gpu() is None
    assert read_environment().device is None


def test_a_lost_card_is_left_out(driver):
    driver([{**PRO, "lost": True}, SMALL])
    assert "3090" in find_device("auto").name
    assert "3090" in read_gpu().name
    driver([])
    assert read_gpu() is None


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("AMD EPYC", None),  # a family: a virtual machine says no more
        ("Intel(R) Xeon(R) Processor", None),
        ("AMD EPYC 7B13", None),
        (None, None),
        ("Apple M2 Max", "Apple M2 Max"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM 80GB"),
    ],
)
def test_only_a_name_with_a_model_in_it_is_a_known_device(name, found):
    device = find_reported(name)
    assert (device and device.name) == found


def test_clock_and_power_stand_at_both_ends_of_each_repeat(sakiyomi, fake_engine, home):
    url = fake_engine("--dialect", "vllm", "--step", "0.002")
    stand_in = {"PYTHONPATH": STAND_IN, "CARDS": json.dumps([SMALL, PRO])}
    done = sakiyomi(
        "run",
        "--url",
        f"plain={url}",
        "--requests",
        "2",
        "--repeats",
        "2",
        "--name",
        "gpu",
        **stand_in,
    )
    assert done.returncode == 0, done.stderr
    lines = (home / "runs" / "gpu" / "snapshots.jsonl").read_text().splitlines()
    snapshots = [json.loads(line) for line in lines]
    assert {shot["moment"] for shot in snapshots} == {"before", "after"}
    assert {(shot["clock_mhz"], shot["power_w"]) for shot in snapshots} == {(2310, 412.5)}
    explained = sakiyomi("explain", "gpu", **stand_in)
    assert PRO["name"] in done.stdout
    assert "1792 GB/s nominal" in " ".join(explained.stdout.split())
    model = "ThinkingCap-Qwen3.6-27B-NVFP4"
    text = sakiyomi("bytes", model, "--device", "auto", **stand_in).stdout
    assert "ceilings on NVIDIA GeForce RTX 3090" in text
    assert "one of 2 cards here" in text
