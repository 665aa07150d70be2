"""`sakiyomi report`, `compare` and `history`: everything works from run folders."""

import argparse
import locale
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from sakiyomi import store, terminal
from sakiyomi.commands.saved_report import read_report
from sakiyomi.compare import compare_runs, read_side
from sakiyomi.report import find_renderer
from sakiyomi.report import json as report_json
from sakiyomi.report import text as report_text
from sakiyomi.report.passed_on import without_folders
from sakiyomi.results import Report
from sakiyomi.store import RunReader


def report_command(arguments: argparse.Namespace) -> int:
    """Render one run; to a file, or as text."""
    reader = store.open_run(arguments.run)
    if arguments.map:
        return show_map(reader, arguments.map)
    report = read_report(reader)
    if arguments.output or arguments.json:
        from sakiyomi.commands.full_report import fill_report

        report = fill_report(report, reader, with_requests=is_page(arguments))
    return show(report, arguments, [reader])


def is_page(arguments: argparse.Namespace) -> bool:
    """Whether a page is asked for."""
    return Path(arguments.output or "").suffix.lower() == ".html"


def show_map(reader: RunReader, conversation_id: str) -> int:
    """How the tokens of one conversation's answers came, as text."""
    from sakiyomi.map_text import render_map

    terminal.write(render_map(reader.facts, reader.records(), conversation_id).rstrip("\n"))
    return 0


def compare_command(arguments: argparse.Namespace) -> int:
    """Render several runs side by side."""
    readers = [store.open_run(run) for run in arguments.runs]
    runs = {reader.facts.run_id: (reader, read_report(reader)) for reader in readers}
    sides = [read_side(one.facts, own, list(one.records())) for one, own in runs.values()]
    report = compare_runs(sides, force=arguments.force)
    if arguments.output or arguments.json:
        from sakiyomi.commands.full_report import fill_comparison

        report = fill_comparison(report, runs, with_requests=is_page(arguments))
    return show(report, arguments, readers)


def show(report: Report, arguments: argparse.Namespace, readers: Sequence[RunReader]) -> int:
    """Write the report where and how the arguments ask; what leaves has no local folders in it."""
    if arguments.output or arguments.json:
        report = without_folders(report, [str(reader.folder) for reader in readers])
    if arguments.output:
        path = Path(arguments.output)
        if is_page(arguments):
            from sakiyomi.report import html

            text = html.render(report, lang=arguments.lang or own_language())
        else:
            text = find_renderer(path.suffix)(report)
        store.write_text(path, text)
        terminal.warn(f"wrote {path}")
    if arguments.json:
        terminal.write(report_json.render(report).rstrip("\n"))
    elif not arguments.output:
        terminal.write(report_text.render(report, terminal.width()).rstrip("\n"))
    return 0


def own_language() -> str:
    """`ja` where the user's locale is Japanese, else `en`."""
    return "ja" if (locale.getlocale()[0] or environment_language()).startswith("ja") else "en"


def environment_language() -> str:
    """What the environment says where the locale is not set up."""
    return next((v for k in ("LC_ALL", "LC_MESSAGES", "LANG") if (v := os.environ.get(k))), "")


def history_command(arguments: argparse.Namespace) -> int:
    """The runs on this machine, newest first."""
    runs = [_row(reader) for reader in store.history()]
    if arguments.json:
        terminal.write(msgspec.json.format(msgspec.json.encode(runs)).decode())
        return 0
    if not runs:
        terminal.write("no runs yet: sakiyomi run")
    for run in runs:
        mark = "" if run.finished else "   (unfinished: sakiyomi run --resume)"
        arms, scenarios = " ".join(run.arms), " ".join(run.scenarios)
        terminal.write(f"{run.created[:16]}  {run.run}  {arms}  {scenarios}{mark}")
    return 0


class HistoryRow(msgspec.Struct, frozen=True):
    """A run as the history shows it."""

    run: str
    created: str
    name: str
    arms: list[str]
    scenarios: list[str]
    finished: bool
    folder: str


def _row(reader: RunReader) -> HistoryRow:
    facts = reader.facts
    return HistoryRow(
        run=reader.folder.name,
        created=facts.created,
        name=facts.plan.name,
        arms=[arm.name for arm in facts.plan.arms],
        scenarios=[ref.name for ref in facts.plan.scenarios],
        finished=facts.finished,
        folder=str(reader.folder),
    )
