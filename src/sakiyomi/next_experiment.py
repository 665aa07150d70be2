"""When a verdict is open: what to run next, how much of it, and how long it takes. Pure."""

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from sakiyomi import intervals, slo, stats, verdicts
from sakiyomi.measured import Measured
from sakiyomi.pairing import pair
from sakiyomi.repeat_noise import num_repeats_of
from sakiyomi.slo import LimitCheck
from sakiyomi.stats import Estimate

MAX_REPEATS_FACTOR = 4
"""More than four times the repeats is no advice where more conversations do better."""

Requests = Mapping[tuple[str, str, str], Sequence[Measured]]


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """One run that would settle a path, or tell most about it.

    `minutes` from the wall time that the run so far took, None when nothing was run here.
    `unit`: what `num_more` counts. `num_asked`: conversations that the command asks in all.
    `command`: ready to paste; None where more of what the scenario has would not do, or nothing
    says how to run it.
    """

    kind: Literal[
        "more_repeats",
        "more_conversations",
        "all_conversations",  # those that the scenario has, though more are needed
        "own_conversations",
        "tune",
        "open",
    ]
    scenario: str
    reason: Literal["gain", "limit", "draft_length"]
    num_more: int | None = None
    num_asked: int | None = None
    unit: Literal["repeats", "conversations", "drafts"] = "conversations"
    minutes: float | None = None
    command: str | None = None


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """How the run can be made again: its name, its plan file, conversations that exist.

    `plan_is_kept`: the run folder has the plan whole; where it had secrets, `plan` is the user's
    own file. `can_tune`: sakiyomi launches an arm that drafts, so that it can change its drafts.
    """

    run: str = "RUN"
    plan: str = "PLAN.toml"
    num_available: Mapping[str, int] = {}
    is_published: bool = False
    plan_is_kept: bool = True
    can_resume: bool = True
    can_tune: bool = True


def for_gain(
    place: tuple[str, str],
    arms: tuple[str, str],
    ratio: Estimate | None,
    requests: Requests,
    source: Source,
    min_gain: float,
) -> Experiment:
    """What would settle the speedup of `arms` (arm, reference) at `place` (scenario, load)."""
    scenario, load = place
    num_more = verdicts.num_more_units(ratio, min_gain)
    if source.is_published or ratio is None:
        return Experiment(
            kind="more_conversations" if num_more else "open",
            scenario=scenario,
            reason="gain",
            num_more=num_more,
            unit="drafts" if source.is_published else "conversations",
        )
    mine, base = requests.get((scenario, arms[0], load)), requests.get((scenario, arms[1], load))
    units = [unit.log_ratios for unit in pair(mine, base)] if mine and base else []
    now = num_repeats_of(units)
    likely = (
        repeats
        for repeats in range(now + 1, MAX_REPEATS_FACTOR * now + 1)
        if verdicts.is_likely_settled(stats.after_repeats(units, repeats), min_gain)
    )
    wanted = next(likely, 2 * now if stats.is_limited_by_repeats(units) else None)
    if wanted is not None and source.can_resume:
        return Experiment(
            kind="more_repeats",
            scenario=scenario,
            reason="gain",
            num_more=wanted - now,
            unit="repeats",
            minutes=_minutes(requests, None, (wanted - now) / now),
            command=f"sakiyomi run {'' if source.plan_is_kept else source.plan + ' '}"
            f"--resume {shlex.quote(source.run)} --repeats {wanted}",
        )
    return _more_conversations(place, num_more, "gain", requests, source)


def for_limit(
    place: tuple[str, str], check: LimitCheck, requests: Requests, source: Source
) -> Experiment:
    """What would tell whether a limit holds."""
    share, num_more = check.share, None
    if share is not None and share.n:
        needed = slo.num_needed(check.quantile)
        if share.point < 1:
            distance = share.point - check.quantile
            z = intervals.normal_quantile((1 + share.level) / 2)
            variance = check.quantile * (1 - check.quantile)
            needed = (
                math.ceil(z * z * variance / (distance * distance)) if abs(distance) > 0.01 else 0
            )
        num_more = max(needed - share.n, 1) if needed else None
    return _more_conversations(place, num_more, "limit", requests, source)


def for_draft_length(scenario: str, source: Source) -> Experiment:
    """Confirm a predicted draft length on the engine."""
    return Experiment(
        kind="tune",
        scenario=scenario,
        reason="draft_length",
        command=f"{_run(source.plan, scenario)} --tune",
    )


def _more_conversations(
    place: tuple[str, str],
    num_more: int | None,
    reason: Literal["gain", "limit"],
    requests: Requests,
    source: Source,
) -> Experiment:
    """`num_more` conversations; first those that the scenario has, where few of them were asked."""
    scenario, load = place
    now = _num_conversations(requests, place)
    if num_more is not None and num_more > verdicts.MOST_WORTH_ASKING:
        num_more = None
    here = Experiment(kind="open", scenario=scenario, reason=reason, num_more=num_more)
    if source.is_published or not now:
        return msgspec.structs.replace(here, kind="more_conversations") if num_more else here
    available = source.num_available.get(scenario)
    wanted = now + num_more if num_more else math.inf
    kind: Literal["more_conversations", "all_conversations", "own_conversations"]
    kind = "more_conversations"
    if available is not None and wanted > available:
        kind = "all_conversations" if now < available / 2 else "own_conversations"
    if kind == "all_conversations" and available is not None:
        wanted = available
    if math.isinf(wanted):
        return here
    # a run of first turns goes on with first turns, a run of whole conversations with whole ones
    flag = "--conversations" if _has_later_turns(requests, place) else "--requests"
    command = f"{_run(source.plan, scenario)} {flag} {wanted}"
    if kind == "own_conversations":
        command = (
            f"sakiyomi scenarios import LOGS.jsonl --name {shlex.quote(scenario)} "
            f"--num-conversations {wanted} -o {shlex.quote(f'{scenario}.jsonl')} && "
            f"{_run(source.plan, f'{scenario}.jsonl')}"
        )
    return msgspec.structs.replace(
        here,
        kind=kind,
        num_asked=wanted,
        minutes=_minutes(requests, place, wanted / now),
        command=command + _load_flag(load, requests),
    )


def _run(plan: str, scenario: str) -> str:
    return f"sakiyomi run {shlex.quote(plan)} --scenario {shlex.quote(scenario)}"


def _load_flag(load: str, requests: Requests) -> str:
    """The flag that keeps to this load; none where the plan has no other, or none can say it."""
    concurrency = load.removeprefix("closed-")
    is_alone = len({other for _, _, other in requests}) == 1
    return "" if is_alone or not concurrency.isdigit() else f" --concurrency {concurrency}"


def _has_later_turns(requests: Requests, place: tuple[str, str]) -> bool:
    return any(
        request.key.turn > 0
        for (scenario, _, load), group in requests.items()
        if (scenario, load) == place
        for request in group
    )


def _num_conversations(requests: Requests, place: tuple[str, str]) -> int:
    return len(
        {
            request.key.conversation_id
            for (scenario, _, load), group in requests.items()
            if (scenario, load) == place
            for request in group
        }
    )


def _minutes(requests: Requests, place: tuple[str, str] | None, factor: float) -> float | None:
    """Wall time so far, of one path or of the whole run, times `factor`."""
    windows: dict[tuple[str, int], tuple[float, float]] = {}
    for (scenario, arm, load), group in requests.items():
        if place is not None and (scenario, load) != place:
            continue
        for request in group:
            key = (arm, request.key.window)
            first, last = windows.get(key, (math.inf, -math.inf))
            windows[key] = min(first, request.sent_at_s), max(last, request.closed_at_s)
    wall_s = math.fsum(last - first for first, last in windows.values())
    return wall_s * factor / 60 if wall_s > 0 else None
