"""What entropy says of acceptance, in sentences. Formats; computes nothing."""

import textwrap

from sakiyomi.explained_gap import GapShare
from sakiyomi.report.format import number
from sakiyomi.report.language import EN, Language
from sakiyomi.stats import Estimate
from sakiyomi.why import ENDS, ScenarioWhy, Why


def render(why: Why, width: int = 80) -> str:
    """A paragraph for each scenario and arm, then the gaps."""
    lines: list[str] = []
    for sentence in summary(why):
        lines += [*textwrap.wrap(sentence, width, break_on_hyphens=False), ""]
    return "\n".join(lines).rstrip() + "\n"


def summary(why: Why, say: Language = EN) -> list[str]:
    """The sentences that stand alone."""
    texts = [_scenario(one, say) for one in why.scenarios]
    texts += [_gap(one, say) for one in why.gaps]
    texts += [say("why_silent", arm=arm, reason=reason) for arm, reason in why.silent.items()]
    return texts or [say("why_no_arm")]


def _scenario(one: ScenarioWhy, say: Language) -> str:
    parts = [say("why_cell", scenario=one.scenario, arm=one.arm, claim=say(_claim(one)))]
    parts.append(_tokens(one, say))
    if one.unlisted >= 0.005:
        parts.append(say("why_listed", share=f"{1 - one.unlisted:.0%}"))
    if one.within is not None:
        text = say("why_within", entropy=_signed(one.within, say))
        if one.within_surprisal is not None:
            text += say("why_surprisal", surprisal=_signed(one.within_surprisal, say))
        parts.append(text + say("stop"))
    if one.between is not None:
        parts.append(say("why_between", entropy=_signed(one.between, say)))
    if one.ends is not None:
        parts.append(_ends(one.ends, say))
    return say.join(parts, "sentence_gap")


def _claim(one: ScenarioWhy) -> str:
    """Whether the claim that uncertain text is drafted badly holds here."""
    found = one.within
    if found is None or found.low is None or found.high is None:
        return "why_untested"
    if found.high < 0:
        return "why_worse"
    return "why_better" if found.low > 0 else "why_open"


def _tokens(one: ScenarioWhy, say: Language) -> str:
    text = say("why_entropy", entropy=say.estimate(one.mean_entropy))
    if one.entropy_of_accepted is not None and one.entropy_of_rejected is not None:
        text += say(
            "why_split",
            accepted=number(one.entropy_of_accepted.point),
            rejected=number(one.entropy_of_rejected.point),
        )
    text += say("why_tokens", rate=say.percent(one.acceptance), n=one.num_tokens)
    if one.num_tokens < one.num_reached:
        text += say("why_reached", n=one.num_reached)
    return text + say("stop")


def _ends(one: GapShare, say: Language) -> str:
    """The claim that endings are what cannot be drafted."""
    side = "worse" if one.lower == ENDS else "better"
    words, gap = say(f"why_side_{side}"), _points(one.gap, say)
    if not one.is_established:
        return say("why_ends_open", side=words, gap=gap)
    more = say("why_less" if side == "worse" else "why_more")
    return say("why_ends", side=words, gap=gap, more=more, explained=_explained(one, say))


def _gap(one: GapShare, say: Language) -> str:
    return say(
        "why_gap" if one.is_established else "why_gap_open",
        arm=one.arm,
        higher=one.higher,
        lower=one.lower,
        gap=_points(one.gap, say),
        explained=_explained(one, say),
    )


def _explained(one: GapShare, say: Language) -> str:
    found = one.explained
    points = _points(found, say)
    if found.low is None or found.high is None or one.share is None or found.low <= 0 <= found.high:
        return say("why_explained_open", points=points)
    if found.high < 0:
        return say("why_explained_none", points=points)
    return say("why_explained", points=points, share=f"{one.share:.0%}")


def _points(value: Estimate, say: Language) -> str:
    """`23 points (18 to 28)`."""
    text = say("why_points", n=f"{value.point * 100:.0f}")
    if value.low is None or value.high is None:
        return text
    return say(
        "with_interval", text=text, low=f"{value.low * 100:.0f}", high=f"{value.high * 100:.0f}"
    )


def _signed(value: Estimate, say: Language) -> str:
    text = f"{value.point:+.2f}"
    if value.low is None or value.high is None:
        return text
    return say("with_interval", text=text, low=f"{value.low:+.2f}", high=f"{value.high:+.2f}")
