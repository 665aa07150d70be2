"""The report for a terminal: first the answer, then how far to trust it, then what to do next."""

import re
import textwrap
from collections.abc import Callable

from rich.cells import cell_len

from sakiyomi.published_forms import published_forms
from sakiyomi.report import form_table
from sakiyomi.report import format as fmt
from sakiyomi.report.narrow import blocks, table, wrapped
from sakiyomi.results import Cell, Report
from sakiyomi.stats import Estimate

Form = Callable[[Estimate | None], str]
HEADER = ("scenario", "arm", "decode tok/s", "TTFT ms", "accepted", "tok/step", "speedup")


def render(report: Report, width: int = 80) -> str:
    """The whole report, `width` columns wide; wide characters count two."""
    lines = [*wrapped(fmt.title(report), width), ""]
    if report.provenance != "measured":
        lines[-1:] = [*wrapped("published numbers, not measured here", width), ""]
    many_loads = len({cell.load.label for cell in report.cells}) > 1
    for label in dict.fromkeys(cell.load.label for cell in report.cells):
        if many_loads:
            lines.append(f"load {label}")
        cells = [cell for cell in report.cells if cell.load.label == label]
        lines += [*_table(report, cells, width), ""]
    for form in published_forms(report):
        lines += [*wrapped(form_table.title(form), width), *table(form_table.rows(form), width)]
        lines += [*_wrapped([form.note], width, ""), ""]
    lines += _sources(report, width)
    lines += _cautions(report, width)
    if report.decision:
        lines += ["", *_wrapped(report.decision.get("summary", []), width, "")]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def _table(report: Report, cells: list[Cell], width: int) -> list[str]:
    """The widest form that fits: intervals written out, short, points alone, or blocks."""
    for rate, ratio in (
        (fmt.short_interval, fmt.estimate),
        (fmt.short_interval, fmt.short_interval),
        (fmt.point, fmt.short_interval),
    ):
        lines = _align(*_rows(report, cells, rate, ratio), width)
        if max(cell_len(line) for line in lines) <= width:
            return lines
    rows, verdicts = _rows(report, cells, fmt.short_interval, fmt.short_interval)
    heads = (*rows[0], "verdict")
    told = [(*row, word) for row, word in zip(rows[1:], verdicts[1:], strict=True)]
    return blocks([heads, *told], width)


def _rows(
    report: Report, cells: list[Cell], rate: Form, ratio: Form
) -> tuple[list[tuple[str, ...]], list[str]]:
    rows: list[tuple[str, ...]] = [HEADER]
    verdicts = [""]
    previous = None
    for cell in cells:
        compared = fmt.speedup(report, cell)
        is_baseline = cell.arm == report.baseline
        rows.append(
            (
                cell.scenario if cell.scenario != previous else "",
                cell.arm,
                fmt.tokens_mark(cell) + rate(cell.decode_tokens_per_s),
                fmt.milliseconds(cell.ttft_s),
                fmt.percent(cell.acceptance.draft_acceptance_rate) if cell.acceptance else "-",
                fmt.number(cell.tokens_per_step.point) if cell.tokens_per_step else "-",
                "1" if is_baseline else ratio(compared.ratio if compared else None),
            )
        )
        verdicts.append("" if is_baseline else fmt.verdict(compared))
        previous = cell.scenario
    return rows, verdicts


def _align(rows: list[tuple[str, ...]], verdicts: list[str], width: int) -> list[str]:
    """Columns side by side; the verdict at the line's end, or below when there is no room."""
    widths = [max(cell_len(row[i]) for row in rows) for i in range(len(HEADER))]
    gap = 2 if sum(widths) + 2 * (len(HEADER) - 1) <= width else 1
    before_last = sum(widths[:-1]) + gap * (len(HEADER) - 1)
    room = width - before_last - widths[-1] - 2
    inline = room >= max(len(verdict) for verdict in verdicts)
    lines = []
    for row, verdict in zip(rows, verdicts, strict=True):
        padded = [text + " " * (widths[i] - cell_len(text)) for i, text in enumerate(row)]
        line = (" " * gap).join(padded)
        if inline and verdict:
            line += "  " + verdict
        lines.append(line.rstrip())
        if verdict and not inline:
            lines.append(" " * min(before_last, width - len(verdict)) + verdict)
    return lines


def _sources(report: Report, width: int) -> list[str]:
    """Where the acceptance comes from, and whether the sources agree."""
    texts = []
    for cell in report.cells:
        found = cell.acceptance
        if found is None:
            continue
        text = f"acceptance: {found.quality}, from {SOURCE_WORDS[found.source]}"
        check = found.cross_check
        if check and check.get("agrees"):
            text += f"; agrees with {SOURCE_WORDS[check['source']]}"
        if found.unit == "repeat":
            text += "; its intervals are over repeats"
        texts.append(text)
    if any(cell.tokens == "estimated" for cell in report.cells):
        texts.append("~ tokens are estimated: the server does not count them")
    return _wrapped(dict.fromkeys(texts), width, "")


SOURCE_WORDS = {
    "per_request": "the server's per-request record",
    "counters": "its counters",
    "events": "the steps seen in the stream",
    "bursts": "bursts of arrivals",
    "gauge": "a running average of the server",
}


def _cautions(report: Report, width: int) -> list[str]:
    """Every caution once, with the cells that it is about."""
    many_loads = len({cell.load.label for cell in report.cells}) > 1
    about: dict[str, list[str]] = {caution.message: [] for caution in report.cautions}
    for cell in report.cells:
        where = f"{cell.scenario} x {cell.arm}"
        if many_loads:
            where += f" ({cell.load.label})"
        for caution in cell.cautions:
            about.setdefault(caution.message, []).append(where)
    texts = []
    for message, cells in about.items():
        names = "every cell" if len(cells) == len(report.cells) > 1 else ", ".join(cells)
        texts.append(f"{names}: {message}" if names else message)
    return ["", *_wrapped(texts, width, "! ")] if texts else []


def _wrapped(texts: "dict[str, None] | list[str]", width: int, mark: str) -> list[str]:
    lines: list[str] = []
    for text in texts:
        lines += textwrap.wrap(
            text,
            width,
            initial_indent=mark,
            subsequent_indent=" " * len(mark),
            break_long_words=False,
            break_on_hyphens=False,
        )
    return lines
