"""What entropy says of acceptance, in sentences. Formats; computes nothing."""

import textwrap

from sakiyomi.explained_gap import GapShare
from sakiyomi.report.format import estimate, number, percent
from sakiyomi.stats import Estimate
from sakiyomi.why import ENDS, ScenarioWhy, Why


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
    parts = [f"{one.scenario} x {one.arm}: {_claim(one)}", _tokens(one)]
    if one.within is not None:
        text = f"Rank correlation with acceptance within a conversation {_signed(one.within)}"
        if one.within_surprisal is not None:
            text += f", of surprisal {_signed(one.within_surprisal)}"
        parts.append(text + ".")
    if one.between is not None:
        parts.append(f"Between conversations {_signed(one.between)}.")
    if one.ends is not None:
        parts.append(_ends(one.ends))
    return " ".join(parts)


def _claim(one: ScenarioWhy) -> str:
    """Whether the claim that uncertain text is drafted badly holds here."""
    found = one.within
    if found is None or found.low is None or found.high is None:
        return "too few tokens to test whether uncertain text is drafted worse."
    if found.high < 0:
        return "uncertain tokens are drafted worse: entropy is part of why drafts miss."
    if found.low > 0:
        return "uncertain tokens are drafted better: entropy is not why drafts miss."
    return "whether uncertain tokens are drafted worse is not established."


def _tokens(one: ScenarioWhy) -> str:
    text = f"Entropy {estimate(one.mean_entropy)} nats a token"
    if one.entropy_of_accepted is not None and one.entropy_of_rejected is not None:
        text += (
            f", {number(one.entropy_of_accepted.point)} where accepted and "
            f"{number(one.entropy_of_rejected.point)} where rejected"
        )
    text += f"; {percent(one.acceptance)} accepted of {one.num_tokens} tokens"
    if one.num_tokens < one.num_reached:
        text += f" ({one.num_reached} were drafted for, the others' alternatives are not known)"
    text += "."
    if one.unlisted >= 0.005:
        text += (
            f" The alternatives listed hold {1 - one.unlisted:.0%} of the probability: entropy is "
            "at least this much."
        )
    return text


def _ends(one: GapShare) -> str:
    """The claim that endings are what cannot be drafted."""
    side = "worse" if one.lower == ENDS else "better"
    if not one.is_established:
        return (
            f"That drafts fare {side} near the ends of sentences is not established: "
            f"{_points(one.gap)}."
        )
    more = "less" if side == "worse" else "more"
    return (
        f"Near the ends of sentences drafts fare {side}: accepted {_points(one.gap)} {more} than "
        f"inside them; {_explained(one)}"
    )


def _gap(one: GapShare) -> str:
    if not one.is_established:
        return (
            f"{one.arm}: no gap in acceptance between {one.higher} and {one.lower} is established, "
            f"{_points(one.gap)}: nothing for entropy to explain."
        )
    return (
        f"{one.arm}: {one.higher} is accepted {_points(one.gap)} more than {one.lower}; "
        f"{_explained(one)}"
    )


def _explained(one: GapShare) -> str:
    found = one.explained
    if found.low is None or found.high is None or one.share is None or found.low <= 0 <= found.high:
        return f"that entropy explains any of it is not established, {_points(found)}."
    if found.high < 0:
        return (
            "entropy explains none of it: by entropy alone it would be the other way round, "
            f"{_points(found)}."
        )
    return f"entropy explains {_points(found)} of it, {one.share:.0%}."


def _points(value: Estimate) -> str:
    """`23 points (18 to 28)`."""
    text = f"{value.point * 100:.0f} points"
    if value.low is None or value.high is None:
        return text
    return f"{text} ({value.low * 100:.0f} to {value.high * 100:.0f})"


def _signed(value: Estimate) -> str:
    if value.low is None or value.high is None:
        return f"{value.point:+.2f}"
    return f"{value.point:+.2f} ({value.low:+.2f} to {value.high:+.2f})"
