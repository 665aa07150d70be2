"""Build an environment with LiteLLM's proxy: `python tools/install_litellm.py FOLDER`.

The live tests load the router config that `sakiyomi decide --export` writes with the tool it is
for. LiteLLM pins its own versions of much, so it gets an environment of its own. Running it again
on a finished folder only checks it.
"""

import argparse
import os
import subprocess
import sys
import time
import venv
from pathlib import Path

LITELLM = "1.108.7"  # the proxy extra of 1.110.2 asks for litellm-proxy, which pip does not find

CHECK = """
import importlib.metadata
from litellm.proxy.proxy_server import ProxyConfig
print(f"litellm {importlib.metadata.version('litellm')}")
"""


def say(text: str) -> None:
    print(f"[install_litellm] {text}", flush=True)


def check(python: Path) -> bool:
    """True when the environment has this LiteLLM and loads its proxy."""
    if not python.exists():
        return False
    command = [str(python), "-c", CHECK]
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # asks no other host
    run = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    said = (run.stderr.strip() or run.stdout.strip() or "no message").splitlines()[-1]
    works = run.returncode == 0 and run.stdout.strip().endswith(f"litellm {LITELLM}")
    say(f"works: litellm {LITELLM}" if works else f"not usable yet: {said}")
    return works


def install(folder: Path) -> Path:
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if check(python):
        return python
    if not python.exists():
        say(f"virtual environment in {folder}")
        venv.create(folder, with_pip=True)
    wanted = f"litellm[proxy]=={LITELLM}"
    say(f"pip install {wanted}")
    command = [str(python), "-m", "pip", "install", "--no-input", "--quiet", wanted]
    if subprocess.run(command, check=False).returncode:
        sys.exit(f"error: pip could not install {wanted}\nhint: see pip's own message above")
    if not check(python):
        sys.exit(f"error: LiteLLM's proxy does not load\nhint: remove {folder}, run this again")
    return python


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument(
        "folder", type=Path, help="where the environment goes, for example .cache/litellm"
    )
    started = time.monotonic()
    python = install(parser.parse_args().folder.absolute())
    say(f"done in {time.monotonic() - started:.0f} s: {python}")


if __name__ == "__main__":
    main()
