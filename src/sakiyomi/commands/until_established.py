"""`run --until-established`: look after every repeat, stop when nothing is left to learn.

The number of looks is fixed before the first one, from the budget and the time of a first repeat
that nobody looks at; `sequential` then allots the error to the looks, so that stopping at the
first established verdict keeps it.
"""

import argparse
import re
import time
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from sakiyomi import sequential
from sakiyomi.analyse import reduce_records
from sakiyomi.engines import find_engine
from sakiyomi.errors import PlanError
from sakiyomi.job import Job
from sakiyomi.measured import Measured
from sakiyomi.pairing import pair
from sakiyomi.plan import Plan
from sakiyomi.record import Caution, Looks
from sakiyomi.store import RunReader

MAX_REPEATS = 24
"""Without --repeats. More repeats cannot narrow an interval below what conversations differ by."""

Standing = Literal["established", "open", "hopeless"]
Requests = Mapping[tuple[str, str, str], Sequence[Measured]]

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def parse_time(text: str, flag: str = "--budget") -> float:
    """`90s`, `10m`, `1h30m` or plain seconds -> seconds. Raises PlanError on anything else."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([smh])", text)
    if re.fullmatch(r"\d+(?:\.\d+)?", text):
        parts = [(text, "s")]
    elif not parts or "".join(number + unit for number, unit in parts) != text:
        raise PlanError(f"{flag} {text}: no time", "write 90s, 10m or 1h30m")
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if seconds <= 0:
        raise PlanError(f"{flag} {text}: expected more than 0 s")
    return seconds


def prepare(plan: Plan, arguments: argparse.Namespace, reader: RunReader | None) -> Plan:
    """The plan with as many repeats as there may be. Raises PlanError where looks cannot be kept.

    A finished run that looked as it went cannot be added to: more looks than were fixed before the
    first one would break its intervals.
    """
    if reader is not None and (reader.facts.finished or not arguments.until_established):
        raise PlanError(
            f"{reader.folder.name}: it looked at its verdicts after every repeat, so that its "
            "intervals hold for the looks fixed before the first one",
            "start a new run; an interrupted one goes on with --resume and --until-established",
        )
    if len(plan.arms) < 2:
        raise PlanError("--until-established: one arm has nothing to be compared with")
    if reader is not None and reader.facts.looks:
        return msgspec.structs.replace(plan, repeats=reader.facts.looks.max_looks + 1)
    return msgspec.structs.replace(plan, repeats=arguments.repeats or MAX_REPEATS)


def num_repeats_within(budget_s: float, elapsed_s: float, repeat_s: float, most: int) -> int:
    """Repeats that fit: the one that was made, and what the rest of the budget holds."""
    left_s = max(budget_s - elapsed_s, 0.0)
    return min(1 + int(left_s / max(repeat_s, 1e-9)), most)


def judge(requests: Requests, plan: Plan, looks: Looks) -> dict[tuple[str, str, str], Standing]:
    """Every (scenario, arm, load) against the baseline at one look.

    `hopeless` is said at looks that have an interval of their own, so that a run never ends
    without one.
    """
    baseline = plan.arms[0].name
    found: dict[tuple[str, str, str], Standing] = {}
    for (scenario, arm, load), mine in requests.items():
        base = requests.get((scenario, baseline, load))
        if arm == baseline or not base:
            continue
        units = [unit.log_ratios for unit in pair(mine, base)]
        at = looks.look, looks.max_looks
        verdict = sequential.sequential_verdict(units, *at, min_gain=plan.min_gain)
        standing: Standing = "open" if verdict == "not_established" else "established"
        decides = sequential.look_levels(len(units), looks.max_looks)[looks.look - 1] is not None
        if standing == "open" and (not units or decides):
            hope = units and sequential.can_be_established(units, *at, min_gain=plan.min_gain)
            standing = "open" if hope else "hopeless"
        found[scenario, arm, load] = standing
    return found


def watch(job: Job, budget_s: float) -> None:
    """Let the job look after each repeat and end itself."""
    began_at_s = time.perf_counter()
    known = job.facts.looks

    def after_repeat(repeat: int) -> bool:
        nonlocal known
        if known is None:
            elapsed_s = time.perf_counter() - began_at_s
            repeat_s = _first_repeat_s(job, elapsed_s)
            repeats = num_repeats_within(budget_s, elapsed_s, repeat_s, job.plan.repeats)
            known = Looks(look=0, max_looks=max(repeats - 1, 1))
            job.progress.expect_times(max(repeats, 1))
            job.progress.say(
                f"a repeat takes about {repeat_s:.0f} s: up to {max(repeats, 1)} repeats within "
                f"the budget, a look after each from the "
                + ("second on" if repeats > 1 else "first on")
            )
            if repeats > 1:
                return False
        known = Looks(look=max(repeat, 1), max_looks=known.max_looks)
        job.facts = msgspec.structs.replace(job.facts, looks=known)
        standings = judge(_requests(job), job.plan, known)
        num_open = sum(standing == "open" for standing in standings.values())
        job.progress.say(
            f"look {known.look} of {known.max_looks}: "
            + ", ".join(f"{s} x {arm} {standing}" for (s, arm, _), standing in standings.items())
        )
        if num_open and known.look < known.max_looks:
            return False
        _end(job, repeat, known, standings)
        return True

    job.after_repeat = after_repeat


def _end(
    job: Job, repeat: int, looks: Looks, standings: Mapping[tuple[str, str, str], Standing]
) -> None:
    """The facts of a run that ended itself: what was planned is what was done."""
    num_open = sum(standing != "established" for standing in standings.values())
    outcome = (
        "every verdict is established"
        if not num_open
        else f"{num_open} of {len(standings)} verdicts cannot be established within the budget"
    )
    caution = Caution(
        kind="looked_after_every_repeat",
        message=f"ended by itself at look {looks.look} of {looks.max_looks}: {outcome}"
        + (
            ". Intervals are wider than after a single look, so that they hold in spite of looking "
            "(error allotted to the looks, Slud & Wei 1982)"
            if looks.max_looks > 1
            else ""
        ),
        detail={"look": looks.look, "max_looks": looks.max_looks},
    )
    job.facts = msgspec.structs.replace(
        job.facts,
        plan=msgspec.structs.replace(job.facts.plan, repeats=repeat + 1),
        cautions=(*job.facts.cautions, caution),
    )
    job.writer.write_facts(job.facts)
    job.progress.say(f"ended: {outcome}")


def _requests(job: Job) -> Requests:
    arms = {arm.name: arm for arm in job.facts.arms}
    engines = {arm.name: find_engine(arm.engine) for arm in job.facts.arms}
    return reduce_records(job.facts, RunReader(job.writer.folder).records(), arms, engines)


def _first_repeat_s(job: Job, elapsed_s: float) -> float:
    """Time of the first repeat: with its engine starts where every repeat has them."""
    if job.schedule == "blocks":
        return elapsed_s
    sent = [
        record.sent_at_s
        for record in RunReader(job.writer.folder).records()
        if not record.key.warmup
    ]
    return time.perf_counter() - min(sent) if sent else elapsed_s
