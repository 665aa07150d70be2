"""Read-only facts of the machine: processor, memory, graphics card, its clocks and its power."""

import contextlib
import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

import msgspec

import sakiyomi
from sakiyomi.models.nvml import ask, open_nvml, text, visible_cards
from sakiyomi.record import Environment


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A graphics card at one instant. None: it does not tell."""

    name: str
    driver: str | None = None
    memory_bytes: int | None = None
    clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    power_w: float | None = None
    bus_width_bits: int | None = None


def read_environment() -> Environment:
    """The machine that runs this process."""
    gpu = read_gpu()
    return Environment(
        tool_version=sakiyomi.__version__,
        host=platform.node(),
        os=_os_name(),
        cpu=_cpu_name(),
        num_cpus=_num_cpus(),
        memory_bytes=_memory_bytes(),
        device=gpu.name if gpu else None,
        driver=gpu.driver if gpu else None,
        python=platform.python_version(),
    )


def read_gpu() -> Gpu | None:
    """The busiest NVIDIA card of those that CUDA would use here; None without one."""
    with open_nvml() as nvml:
        cards = visible_cards(nvml) if nvml else []
        if not cards:
            return None
        return _read_card(nvml, max(cards, key=lambda card: _busy_bytes(nvml, card)))


def _read_card(nvml: Any, card: Any) -> Gpu:
    memory = ask(nvml, "nvmlDeviceGetMemoryInfo", card)
    power_mw = ask(nvml, "nvmlDeviceGetPowerUsage", card)
    return Gpu(
        name=text(ask(nvml, "nvmlDeviceGetName", card)) or "NVIDIA",
        driver=text(ask(nvml, "nvmlSystemGetDriverVersion")),
        memory_bytes=memory.total if memory else None,
        clock_mhz=ask(nvml, "nvmlDeviceGetClockInfo", card, nvml.NVML_CLOCK_SM),
        memory_clock_mhz=ask(nvml, "nvmlDeviceGetClockInfo", card, nvml.NVML_CLOCK_MEM),
        power_w=power_mw / 1000 if power_mw is not None else None,
        bus_width_bits=ask(nvml, "nvmlDeviceGetMemoryBusWidth", card),
    )


def _busy_bytes(nvml: Any, card: Any) -> int:
    memory = ask(nvml, "nvmlDeviceGetMemoryInfo", card)
    return memory.used if memory else 0


def _os_name() -> str:
    with contextlib.suppress(OSError, KeyError):
        return f"{platform.freedesktop_os_release()['PRETTY_NAME']}, {platform.release()}"
    return platform.platform()


def _cpu_name() -> str:
    """The processor as it calls itself; ARM kernels name none, then the architecture stands."""
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        cpuinfo = ""
    return parse_cpu_name(cpuinfo) or platform.processor() or platform.machine()


def parse_cpu_name(cpuinfo: str) -> str | None:
    """The model name in the text of /proc/cpuinfo."""
    found = re.search(r"^(?:model name|Hardware|cpu model)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return re.sub(r"\s+", " ", found.group(1)).strip() if found else None


def _num_cpus() -> int | None:
    """Processors that this process may use, not those of the machine."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
