"""Devices by loose names, machines by what they say of themselves, and the read measurement."""

import mmap
import sys
from types import SimpleNamespace

import pytest

from sakiyomi.errors import CheckpointError
from sakiyomi.models.bandwidth import GPU_BUFFER_BYTES, measure, measure_cpu, measure_gpu
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


# ---- a GPU, with stand-ins for torch and cupy whose clocks are known


class Event:
    """Counts the milliseconds that work takes on the stand-in's device."""

    now_ms = 0.0

    def __init__(self, **_):
        self.at_ms = None

    def record(self):
        self.at_ms = Event.now_ms

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return end.at_ms - self.at_ms


class Buffer:
    def __init__(self, num_elements, **options):
        self.num_bytes = 4 * num_elements
        self.device = options.get("device")

    def sum(self):
        assert self.num_bytes == GPU_BUFFER_BYTES
        Event.now_ms += 2.0


def stand_in_torch(*, available=True, ones=Buffer):
    cuda = SimpleNamespace(Event=Event, synchronize=lambda: None, is_available=lambda: available)
    return SimpleNamespace(ones=ones, float32="float32", cuda=cuda)


def stand_in_cupy():
    cuda = SimpleNamespace(Event=Event, get_elapsed_time=lambda start, end: end.at_ms - start.at_ms)
    return SimpleNamespace(ones=Buffer, float32="float32", cuda=cuda)


@pytest.mark.parametrize(
    ("torch", "cupy", "kind"),
    [
        (stand_in_torch(), None, "torch"),
        (None, stand_in_cupy(), "cupy"),
        (stand_in_torch(available=False), stand_in_cupy(), "cupy"),  # a build for the processor
    ],
)
def test_a_gpus_bandwidth_is_bytes_over_the_events_time(monkeypatch, torch, cupy, kind):
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    rate, words = measure_gpu()
    assert rate == pytest.approx(GPU_BUFFER_BYTES / 0.002)
    assert kind in words


def test_a_gpu_needs_a_library_and_memory(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", stand_in_torch(available=False))
    monkeypatch.setitem(sys.modules, "cupy", None)
    gpu = gpu_device(name="H200", bus_bits=6144, clock_mhz=3201)
    with pytest.raises(CheckpointError, match="needs torch or cupy"):
        measure(gpu)

    def full(*_, **__):
        raise RuntimeError("CUDA out of memory. Tried to allocate 4.00 GiB.\nmore")

    monkeypatch.setitem(sys.modules, "torch", stand_in_torch(ones=full))
    with pytest.raises(CheckpointError, match="bandwidth failed: CUDA out of memory") as caught:
        measure(gpu)
    assert "free on the GPU" in caught.value.hint
