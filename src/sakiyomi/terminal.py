"""The only writer to a terminal: data to standard output, the rest to standard error."""

import contextlib
import os
import shutil
import sys
import time
from typing import TYPE_CHECKING, TextIO

from sakiyomi.errors import WriteError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

PLAIN_LINE_EVERY_S = 10.0
"""Without a terminal, progress is a line every so often: a CI log stays readable."""

REPLACEMENTS = str.maketrans(
    {"·": "-", "–": "-", "—": "-", "×": "x", "…": "...", "≥": ">=", "≤": "<=", "µ": "u", "±": "+-"}
)
"""What a console that cannot print a character gets instead (cp932 lacks most of them)."""


def printable(text: str, encoding: str | None) -> str:
    """`text` as the console's encoding can carry it: never an error, never a lost line."""
    encoding = encoding or "utf-8"
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        text = text.translate(REPLACEMENTS)
        return text.encode("ascii" if encoding == "ascii" else encoding, "replace").decode(
            encoding, "replace"
        )
    return text


def write(text: str) -> None:
    """Write a line to standard output and flush. A reader that has gone ends the command quietly.

    Raises WriteError when the output's disk is full.
    """
    try:
        _write(text, sys.stdout)
    except OSError as problem:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is buffered goes too
        if isinstance(problem, BrokenPipeError):
            raise SystemExit(0) from None
        raise WriteError(f"standard output: {problem.strerror}", "what is saved stays") from None


def warn(text: str) -> None:
    """Write a line to standard error; a run does not end because nobody reads its progress."""
    with contextlib.suppress(OSError):
        _write(text, sys.stderr)


def _write(text: str, target: TextIO | None) -> None:
    if target is not None:  # None: closed by the caller (`>&-`)
        target.write(printable(text, target.encoding) + "\n")
        target.flush()


def width() -> int:
    """Columns of the terminal; 80 where there is none."""
    return shutil.get_terminal_size((80, 24)).columns


def is_terminal() -> bool:
    """Whether a person looks at standard output, where text can be drawn anew."""
    return sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


@contextlib.contextmanager
def live() -> "Iterator[Callable[[str], None]]":
    """Draws a text anew in its place on the terminal; at the end it is gone."""
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False, transient=True) as screen:

        def redraw(text: str) -> None:
            encoding = sys.stdout.encoding
            screen.update(Text(printable(text, encoding), no_wrap=True), refresh=True)

        yield redraw


class Progress:
    """How far a run is: a bar with the time left on a terminal, plain lines otherwise."""

    def __init__(self, *, quiet: bool = False, unit: str = "requests") -> None:
        self._quiet = quiet
        self._unit = unit
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None
        self._total = 0
        self._done = 0
        self._started_at_s = 0.0
        self._next_line_at_s = 0.0
        self._next_starting_s = PLAIN_LINE_EVERY_S

    def start(self, num_requests: int) -> None:
        """Begin: `num_requests` will be asked."""
        self._total, self._done = num_requests, 0
        self._started_at_s = time.perf_counter()
        self._next_line_at_s = self._started_at_s + PLAIN_LINE_EVERY_S
        if self._quiet or sys.stderr is None or not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task("", total=num_requests)
        self._bar.start()

    def expect_times(self, num_times: int) -> None:
        """What was done so far will be done `num_times` in all: a run that ends itself."""
        self._total = self._done * num_times
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, total=self._total)

    def advance(self, what: str, num_requests: int = 1) -> None:
        """So many more requests were answered, in the pass named `what`."""
        self._done += num_requests
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, advance=num_requests, description=what)
        elif not self._quiet and time.perf_counter() >= self._next_line_at_s:
            now = time.perf_counter()
            self._next_line_at_s = now + PLAIN_LINE_EVERY_S
            left_s = (now - self._started_at_s) / self._done * (self._total - self._done)
            warn(f"{self._done}/{self._total} {self._unit}, {what}, about {left_s:.0f} s left")

    def say(self, text: str) -> None:
        """A line that stays: an engine starts, a repeat begins, a caution."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        elif not self._quiet:
            warn(text)

    def starting(self, arm: str, line: str, elapsed_s: float) -> None:
        """An engine starts: its own last log line, now and then."""
        text = f"{arm} starts, {elapsed_s:.0f} s: {line.strip()[:100]}"
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=text[:60])
        elif elapsed_s >= self._next_starting_s:
            self._next_starting_s = elapsed_s + PLAIN_LINE_EVERY_S
            self.say(text)

    def stop(self) -> None:
        """End the bar, if there is one."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
