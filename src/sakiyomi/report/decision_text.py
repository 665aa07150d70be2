"""A decision for people: one sentence a path for a manager, the numbers below for an engineer.

Every sentence takes the language that says it.
"""

import textwrap
from collections.abc import Sequence

from sakiyomi.calibration import Calibration
from sakiyomi.decision import Choice, Decision, Regression
from sakiyomi.explained_calibration import ExplainedCalibration
from sakiyomi.path_lengths import BatchLengths
from sakiyomi.plan import ClosedLoad
from sakiyomi.report.decision_numbers import (
    candidate_sentence,
    length_sentences,
    limit_sentence,
    text_sentence,
)
from sakiyomi.report.experiment_text import experiment_sentence
from sakiyomi.report.format import number
from sakiyomi.report.language import EN, Language
from sakiyomi.stats import Estimate
from sakiyomi.tuning import Tuned


def render(decision: Decision, width: int = 80) -> str:
    """The whole decision, `width` columns wide."""
    lines: list[str] = []
    many = len({choice.load for choice in decision.choices}) > 1
    for choice in decision.choices:
        lines += _wrap(verdict_sentence(choice, many_loads=many), width, "")
        for sentence in numbers(choice):
            lines += _wrap(sentence, width, "  ")
        lines.append("")
    for sentence in closing(decision):
        lines += [*_wrap(sentence, width, ""), ""]
    lines += _wrap(answer_sentence(decision), width, "")
    return "\n".join(lines).rstrip() + "\n"


def summary(decision: Decision, say: Language = EN) -> list[str]:
    """Every sentence, in the order of `render`."""
    many = len({choice.load for choice in decision.choices}) > 1
    sentences = []
    for choice in decision.choices:
        sentences += [verdict_sentence(choice, say, many_loads=many), *numbers(choice, say)]
    return [*sentences, *closing(decision, say), answer_sentence(decision, say)]


def closing(decision: Decision, say: Language = EN) -> list[str]:
    """What belongs to no single path."""
    return [
        *[calibration_sentence(fit, say) for fit in decision.calibrations],
        *[batch_sentence(batch, say) for batch in decision.batch_lengths],
        *([regression_sentence(decision.regression, say)] if decision.regression else []),
    ]


def verdict_sentence(choice: Choice, say: Language = EN, *, many_loads: bool = False) -> str:
    """The decision of one path, for whoever has to live with it."""
    path = choice.scenario
    if many_loads:
        path = say("at_load", scenario=path, load=load_words(choice, say))
    return say("path", path=path, text=_verdict(choice, say))


def _verdict(choice: Choice, say: Language) -> str:
    chosen = choice.chosen
    if chosen is None:
        return say("none", why=_why_none(choice, say))
    if choice.reason == "wins" and chosen.ratio is not None:
        won = gain(chosen.ratio, say)
        return say("wins", arm=chosen.arm, gain=won, reference=choice.reference)
    if (explain := REASONS.get(choice.reason)) is not None:
        return say(choice.reason, arm=chosen.arm, why=explain(choice, say))
    return say("only_one" if choice.reason == "only_one" else "use", arm=chosen.arm)


def numbers(choice: Choice, say: Language = EN) -> list[str]:
    """What the verdict rests on, checkable."""
    sentences = []
    for candidate in choice.candidates:
        sentences.append(candidate_sentence(candidate, choice, say))
        sentences += [limit_sentence(candidate.arm, check, say) for check in candidate.limits]
    sentences += [text_sentence(check, say) for check in choice.texts]
    for path in choice.draft_lengths:
        sentences += length_sentences(path.best_k, choice.advised_k, say)
    if choice.speech is not None and len(choice.candidates) > 1:
        sentences.append(say("speech", arm=choice.speech.arm, times=number(choice.speech.times)))
    if choice.next_experiment is not None:
        what = experiment_sentence(choice.next_experiment, choice, say)
        sentences.append(say("next", what=what))
    return sentences


def calibration_sentence(fit: Calibration | ExplainedCalibration, say: Language = EN) -> str:
    """c0 and c with their intervals."""
    costs = (
        fit.at
        if isinstance(fit, Calibration)
        else {step.num_speculative_tokens: step.measured for step in fit.at}
    )
    at = say.join(f"C({k}) = {say.estimate(cost)}" for k, cost in sorted(costs.items()))
    return say(
        "calibration_fit",
        run=fit.run,
        engine=fit.engine,
        method=fit.method,
        fixed=say.estimate(fit.fixed),
        per_draft=say.estimate(fit.per_draft),
        at=at,
    )


def batch_sentence(batch: BatchLengths, say: Language = EN) -> str:
    """k by concurrency and where speculation stops paying."""
    ranges = say.join(say("batch_range", low=low, high=high, k=k) for low, high, k in batch.ranges)
    text = say("batch", scenario=batch.scenario, arm=batch.arm, ranges=ranges)
    if batch.stops_paying_at is not None:
        return text + say("batch_stops", n=f"{batch.stops_paying_at:.0f}")
    pays = [str(c) for c, does in batch.pays_at.items() if does]
    return text + say("batch_pays", loads=say.join(pays) or say("no_load"))


def regression_sentence(one: Regression, say: Language = EN) -> str:
    """The run against an earlier one."""
    rows = [
        f"{c.scenario} {c.arm.split('/')[-1]} "
        + say("ratio_verdict", ratio=say.estimate(c.ratio), verdict=say(c.verdict))
        for c in one.comparisons
    ]
    return say(
        "regression",
        earlier=one.earlier,
        answer=say(f"regression_{one.answer}"),
        rows=say.join(rows),
    )


def answer_sentence(decision: Decision, say: Language = EN) -> str:
    """What the gate says."""
    why = decision.answer
    if why == "no" and not any(c.verdict == "none" for c in decision.choices):
        return say("gate", answer=say("gate_no"), why=say("why_slower"))
    return say("gate", answer=say(f"gate_{why}"), why=say(f"why_{why}"))


def tuning_sentences(rows: Sequence[Tuned], say: Language = EN) -> list[str]:
    """Prediction against measurement, a line for each path and draft length."""
    return [
        say(
            "tuned",
            scenario=row.scenario,
            k=row.num_speculative_tokens,
            predicted=say.estimate(row.predicted),
            measured=say.estimate(row.measured),
            error=f"{row.error:+.0%}",
            agrees=say(f"agrees_{row.agrees}"),
        )
        for row in rows
    ]


def gain(ratio: Estimate, say: Language = EN) -> str:
    """`85% faster (81% to 91%)`; `2% slower (-34% to +60%)` where the direction is open."""
    is_faster = ratio.point >= 1
    text = say("faster_by" if is_faster else "slower_by", share=f"{abs(ratio.point - 1):.0%}")
    if ratio.low is None or ratio.high is None:
        return text
    low, high = ratio.low - 1, ratio.high - 1
    if low < 0 < high:
        return say("with_interval", text=text, low=f"{low:+.0%}", high=f"{high:+.0%}")
    low, high = sorted((abs(low), abs(high)))
    return say("with_interval", text=text, low=f"{low:.0%}", high=f"{high:.0%}")


def load_words(choice: Choice, say: Language = EN) -> str:
    """`8 concurrent`, or the arrival rate."""
    load = choice.load
    if isinstance(load, ClosedLoad):
        return say("concurrent", n=load.max_concurrency)
    return say("per_second", n=f"{load.request_rate:g}")


def _others(choice: Choice, say: Language) -> str:
    rows = [
        say("arm_is", arm=c.arm, gain=gain(c.ratio, say))
        for c in choice.candidates
        if c.outcome == "no_gain" and c.ratio is not None and c.excluded is None
    ]
    return say.join(rows) or say("none_gains")


def _open(choice: Choice, say: Language) -> str:
    rows = []
    for candidate in choice.candidates:
        if candidate.outcome != "open" or candidate.excluded is not None:
            continue
        if candidate.ratio is None:
            rows.append(say("no_ratio", arm=candidate.arm))
            continue
        key = "without_spread" if candidate.ratio.low is None else "arm_is"
        rows.append(say(key, arm=candidate.arm, gain=gain(candidate.ratio, say)))
    return say.join(rows, "semicolon")


def _open_limits(choice: Choice, say: Language) -> str:
    rows = [
        say("limit_of", limit=check.limit, arm=candidate.arm)
        for candidate in choice.candidates
        if candidate.excluded is None
        for check in candidate.limits
        if check.standing == "cannot_tell"
    ]
    return say("limits_open", limits=say.join(dict.fromkeys(rows)))


def _failing(choice: Choice, say: Language) -> str:
    rows = [c.arm for c in choice.candidates if c.standing == "fails" and c.excluded is None]
    return say.join(rows) or say("the_others")


REASONS = {
    "no_gain": _others,
    "limit_decides": _failing,
    "gain_open": _open,
    "limit_open": _open_limits,
}
"""What each reason of a choice goes on to say."""


def _why_none(choice: Choice, say: Language) -> str:
    rows = []
    for candidate in choice.candidates:
        if candidate.excluded is not None:
            rows.append(say("arm_out", arm=candidate.arm, why=say(candidate.excluded)))
        else:
            failing = [check.limit for check in candidate.limits if check.standing == "fails"]
            rows.append(say("arm_fails", arm=candidate.arm, limits=say.join(failing)))
    return say.join(rows, "semicolon") + say("stop")


def _wrap(text: str, width: int, indent: str) -> Sequence[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
