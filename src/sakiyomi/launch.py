"""An engine for as long as it is needed: start it, wait until it answers, end it."""

import asyncio
import contextlib
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from sakiyomi.engines.engine import LogRemedy
from sakiyomi.errors import EngineError
from sakiyomi.plan import Arm
from sakiyomi.process_group import HOST, POLL_S, ProcessGroup, end_group, groups, start_group
from sakiyomi.redaction import redact
from sakiyomi.start_failure import exit_words, explain_failure

PROBE_LIMIT_S = 10.0
STOP_TIMEOUT_S = 20.0
"""Between SIGTERM and SIGKILL: engines with several processes take seconds to close down."""
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


def free_port() -> int:
    """A loopback port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


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
        group = start_group(arm, list(command), Path(log_path), port, remedies, program)
        try:
            url = f"http://{HOST}:{port}"
            limit_s = start_timeout_s or arm.start_timeout_s
            await _wait_healthy(group, url, probe, on_progress or _silent, began_at_s, limit_s)
            yield Launched(
                url=url,
                argv=tuple(redact(command)),
                pid=group.process.pid,
                start_s=time.monotonic() - began_at_s,
                log_path=str(log_path),
            )
        finally:
            await end_group(group, stop_timeout_s)


def check_alive(launched: Launched) -> None:
    """Raise EngineError, with what its log says, if a launched engine has ended by itself."""
    group = groups.get(launched.pid)
    if group is None:
        return
    status = group.process.poll()
    if status is not None:
        raise _failure(group, f"the engine {exit_words(status)} while it was in use", status)


def explain(launched: Launched, what: str) -> EngineError:
    """An engine that is still up failed: what its log says of it."""
    group = groups[launched.pid]
    return _failure(group, what, None)


def read_log(launched: Launched) -> str:
    """What a launched engine has written so far; empty once it has ended."""
    group = groups.get(launched.pid)
    return group.read_log(LOG_READ_BYTES) if group else ""


async def _wait_healthy(
    group: ProcessGroup,
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
        status = group.process.poll()
        if status is not None:
            raise _failure(
                group, f"the engine {exit_words(status)} after {elapsed_s:.1f} s", status
            )
        if healthy:
            return
        if elapsed_s > limit_s:
            what = f"the engine was not ready after {limit_s:g} s (start_timeout_s) and was ended"
            error = _failure(group, what, None)
            raise EngineError(
                error.message, f"{error.hint}; if it only needs longer, raise start_timeout_s"
            )
        if elapsed_s - told_at_s >= 1:
            told_at_s = elapsed_s
            on_progress(group.last_line(), elapsed_s)
        await asyncio.sleep(POLL_S if elapsed_s < 10 else 5 * POLL_S)


async def _ask(probe: Probe, url: str) -> bool:
    """The probe's answer; a probe that hangs or fails says no."""
    try:
        return await asyncio.wait_for(probe(url), PROBE_LIMIT_S)
    except (OSError, TimeoutError, EngineError):
        return False


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


def _failure(group: ProcessGroup, what: str, status: int | None) -> EngineError:
    log = group.read_log(LOG_READ_BYTES)
    text = f"arm {group.arm}: {what}"
    return explain_failure(text, log, str(group.log_path), group.remedies, status)


def _silent(_line: str, _elapsed_s: float) -> None:
    """No one wants to know."""
