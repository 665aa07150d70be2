"""Processes: start an engine, wait until it answers, end it and all that it started."""

import asyncio
import atexit
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from sakiyomi.engines import find_engine
from sakiyomi.engines.engine import LogRemedy
from sakiyomi.errors import EngineError, PlanError
from sakiyomi.plan import Arm
from sakiyomi.redaction import redact
from sakiyomi.start_failure import exit_words, explain_failure
from sakiyomi.strays import (
    Stray,
    end_strays,
    enter,
    find_strays,
    group_lives,
    leave,
    signal_group,
    start_mark,
)

__all__ = [
    "Launched",
    "Stray",
    "check_alive",
    "end_strays",
    "explain",
    "fill_command",
    "find_strays",
    "free_port",
    "launch",
    "read_log",
]

HOST = "127.0.0.1"
PROBE_LIMIT_S = 10.0
POLL_S = 0.1
STOP_TIMEOUT_S = 20.0
"""Between SIGTERM and SIGKILL: engines with several processes take seconds to close down."""
GROUP_TIMEOUT_S = 3.0
"""How long the rest of a group may outlive its leader before SIGKILL."""
LOG_TAIL_BYTES = 4096
LOG_READ_BYTES = 8 << 20

Probe = Callable[[str], Awaitable[bool]]
OnProgress = Callable[[str, float], None]


class Launched(msgspec.Struct, frozen=True, kw_only=True):
    """An engine that answers. `start_s`: from its start until it did. `argv` has no secrets."""

    url: str
    argv: tuple[str, ...]
    pid: int
    start_s: float
    log_path: str


class _Owned(msgspec.Struct, kw_only=True):
    """A process group of ours, from start to end."""

    process: subprocess.Popen[bytes]
    started: str
    entry: Path | None
    arm: str
    log_path: Path
    log_start_bytes: int
    remedies: tuple[LogRemedy, ...]


_owned: dict[int, _Owned] = {}


def free_port() -> int:
    """A loopback port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def fill_command(arm: Arm, port: int) -> list[str]:
    """The arm's `command` with `{model}` and `{port}` filled in.

    A word `{args}` becomes all that sakiyomi would put after the engine's program: model, port,
    the flags of the arm's speculation and its args.
    """
    command: list[str] = []
    for word in arm.command:
        if word == "{args}":
            engine = find_engine(arm.engine)
            if engine.command is None:
                raise PlanError(
                    f"arm {arm.name}: {{args}} in its command, but {engine.title} is not launched",
                    "name the engine, or write its flags out",
                )
            command += engine.command(arm, port)[1:]
        elif word == "{model}" and not arm.model:
            raise PlanError(f"arm {arm.name}: its command has {{model}}", "give the arm a model")
        else:
            command.append(word.replace("{model}", arm.model or "").replace("{port}", str(port)))
    return command


@contextlib.asynccontextmanager
async def launch(  # noqa: PLR0913 - the start of an engine has this many sides
    arm: Arm,
    *,
    command: Sequence[str],
    log_path: Path,
    port: int,
    probe: Probe,
    on_progress: OnProgress | None = None,
    start_timeout_s: float | None = None,
    remedies: tuple[LogRemedy, ...] = (),
    program: str = "",
    stop_timeout_s: float = STOP_TIMEOUT_S,
) -> AsyncIterator[Launched]:
    """An engine, up and answering, for as long as the context lasts.

    `probe(url)` says whether it answers. `program`: which package brings the command, for errors.
    However the context is left, the whole process group is ended. Raises EngineError with the
    part of the log that says why it did not start.
    """
    began_at_s = time.monotonic()
    with _terminate_as_interrupt():
        owned = _start(arm, list(command), Path(log_path), port, remedies, program)
        try:
            url = f"http://{HOST}:{port}"
            limit_s = start_timeout_s or arm.start_timeout_s
            await _wait_healthy(owned, url, probe, on_progress or _silent, began_at_s, limit_s)
            yield Launched(
                url=url,
                argv=tuple(redact(command)),
                pid=owned.process.pid,
                start_s=time.monotonic() - began_at_s,
                log_path=str(log_path),
            )
        finally:
            await _end(owned, stop_timeout_s)


def check_alive(launched: Launched) -> None:
    """Raise EngineError, with what its log says, if a launched engine has ended by itself."""
    owned = _owned.get(launched.pid)
    if owned is None:
        return
    status = owned.process.poll()
    if status is not None:
        raise _failure(owned, f"the engine {exit_words(status)} while it was in use", status)


def explain(launched: Launched, what: str) -> EngineError:
    """An engine that is still up failed: what its log says of it."""
    owned = _owned[launched.pid]
    return _failure(owned, what, None)


def read_log(launched: Launched) -> str:
    """What a launched engine has written so far; empty once it has ended."""
    owned = _owned.get(launched.pid)
    return _read_tail(owned, LOG_READ_BYTES) if owned else ""


def _start(
    arm: Arm,
    command: list[str],
    log_path: Path,
    port: int,
    remedies: tuple[LogRemedy, ...],
    program: str,
) -> _Owned:
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
    owned = _Owned(
        process=process,
        started=start_mark(process.pid) or "",
        entry=entry,
        arm=arm.name,
        log_path=log_path,
        log_start_bytes=log_start_bytes,
        remedies=remedies,
    )
    _owned[process.pid] = owned
    return owned


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


async def _wait_healthy(
    owned: _Owned,
    url: str,
    probe: Probe,
    on_progress: OnProgress,
    began_at_s: float,
    limit_s: float,
) -> None:
    """Return when the probe says yes. Raise EngineError when the engine ends or time is up."""
    told_at_s = -1.0
    while True:
        healthy = await _ask(probe, url)
        elapsed_s = time.monotonic() - began_at_s
        status = owned.process.poll()
        if status is not None:
            raise _failure(
                owned, f"the engine {exit_words(status)} after {elapsed_s:.1f} s", status
            )
        if healthy:
            return
        if elapsed_s > limit_s:
            what = f"the engine was not ready after {limit_s:g} s (start_timeout_s) and was ended"
            error = _failure(owned, what, None)
            raise EngineError(
                error.message, f"{error.hint}; if it only needs longer, raise start_timeout_s"
            )
        if elapsed_s - told_at_s >= 1:
            told_at_s = elapsed_s
            on_progress(_last_line(owned), elapsed_s)
        await asyncio.sleep(POLL_S if elapsed_s < 10 else 5 * POLL_S)


async def _ask(probe: Probe, url: str) -> bool:
    """The probe's answer; a probe that hangs or fails says no."""
    try:
        return await asyncio.wait_for(probe(url), PROBE_LIMIT_S)
    except (OSError, TimeoutError, EngineError):
        return False


async def _end(owned: _Owned, stop_timeout_s: float) -> None:
    """SIGTERM, wait, SIGKILL: to the whole group, until nothing of it is left."""
    pid = owned.process.pid
    try:
        if owned.process.poll() is None or group_lives(pid, owned.started):
            signal_group(pid, signal.SIGTERM)
            await _wait(lambda: owned.process.poll() is not None, stop_timeout_s)
        if owned.process.poll() is not None:
            await _wait(lambda: not group_lives(pid, owned.started), GROUP_TIMEOUT_S)
    finally:
        _kill(owned)
    await _wait(lambda: not group_lives(pid, owned.started), GROUP_TIMEOUT_S)


async def _wait(condition: Callable[[], bool], limit_s: float) -> None:
    until = time.monotonic() + limit_s
    while not condition() and time.monotonic() < until:  # noqa: ASYNC110 - no event tells it
        await asyncio.sleep(POLL_S / 2)


def _kill(owned: _Owned) -> None:
    """End what is left at once, reap the leader, and close its entry."""
    pid = owned.process.pid
    if owned.process.poll() is None or group_lives(pid, owned.started):
        signal_group(pid, getattr(signal, "SIGKILL", signal.SIGTERM))
    with contextlib.suppress(subprocess.TimeoutExpired):
        owned.process.wait(timeout=GROUP_TIMEOUT_S)
        leave(owned.entry)
    _owned.pop(pid, None)


@atexit.register
def _kill_all() -> None:
    """The last resort: a second Ctrl-C, or an exception that stopped the loop."""
    for owned in list(_owned.values()):
        _kill(owned)


@contextlib.contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """While an engine is up, SIGTERM and SIGHUP stop sakiyomi as Ctrl-C does: engines are ended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    changed = []
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.getsignal(signal.SIGINT))
            changed.append(number)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)


def _failure(owned: _Owned, what: str, status: int | None) -> EngineError:
    log = _read_tail(owned, LOG_READ_BYTES)
    text = f"arm {owned.arm}: {what}"
    return explain_failure(text, log, str(owned.log_path), owned.remedies, status)


def _last_line(owned: _Owned) -> str:
    """The last line that says something: progress bars end theirs with a carriage return."""
    lines = _read_tail(owned, LOG_TAIL_BYTES).replace("\r", "\n").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _read_tail(owned: _Owned, num_bytes: int) -> str:
    """The end of what this start wrote: an earlier one may have used the same file."""
    try:
        with owned.log_path.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(owned.log_start_bytes, end - num_bytes))
            return log.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def _silent(_line: str, _elapsed_s: float) -> None:
    """No one wants to know."""
