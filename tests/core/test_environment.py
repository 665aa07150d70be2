"""What the machine says, against what the system's own tools say; cards: test_nvml.py."""

import os
import platform
import sys
from pathlib import Path

import pytest

import sakiyomi
from sakiyomi.environment import parse_cpu_name, read_environment


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
