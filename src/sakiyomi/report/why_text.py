"""What entropy says of acceptance, in sentences. Formats; computes nothing."""

import textwrap

from sakiyomi.report.format import estimate, number, percent
from sakiyomi.stats import Estimate
from sakiyomi.why import GapShare, ScenarioWhy, Why


def render(why: Why, width: int = 80) -> str:
    """A paragraph for each scenario and arm, then the gaps."""
    lines: list[str] = []
    for sentence in summary(why):
        lines += [*textwrap.wrap(sentence, width, break_on_hyphens=False), ""]
    return "\n".join(lines).rstrip() + "\n"


def summary(why: Why) -> list[str]:
    """The sentences that stand alone."""
    texts = [_scenario(one) for one in why.scenarios]
    texts += [_gap(one) for one in why.gaps]
    texts += [f"{arm}: entropy is not known: {reason}." for arm, reason in why.silent.items()]
    return texts or ["No speculative arm: entropy has no draft to explain."]


def _scenario(one: ScenarioWhy) -> str:
    text = (
        f"{one.scenario} x {one.arm}: entropy {estimate(one.mean_entropy)} nats a token over "
        f"{one.num_tokens} tokens that drafts reached"
    )
    if one.entropy_of_accepted is not None and one.entropy_of_rejected is not None:
        text += (
            f", {number(one.entropy_of_accepted.point)} where accepted and "
            f"{number(one.entropy_of_rejected.point)} where rejected"
        )
    text += f"; {percent(one.acceptance)} accepted."
    if one.within is not None:
        text += f" Rank correlation within a conversation {_signed(one.within)}"
        if one.within_surprisal is not None:
            text += f", with surprisal {_signed(one.within_surprisal)}"
        text += "."
    if one.between is not None:
        text += f" Between conversations {_signed(one.between)}."
    return text + _claim(one)


def _claim(one: ScenarioWhy) -> str:
    """Whether the claim that uncertain text is drafted badly holds here."""
    found = one.within
    if found is None or found.low is None or found.high is None:
        return " Too few tokens to test whether entropy decides."
    if found.high < 0:
        return " Uncertain tokens are drafted worse: entropy is part of the reason."
    if found.low > 0:
        return " Uncertain tokens are drafted better: entropy is not the reason."
    return " Whether entropy is part of the reason is not established."


def _gap(one: GapShare) -> str:
    text = (
        f"{one.arm}: {one.higher} is accepted {one.gap * 100:.0f} points more often than "
        f"{one.lower}; entropy explains {one.explained.point * 100:.0f} of them"
    )
    if one.explained.low is not None and one.explained.high is not None:
        text += f" ({one.explained.low * 100:.0f} to {one.explained.high * 100:.0f})"
    return f"{text}, {one.share:.0%} of the gap."


def _signed(value: Estimate) -> str:
    if value.low is None or value.high is None:
        return f"{value.point:+.2f}"
    return f"{value.point:+.2f} ({value.low:+.2f} to {value.high:+.2f})"
