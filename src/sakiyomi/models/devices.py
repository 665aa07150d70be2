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
from sakiyomi.models.nvml import ask, is_slice, open_nvml, text, visible_cards
from sakiyomi.models.roofline import Device

VARIANTS = frozenset({"ti", "super", "max", "ultra", "pro", "q", "d", "xtx", "xt", "ada"})
"""Words that make another product of a name; a name without them does not mean those."""

NOISE = frozenset(
    {"nvidia", "amd", "intel", "geforce", "instinct", "edition", "generation", "gpu", "laptop"}
)
NVML = "NVML"
"""What the source of a GPU's bandwidth starts with."""

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


def find_reported(name: object) -> Device | None:
    """The table's device that a machine's own name means; None where it leaves the model open.

    `AMD EPYC` is a family, `Apple M2 Max` a model: only a name with a number decides.
    """
    if not re.search(r"\d", str(name or "")):
        return None
    try:
        return find_device(str(name))
    except CheckpointError:
        return None


def read_machine() -> Device:
    """The first NVIDIA GPU that CUDA would use (by NVML: bus width x memory clock), else the CPU.

    Apple's chips are in the table under the names that they give themselves.
    """
    gpu = _read_gpu()
    if gpu is not None:
        return gpu
    name = _cpu_name()
    note = "the nominal bandwidth of a CPU cannot be read from it: measure it"
    return find_reported(name) or Device(name=name, note=note)


def _read_gpu() -> Device | None:
    with open_nvml() as nvml:
        cards = visible_cards(nvml) if nvml else []
        if not cards:
            return None
        device = _describe(nvml, cards[0])
        if len(cards) == 1:
            return device
        note = f"one of {len(cards)} cards here; what they share out reads at their sum"
        return msgspec.structs.replace(device, note=f"{note}; {device.note}".rstrip("; "))


def _describe(nvml: Any, card: Any) -> Device:
    name = text(ask(nvml, "nvmlDeviceGetName", card)) or "NVIDIA GPU"
    if is_slice(nvml, card):
        note = "split by MIG: a slice has a part of the card's bandwidth; measure it there"
        return Device(name=name, note=note, source_nominal=NVML)
    bus_bits = ask(nvml, "nvmlDeviceGetMemoryBusWidth", card)
    clock_mhz = ask(nvml, "nvmlDeviceGetMaxClockInfo", card, nvml.NVML_CLOCK_MEM)
    if bus_bits and clock_mhz:
        return gpu_device(name=name, bus_bits=bus_bits, clock_mhz=clock_mhz)
    # unified memory (GB10) has no bus of its own
    alike = _alike(name) or Device(name=name, note="NVML does not tell its memory bus")
    source = f"{NVML}; {alike.source_nominal}".rstrip("; ")
    return msgspec.structs.replace(alike, name=name, source_nominal=source)


def gpu_device(*, name: str, bus_bits: int, clock_mhz: int) -> Device:
    """A GPU as it describes itself; what others measured on its kind is taken from the table."""
    nominal = bus_bits / 8 * clock_mhz * 1e6 * DOUBLE_DATA_RATE
    source = f"{NVML}: {bus_bits} bit x {clock_mhz} MHz x {DOUBLE_DATA_RATE}"
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


def _words(name: str) -> frozenset[str]:
    spaced = re.sub(r"([a-z])-([a-z])", r"\1 \2", name.lower())
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
