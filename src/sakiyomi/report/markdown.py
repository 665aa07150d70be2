"""The report as Markdown: tables that render on GitHub, Zenn and Qiita."""

from collections.abc import Sequence

from sakiyomi.published_forms import published_forms
from sakiyomi.report import form_table
from sakiyomi.report import format as fmt
from sakiyomi.report.text import SOURCE_WORDS
from sakiyomi.results import Cell, Report

SECTIONS = {
    "explanation": "Explanation",
    "why": "Entropy and acceptance",
    "decision": "Decision",
}


def render(report: Report) -> str:
    """The table with intervals, its sources, and every caution."""
    lines = [f"# {_escape(report.name)}", "", _escape(fmt.title(report)), ""]
    if report.provenance != "measured":
        lines += ["*Published numbers, not measured here.*", ""]
    lines += [
        "| scenario | arm | load | decode tok/s | TTFT ms | accepted | tok/step | speedup | |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [_row(report, cell) for cell in report.cells]
    lines += ["", "Intervals are 95 % bootstrap intervals over conversations.", ""]
    for form in published_forms(report):
        header, *rows = form_table.rows(form)
        lines += [f"## B{form_table.title(form)[1:]}", "", _line(header)]
        lines += ["|---" * len(header) + "|", *map(_line, rows), "", _escape(form.note), ""]
    sources = dict.fromkeys(
        f"Acceptance: {cell.acceptance.quality}, from {SOURCE_WORDS[cell.acceptance.source]}."
        for cell in report.cells
        if cell.acceptance
    )
    lines += [*sources, ""] if sources else []
    cautions = [f"- {_escape(caution.message)}" for caution in report.cautions]
    for cell in report.cells:
        cautions += [
            f"- {_escape(cell.scenario)} x {_escape(cell.arm)}: {_escape(caution.message)}"
            for caution in cell.cautions
        ]
    lines += ["## Cautions", "", *dict.fromkeys(cautions), ""] if cautions else []
    for section, title in SECTIONS.items():
        content = getattr(report, section)
        if content and content.get("summary"):
            lines += [f"## {title}", ""]
            lines += [_escape(text) + "\n" for text in content["summary"]]
    return "\n".join(lines).rstrip() + "\n"


def _row(report: Report, cell: Cell) -> str:
    compared = fmt.speedup(report, cell)
    is_baseline = cell.arm == report.baseline
    found = cell.acceptance
    values = [
        cell.scenario,
        cell.arm,
        cell.load.label,
        fmt.tokens_mark(cell) + fmt.estimate(cell.decode_tokens_per_s),
        fmt.milliseconds(cell.ttft_s),
        fmt.percent(found.draft_acceptance_rate) if found else "-",
        fmt.number(cell.tokens_per_step.point) if cell.tokens_per_step else "-",
        "1" if is_baseline else fmt.estimate(compared.ratio if compared else None),
        "" if is_baseline else fmt.verdict(compared),
    ]
    return _line(values)


def _line(values: Sequence[str]) -> str:
    return "| " + " | ".join(_escape(value) for value in values) + " |"


def _escape(text: str) -> str:
    """Text of users and models stays text: no pipes, no HTML, no line ends."""
    for mark in ("\\", "|", "<", ">", "*", "_", "`", "[", "]"):
        text = text.replace(
            mark, "\\" + mark if mark not in "<>" else {"<": "&lt;", ">": "&gt;"}[mark]
        )
    return " ".join(text.split())
