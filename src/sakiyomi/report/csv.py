"""The report as CSV: one row a cell; a BOM, so that Excel opens it as UTF-8 in Japan too."""

import csv
import io

from sakiyomi.report import format as fmt
from sakiyomi.results import Cell, Report
from sakiyomi.stats import Estimate

ESTIMATES = (
    "ttft_s",
    "time_to_answer_s",
    "time_to_first_sentence_s",
    "decode_tokens_per_s",
    "tokens_per_step",
    "e2e_s",
)


def render(report: Report) -> str:
    """One row a cell, units in the column names."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    header = ["scenario", "arm", "load", "num_requests", "num_failed"]
    for name in (*ESTIMATES, "draft_acceptance_rate", "mean_acceptance_length", "speedup"):
        header += [name, f"{name}_low", f"{name}_high"]
    writer.writerow([*header, "verdict", "acceptance_source", "cautions"])
    for cell in report.cells:
        writer.writerow([_safe(value) for value in _row(report, cell)])
    return "\ufeff" + out.getvalue()


def _row(report: Report, cell: Cell) -> list[object]:
    row: list[object] = [
        cell.scenario,
        cell.arm,
        cell.load.label,
        cell.num_requests,
        cell.num_failed,
    ]
    for name in ESTIMATES:
        row += _three(getattr(cell, name))
    found = cell.acceptance
    row += _three(found.draft_acceptance_rate if found else None)
    row += _three(found.mean_acceptance_length if found else None)
    compared = fmt.speedup(report, cell)
    row += _three(compared.ratio if compared else None)
    row.append(compared.verdict if compared else "")
    row.append(found.source if found else "")
    row.append("; ".join(caution.kind for caution in cell.cautions))
    return row


def _three(value: Estimate | None) -> list[object]:
    return ["", "", ""] if value is None else [value.point, value.low, value.high]


def _safe(value: object) -> object:
    """A text that a spreadsheet would run as a formula gets an apostrophe."""
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return "'" + value
    return "" if value is None else value
