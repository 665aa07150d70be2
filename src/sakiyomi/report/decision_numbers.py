"""Sentences of what a verdict rests on: an arm's numbers, its limits, its text, draft lengths."""

from sakiyomi.best_k import BestK
from sakiyomi.candidates import Candidate
from sakiyomi.decision import Choice
from sakiyomi.lossless import TextCheck
from sakiyomi.report.format import number
from sakiyomi.report.language import EN, Language
from sakiyomi.slo import LimitCheck
from sakiyomi.stats import Estimate


def candidate_sentence(candidate: Candidate, choice: Choice, say: Language = EN) -> str:
    """One arm's numbers in a line."""
    if candidate.excluded is not None:
        return say("excluded", arm=candidate.arm, why=say(candidate.excluded))
    parts = [f"{say.estimate(candidate.decode_tokens_per_s)} tok/s"]
    if candidate.ratio is not None and candidate.arm != choice.reference:
        words = {"wins": "faster", "no_gain": candidate.verdict or "not_established"}
        verdict = say(words.get(candidate.outcome, "not_established"))
        parts.append(say("ratio_verdict", ratio=say.estimate(candidate.ratio), verdict=verdict))
    if candidate.acceptance_rate is not None:
        parts.append(say("accepted", rate=say.percent(candidate.acceptance_rate)))
    if candidate.step_cost is not None and candidate.tokens_per_step is not None:
        parts.append(
            say(
                "step_costs",
                length=number(candidate.tokens_per_step.point),
                cost=say.estimate(candidate.step_cost),
                k=candidate.num_speculative_tokens or "?",
            )
        )
    if candidate.break_even_rate is not None:
        parts.append(say("break_even_rate", rate=say.break_even(candidate.break_even_rate)))
    if candidate.num_failed:
        parts.append(say("num_failed", n=candidate.num_failed))
    if candidate.cautions:
        parts.append(say("with_cautions", kinds=say.join(candidate.cautions)))
    return say("candidate", arm=candidate.arm, parts=say.join(parts, "semicolon"))


def limit_sentence(arm: str, check: LimitCheck, say: Language = EN) -> str:
    """One limit against one arm: the share of requests that hold it, and what was seen."""
    text = say(
        "limit",
        arm=arm,
        limit=check.limit,
        sign=">=" if check.limit in ("decode_tokens_per_s", "speech_margin_s") else "<=",
        value=f"{check.value:g}",
        quantile=f"{check.quantile:.0%}",
        standing=say(check.standing),
    )
    if check.share is not None:
        text += say("limit_share", share=say.percent(check.share), n=check.share.n)
    if check.observed is not None:
        text += say("limit_observed", observed=say.estimate(check.observed))
    return text + say("stop")


def text_sentence(check: TextCheck, say: Language = EN) -> str:
    """Whether an arm writes what the plain one writes."""
    text = say(
        "same_text",
        arm=check.arm,
        baseline=check.baseline,
        share=say.percent(check.share_equal),
        n=check.num_compared,
    )
    where = check.first
    if where is None:
        return text + say("stop")
    text += say(check.verdict) if check.verdict != "same" else ""
    return text + say(
        "divergence",
        conversation=where.conversation_id,
        n=where.character,
        before=where.before[-12:],
        baseline=where.baseline[:12],
        arm=where.arm[:12],
    )


def length_sentences(best: BestK, advised: int | None, say: Language = EN) -> list[str]:
    """Predicted speed for each k, the optimum, and the cost of being one off."""
    rows = [
        say("length_row", k=row.num_speculative_tokens, speedup=_span(row.speedup, say))
        + ("*" if row.extrapolated else "")
        for row in best.rows
    ]
    text = say("lengths", arm=best.arm, rows=say.join(rows))
    if any(row.extrapolated for row in best.rows):
        text += say("extrapolated")
    notes = [say(best.source), say("iid" if best.positions == "iid" else "by_position")]
    text += say.texts["semicolon"] + say.join(notes) + say("stop")
    if best.best == 0:
        return [text, say("no_drafts")]
    off = [
        say(name, loss=f"{-loss:.0%}")
        for name, loss in (("one_shorter", best.one_shorter), ("one_longer", best.one_longer))
        if loss is not None
    ]
    words = say("best_k", k=best.best)
    if off:
        words = say("in_brackets", text=words, more=say.join(off))
    if advised == best.best:
        words += say("best_advised")
    elif not best.rows[best.best - 1].measured:
        words += say("best_near")
    return [text, words + say("stop")]


def _span(value: Estimate, say: Language) -> str:
    if value.low is None or value.high is None:
        return number(value.point)
    if say.lang != "en":
        return say.estimate(value)
    return f"{number(value.point)} ({number(value.low)}-{number(value.high)})"
