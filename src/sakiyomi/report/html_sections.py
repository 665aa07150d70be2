"""The sections of the page around the table: verdicts, filters, explanation, environment."""

from typing import Any

import msgspec

from sakiyomi.detail import SegmentRate
from sakiyomi.explain import Explanation
from sakiyomi.report import explanation_text, lever_text, why_text
from sakiyomi.report import format as fmt
from sakiyomi.report.html_table import caution_item
from sakiyomi.report.html_text import Words, code, escape
from sakiyomi.results import Report
from sakiyomi.what_if import WhatIf
from sakiyomi.why import Why

LEVERS_OF_A_PATH = 8
PUBLISHED = "published"
"""In place of a tool's version: no tool of ours measured it."""


def header(report: Report, words: Words) -> str:
    """Name, engine, device, how much was measured."""
    environment = report.environment
    facts = [
        " ".join(str(environment[k]) for k in ("engine", "engine_version") if environment.get(k)),
        str(environment.get("device") or environment.get("cpu") or ""),
        words.texts["repeats" if report.num_repeats > 1 else "repeat"].format(n=report.num_repeats),
    ]
    num_requests = sum(cell.num_requests for cell in report.cells)
    if num_requests:
        facts.append(words.texts["requests"].format(n=num_requests))
    facts.append(_minute(report.created))
    note = "" if report.provenance == "measured" else f'<p class="note">{words("published")}</p>'
    line = " · ".join(escape(fact) for fact in facts if fact)
    return f'<header><h1>{escape(report.name)}</h1><p class="facts">{line}</p>{note}</header>'


def filters(report: Report, words: Words) -> str:
    """Buttons that choose scenarios, arms and loads for everything below."""
    groups = []
    for key, values in (
        ("scenario", [cell.scenario for cell in report.cells]),
        ("arm", [cell.arm for cell in report.cells]),
        ("load", [cell.load.label for cell in report.cells]),
    ):
        names = list(dict.fromkeys(values))
        if len(names) < 2:
            continue
        buttons = "".join(
            f'<button type="button" class="chip" aria-pressed="true" data-filter="{key}" '
            f'data-value="{escape(name)}">'
            + (f'<i class="swatch" data-arm-color="{escape(name)}"></i>' if key == "arm" else "")
            + f"{escape(name)}</button>"
            for name in names
        )
        groups.append(
            f'<div class="group" role="group" aria-label="{words(f"{key}s")}">'
            f'<span class="label">{words(f"{key}s")}</span>{buttons}</div>'
        )
    if not groups:
        return ""
    return f'<nav class="filters" aria-label="{words("filter")}">{"".join(groups)}</nav>'


def segment_summary(report: Report, words: Words) -> str:
    """The largest differences."""
    found = report.segments
    if found is None or not found.largest:
        return ""
    items = "".join(f"<li>{_segment(found.rates[i], words)}</li>" for i in found.largest)
    title = words("largest", n=found.num_compared)
    return f'<h3>{title}</h3><ul id="largest">{items}</ul>'


def _segment(rate: SegmentRate, words: Words) -> str:
    key = "sentence_dimension" if rate.dimension == "sentence" else rate.dimension
    difference = rate.difference
    assert difference is not None  # of the largest ones
    return words(
        "largest_row",
        scenario=rate.scenario,
        arm=rate.arm,
        dimension=words.texts[key],
        segment=words.names.get(rate.segment, rate.segment),
        rate=words.plain_percent(rate.rate),
        difference=words.signed_points(difference),
    )


def why_sentences(report: Report, words: Words) -> str:
    """What the pass with logprobs says."""
    if report.why is None:
        return ""
    texts = why_text.summary(msgspec.convert(report.why, Why), words.say)
    return "".join(f"<p>{escape(text)}</p>" for text in texts)


def explanation(report: Report, words: Words) -> str:
    """What bytes say, in sentences, then the levers in a table."""
    content = report.explanation
    if not content:
        return ""
    found = msgspec.convert(content, Explanation)
    body = "".join(f"<p>{escape(t)}</p>" for t in explanation_text.sentences(found, words.say))
    unknown = explanation_text.unknown_sentences(found, words.say)
    body += "".join(f'<p class="note">{escape(text)}</p>' for text in unknown)
    levers = _levers(msgspec.convert(content.get("what_if", []), list[WhatIf]), words)
    if not body and not levers:
        return ""
    return (
        f'<section id="section-explanation"><h2>{words("explanation")}</h2>{body}{levers}</section>'
    )


def _levers(levers: list[WhatIf], words: Words) -> str:
    rows = []
    for scenario in dict.fromkeys(lever.scenario for lever in levers):
        mine = [one for one in levers if one.scenario == scenario and one.gain > 0]
        for one in mine[:LEVERS_OF_A_PATH]:
            change = lever_text.change(one, words.say)
            if not one.lossless:
                change += f" ({words.texts['changes_model']})"
            rows.append(
                f'<tr data-scenario="{escape(scenario)}" data-arm="{escape(one.arm)}">'
                + "".join(
                    f'<td data-label="{words(head)}"><span>{escape(value)}</span></td>'
                    for head, value in (
                        ("scenario", scenario),
                        ("arm", one.arm),
                        ("change", change),
                        ("gain", lever_text.gain(one, words.say)),
                        ("up_to", fmt.number(one.tokens_per_s)),
                        ("assumes", lever_text.assumption(one, words.say)),
                    )
                )
                + "</tr>"
            )
    if not rows:
        return ""
    heads = "".join(
        f"<th>{words(h)}</th>" for h in ("scenario", "arm", "change", "gain", "up_to", "assumes")
    )
    return (
        f"<details><summary>{words('what_if')}</summary><div class='scroll'>"
        f'<table class="plain"><thead><tr>{heads}</tr></thead><tbody>{"".join(rows)}</tbody>'
        "</table></div></details>"
    )


def conversations(report: Report, words: Words) -> str:
    """The place where the script lists requests and shows answers."""
    found = report.requests
    if found is None:
        return ""
    notes = [words("note_list")]
    num_rows = sum(not row.warmup for row in found.rows)
    if num_rows < found.num_requests:
        notes.append(words("rows_cut", kept=num_rows, all=found.num_requests))
    if found.num_answers < found.num_requests:
        notes.append(words("list_cut", kept=found.num_answers, all=found.num_requests))
    return (
        f'<section id="section-list"><h2>{words("list")}</h2>'
        f'<p class="note">{"<br>".join(notes)}</p>'
        f'<div id="requests"></div><noscript><p class="note">{words("no_script")}</p></noscript>'
        "</section>"
    )


def run_cautions(report: Report, words: Words) -> str:
    """Cautions about the whole run."""
    if not report.cautions:
        return ""
    items = "".join(caution_item(caution, words) for caution in report.cautions)
    return (
        f'<section id="section-cautions"><h2>{words("cautions")}</h2>'
        f"<h3>{words('cautions_run')}</h3><ul>{items}</ul></section>"
    )


def environment(report: Report, words: Words) -> str:
    """The machine, the engines' commands, the plan and how to run it again."""
    facts = _facts(report.environment, words)
    if report.runs:
        facts = "".join(
            f"<h3>{escape(run['run'])}</h3>"
            + _facts({"created": _minute(run["created"]), **run["environment"]}, words)
            for run in report.runs
        )
    commands = ""
    for arm in report.arms:
        if arm.get("argv"):
            title = words("engine_command", arm=arm["name"])
            commands += f"<h3>{title}</h3>{code(' '.join(map(_quote, arm['argv'])), words)}"
    again = ""
    if report.plan_toml:
        again = (
            f"<p>{words('reproduce_note')}</p>{code('sakiyomi run plan.toml', words)}"
            f"<details><summary>plan.toml</summary>{code(report.plan_toml, words)}</details>"
        )
    runs = [run["run"] for run in report.runs] or [report.run]
    verb = "compare" if report.runs else "report"
    names = " ".join(map(_quote, runs))
    command = f"sakiyomi {verb} {names} -o report.html --lang {words.lang}"
    version = _version(report)
    return (
        f'<section id="section-environment"><h2>{words("environment")}</h2>{facts}'
        f"{commands}<h2>{words('reproduce')}</h2>{again}"
        f"<p>{words('reproduce_folder')}</p>{code(command, words)}"
        f"</section><footer>{words('made_by', version=version)} · "
        f"{words('run_label')} {escape(', '.join(runs))}</footer>"
    )


def _facts(environment: dict[str, Any], words: Words) -> str:
    """Names and values that are known."""
    rows = "".join(
        f"<dt>{words.name(key)}</dt><dd>{escape(_fact(key, value))}</dd>"
        for key, value in environment.items()
        if value not in (None, "") and (key, value) != ("tool_version", PUBLISHED)
    )
    return f"<dl>{rows}</dl>"


def _fact(key: str, value: object) -> object:
    """A size in gigabytes, anything else as it is."""
    if key.endswith("_bytes") and isinstance(value, int):
        return f"{fmt.number(value / 1e9)} GB"
    return value


def _version(report: Report) -> str:
    version = str(report.environment.get("tool_version") or "")
    return "" if version == PUBLISHED else version


def _minute(created: str) -> str:
    return created[:16].replace("T", " ")


def _quote(text: str) -> str:
    """A word for a POSIX shell."""
    safe = all(c.isalnum() or c in "@%+=:,./-_" for c in text)
    return text if safe and text else "'" + text.replace("'", "'\"'\"'") + "'"
