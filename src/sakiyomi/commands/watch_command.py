"""`sakiyomi watch`: read running servers again and again, show what they do, sum it up."""

import argparse
import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from sakiyomi import terminal
from sakiyomi.client import Client
from sakiyomi.commands.named_urls import pages_by_server, split_name, with_scheme
from sakiyomi.commands.until_established import parse_time
from sakiyomi.engines import find_engine
from sakiyomi.errors import EngineError, PlanError
from sakiyomi.live_rows import Row, rows
from sakiyomi.plan import Arm
from sakiyomi.readings import PageReading, Subject, Track, advance
from sakiyomi.report import watch_text
from sakiyomi.store import now_text, open_run
from sakiyomi.urls import api_root, split_url
from sakiyomi.watch import WatchedServer, read_servers

SCHEMA = "sakiyomi.watch/1"
Limits = Mapping[str, tuple[float, float]]


class Watched(msgspec.Struct):
    """How far a watch is: what the summary is made of, however it ends."""

    tracks: dict[Subject, Track] = {}
    rows: list[Row] = []
    num_readings: int = 0
    elapsed_s: float = 0.0

    def take(self, elapsed_s: float, pages: list[PageReading], limits: Limits) -> None:
        """One more reading of every page."""
        self.tracks = advance(self.tracks, pages)
        self.rows = rows(self.tracks, pages, limits)
        self.num_readings += 1
        self.elapsed_s = elapsed_s


def watch_command(arguments: argparse.Namespace) -> int:
    """Watch until --for or a signal. Raises EngineError when no server could ever be read."""
    every_s = parse_time(arguments.every, "--every")
    num_readings, for_s = _end(arguments.watch_for)
    arms = watched_arms(arguments)
    limits = _break_even_rates(arguments.against, arms) if arguments.against else {}
    watched = Watched()

    async def watch() -> None:
        _end_on_signals()
        servers = [WatchedServer(arm, _client(arm, arguments)) for arm in arms]
        with _drawing(every_s, as_json=arguments.json) as draw:
            async with contextlib.aclosing(read_servers(servers, every_s)) as readings:
                async for elapsed_s, pages in readings:
                    watched.take(elapsed_s, pages, limits)
                    draw(watched)
                    is_last = watched.num_readings == num_readings or elapsed_s + every_s > for_s
                    if is_last or all(server.is_hopeless for server in servers):
                        return

    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        asyncio.run(watch())
    if not watched.tracks:
        problems = [f"{row.server}: {row.problem}" for row in watched.rows]
        raise EngineError("no server could be read\n  " + "\n  ".join(problems))
    say = terminal.warn if arguments.json else terminal.write
    say(watch_text.summary(watched.rows, watched.elapsed_s, watched.num_readings))
    return 0


def watched_arms(arguments: argparse.Namespace) -> list[Arm]:
    """An arm a URL. Raises PlanError for what is no URL, two of one name, a page of no server."""
    arms = [_watched_arm(text, arguments) for text in arguments.urls]
    names = [arm.name for arm in arms]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise PlanError(f"two servers are called {twice!r}", "name them: NAME=URL")
    for name, urls in pages_by_server(arguments.metrics_url, names).items():
        pages = tuple(with_scheme(url) for url in urls)
        at = names.index(name)
        arms[at] = msgspec.structs.replace(arms[at], metrics_urls=pages)
    for arm in arms:
        for url in (arm.url or "", *arm.metrics_urls):
            split_url(url)
    return arms


def _watched_arm(text: str, arguments: argparse.Namespace) -> Arm:
    """`[NAME=]URL` of a server, or of its metrics page."""
    name, bare = split_name(text)
    url = with_scheme(bare)
    root = re.sub(r"(?:/prometheus)?/metrics/?$", "", url)
    return Arm(
        name=name or split_url(root).authority,
        engine=find_engine(arguments.engine or "openai").name,
        url=root,
        metrics_urls=(url,) if root != url else (),
        api_key_env=arguments.api_key_env,
    )


def _end(text: str | None) -> tuple[float, float]:
    """`20` readings or `10m`: (readings, seconds), endless where it is not said."""
    if text is None:
        return float("inf"), float("inf")
    if re.fullmatch(r"\d+", text):
        if not int(text):
            raise PlanError("--for 0: expected at least one reading")
        return float(text), float("inf")
    return float("inf"), parse_time(text, "--for")


def _end_on_signals() -> None:
    """Ctrl-C and SIGTERM (`timeout`, a service manager) end the watch, not its summary."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # Windows
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)


def _client(arm: Arm, arguments: argparse.Namespace) -> Client:
    key = os.environ.get(arm.api_key_env) if arm.api_key_env else None
    if arm.api_key_env and not key:
        raise PlanError(
            f"environment variable {arm.api_key_env} is empty or not set",
            f"export {arm.api_key_env}=...",
        )
    return Client(
        insecure=arguments.insecure,
        ca_file=arguments.ca_file,
        api_key=key,
        api_url=api_root(arm.url or ""),
    )


def _break_even_rates(run: str, arms: Sequence[Arm]) -> Limits:
    """Least and most break-even rate of the run's arm for each server, over scenarios and loads.

    The arm of the server's name, or the only one that has a break-even.
    """
    from sakiyomi.commands.saved_report import read_report

    measured: dict[str, list[float]] = {}
    for comparison in read_report(open_run(run)).comparisons:
        if rate := comparison.break_even_rate:
            ends = [end for end in (rate.low, rate.high) if end is not None]
            measured.setdefault(comparison.arm, []).extend([rate.point, *ends])
    if not measured:
        raise PlanError(
            f"--against {run}: no arm of it has a break-even rate",
            "it needs a plain arm beside a speculative one, and its acceptance",
        )
    found = {}
    for arm in arms:
        name = arm.name if arm.name in measured else next(iter(measured))
        if name != arm.name and len(measured) > 1:
            raise PlanError(
                f"--against {run}: which of its arms is {arm.name}?",
                "name the server as the arm: "
                + " or ".join(f"{known}={arm.url}" for known in measured),
            )
        found[arm.name] = (min(measured[name]), max(measured[name]))
    return found


@contextlib.contextmanager
def _drawing(every_s: float, *, as_json: bool) -> Iterator[Callable[[Watched], None]]:
    """A table drawn anew on a terminal; elsewhere a line a server, or one of JSON, and warnings."""
    told: list[str] = []

    def lines(watched: Watched) -> None:
        nonlocal told
        at = now_text()
        if as_json:
            terminal.write(_json_line(watched, at))
        named = list(zip(watched.rows, watch_text.names(watched.rows), strict=True))
        for row, name in named if not as_json else []:
            terminal.write(watch_text.line(row, name, at))
        remarks = [text for row, name in named for text in watch_text.remarks(row, name)]
        for text in remarks:
            if text not in told:
                terminal.warn(text)
        told = remarks

    def table(watched: Watched) -> None:
        title = f"reading {watched.num_readings}, every {every_s:g} s, Ctrl-C ends it"
        redraw(watch_text.table(watched.rows, title, min(terminal.width(), 80)))

    if as_json or not terminal.is_terminal():
        yield lines
        return
    with terminal.live() as redraw:
        yield table


def _json_line(watched: Watched, at: str) -> str:
    reading = {
        "schema": SCHEMA,
        "at": at,
        "elapsed_s": watched.elapsed_s,
        "reading": watched.num_readings,
        "servers": watched.rows,
    }
    return msgspec.json.encode(reading).decode()
