"""Devices: the table that ships with the package, loose names, and this machine itself."""

import csv
import importlib.resources
import platform
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from sakiyomi.errors import CheckpointError
from sakiyomi.models.roofline import Device

VARIANTS = frozenset({"ti", "super", "max", "ultra", "pro", "q", "d", "xtx", "xt", "ada"})
"""Words that make another product of a name; a name without them does not mean those."""

NOISE = frozenset(
    {"nvidia", "amd", "intel", "geforce", "instinct", "edition", "generation", "gpu", "laptop"}
)
DOUBLE_DATA_RATE = 2
"""Transfers per clock as NVML counts memory clocks (GDDR and HBM alike)."""


@cache
def known_devices() -> tuple[Device, ...]:
    """The devices of the table, in its order."""
    table = importlib.resources.files("sakiyomi") / "data" / "devices.csv"
    rows = csv.DictReader(table.read_text(encoding="utf-8").splitlines())
    return tuple(
        Device(
            name=row["device"],
            memory=row["memory"],
            nominal_bytes_per_s=_gigabytes(row["nominal_GBps"]),
            measured_bytes_per_s=_gigabytes(row["measured_GBps"]),
            measured_kind=row["measure_kind"],
            source_nominal=row["source_nominal"],
            source_measured=row["source_measured"],
            note=row["note"] or "",
        )
        for row in rows
    )


def _gigabytes(text: str) -> float | None:
    return float(text) * 1e9 if text else None


def find_device(name: str) -> Device:
    """Find a device by a loose name (`4090`, `rtx pro 6000`, `m2 max`), or `auto`: this machine.

    Several that differ in bandwidth are an error that lists them.
    """
    if name.strip().lower() == "auto":
        return read_machine()
    wanted = _words(name)
    found = [device for device in known_devices() if wanted <= _all_words(device)]
    bare = wanted - NOISE
    if not found and bare:
        found = [device for device in known_devices() if bare <= _all_words(device)]
    plain = [device for device in found if not (_words(device.name) - wanted) & VARIANTS]
    found = plain or found
    if not found:
        raise CheckpointError(f"no device goes by {name!r}", _near(wanted))
    if len({device.nominal_bytes_per_s for device in found}) > 1:
        names = ", ".join(device.name for device in found[:8])
        raise CheckpointError(f"{len(found)} devices go by {name!r}", f"name one: {names}")
    if len(found) == 1:
        return found[0]
    others = ", ".join(device.name for device in found[1:4])
    note = f"{name!r} also means {others}: the same bandwidth"
    return msgspec.structs.replace(found[0], note=f"{note}; {found[0].note}".rstrip("; "))


def read_machine() -> Device:
    """The first NVIDIA GPU by NVML (bus width x memory clock), else the CPU."""
    gpu = _read_gpu()
    if gpu is not None:
        return gpu
    name = _cpu_name()
    try:  # Apple's chips are in the table under their own names
        return find_device(name)
    except CheckpointError:
        note = "the nominal bandwidth of a CPU cannot be read from it: measure it"
        return Device(name=name, note=note)


def _read_gpu() -> Device | None:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        name = _text(pynvml.nvmlDeviceGetName(handle))
        try:
            return gpu_device(
                name=name,
                bus_bits=pynvml.nvmlDeviceGetMemoryBusWidth(handle),
                clock_mhz=pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_MEM),
            )
        except pynvml.NVMLError:  # unified memory (GB10) has no bus of its own
            return _alike(name) or Device(name=name, note="NVML does not tell its memory bus")
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def gpu_device(*, name: str, bus_bits: int, clock_mhz: int) -> Device:
    """A GPU as it describes itself; what others measured on its kind is taken from the table."""
    nominal = bus_bits / 8 * clock_mhz * 1e6 * DOUBLE_DATA_RATE
    source = f"NVML: {bus_bits} bit x {clock_mhz} MHz x {DOUBLE_DATA_RATE}"
    alike = _alike(name)
    if alike is None:
        return Device(name=name, nominal_bytes_per_s=nominal, source_nominal=source)
    return msgspec.structs.replace(
        alike, name=name, nominal_bytes_per_s=nominal, source_nominal=source
    )


def _alike(name: str) -> Device | None:
    """The table's device that shares the most words with a driver's name, all variants alike."""
    words = _words(name) - NOISE
    ranked = sorted(known_devices(), key=lambda device: -len(words & (_all_words(device) - NOISE)))
    best = ranked[0]
    own = _words(best.name) - NOISE
    same_variant = own & VARIANTS == words & VARIANTS
    models = {word for word in own & words if re.search(r"\d", word)}
    return best if models and same_variant else None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _words(text: str) -> frozenset[str]:
    spaced = re.sub(r"([a-z])-([a-z])", r"\1 \2", text.lower())
    words = re.findall(r"[a-z0-9.]+", re.sub(r"\b(sxm)\d\b", r"\1", spaced.replace("-", " ")))
    joined = re.sub(r"\b(rtx|gtx|rx)(\d)", r"\1 \2", " ".join(words))
    # "80 GB" and "80GB", "4090ti" and "4090 ti" are the same
    joined = re.sub(r"\b(\d+) gb\b", r"\1gb", joined)
    return frozenset(re.sub(r"(\d{4})(ti|super)\b", r"\1 \2", joined).split())


def _all_words(device: Device) -> frozenset[str]:
    return _words(device.name) | _words(device.memory)


def _near(wanted: frozenset[str]) -> str:
    from difflib import get_close_matches

    words = {word: device for device in known_devices() for word in _words(device.name)}
    close = [match for word in wanted for match in get_close_matches(word, words, n=3, cutoff=0.6)]
    shared = [device for device in known_devices() if wanted & (_words(device.name) - NOISE)]
    names = dict.fromkeys(device.name for device in [*shared, *(words[word] for word in close)])
    listed = ", ".join([*names][:6])
    return f"near it: {listed}" if listed else "try auto, or a name such as 'RTX 4090'"


def _cpu_name() -> str:
    system = platform.system()
    if system == "Linux":
        try:
            lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        except OSError:
            lines = []
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    if system == "Darwin":
        asked = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"],
            capture_output=True,
            text=True,
            check=False,
        )
        if asked.stdout.strip():
            return asked.stdout.strip()
    return platform.processor() or platform.machine() or "this CPU"
