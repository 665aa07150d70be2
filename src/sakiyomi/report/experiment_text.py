"""Sentences of what to run next: what, how much of it, how long it takes, as a command."""

from sakiyomi.decision import Choice, Decision
from sakiyomi.next_experiment import Experiment
from sakiyomi.report.language import EN, Language


def experiment_sentence(one: Experiment, choice: Choice, say: Language = EN) -> str:
    """What to run, how much of it, how long it takes, as a command."""
    if one.kind == "tune":
        return say("next_tune", command=one.command)
    if one.kind == "all_conversations":
        return say("next_all", asked=one.num_asked, command=one.command)
    if one.kind == "open" or one.num_more is None:
        return say("next_open")
    if one.unit == "drafts":
        return say("next_drafts", n=one.num_more)
    what = _with_time(say(f"more_{one.unit}", n=one.num_more), one, say)
    if one.kind == "own_conversations":
        return say("next_own", what=what, scenario=choice.scenario, command=one.command)
    return say("next_command" if one.command else "next_plain", what=what, command=one.command)


def settle_lines(decision: Decision) -> list[str]:
    """What would settle the open paths, a command once, on a line of its own."""
    paths: dict[tuple[str, str], list[str]] = {}
    for choice in decision.choices:
        one = choice.next_experiment
        if one is None or one.reason == "draft_length" or not one.command:
            continue
        what = EN(f"more_{one.unit}", n=one.num_more)
        if one.kind == "all_conversations":
            what = f"all {one.num_asked} conversations that it has"
        paths.setdefault((_with_time(what, one, EN), one.command), []).append(choice.scenario)
    return [
        line
        for (what, command), names in paths.items()
        for line in (f"to settle {', '.join(dict.fromkeys(names))}: {what}:", f"  {command}")
    ]


def _with_time(what: str, one: Experiment, say: Language) -> str:
    minutes = one.minutes
    if minutes is None:
        return what
    return say("about_minutes", what=what, minutes=_minutes(minutes, say))


def _minutes(minutes: float, say: Language) -> str:
    if minutes < 1:
        return say("seconds", n=f"{max(minutes * 60, 1):.0f}")
    if minutes < 120:
        return say("minutes", n=f"{minutes:.0f}")
    return say("hours", n=f"{minutes / 60:.0f}")
