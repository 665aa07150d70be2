"""Which arm on which path, and how sure that is. A pure function of a saved run.

An arm is eligible when it holds the path's limits with their intervals. Among the eligible a faster
one wins only by an established gain of at least `min_gain`; otherwise the simpler one, the
baseline, stays. What the intervals leave open is said, with the experiment that would settle it.
"""

from collections.abc import Mapping, Sequence

import msgspec

from sakiyomi import next_experiment
from sakiyomi.best_k import EQUAL_GAIN
from sakiyomi.calibration import Calibration
from sakiyomi.candidates import Candidate, Requests, against, find_candidates
from sakiyomi.decision import (
    Answer,
    Choice,
    Decision,
    PathVerdict,
    Reason,
    Regression,
    SpeechHeadroom,
)
from sakiyomi.errors import NotComparable
from sakiyomi.lossless import TextCheck
from sakiyomi.next_experiment import Experiment, Source
from sakiyomi.path_lengths import batch_lengths, path_lengths
from sakiyomi.plan import Load, Slo
from sakiyomi.record import RunFacts
from sakiyomi.results import Comparison, Report
from sakiyomi.slo import LimitCheck, speech_headroom


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What is known beside the run itself. `draft_costs`: c by bytes, in plain steps, by arm."""

    texts: tuple[TextCheck, ...] = ()
    calibrations: tuple[Calibration, ...] = ()
    draft_costs: Mapping[str, float] = {}
    source: Source = Source()


def decide(
    facts: RunFacts,
    report: Report,
    requests: Requests,
    slo: Mapping[str, Slo],
    known: Known | None = None,
) -> Decision:
    """Decide every path of a run. `requests` are by (scenario, arm, load).

    Raises NotComparable for a calibration: its acceptance is forced.
    """
    known = known or Known()
    if facts.kind == "calibration":
        raise NotComparable(
            f"{facts.run_id}: kind is calibration: its acceptance is forced, it is no workload",
            "decide on a workload, with this run as its --calibration",
        )
    arms = {arm.name: arm for arm in facts.arms}
    lengths = path_lengths(
        report, requests, arms, known.calibrations, known.draft_costs, facts.plan.seed
    )
    places = dict.fromkeys((cell.scenario, cell.load) for cell in report.cells)
    choices = []
    for place in places:
        candidates = find_candidates(place, report, requests, arms, slo.get(place[0]), known.texts)
        choice = choose(place, candidates, facts.plan.arms[0].name, requests, facts.plan.min_gain)
        choice = msgspec.structs.replace(
            choice,
            limits_are_set=place[0] in slo,
            draft_lengths=tuple(p for p in lengths if (p.scenario, p.load) == place),
            texts=tuple(
                t for t in known.texts if (t.scenario, t.load) == (place[0], place[1].label)
            ),
        )
        choices.append(_finished(choice, facts, requests, known.source))
    return Decision(
        run=facts.run_id,
        min_gain=facts.plan.min_gain,
        answer=_answer(choices),
        choices=tuple(choices),
        batch_lengths=batch_lengths(lengths),
        calibrations=known.calibrations,
        texts=known.texts,
    )


def choose(
    place: tuple[str, Load],
    candidates: Sequence[Candidate],
    baseline: str,
    requests: Requests,
    min_gain: float,
) -> Choice:
    """The rule itself. Of arms that win the fastest is taken; its lead over others may be open."""
    standing = [c for c in candidates if c.excluded is None]
    eligible = [c for c in standing if c.standing == "holds"]
    pool = eligible or [c for c in standing if c.standing == "cannot_tell"]
    if not pool:
        return Choice(
            scenario=place[0],
            load=place[1],
            arm=None,
            verdict="none",
            reason="none_holds" if standing else "none_left",
            reference=None,
            candidates=tuple(candidates),
            limits_are_set=False,
        )
    reference = next((c for c in pool if c.arm == baseline), pool[0])
    where = (place[0], place[1].label)
    judged = {
        c.arm: against(c, reference, where, requests, baseline=baseline, min_gain=min_gain)
        for c in candidates
    }
    winners = [judged[c.arm] for c in pool if judged[c.arm].outcome == "wins"]
    chosen = max(winners, key=_point, default=judged[reference.arm])
    is_open = [judged[c.arm] for c in pool if judged[c.arm].outcome == "open"]
    maybe = [
        judged[c.arm]
        for c in standing
        if eligible and c.standing == "cannot_tell" and judged[c.arm].outcome in ("wins", "open")
    ]
    verdict, reason = _verdict(
        limits_open=not eligible,
        has_winner=bool(winners),
        gain_open=bool(is_open),
        maybe=bool(maybe),
        num_left=len(pool),
        num_standing=len(standing),
    )
    return Choice(
        scenario=place[0],
        load=place[1],
        arm=chosen.arm,
        verdict=verdict,
        reason=reason,
        reference=reference.arm,
        candidates=tuple(judged.values()),
        limits_are_set=False,
    )


def _verdict(
    *,
    limits_open: bool,
    has_winner: bool,
    gain_open: bool,
    maybe: bool,
    num_left: int,
    num_standing: int,
) -> tuple[PathVerdict, Reason]:
    if limits_open:
        return "not_established", "limit_open"
    if has_winner:
        return "established", "wins"
    if gain_open:
        return "not_established", "gain_open"
    if maybe:
        return "not_established", "limit_open"
    if num_left < num_standing:
        return "established", "limit_decides"
    return "established", "only_one" if num_left == 1 else "no_gain"


def with_regression(decision: Decision, regression: Regression) -> Decision:
    """The decision with what an earlier run says; a regression turns the answer."""
    order: tuple[Answer, ...] = ("yes", "cannot_tell", "no")
    answer = max(decision.answer, regression.answer, key=order.index)
    return msgspec.structs.replace(decision, regression=regression, answer=answer)


def judge_regression(run: str, earlier: str, comparisons: Sequence[Comparison]) -> Regression:
    """`no` when an arm became slower, established; `cannot_tell` when one may have.

    Open and yet harmless is an interval that lies above 1 - min_gain; the verdict has seen that.
    """
    verdicts = {c.verdict for c in comparisons}
    answer: Answer = "yes"
    if not comparisons or "not_established" in verdicts:
        answer = "cannot_tell"
    if "slower" in verdicts:
        answer = "no"
    return Regression(run=run, earlier=earlier, comparisons=tuple(comparisons), answer=answer)


def _finished(choice: Choice, facts: RunFacts, requests: Requests, source: Source) -> Choice:
    advised = _advised_k(choice)
    return msgspec.structs.replace(
        choice,
        advised_k=advised,
        speech=_speech(choice, facts),
        next_experiment=_experiment(choice, requests, source, facts.plan.min_gain)
        or (
            next_experiment.for_draft_length(choice.scenario, source)
            if advised and source.can_tune and not source.is_published
            else None
        ),
    )


def _advised_k(choice: Choice) -> int | None:
    """A predicted k that no arm ran, that pays and loses 2 % less than the best measured one."""
    for path in choice.draft_lengths:
        best = path.best_k
        measured = [row.loss for row in best.rows if row.measured]
        row = next((r for r in best.rows if r.num_speculative_tokens == best.best), None)
        if (
            row is not None
            and not row.measured
            and measured
            and min(measured) - row.loss > EQUAL_GAIN
            and row.speedup.point > 1 + EQUAL_GAIN
        ):
            return best.best
    return None


def _experiment(
    choice: Choice, requests: Requests, source: Source, min_gain: float
) -> Experiment | None:
    place = (choice.scenario, choice.load.label)
    if choice.verdict != "not_established" or choice.reference is None:
        return None
    if choice.reason == "limit_open":
        checks = [
            check
            for candidate in choice.candidates
            if candidate.excluded is None
            for check in candidate.limits
            if check.standing == "cannot_tell"
        ]
        hardest = max(checks, key=_distance, default=None)
        return next_experiment.for_limit(place, hardest, requests, source) if hardest else None
    is_open = [c for c in choice.candidates if c.outcome == "open" and c.excluded is None]
    best = max((c for c in is_open if c.standing != "fails"), key=_point, default=None)
    with_interval = [c for c in is_open if c.ratio is not None and c.ratio.low is not None]
    best = max(with_interval, key=_point, default=best)
    if best is None:
        return None
    return next_experiment.for_gain(
        place, (best.arm, choice.reference), best.ratio, requests, source, min_gain
    )


def _distance(check: LimitCheck) -> float:
    """How near to the required share: the nearer, the more it takes."""
    return -abs(check.share.point - check.quantile) if check.share else 0.0


def _speech(choice: Choice, facts: RunFacts) -> SpeechHeadroom | None:
    """For chat and voice: how much faster than speech even the slowest arm is."""
    scenario = next((s for s in facts.scenarios if s.name == choice.scenario), None)
    if scenario is None or (scenario.category or "") not in ("chat", "voice"):
        return None
    rates = [
        (c.decode_tokens_per_s.point, c.arm)
        for c in choice.candidates
        if c.decode_tokens_per_s is not None
    ]
    if not rates:
        return None
    slowest, arm = min(rates)
    return SpeechHeadroom(arm=arm, times=speech_headroom(slowest, scenario.language))


def _point(candidate: Candidate) -> float:
    return candidate.ratio.point if candidate.ratio else 1.0


def _answer(choices: Sequence[Choice]) -> Answer:
    verdicts = {choice.verdict for choice in choices}
    if "none" in verdicts:
        return "no"
    return "cannot_tell" if "not_established" in verdicts or not choices else "yes"
