"""What the page opens with: the verdict of each path, in a sentence."""

import msgspec

from sakiyomi.decision import Decision
from sakiyomi.report import decision_text
from sakiyomi.report import format as fmt
from sakiyomi.report.html_text import Words, code, escape
from sakiyomi.results import Comparison, Report

REASON_WORDS = {
    "wins": "use",
    "only_one": "use_only",
    "no_gain": "use_no_gain",
    "limit_decides": "use_limits",
    "gain_open": "use_open",
    "limit_open": "use_open",
    "none_holds": "use_none",
    "none_left": "use_none",
}


def verdicts(report: Report, words: Words) -> str:
    """Each path in a sentence: what to serve, then its comparisons, the fastest arm first."""
    cards = []
    for scenario in dict.fromkeys(cell.scenario for cell in report.cells):
        compared = [
            c
            for c in report.comparisons
            if c.scenario == scenario and c.metric == "decode_tokens_per_s" and c.ratio
        ]
        compared.sort(key=lambda c: -(c.ratio.point if c.ratio else 0.0))
        lines = "".join(_verdict(report, one, words) for one in compared)
        if not compared:
            cell = next(c for c in report.cells if c.scenario == scenario)
            speed = fmt.number(cell.decode_tokens_per_s.point) if cell.decode_tokens_per_s else "–"
            lines = f"<p>{words('baseline_only', arm=cell.arm, speed=speed)}</p>"
        cards.append(
            f'<article class="path" data-scenario="{escape(scenario)}">'
            f"<h3>{escape(scenario)}</h3>{_choices(report, scenario, words)}{lines}</article>"
        )
    details = ""
    if report.decision:
        decision = msgspec.convert(report.decision, Decision, str_keys=True)
        texts = decision_text.summary(decision, words.say)
        items = "".join(f"<li>{escape(text)}</li>" for text in texts)
        details = (
            f'<details class="decision"><summary>{words("decision_details")}</summary>'
            f"<ul>{items}</ul></details>"
        )
    return (
        f'<section id="section-verdict"><h2>{words("verdict")}</h2>'
        f'<div class="paths">{"".join(cards)}</div>{details}</section>'
    )


def _choices(report: Report, scenario: str, words: Words) -> str:
    """What the decision says of a path, one sentence a load, and what to run next."""
    choices = [c for c in (report.decision or {}).get("choices", []) if c["scenario"] == scenario]
    texts = []
    for choice in choices:
        text = words(REASON_WORDS.get(choice["reason"], "use"), arm=choice["arm"])
        if len(choices) > 1:
            load = choice["load"]
            text = f"{escape(load.get('max_concurrency') or load.get('request_rate'))}: {text}"
        if choice.get("advised_k"):
            text += f" {words('advised', k=choice['advised_k'])}"
        texts.append(f'<p class="choice-line">{text}</p>')
        command = (choice.get("next_experiment") or {}).get("command")
        if command:
            texts.append(f'<div class="next">{words("next")}: {code(command, words)}</div>')
    return "".join(texts)


def _verdict(report: Report, one: Comparison, words: Words) -> str:
    assert one.ratio is not None
    cell = next(
        (
            c
            for c in report.cells
            if (c.scenario, c.arm, c.load) == (one.scenario, one.arm, one.load)
        ),
        None,
    )
    text = words(
        "sentence",
        arm=one.arm,
        baseline=one.baseline,
        ratio=words.plain_interval(one.ratio),
        verdict=words.texts[one.verdict],
    )
    rate = cell.acceptance.draft_acceptance_rate if cell and cell.acceptance else None
    if rate is not None:
        text += " " + words("sentence_rate", rate=words.plain_percent(rate))
        if one.break_even_rate is not None:
            text += " " + escape(words.say.break_even_sentence(one.break_even_rate))
    load = ""
    if len({c.load.label for c in report.cells}) > 1:
        load = f'<span class="load">{escape(one.load.label)}</span>'
    return (
        f'<p class="line" data-arm="{escape(one.arm)}" data-load="{escape(one.load.label)}">'
        f'<span class="name"><i class="swatch" data-arm-color="{escape(one.arm)}"></i>'
        f"{escape(one.arm)}</span>"
        f'<span class="ratio">×{fmt.number(one.ratio.point)}</span>'
        f'<span class="verdict {one.verdict}">{words(one.verdict)}</span>{load}'
        f'<span class="text">{text}</span></p>'
    )
