"""Devices by loose names, machines by what they say of themselves, and the read measurement."""

import mmap

import pytest

from sakiyomi.errors import CheckpointError
from sakiyomi.models.bandwidth import measure, measure_cpu
from sakiyomi.models.devices import find_device, gpu_device, known_devices, read_machine
from sakiyomi.models.roofline import Device


def test_the_table_is_whole():
    devices = known_devices()
    assert len(devices) == 68
    for device in devices:
        assert device.nominal_bytes_per_s > 0
        assert device.source_nominal
        if device.measured_bytes_per_s:
            assert device.measured_kind
            assert device.measured_bytes_per_s < device.nominal_bytes_per_s


@pytest.mark.parametrize(
    ("name", "found", "nominal"),
    [
        ("4090", "RTX 4090 24GB", 1008),
        ("rtx4090", "RTX 4090 24GB", 1008),
        ("RTX 3090", "RTX 3090 24GB", 936),
        ("3090ti", "RTX 3090 Ti 24GB", 1008),
        ("rtx pro 6000", "RTX PRO 6000 Blackwell Workstation 96GB", 1792),
        ("RTX PRO 6000 Max-Q", "RTX PRO 6000 Blackwell Max-Q 96GB", 1792),
        ("A100 80GB SXM", "A100 SXM 80GB", 2039),
        ("a100-40gb", "A100 40GB", 1555),
        ("H200", "H200 SXM 141GB", 4800),
        ("M2", "Apple M2 (10 GPU cores)", 100),
        ("m3 max", "Apple M3 Max (40 cores)", 400),
        ("Apple M2 Ultra", "Apple M2 Ultra", 800),
        ("strix halo", "Strix Halo (Ryzen AI Max+ 395) 128GB", 256),
        ("gb10", "DGX Spark / GB10 128GB", 273),
        ("MI300X", "MI300X 192GB", 5300),
    ],
)
def test_loose_names(name, found, nominal):
    device = find_device(name)
    assert device.name == found
    assert device.nominal_bytes_per_s == nominal * 1e9


@pytest.mark.parametrize(
    ("name", "near"), [("A100", "A100 40GB"), ("h100", "H100 PCIe"), ("RTX 409", "RTX 4090")]
)
def test_names_that_do_not_decide_list_those_near(name, near):
    with pytest.raises(CheckpointError) as caught:
        find_device(name)
    assert near in caught.value.hint


@pytest.mark.parametrize(
    ("name", "bus_bits", "clock_mhz", "nominal", "measured"),
    [
        ("NVIDIA GeForce RTX 3090", 384, 9751, 936, 854),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 512, 14001, 1792, 1495),
        ("NVIDIA H100 80GB HBM3", 5120, 2619, 3352, 2966),
        ("NVIDIA A100-SXM4-80GB", 5120, 1593, 2039, 1631),
        ("NVIDIA GeForce RTX 4080 SUPER", 256, 11501, 736, None),
    ],
)
def test_bus_width_times_clock(name, bus_bits, clock_mhz, nominal, measured):
    device = gpu_device(name=name, bus_bits=bus_bits, clock_mhz=clock_mhz)
    assert device.name == name
    assert device.nominal_bytes_per_s / 1e9 == pytest.approx(nominal, rel=0.001)
    assert device.measured_bytes_per_s == (measured and measured * 1e9)
    assert device.source_nominal.startswith("NVML")


def test_this_machine_has_a_name():
    assert read_machine().name
    assert find_device("auto") == read_machine()


def test_reading_memory_takes_time_and_gives_a_rate():
    rate = measure_cpu(num_threads=2, buffer_bytes=1 << 26)
    assert 1e8 < rate < 1e13
    small = measure_cpu(num_threads=1, buffer_bytes=mmap.PAGESIZE)
    assert small > 0


def test_a_measured_device_says_how(monkeypatch):
    monkeypatch.setattr("sakiyomi.models.bandwidth.SMALLEST_BUFFER_BYTES", 1 << 24)
    monkeypatch.setattr("sakiyomi.models.bandwidth._cache_bytes", lambda: 0)
    device = measure(Device(name="this CPU"))
    assert device.measured_bytes_per_s > 0
    assert "read" in device.measured_kind
    assert device.nominal_bytes_per_s is None
