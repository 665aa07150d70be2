"""The table of results: cautions next to the numbers that they concern."""

from sakiyomi.record import Caution
from sakiyomi.report import format as fmt
from sakiyomi.report.html_text import Words, escape
from sakiyomi.report.words_cautions import COLUMNS
from sakiyomi.results import Cell, Report

HEADS = ("scenario", "arm", "speed", "ttft", "accepted", "per_step", "speedup")


def results(report: Report, words: Words) -> str:
    """Every cell with its intervals, verdict and cautions."""
    many_loads = len({cell.load.label for cell in report.cells}) > 1
    heads = [*HEADS[:2], *(["load"] if many_loads else []), *HEADS[2:]]
    with_sentence = any(cell.time_to_first_sentence_s for cell in report.cells)
    if with_sentence:
        heads.insert(heads.index("ttft") + 1, "sentence_ms")
    rows = "".join(_rows(report, cell, heads, words) for cell in report.cells)
    titles = "".join(f'<th scope="col" class="{h}">{words(h)}</th>' for h in heads)
    level = max(
        (c.decode_tokens_per_s.level for c in report.cells if c.decode_tokens_per_s), default=0.95
    )
    notes = [words("interval_note", level=f"{level:.0%}"), *_sources(report, words)]
    if any(cell.tokens == "estimated" for cell in report.cells):
        notes.append(words("estimated_tokens"))
    return (
        f'<section id="section-table"><h2>{words("table")}</h2><div class="scroll">'
        f'<table class="results"><thead><tr>{titles}<th class="more"></th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
        f'<p class="note">{"<br>".join(notes)}</p></section>'
    )


def caution_item(caution: Caution, words: Words) -> str:
    """One caution with its numbers; in English where this language has no words for its kind."""
    text = words.caution(caution) or f'<span lang="en">{escape(caution.message)}</span>'
    return f'<li data-kind="{escape(caution.kind)}">{text}</li>'


def _rows(report: Report, cell: Cell, heads: list[str], words: Words) -> str:
    compared = fmt.speedup(report, cell)
    found = cell.acceptance
    is_baseline = cell.arm in {report.baseline, *(c.baseline for c in report.comparisons)}
    verdict = compared.verdict if compared else None
    values = {
        "scenario": escape(cell.scenario),
        "arm": f'<i class="swatch" data-arm-color="{escape(cell.arm)}"></i>{escape(cell.arm)}',
        "load": escape(cell.load.label),
        "speed": fmt.tokens_mark(cell) + words.interval(cell.decode_tokens_per_s),
        "ttft": words.interval(cell.ttft_s, 1000),
        "sentence_ms": words.interval(cell.time_to_first_sentence_s, 1000),
        "accepted": words.percent(found.draft_acceptance_rate if found else None),
        "per_step": words.interval(cell.tokens_per_step),
        "speedup": words("baseline")
        if is_baseline
        else words.interval(compared.ratio if compared else None)
        + (f' <span class="verdict {verdict}">{words(verdict)}</span>' if verdict else ""),
    }
    marked = {COLUMNS.get(caution.kind, "speed") for caution in cell.cautions}
    for column in marked & set(heads):
        values[column] += f' <abbr class="flag" title="{words("caution")}">!</abbr>'
    cells = "".join(
        f'<td class="{head}" data-label="{words(head)}"><span>{values[head]}</span></td>'
        for head in heads
    )
    attributes = (
        f'data-scenario="{escape(cell.scenario)}" data-arm="{escape(cell.arm)}" '
        f'data-load="{escape(cell.load.label)}"'
    )
    button = ""
    if report.requests is not None:
        button = (
            f'<button type="button" class="open" {attributes} '
            f'title="{words("show_conversations")}">'
            f"{words('conversations')} {cell.num_conversations}</button>"
        )
    row = f'<tr class="cell" {attributes}>{cells}<td class="more">{button}</td></tr>'
    if not cell.cautions:
        return row
    items = "".join(caution_item(caution, words) for caution in cell.cautions)
    return (
        f'{row}<tr class="cautions" {attributes}><td colspan="{len(heads) + 1}">'
        f"<details open><summary>{words('cautions')} ({len(cell.cautions)})</summary>"
        f"<ul>{items}</ul></details></td></tr>"
    )


def _sources(report: Report, words: Words) -> list[str]:
    texts = []
    for cell in report.cells:
        found = cell.acceptance
        if found is None:
            continue
        text = words("source", quality=words.texts[found.quality], source=words.texts[found.source])
        check = found.cross_check
        if check and check.get("agrees"):
            text += " " + words("source_agrees", source=words.texts[check["source"]])
        texts.append(text)
    return list(dict.fromkeys(texts))
