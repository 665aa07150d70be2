"""The ledger of started processes: what a crash leaves behind, the next start finds.

Every engine has an entry, a small file in the user's state folder, from its start to its end. An
entry whose sakiyomi is gone while its engine lives is a stray. Process ids are reused: a process
counts as ours only with the start time that was written down.
"""

import contextlib
import os
import platform
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from sakiyomi.redaction import redact

ENDING_WAIT_S = 5.0


class Stray(msgspec.Struct, frozen=True, kw_only=True):
    """A process group that sakiyomi started: its leader, and who started it.

    `machine` tells boots, hosts and containers apart, whose process ids mean different things.
    """

    pid: int
    started: str
    argv: tuple[str, ...]
    arm: str
    log_path: str
    owner_pid: int
    owner_started: str
    machine: str


def state_folder() -> Path:
    """Where the ledger lives: $SAKIYOMI_STATE, else the user's state folder."""
    if own := os.environ.get("SAKIYOMI_STATE"):
        return Path(own)
    if base := os.environ.get("LOCALAPPDATA" if os.name == "nt" else "XDG_STATE_HOME"):
        return Path(base) / "sakiyomi"
    try:
        user = Path.home()
    except RuntimeError:  # a container's user without an entry
        user = Path(tempfile.gettempdir())
    return (user if os.name == "nt" else user / ".local" / "state") / "sakiyomi"


def enter(pid: int, argv: Iterable[str], arm: str, log_path: str) -> Path | None:
    """Write a started process into the ledger. None where the state folder cannot be written."""
    stray = Stray(
        pid=pid,
        started=start_mark(pid) or "",
        argv=tuple(redact(argv)),
        arm=arm,
        log_path=log_path,
        owner_pid=os.getpid(),
        owner_started=start_mark(os.getpid()) or "",
        machine=_machine(),
    )
    folder = state_folder() / "processes"
    entry = folder / f"{pid}-{os.getpid()}-{time.time_ns()}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        partial = entry.with_suffix(".partial")
        partial.write_bytes(msgspec.json.encode(stray))
        partial.replace(entry)
    except OSError:
        return None
    return entry


def leave(entry: Path | None) -> None:
    """Take an ended process out of the ledger."""
    if entry is not None:
        with contextlib.suppress(OSError):
            entry.unlink(missing_ok=True)


def find_strays() -> list[Stray]:
    """Engines of a sakiyomi that is gone. Entries of ended ones are cleared away."""
    found = []
    for entry, stray in _entries():
        if stray.machine != _machine():
            if _rebooted(stray.machine):
                leave(entry)
        elif not group_lives(stray.pid, stray.started):
            leave(entry)
        elif start_mark(stray.owner_pid) != stray.owner_started:
            found.append(stray)
    return found


def end_strays(strays: Iterable[Stray], wait_s: float = ENDING_WAIT_S) -> None:
    """SIGTERM to each stray's process group, SIGKILL to what is left after `wait_s`."""
    alive = [stray for stray in strays if group_lives(stray.pid, stray.started)]
    for stray in alive:
        signal_group(stray.pid, signal.SIGTERM)
    until = time.monotonic() + wait_s
    while alive and time.monotonic() < until:
        time.sleep(0.05)
        alive = [stray for stray in alive if group_lives(stray.pid, stray.started)]
    for stray in alive:
        signal_group(stray.pid, getattr(signal, "SIGKILL", signal.SIGTERM))
    until = time.monotonic() + wait_s
    while alive and time.monotonic() < until:
        time.sleep(0.05)
        alive = [stray for stray in alive if group_lives(stray.pid, stray.started)]
    find_strays()


def start_mark(pid: int) -> str | None:
    """A text that only this life of the process id has. None: no such process, or a zombie."""
    stat = _stat(pid)
    if stat is not None:
        return None if stat[0] in "ZX" else stat[19]
    if Path("/proc/self/stat").exists() or os.name == "nt":
        return None
    try:
        shown = subprocess.run(  # noqa: S603 - fixed words and a number
            ["ps", "-o", "state=,lstart=", "-p", str(pid)],  # noqa: S607 - ps moves around
            capture_output=True,
            text=True,
            check=False,
        ).stdout.strip()
    except OSError:
        return None
    return None if not shown or shown.startswith("Z") else shown.partition(" ")[2].strip()


def group_lives(pid: int, started: str) -> bool:
    """Whether the process, or any of its group after its leader is gone, is alive."""
    mark = start_mark(pid)
    if mark is not None:
        return mark == started
    return any(_group_members(pid))


def signal_group(pid: int, number: int) -> None:
    """Send a signal to the whole process group that `pid` leads."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, number)
        return
    subprocess.run(  # noqa: S603 - fixed words and a number
        ["taskkill", "/T", "/F", "/PID", str(pid)],  # noqa: S607 - of the system
        capture_output=True,
        check=False,
    )


def _group_members(pid: int) -> Iterator[int]:
    """Living processes of the group that `pid` led. Without /proc: the group as a whole."""
    if not Path("/proc/self/stat").exists():
        with contextlib.suppress(OSError, AttributeError):
            os.killpg(pid, 0)
            yield pid
        return
    for name in os.listdir("/proc"):  # noqa: PTH208 - names, thousands of them
        if name.isdigit():
            stat = _stat(int(name))
            if stat is not None and stat[0] not in "ZX" and stat[2] == str(pid):
                yield int(name)


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from `state` on (proc_pid_stat(5): fields 3, 5 = group, 22)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def _machine() -> str:
    """Host, boot and process-id namespace."""
    boot = namespace = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
    return f"{platform.node()}|{boot}|{namespace}"


def _rebooted(machine: str) -> bool:
    """Whether an entry is this host's, from before its last boot."""
    node, boot, _ = (*machine.split("|"), "", "")[:3]
    here, now, _ = _machine().split("|")
    return node == here and boot != now


def _entries() -> Iterator[tuple[Path, Stray]]:
    for entry in sorted((state_folder() / "processes").glob("*.json")):
        try:
            yield entry, msgspec.json.decode(entry.read_bytes(), type=Stray)
        except (OSError, msgspec.MsgspecError):
            continue
