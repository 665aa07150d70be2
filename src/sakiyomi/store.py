"""Disk: plans, scenarios, run folders, history. No other room opens them."""

import contextlib
import datetime as dt
import os
import tomllib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec
import tomli_w

from sakiyomi.errors import PlanError, SakiyomiError, ScenarioError, StoreError, WriteError
from sakiyomi.names import engine_file, slug
from sakiyomi.plan import Plan, ScenarioRef, Slo, parse_plan, parse_value
from sakiyomi.record import RUN_FORMAT, RequestRecord, RunFacts, Snapshot
from sakiyomi.redaction import redact_plan
from sakiyomi.run_lock import RunLock
from sakiyomi.scenario import Scenario, apply_ref, parse_scenario

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


def read_text(path: Path, error: type[SakiyomiError]) -> str:
    """The text of a user's file: UTF-8 with or without BOM, UTF-16 with one.

    Raises `error` that names the line where another encoding shows, and the way out.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise error(f"{path}: no such file", _near_files(path)) from None
    except OSError as problem:
        raise error(f"{path}: {problem.strerror}", "check the path and its permissions") from None
    encoding = "utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as problem:
        line = raw[: problem.start].count(b"\n") + 1
        guess = "UTF-16 without a BOM" if b"\x00" in raw[:200] else _guess_encoding(raw)
        raise error(
            f"{path}:{line}: not UTF-8 (byte 0x{raw[problem.start]:02x}); it looks like {guess}",
            "save it as UTF-8, or: iconv -f CP932 -t UTF-8 FILE > NEW",
        ) from problem


def read_plan(path: Path) -> Plan:
    """Read a TOML plan. Relative scenario files are taken from its folder.

    Raises PlanError with the line of broken TOML or the path of a wrong value.
    """
    text = read_text(path, PlanError)
    try:
        raw = tomllib.loads(text.replace("\r\n", "\n"))
    except tomllib.TOMLDecodeError as problem:
        raise PlanError(f"{path}: {problem}", "check the TOML near that line") from problem
    plan = parse_plan(raw, str(path))
    refs = tuple(
        msgspec.structs.replace(ref, file=str((path.parent / ref.file).resolve()))
        if ref.file
        else ref
        for ref in plan.scenarios
    )
    return msgspec.structs.replace(plan, scenarios=refs)


def read_slo(path: Path) -> dict[str, Slo]:
    """Read limits by path from a TOML file: `[ja_chat]` or `[slo.ja_chat]` tables."""
    try:
        raw = tomllib.loads(read_text(path, PlanError))
    except tomllib.TOMLDecodeError as problem:
        raise PlanError(f"{path}: {problem}", "check the TOML near that line") from problem
    tables: dict[str, Any] = parse_value(raw.get("slo", raw), dict[str, Any], str(path))
    return {name: parse_value(table, Slo, f"{path}: {name}") for name, table in tables.items()}


def built_in_scenarios() -> list[str]:
    """Names of the scenarios that ship with sakiyomi."""
    folder = resources.files("sakiyomi") / "scenarios"
    return sorted(f.name[: -len(".jsonl")] for f in folder.iterdir() if f.name.endswith(".jsonl"))


def read_scenario(ref: ScenarioRef) -> Scenario:
    """The scenario that a plan refers to, with the plan's values applied."""
    if ref.file:
        path = Path(ref.file)
        text = read_text(path, ScenarioError)
        where = str(path)
    else:
        source = resources.files("sakiyomi") / "scenarios" / f"{ref.name}.jsonl"
        if not source.is_file():
            raise ScenarioError(
                f"scenario {ref.name!r} is not built in",
                "built in are " + ", ".join(built_in_scenarios()) + "; an own one needs a file",
            )
        text, where = source.read_text(encoding="utf-8"), f"{ref.name} (built in)"
    # JSON lines end at LF; other Unicode line ends may stand inside a string
    lines = (line.removesuffix("\r") for line in text.split("\n"))
    return apply_ref(parse_scenario(lines, ref.name, where), ref)


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
            _remember(folder)
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


def _remember(folder: Path) -> None:
    path = home_folder() / "history.txt"
    with path.open("a", encoding="utf-8", errors="surrogateescape") as history:
        history.write(f"{folder.resolve()}\n")


def _history_folders() -> list[Path]:
    try:
        path = home() / "history.txt"
        lines = path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except (OSError, StoreError):
        return []
    return list(dict.fromkeys(Path(line) for line in lines if line))


def _near_files(path: Path) -> str:
    parent = path.parent if path.parent.is_dir() else Path()
    try:
        names = sorted(p.name for p in parent.iterdir() if p.suffix == path.suffix)[:5]
    except OSError:
        names = []
    return "files like it there: " + ", ".join(names) if names else "check the path"


def _guess_encoding(raw: bytes) -> str:
    for encoding, name in (("cp932", "Shift_JIS (cp932)"), ("euc_jp", "EUC-JP")):
        with contextlib.suppress(UnicodeDecodeError):
            raw.decode(encoding)
            return name
    return "a binary file"


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_none(item) for item in value]
    return value
