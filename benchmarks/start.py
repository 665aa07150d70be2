"""Start and weight: `sakiyomi --help` against a bare Python, and what a base install brings.

    python benchmarks/start.py [--install]

The ratio is of medians over alternating runs. `--install` makes a fresh environment of the base
package (no extras) and prints its packages and size without pip.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

NUM_RUNS = 25
BARE = [sys.executable, "-c", "import argparse, json"]
HELP = [str(Path(sys.executable).with_name("sakiyomi")), "--help"]
GOAL_RATIO, GOAL_MB, GOAL_PACKAGES = 1.5, 60, 25


def seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


def start() -> None:
    times: dict[str, list[float]] = {"bare": [], "help": []}
    for _ in range(NUM_RUNS):
        times["bare"].append(seconds(BARE))
        times["help"].append(seconds(HELP))
    bare, shown = (statistics.median(times[name]) for name in ("bare", "help"))
    print(f"python -c 'import argparse, json'  {bare * 1000:.0f} ms")
    print(f"sakiyomi --help                    {shown * 1000:.0f} ms")
    print(f"ratio                              {shown / bare:.2f} (goal {GOAL_RATIO})")


def install() -> None:
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin" / "python"
        root = Path(__file__).parents[1]
        subprocess.run([python, "-m", "pip", "-q", "install", str(root)], check=True)
        listed = subprocess.run(
            [python, "-m", "pip", "list", "--format=freeze"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        packages = [name for name in listed if not name.startswith(("pip=", "setuptools="))]
        site = next((Path(folder) / "lib").glob("python*/site-packages"))
        size = sum(
            path.stat().st_size
            for path in site.rglob("*")
            if path.is_file() and path.relative_to(site).parts[0] not in OTHERS
        )
    print(f"packages                           {len(packages)} (goal under {GOAL_PACKAGES})")
    print(f"size                               {size / 1e6:.0f} MB (goal under {GOAL_MB})")


OTHERS = {"pip", "setuptools", "pkg_resources", "_distutils_hack"}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--install", action="store_true")
    start()
    if parser.parse_args().install:
        install()
