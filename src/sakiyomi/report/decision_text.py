"""A decision for people: one sentence a path for a manager, the numbers below for an engineer."""

import textwrap
from collections.abc import Sequence

from sakiyomi.best_k import BestK
from sakiyomi.calibration import Calibration
from sakiyomi.candidates import Candidate
from sakiyomi.decide import Choice, Decision, Regression
from sakiyomi.lossless import TextCheck
from sakiyomi.next_experiment import Experiment
from sakiyomi.path_lengths import BatchLengths
from sakiyomi.plan import ClosedLoad
from sakiyomi.report.format import estimate, number, percent
from sakiyomi.slo import LimitCheck
from sakiyomi.stats import Estimate
from sakiyomi.tuning import Tuned

EXCLUSION_WORDS = {
    "forced_acceptance": "its acceptance is forced, it shows no workload",
    "lossy_acceptance": "it accepts drafts that the model itself would not have written",
    "text_differs": "its text differs from the model's own",
    "all_failed": "every request failed",
}
SOURCE_WORDS = {
    "calibration": "step costs from a calibration",
    "several_k": "step costs measured at several k",
    "one_k": "one measured step cost, split by two hypotheses",
}


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


def summary(decision: Decision) -> list[str]:
    """Every sentence, in the order of `render`."""
    many = len({choice.load for choice in decision.choices}) > 1
    sentences = []
    for choice in decision.choices:
        sentences += [verdict_sentence(choice, many_loads=many), *numbers(choice)]
    return [*sentences, *closing(decision), answer_sentence(decision)]


def closing(decision: Decision) -> list[str]:
    """What belongs to no single path."""
    return [
        *[calibration_sentence(fit) for fit in decision.calibrations],
        *[batch_sentence(batch) for batch in decision.batch_lengths],
        *([regression_sentence(decision.regression)] if decision.regression else []),
    ]


def verdict_sentence(choice: Choice, *, many_loads: bool = False) -> str:
    """The decision of one path, for whoever has to live with it."""
    path = choice.scenario + (f" at {load_words(choice)}" if many_loads else "")
    chosen = choice.chosen
    if chosen is None:
        return f"{path}: no arm will do. {_why_none(choice)}"
    if choice.reason == "wins" and chosen.ratio is not None:
        return (
            f"{path}: use {chosen.arm}. It is {gain(chosen.ratio)} than {choice.reference}; "
            "that is established."
        )
    texts = {
        "only_one": f"use {chosen.arm}, the only arm.",
        "no_gain": f"use {chosen.arm}. No other arm is worth it: {_others(choice)}.",
        "limit_decides": f"use {chosen.arm}. {_why_limits(choice)}",
        "gain_open": f"keep {chosen.arm} for now. Not established: {_open(choice)}.",
        "limit_open": f"keep {chosen.arm} for now. Not established: {_open_limits(choice)}.",
    }
    return f"{path}: {texts.get(choice.reason, f'use {chosen.arm}.')}"


def numbers(choice: Choice) -> list[str]:
    """What the verdict rests on, checkable."""
    sentences = []
    for candidate in choice.candidates:
        sentences.append(candidate_sentence(candidate, choice))
        sentences += [limit_sentence(candidate.arm, check) for check in candidate.limits]
    sentences += [text_sentence(check) for check in choice.texts]
    for path in choice.draft_lengths:
        sentences += length_sentences(path.best_k, choice.advised_k)
    if choice.speech is not None and len(choice.candidates) > 1:
        sentences.append(
            f"Even the slowest arm, {choice.speech.arm}, writes {number(choice.speech.times)} "
            "times as fast as speech at one character a token: once a voice has started, a "
            "listener does not hear the difference."
        )
    if choice.next_experiment is not None:
        sentences.append("Next: " + experiment_sentence(choice.next_experiment, choice))
    return sentences


def candidate_sentence(candidate: Candidate, choice: Choice) -> str:
    """One arm's numbers in a line."""
    if candidate.excluded is not None:
        return f"{candidate.arm}: out, {EXCLUSION_WORDS[candidate.excluded]}."
    parts = [f"{estimate(candidate.decode_tokens_per_s)} tok/s"]
    if candidate.ratio is not None and candidate.arm != choice.reference:
        words = {"wins": "faster", "no_gain": (candidate.verdict or "").replace("_", " ")}
        parts.append(
            f"x{estimate(candidate.ratio)} {words.get(candidate.outcome, 'not established')}"
        )
    if candidate.acceptance_rate is not None:
        parts.append(f"accepted {percent(candidate.acceptance_rate)}")
    if candidate.step_cost is not None and candidate.tokens_per_step is not None:
        k = candidate.num_speculative_tokens
        parts.append(
            f"{number(candidate.tokens_per_step.point)} tokens a step that costs "
            f"{estimate(candidate.step_cost)} plain ones (k = {k})"
        )
    if candidate.break_even_rate is not None:
        parts.append(f"break-even {percent(candidate.break_even_rate)}")
    if candidate.num_failed:
        parts.append(f"{candidate.num_failed} requests failed")
    if candidate.cautions:
        parts.append("cautions: " + ", ".join(candidate.cautions))
    return f"{candidate.arm}: {'; '.join(parts)}."


def limit_sentence(arm: str, check: LimitCheck) -> str:
    """One limit against one arm: the share of requests that hold it, and what was seen."""
    words = {"holds": "holds", "fails": "does not hold", "cannot_tell": "cannot be told"}
    sign = ">=" if check.limit in ("decode_tokens_per_s", "speech_margin_s") else "<="
    text = f"{arm}: {check.limit} {sign} {check.value:g} for {check.quantile:.0%} of requests "
    text += words[check.standing]
    if check.share is not None:
        text += f": {percent(check.share)}% of {check.share.n} conversations' requests do"
        text = text.replace("%%", "%")
    if check.observed is not None:
        text += f"; seen at that share {estimate(check.observed)}"
    return text + "."


def text_sentence(check: TextCheck) -> str:
    """Whether an arm writes what the plain one writes."""
    text = (
        f"{check.arm} and {check.baseline} wrote the same text in {percent(check.share_equal)} of "
        f"{check.num_compared} greedy answers"
    )
    if check.first is None:
        return text + "."
    words = {
        "near_ties": "all divergences are near ties of the first token that differs",
        "not_told": "whether the rest are near ties cannot be told without logprobs",
        "differs": "too much for near ties: the output is not the model's own",
    }
    where = check.first
    return (
        f"{text}; {words.get(check.verdict, '')}. First: {where.conversation_id}, after "
        f"{where.character} characters ({where.before[-12:]!r}): {where.baseline[:12]!r} "
        f"against {where.arm[:12]!r}."
    )


def length_sentences(best: BestK, advised: int | None) -> list[str]:
    """Predicted speed for each k, the optimum, and the cost of being one off."""
    rows = ", ".join(
        f"{row.num_speculative_tokens}: x{_span(row.speedup)}{'*' if row.extrapolated else ''}"
        for row in best.rows
    )
    text = f"{best.arm}, speedup predicted by k: {rows}"
    if any(row.extrapolated for row in best.rows):
        text += " (* beyond the measured positions, flattering)"
    notes = [SOURCE_WORDS[best.source]]
    if best.positions == "iid":
        notes.append("acceptance taken as equal at all positions")
    else:
        notes.append("conservative for shorter drafts")
    text += "; " + ", ".join(notes) + "."
    if best.best == 0:
        return [text, "Best: no drafts at all."]
    off = [
        f"{name} costs {-loss:.0%}"
        for name, loss in (("one shorter", best.one_shorter), ("one longer", best.one_longer))
        if loss is not None
    ]
    words = f"Best k: {best.best}" + (f" ({', '.join(off)})" if off else "")
    row = best.rows[best.best - 1]
    if advised == best.best:
        words += ", predicted, not measured: confirm it before it is served"
    elif not row.measured:
        words += ", predicted; too near to what was measured to matter"
    return [text, words + "."]


def experiment_sentence(one: Experiment, choice: Choice) -> str:
    """What to run, how much of it, how long it takes, as a command."""
    minutes = f", about {_minutes(one.minutes)}" if one.minutes is not None else ""
    if one.kind == "tune":
        return f"confirm the draft length on the engine: {one.command}"
    if one.kind == "open" or one.num_more is None:
        return (
            "no reasonable number of conversations would settle it: the difference sits on the "
            "edge, or nothing shows the spread. Take the simpler arm, or measure the spread."
        )
    if one.unit == "drafts":
        return f"about {one.num_more} more drafts would settle it, if drafts were independent."
    what = f"about {one.num_more} more {one.unit}{minutes}"
    if one.kind == "own_conversations":
        return (
            f"{what}, more than scenario {choice.scenario} has; take them from your own logs: "
            f"{one.command}"
        )
    return f"{what}: {one.command}" if one.command else f"{what}."


def calibration_sentence(fit: Calibration) -> str:
    """c0 and c with their intervals."""
    at = ", ".join(f"C({k}) = {estimate(cost)}" for k, cost in sorted(fit.at.items()))
    return (
        f"Calibration {fit.run} ({fit.engine}, {fit.method}): a speculative step costs "
        f"{estimate(fit.fixed)} plain steps once and {estimate(fit.per_draft)} per draft on top of "
        f"the plain one: {at}."
    )


def batch_sentence(batch: BatchLengths) -> str:
    """k by concurrency and where speculation stops paying."""
    ranges = ", ".join(f"{low} to {high}: k = {k}" for low, high, k in batch.ranges)
    text = f"{batch.scenario}, {batch.arm}, draft length by concurrency: {ranges}."
    if batch.stops_paying_at is not None:
        return f"{text} It stops paying at about {batch.stops_paying_at:.0f} concurrent requests."
    pays = [c for c, does in batch.pays_at.items() if does]
    return f"{text} At its k it pays at {', '.join(map(str, pays)) or 'none'} of these loads."


def regression_sentence(one: Regression) -> str:
    """The run against an earlier one."""
    rows = ", ".join(
        f"{c.scenario} {c.arm.split('/')[-1]} x{estimate(c.ratio)} {c.verdict.replace('_', ' ')}"
        for c in one.comparisons
    )
    words = {
        "yes": "no arm became slower",
        "no": "an arm became slower",
        "cannot_tell": "whether an arm became slower cannot be told",
    }
    return f"Against {one.earlier}: {words[one.answer]}. {rows}."


def answer_sentence(decision: Decision) -> str:
    """What the gate says."""
    words = {
        "yes": "every path has an arm, established",
        "no": "a path has no arm that will do"
        if any(c.verdict == "none" for c in decision.choices)
        else "an arm became slower",
        "cannot_tell": "what was measured leaves a path open",
    }
    answer = decision.answer.replace("_", " ")
    return f"Gate: {answer} ({words[decision.answer]})."


def tuning_sentences(rows: Sequence[Tuned]) -> list[str]:
    """Prediction against measurement, a line for each path and draft length."""
    words = {True: "agrees", False: "does not agree", None: "no intervals to compare"}
    return [
        f"{row.scenario}, k = {row.num_speculative_tokens}: predicted x{estimate(row.predicted)}, "
        f"measured x{estimate(row.measured)}, {row.error:+.0%}: {words[row.agrees]}"
        for row in rows
    ]


def gain(ratio: Estimate) -> str:
    """`85% faster (81% to 91%)`."""
    word = "faster" if ratio.point >= 1 else "slower"
    sign = 1 if ratio.point >= 1 else -1
    text = f"{abs(ratio.point - 1):.0%} {word}"
    if ratio.low is None or ratio.high is None:
        return text
    ends = sorted((sign * (ratio.low - 1), sign * (ratio.high - 1)))
    return f"{text} ({ends[0]:.0%} to {ends[1]:.0%})"


def load_words(choice: Choice) -> str:
    """`8 concurrent`, or the arrival rate."""
    load = choice.load
    if isinstance(load, ClosedLoad):
        return f"{load.max_concurrency} concurrent"
    return f"{load.request_rate:g} requests/s"


def _others(choice: Choice) -> str:
    rows = [
        f"{c.arm} is {gain(c.ratio)}"
        for c in choice.candidates
        if c.outcome == "no_gain" and c.ratio is not None and c.excluded is None
    ]
    return ", ".join(rows) or "none gains"


def _open(choice: Choice) -> str:
    rows = []
    for candidate in choice.candidates:
        if candidate.outcome != "open" or candidate.excluded is not None:
            continue
        if candidate.ratio is None:
            rows.append(f"{candidate.arm} cannot be compared")
        elif candidate.ratio.low is None:
            rows.append(f"{candidate.arm} is {gain(candidate.ratio)}, without a spread")
        else:
            rows.append(f"{candidate.arm} is {gain(candidate.ratio)}")
    return "; ".join(rows)


def _open_limits(choice: Choice) -> str:
    rows = [
        f"{check.limit} of {candidate.arm}"
        for candidate in choice.candidates
        if candidate.excluded is None
        for check in candidate.limits
        if check.standing == "cannot_tell"
    ]
    return "whether the limits hold (" + ", ".join(dict.fromkeys(rows)) + ")"


def _why_limits(choice: Choice) -> str:
    rows = [c.arm for c in choice.candidates if c.standing == "fails" and c.excluded is None]
    return f"It holds the path's limits; {', '.join(rows) or 'the others'} cannot be shown to."


def _why_none(choice: Choice) -> str:
    rows = []
    for candidate in choice.candidates:
        if candidate.excluded is not None:
            rows.append(f"{candidate.arm} is out ({EXCLUSION_WORDS[candidate.excluded]})")
        else:
            failing = [check.limit for check in candidate.limits if check.standing == "fails"]
            rows.append(f"{candidate.arm} does not hold {', '.join(failing)}")
    return "; ".join(rows) + "."


def _span(value: Estimate) -> str:
    if value.low is None or value.high is None:
        return number(value.point)
    return f"{number(value.point)} ({number(value.low)}-{number(value.high)})"


def _minutes(minutes: float) -> str:
    if minutes < 1:
        return f"{max(minutes * 60, 1):.0f} s"
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.0f} h"


def _wrap(text: str, width: int, indent: str) -> Sequence[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
