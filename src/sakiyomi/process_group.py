"""Processes that sakiyomi starts: a group of its own each, its log, and its end."""

import asyncio
import atexit
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from sakiyomi.engines.engine import LogRemedy
from sakiyomi.errors import EngineError
from sakiyomi.plan import Arm
from sakiyomi.strays import enter, group_lives, leave, signal_group, start_mark

HOST = "127.0.0.1"
POLL_S = 0.1
GROUP_TIMEOUT_S = 3.0
"""How long the rest of a group may outlive its leader before SIGKILL."""
LOG_TAIL_BYTES = 4096


class ProcessGroup(msgspec.Struct, kw_only=True):
    """A process of ours and all that it starts. `remedies`: what its log may say of a failure."""

    process: subprocess.Popen[bytes]
    started: str
    entry: Path | None
    arm: str
    log_path: Path
    log_start_bytes: int
    remedies: tuple[LogRemedy, ...]

    @property
    def lives(self) -> bool:
        """Whether anything of the group is left."""
        return self.process.poll() is None or group_lives(self.process.pid, self.started)

    def read_log(self, num_bytes: int) -> str:
        """The end of what this start wrote: an earlier one may have used the same file."""
        try:
            with self.log_path.open("rb") as log:
                end = log.seek(0, os.SEEK_END)
                log.seek(max(self.log_start_bytes, end - num_bytes))
                return log.read().decode("utf-8", errors="replace")
        except OSError:
            return ""

    def last_line(self) -> str:
        """The last line that says something: progress bars end theirs with a carriage return."""
        lines = self.read_log(LOG_TAIL_BYTES).replace("\r", "\n").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


groups: dict[int, ProcessGroup] = {}
"""Those that have not ended, by the process id of their leader."""


def start_group(
    arm: Arm,
    command: list[str],
    log_path: Path,
    port: int,
    remedies: tuple[LogRemedy, ...],
    program: str,
) -> ProcessGroup:
    """Start the process in a group of its own and write it into the ledger."""
    environment = {"PYTHONUNBUFFERED": "1", **os.environ, **arm.env}
    _check_program(arm, command, environment, program)
    _check_port(arm, port)
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("ab") as log:
        log_start_bytes = log.tell()
        try:
            process = subprocess.Popen(  # noqa: S603 - the plan's own command, without a shell
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise EngineError(
                f"arm {arm.name}: {command[0]!r} cannot be started: {error.strerror or error}",
                "is it a program for this machine, and executable?",
            ) from error
    entry = enter(process.pid, command, arm.name, str(log_path))
    group = ProcessGroup(
        process=process,
        started=start_mark(process.pid) or "",
        entry=entry,
        arm=arm.name,
        log_path=log_path,
        log_start_bytes=log_start_bytes,
        remedies=remedies,
    )
    groups[process.pid] = group
    return group


def _check_program(arm: Arm, command: Sequence[str], env: dict[str, str], program: str) -> None:
    if not command:
        raise EngineError(f"arm {arm.name}: its command is empty", "name a program")
    if shutil.which(command[0], path=env.get("PATH")) is None:
        raise EngineError(
            f"arm {arm.name}: {command[0]!r} is not installed or not on the PATH",
            f"install {program}, give the arm a command, or attach to a running server by its url"
            if program
            else "install it, or write its full path",
        )


def _check_port(arm: Arm, port: int) -> None:
    """Refuse a port that another server holds: its answers would pass for the engine's."""
    with socket.socket() as holder:
        if sys.platform != "win32":
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            holder.bind((HOST, port))
        except OSError as error:
            raise EngineError(
                f"arm {arm.name}: port {port} is taken by another program",
                "end it, or choose another port",
            ) from error


async def end_group(group: ProcessGroup, stop_timeout_s: float) -> None:
    """SIGTERM, wait, SIGKILL: to the whole group, until nothing of it is left."""
    process = group.process
    try:
        if group.lives:
            signal_group(process.pid, signal.SIGTERM)
            await _wait(lambda: process.poll() is not None, stop_timeout_s)
        if process.poll() is not None:
            await _wait(lambda: not group.lives, GROUP_TIMEOUT_S)
    finally:
        _kill(group)
    await _wait(lambda: not group.lives, GROUP_TIMEOUT_S)


async def _wait(condition: Callable[[], bool], limit_s: float) -> None:
    until = time.monotonic() + limit_s
    while not condition() and time.monotonic() < until:  # noqa: ASYNC110 - no event tells it
        await asyncio.sleep(POLL_S / 2)


def _kill(group: ProcessGroup) -> None:
    """End what is left at once, reap the leader, and close its entry."""
    if group.lives:
        signal_group(group.process.pid, getattr(signal, "SIGKILL", signal.SIGTERM))
    with contextlib.suppress(subprocess.TimeoutExpired):
        group.process.wait(timeout=GROUP_TIMEOUT_S)
        leave(group.entry)
    groups.pop(group.process.pid, None)


@atexit.register
def _kill_all() -> None:
    """The last resort: a second Ctrl-C, or an exception that stopped the loop."""
    for group in list(groups.values()):
        _kill(group)
