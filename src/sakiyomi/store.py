"""Run folders, read; where they are, and the history of this machine."""

import contextlib
import datetime as dt
import os
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import TypeVar

import msgspec

from sakiyomi.errors import SakiyomiError, StoreError, WriteError
from sakiyomi.record import RUN_FORMAT, RequestRecord, RunFacts, Snapshot

T = TypeVar("T")
FOUNDING_CASE = "founding-case"


def home() -> Path:
    """Where runs and the history live: $SAKIYOMI_HOME, else the user's data folder."""
    if own := os.environ.get("SAKIYOMI_HOME"):
        return Path(own)
    name = "LOCALAPPDATA" if os.name == "nt" else "XDG_DATA_HOME"
    if base := os.environ.get(name):
        return Path(base) / "sakiyomi"
    try:
        user = Path.home()
    except RuntimeError:
        raise StoreError(
            "this user has no home folder", "name a folder for runs: SAKIYOMI_HOME=DIR"
        ) from None
    return (user if os.name == "nt" else user / ".local" / "share") / "sakiyomi"


class RunReader:
    """A finished or interrupted run folder; records are read one at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.facts = _read_facts(folder)

    def records(self) -> Iterator[RequestRecord]:
        """The requests as recorded, warm-up included; a line cut by a kill is left out."""
        path = self.folder / "requests.jsonl"
        if self.facts.finished and self.facts.provenance == "measured" and not path.exists():
            raise StoreError(f"{path}: no such file", "the folder is incomplete: copy all of it")
        return _read_lines(path, RequestRecord)

    def snapshots(self) -> Iterator[Snapshot]:
        """The metrics pages as recorded."""
        return _read_lines(self.folder / "snapshots.jsonl", Snapshot)

    def plan_text(self) -> str | None:
        """`plan.toml` as used; None where there is none."""
        path = self.folder / "plan.toml"
        return path.read_text(encoding="utf-8") if path.exists() else None

    def logs(self) -> dict[str, str]:
        """The last 200 kB of each launched engine's log, by file name."""
        return {
            path.name: path.read_bytes()[-200_000:].decode(errors="replace")
            for path in sorted(self.folder.glob("engine-*.log"))
        }


def open_run(run: str) -> RunReader:
    """A run by its folder, its name, its id, or `founding-case`."""
    for folder in (Path(run), home() / "runs" / run):
        with contextlib.suppress(OSError):  # a name longer than a file's can be
            if (folder / "run.json").is_file():
                return RunReader(folder)
    for folder in _history_folders():
        if folder.name == run and (folder / "run.json").is_file():
            return RunReader(folder)
    if run == FOUNDING_CASE:
        return RunReader(Path(str(resources.files("sakiyomi") / "data" / FOUNDING_CASE)))
    known = history()
    for reader in known:
        if reader.facts.run_id == run:
            return reader
    names = [reader.folder.name for reader in known][:8]
    raise StoreError(
        f"{run}: no run folder, and no run of this name",
        "known here: " + ", ".join([*names, FOUNDING_CASE]) + " (sakiyomi history)",
    )


def history() -> list[RunReader]:
    """The runs on this machine, newest first; folders that are gone are left out."""
    readers = []
    for folder in _history_folders():
        with contextlib.suppress(SakiyomiError):
            readers.append(RunReader(folder))
    return sorted(readers, key=lambda reader: reader.facts.created, reverse=True)


def remember(folder: Path) -> None:
    """List a run folder in the history of this machine."""
    path = home_folder() / "history.txt"
    with path.open("a", encoding="utf-8", errors="surrogateescape") as history:
        history.write(f"{folder.resolve()}\n")


def home_folder() -> Path:
    """The home folder, made when it is not there."""
    folder = home()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def now_text() -> str:
    """The wall clock in ISO 8601 with its zone: for people, never for durations."""
    return dt.datetime.now().astimezone().isoformat(timespec="seconds")


def write_text(path: Path, text: str, *, encoding: str = "utf-8") -> None:
    """Write a report. Raises WriteError that names the path."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding=encoding, newline="\n")
    except OSError as problem:
        raise WriteError(f"{path}: {problem.strerror}", "choose another file") from problem


def _read_facts(folder: Path) -> RunFacts:
    path = folder / "run.json"
    try:
        raw = msgspec.json.decode(path.read_bytes())
        if raw.get("format", 0) > RUN_FORMAT:
            raise StoreError(
                f"{path}: format {raw['format']}, this sakiyomi reads up to {RUN_FORMAT}",
                "upgrade sakiyomi",
            )
        return msgspec.convert(raw, RunFacts)
    except FileNotFoundError:
        raise StoreError(f"{folder}: no run.json in it", "name a run folder") from None
    except (OSError, msgspec.MsgspecError, AttributeError, TypeError, ValueError) as problem:
        raise StoreError(f"{path}: {problem}", "the folder is damaged") from problem


def _read_lines(path: Path, kind: type[T]) -> Iterator[T]:
    if not path.exists():
        return
    decoder = msgspec.json.Decoder(kind)
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield decoder.decode(line)
            except msgspec.ValidationError as problem:
                raise StoreError(f"{path}:{number}: {problem}", "the folder is damaged") from None
            except msgspec.DecodeError as problem:
                ends_in_number = line[:1] == b"{" and not line.rstrip().endswith(b"}")
                if ends_in_number or "truncated" in str(problem):
                    continue  # cut by a kill or a full disk, here or before a resumption
                raise StoreError(
                    f"{path}:{number}: {problem}",
                    "the folder is damaged; without that line the rest can be read",
                ) from None


def _history_folders() -> list[Path]:
    try:
        path = home() / "history.txt"
        lines = path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except (OSError, StoreError):
        return []
    return list(dict.fromkeys(Path(line) for line in lines if line))
