"""The report as one page: no network, no server, nothing to install to read or to write it.

Text and tables are in the HTML; charts and answers are drawn by the page's own script from the
report embedded as JSON. Formats; computes nothing.
"""

import base64
import hashlib
from importlib import resources

import msgspec

from sakiyomi.report import html_sections as sections
from sakiyomi.report import html_table, html_verdicts
from sakiyomi.report.html_text import Words, escape
from sakiyomi.results import Report

SCRIPTS = ("draw.js", "charts.js", "why.js", "answers.js", "page.js")
CHARTS = ("speed", "positions", "curve", "bytes", "time", "segments", "why")


def render(report: Report, *, lang: str = "en") -> str:
    """The page in English (`en`) or Japanese (`ja`)."""
    words = Words(lang)
    script = "\n".join(_asset(name) for name in SCRIPTS)
    below = {
        "segments": sections.segment_summary(report, words),
        "why": sections.why_sentences(report, words),
    }
    parts = [
        sections.header(report, words),
        html_verdicts.verdicts(report, words),
        sections.filters(report, words),
        html_table.results(report, words),
        *(_figure(name, words, below.get(name, "")) for name in CHARTS),
        sections.explanation(report, words),
        sections.conversations(report, words),
        sections.run_cautions(report, words),
        sections.environment(report, words),
    ]
    return (
        f'<!doctype html>\n<html lang="{lang}">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(report.name)} · sakiyomi</title>\n"
        f"<style>\n{_asset('page.css')}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + f'\n<script type="application/json" id="data">{embed(_data(report, words))}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def embed(value: object) -> str:
    """JSON that no content can end: `<`, `>`, `&` and the two line separators are escaped."""
    text = msgspec.json.encode(value).decode()
    for mark in ("<", ">", "&", "\u2028", "\u2029"):
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


def _data(report: Report, words: Words) -> dict[str, object]:
    return {"report": report, "words": words.texts, "names": words.names, "lang": words.lang}


def _figure(name: str, words: Words, below: str) -> str:
    """A chart's place; `below`: what stands under it without a script too."""
    return (
        f'<section class="chart" id="section-{name}"><h2>{words(f"chart_{name}")}</h2>\n'
        f'<p class="note">{words(f"note_{name}")}</p>\n<div class="controls" id="controls-{name}">'
        f'</div>\n<div class="drawing" id="chart-{name}"></div>\n'
        f'<noscript><p class="note">{words("no_script")}</p></noscript>{below}</section>'
    )


def _policy(script: str) -> str:
    """Nothing is loaded, and no script runs but the page's own."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def _asset(name: str) -> str:
    source = resources.files("sakiyomi.report") / "page" / name
    return source.read_text(encoding="utf-8").replace("\r\n", "\n")
