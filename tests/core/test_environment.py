"""What the machine says, against what the system's own tools say; cards through a small NVML."""

import os
import platform
import sys
import types
from pathlib import Path

import pytest

import sakiyomi
from sakiyomi.environment import parse_cpu_name, read_environment, read_gpu


def test_the_environment_is_this_machine():
    found = read_environment()
    assert found.tool_version == sakiyomi.__version__
    assert found.host == platform.node()
    assert found.python == ".".join(str(part) for part in sys.version_info[:3])
    assert found.cpu
    assert found.os


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_memory_and_processors_are_the_kernels():
    found = read_environment()
    with Path("/proc/meminfo").open() as lines:
        total_kb = int(next(line for line in lines if line.startswith("MemTotal")).split()[1])
    assert found.memory_bytes == total_kb * 1024
    assert found.num_cpus == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (
            "processor\t: 0\nmodel name\t: AMD  EPYC 9654   96-Core\nmodel name\t: x\n",
            "AMD EPYC 9654 96-Core",
        ),
        ("processor\t: 0\nHardware\t: BCM2711\n", "BCM2711"),
        ("cpu model\t\t: Loongson-3A\n", "Loongson-3A"),
        ("processor\t: 0\nBogoMIPS\t: 48.00\n", None),
        ("", None),
    ],
)
def test_processors_name_themselves(text, name):
    assert parse_cpu_name(text) == name


class NvmlError(Exception):
    pass


def nvml(cards, **more):
    """A module with NVML's functions over `cards`; a missing value raises, as on real cards."""

    def value(key):
        def ask(card, *_):
            if key not in card:
                raise NvmlError(key)
            return card[key]

        return ask

    module = types.ModuleType("pynvml")
    module.NVMLError = NvmlError
    module.NVML_CLOCK_SM, module.NVML_CLOCK_MEM = 1, 2
    module.calls = []
    module.nvmlInit = lambda: module.calls.append("init")
    module.nvmlShutdown = lambda: module.calls.append("shutdown")
    module.nvmlDeviceGetCount = lambda: len(cards)
    module.nvmlDeviceGetHandleByIndex = cards.__getitem__
    module.nvmlSystemGetDriverVersion = lambda: "590.10"
    module.nvmlDeviceGetName = value("name")
    module.nvmlDeviceGetMemoryInfo = value("memory")
    module.nvmlDeviceGetPowerUsage = value("power_mw")
    module.nvmlDeviceGetClockInfo = lambda card, kind: value(f"clock{kind}")(card)
    for key, function in more.items():
        setattr(module, key, function)
    return module


def card(name, used, **more):
    return {"name": name, "memory": types.SimpleNamespace(total=96 << 30, used=used), **more}


def test_the_card_that_holds_the_model_is_read(monkeypatch):
    busy = card(b"RTX PRO 6000", 80 << 30, power_mw=412_500, clock1=2310, clock2=14001)
    module = nvml([card("idle", 1 << 20), busy])
    monkeypatch.setitem(sys.modules, "pynvml", module)
    gpu = read_gpu()
    assert (gpu.name, gpu.driver, gpu.memory_bytes) == ("RTX PRO 6000", "590.10", 96 << 30)
    assert (gpu.clock_mhz, gpu.memory_clock_mhz, gpu.power_w) == (2310, 14001, 412.5)
    assert gpu.bus_width_bits is None
    assert module.calls == ["init", "shutdown"]
    assert (read_environment().device, read_environment().driver) == ("RTX PRO 6000", "590.10")


def test_what_a_card_does_not_tell_is_unknown(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", nvml([{"name": "small"}]))
    gpu = read_gpu()
    assert gpu.name == "small"
    assert (gpu.clock_mhz, gpu.power_w, gpu.memory_bytes) == (None, None, None)


def fail(*_):
    raise NvmlError


@pytest.mark.parametrize(
    "module", [None, nvml([]), nvml([], nvmlInit=fail), nvml([], nvmlDeviceGetCount=fail)]
)
def test_no_card_is_no_failure(monkeypatch, module):
    monkeypatch.setitem(sys.modules, "pynvml", module)
    assert read_gpu() is None
    assert read_environment().device is None
