"""A run folder, written: facts whole or not at all, requests and snapshots line by line."""

import contextlib
import os
from pathlib import Path
from typing import IO, Any

import msgspec
import tomli_w

from sakiyomi.errors import StoreError, WriteError
from sakiyomi.names import engine_file, slug
from sakiyomi.record import RequestRecord, RunFacts, Snapshot
from sakiyomi.redaction import redact_plan
from sakiyomi.run_lock import RunLock
from sakiyomi.store import home, remember


class RunWriter:
    """A run folder that is being written: appended and flushed a request at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, IO[bytes]] = {}
        self._encoder = msgspec.json.Encoder()
        self._lock: RunLock | None = None

    @classmethod
    def create(cls, name: str, out: Path | None = None) -> "RunWriter":
        """A new run folder: `out`, or one of the run's name in the home folder."""
        try:
            if out is None:
                folder = _new_folder(home() / "runs" / slug(name))
            else:
                folder = out
                folder.mkdir(parents=True, exist_ok=True)
            if (folder / "run.json").exists():
                raise StoreError(
                    f"{folder}: a run is already there",
                    "give another --out, or go on with it: sakiyomi run --resume",
                )
        except OSError as problem:
            raise WriteError(
                f"{problem.filename}: {problem.strerror}",
                "give a folder that can be written: --out DIR",
            ) from problem
        with contextlib.suppress(OSError, StoreError):  # a run in --out does without a home
            remember(folder)
        return cls(folder)

    def claim(self) -> None:
        """Be the only writer until `close`. Raises StoreError when another process writes here."""
        self._lock = RunLock(self.folder)

    def write_facts(self, facts: RunFacts) -> None:
        """Write `run.json` and `plan.toml`, each whole or not at all, without secrets."""
        facts = msgspec.structs.replace(facts, plan=redact_plan(facts.plan))
        self._replace("run.json", msgspec.json.format(self._encoder.encode(facts)))
        plan = msgspec.to_builtins(facts.plan, builtin_types=())
        self._replace("plan.toml", tomli_w.dumps(_without_none(plan)).encode())

    def append(self, fact: RequestRecord | Snapshot) -> None:
        """Append one fact and flush it. Raises WriteError when the disk is full."""
        name = "requests.jsonl" if isinstance(fact, RequestRecord) else "snapshots.jsonl"
        try:
            if name not in self._files:
                _end_last_line(self.folder / name)
                self._files[name] = (self.folder / name).open("ab")
            self._files[name].write(self._encoder.encode(fact) + b"\n")
            self._files[name].flush()
        except OSError as problem:
            raise WriteError(
                f"{self.folder / name}: {problem.strerror}; everything before it is kept",
                f"free some room, then: sakiyomi run --resume {self.folder}",
            ) from problem

    def log_path(self, arm: str, number: int) -> Path:
        """Where the log of an engine that sakiyomi launches goes."""
        return self.folder / engine_file(arm, number, "log")

    def write_config(self, arm: str, number: int, text: str) -> Path:
        """Write the config file of an engine that sakiyomi launches, beside its log."""
        name = engine_file(arm, number, "config")
        self._replace(name, text.encode())
        return (self.folder / name).resolve()

    def close(self) -> None:
        """Close the files and let others write."""
        for file in self._files.values():
            with contextlib.suppress(OSError):
                file.close()
        self._files.clear()
        if self._lock:
            self._lock.release()
            self._lock = None

    def discard_if_empty(self) -> None:
        """Close, and undo `create` where nothing was recorded: such a run is none to list.

        The logs of engines that did not start stay.
        """
        self.close()
        if any((self.folder / name).exists() for name in ("requests.jsonl", "snapshots.jsonl")):
            return
        with contextlib.suppress(OSError):
            for name in ("run.json", "plan.toml"):
                (self.folder / name).unlink(missing_ok=True)
            self.folder.rmdir()

    def _replace(self, name: str, data: bytes) -> None:
        new = self.folder / f".{name}.new"
        try:
            new.write_bytes(data)
            new.replace(self.folder / name)
        except OSError as problem:
            raise WriteError(
                f"{self.folder / name}: {problem.strerror}", "free some room and resume the run"
            ) from problem


def _end_last_line(path: Path) -> None:
    """A line that a kill cut gets its end, so that the next one stands alone."""
    if path.exists() and path.stat().st_size:
        with path.open("rb+") as file:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")


def _new_folder(folder: Path) -> Path:
    """Make the folder, or the first free one of its name with a number; two runs never share it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    number, free = 1, folder
    while True:
        try:
            free.mkdir()
        except FileExistsError:
            number += 1
            free = folder.with_name(f"{folder.name}-{number}")
        else:
            return free


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_none(item) for item in value]
    return value
