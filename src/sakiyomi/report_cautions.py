"""Cautions that one cell alone cannot know: open verdicts, step costs, servers, defects. Pure."""

from collections.abc import Mapping, Sequence

import msgspec

from sakiyomi import verdicts
from sakiyomi.counter_windows import Window
from sakiyomi.measured import (
    Measured,
)
from sakiyomi.names import is_engine_log
from sakiyomi.pairing import drafts_fully
from sakiyomi.record import Caution, RunFacts
from sakiyomi.results import Cell, Comparison
from sakiyomi.same_server import server_changes
from sakiyomi.suspects import match

STEP_COST_GAP = 1.03
"""C(k) of two scenarios may differ by this much (analytics, section 6)."""


def with_server_changes(
    cells: Sequence[Cell],
    requests: Mapping[tuple[str, str, str], list[Measured]],
    windows: Mapping[int, Window],
) -> list[Cell]:
    """Each cell that was not measured on the server that its arm began with says so."""
    by_arm: dict[str, list[Measured]] = {}
    for (_, arm, _), mine in requests.items():
        by_arm.setdefault(arm, []).extend(mine)
    changes = {
        arm: server_changes(arm, mine, {n: w for n, w in windows.items() if w.arm == arm})
        for arm, mine in by_arm.items()
    }
    found = []
    for cell in cells:
        asked = {r.key.window for r in requests[cell.scenario, cell.arm, cell.load.label]}
        said = [one.caution for one in changes[cell.arm] if one.windows & asked]
        found.append(msgspec.structs.replace(cell, cautions=[*cell.cautions, *said]))
    return found


def with_more_needed(cell: Cell, comparisons: Sequence[Comparison]) -> Cell:
    """Add the caution that says what would settle the verdict: conversations or repeats."""
    mine = next(
        (
            c
            for c in comparisons
            if (c.scenario, c.arm, c.load) == (cell.scenario, cell.arm, cell.load)
        ),
        None,
    )
    if mine is None or mine.verdict != "not_established" or mine.ratio is None:
        return cell
    if mine.limited_by_repeats:
        return msgspec.structs.replace(cell, cautions=[*cell.cautions, _repeats_disagree(mine)])
    more = verdicts.num_more_units(mine.ratio)
    gain = mine.ratio.point - 1
    ask = f"About {more} more would settle it" if more else "More of them, or longer answers, may"
    if more and more > verdicts.MOST_WORTH_ASKING:
        ask = "It is too small to be settled with a few hundred more"
    caution = Caution(
        "too_few_conversations",
        f"{cell.num_conversations} conversations are too few for a difference of {gain:+.0%}. "
        f"{ask}",
        {"num_conversations": cell.num_conversations, "num_more": more, "gain": gain},
    )
    return msgspec.structs.replace(cell, cautions=[*cell.cautions, caution])


def _repeats_disagree(comparison: Comparison) -> Caution:
    seen = ", ".join(f"x{ratio:.2f}" for ratio in comparison.repeat_ratios)
    return Caution(
        "too_few_repeats",
        f"its repeats disagree ({seen}): what a whole repeat shares (clocks, heat, other work) "
        "outweighs what conversations differ by. Raise --repeats, on a quiet machine",
        {"repeat_ratios": comparison.repeat_ratios},
    )


def step_costs_differ(comparisons: Sequence[Comparison], cells: Sequence[Cell]) -> list[Caution]:
    """A physical check: C(k) may not depend on the text, where every step has a draft.

    An n-gram drafter drafts in as many steps as the text repeats itself: its mean cost may differ.
    """
    cautions = []
    groups: dict[tuple[str, str], list[Comparison]] = {}
    full = {(c.scenario, c.arm, c.load) for c in cells if drafts_fully(c)}
    for comparison in comparisons:
        if comparison.step_cost and (comparison.scenario, comparison.arm, comparison.load) in full:
            groups.setdefault((comparison.arm, comparison.load.label), []).append(comparison)
    for (arm, load), group in groups.items():
        group.sort(key=lambda c: c.step_cost.point if c.step_cost else 0.0)
        low, high = group[0], group[-1]
        cheap, dear = low.step_cost, high.step_cost
        if cheap is None or dear is None or dear.point / cheap.point < STEP_COST_GAP:
            continue
        if cheap.high is not None and dear.low is not None and dear.low <= cheap.high:
            continue
        cautions.append(
            Caution(
                "step_cost_differs",
                f"{arm}: a speculative step costs {dear.point:.2f} plain steps on {high.scenario} "
                f"and {cheap.point:.2f} on {low.scenario}. It cannot depend on the text: one of "
                "the runs is contaminated (short answers, clock ramp, other traffic, context)",
                {
                    "arm": arm,
                    "load": load,
                    "step_cost": {c.scenario: c.step_cost.point for c in group if c.step_cost},
                },
            )
        )
    return cautions


def known_suspects(facts: RunFacts, logs: Mapping[str, str]) -> list[Caution]:
    """Known engine defects that a launched engine's log shows."""
    cautions = []
    for arm in facts.arms:
        text = "\n".join(log for name, log in logs.items() if is_engine_log(name, arm.name))
        cautions += [
            Caution(
                "suspect",
                f"{arm.name}: {suspect.what} ({suspect.url}). {suspect.remedy}",
                {"arm": arm.name, "url": suspect.url},
            )
            for suspect in match(arm.engine, arm.engine_version, text)
        ]
    return cautions
