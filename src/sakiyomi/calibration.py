"""Step costs without text: C(k) = 1 + c0 + c k from arms with forced acceptance. Pure.

Each conversation gives a cost per arm, tokens per step over its speedup, paired as everywhere.
Per draft length they are averaged over forced acceptance of none and of all (or come from an arm
that really drafts); a line through them is the conversation's own c0 and c, and the figures are
medians over conversations with their intervals.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from sakiyomi import stats
from sakiyomi.cost_models import CostModel, fit_line, line_bounds, line_through
from sakiyomi.drafting import StepCost
from sakiyomi.engines.engine import Engine, with_speculation
from sakiyomi.errors import NotComparable, PlanError
from sakiyomi.measured import Measured
from sakiyomi.pairing import pair
from sakiyomi.plan import Arm, Calibrate, Plan, Speculation
from sakiyomi.record import RunFacts
from sakiyomi.stats import Estimate

Forced = Literal["none", "all", "real"]


class CalibratedCost(msgspec.Struct, frozen=True, kw_only=True):
    """C(k) of one arm of a calibration; `forced`: which acceptance it was given."""

    arm: str
    num_speculative_tokens: int
    forced: Forced
    step_cost: Estimate


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """The fit for one way of drafting. `fixed`: c0 once a step; `per_draft`: c; in plain steps.

    `at`: C(k) by draft length, both acceptances together.
    """

    run: str
    engine: str
    model: str | None
    method: str | None
    load: str
    fixed: Estimate
    per_draft: Estimate
    at: dict[int, Estimate]
    arms: tuple[CalibratedCost, ...]


def calibration_plan(plan: Plan, engines: Mapping[str, Engine]) -> Plan:
    """The plan that measures C(k) for every way of drafting that `plan` launches.

    Its first arm is plain. Raises PlanError where no arm can be given another draft length.
    """
    wish = plan.calibrate or Calibrate()
    drafting_arms = _one_per_method([arm for arm in plan.arms if arm.speculation])
    if not drafting_arms:
        raise PlanError(
            f"{plan.name}: --calibrate: no arm says how it drafts",
            "give an arm speculation = { method = ..., num_speculative_tokens = ... }",
        )
    arms: list[Arm] = []
    for arm in drafting_arms:
        if arm.url is not None:
            raise PlanError(
                f"arm {arm.name}: --calibrate cannot give a running server another draft length",
                "let sakiyomi launch it: engine, model and args in place of url",
            )
        plain = _plain_of(arm, plan)
        if plain.name not in [known.name for known in arms]:
            arms.append(plain)
        for k in wish.num_speculative_tokens:
            arms += _forced_arms(arm, engines[arm.engine], k)
    arms.sort(key=lambda arm: arm.speculation is not None)
    num_plain = sum(arm.speculation is None for arm in arms)
    if num_plain > 1:
        raise PlanError(
            f"{plan.name}: --calibrate: its speculating arms are of {num_plain} models",
            "calibrate one model a run",
        )
    ref = msgspec.structs.replace(
        plan.scenarios[0],
        num_conversations=wish.num_conversations,
        num_requests=wish.num_conversations,
        max_tokens=wish.max_tokens,
        temperature=0.0,
    )
    return msgspec.structs.replace(
        plan,
        name=f"{plan.name} calibration",
        arms=tuple(arms),
        scenarios=(ref,),
        slo={},
        calibrate=wish,
    )


def _one_per_method(arms: Sequence[Arm]) -> list[Arm]:
    kept: dict[tuple[object, ...], Arm] = {}
    for arm in arms:
        assert arm.speculation is not None
        kept.setdefault((arm.engine, arm.model, arm.speculation.method), arm)
    return list(kept.values())


def _plain_of(arm: Arm, plan: Plan) -> Arm:
    """The plan's plain arm of the same model, else the arm without its speculation."""
    for other in plan.arms:
        same = (other.engine, other.model) == (arm.engine, arm.model)
        if same and other.speculation is None and other.url is None:
            return other
    return msgspec.structs.replace(arm, name="plain", speculation=None)


def _forced_arms(arm: Arm, engine: Engine, k: int) -> list[Arm]:
    """Arms of one draft length: forced to accept none and all, else as it really drafts."""
    own = with_speculation(arm, k, {})
    found = []
    for forced, rate in (("none", 0.0), ("all", 1.0)):
        made = engine.force_acceptance(own, (rate,) * k) if engine.force_acceptance else None
        if made is not None:
            found.append(msgspec.structs.replace(made, name=f"{arm.name}-k{k}-{forced}"))
    return found or [msgspec.structs.replace(own, name=f"{arm.name}-k{k}-real")]


def fit_calibration(
    facts: RunFacts, requests: Mapping[tuple[str, str, str], Sequence[Measured]]
) -> tuple[Calibration, ...]:
    """c0 and c of each way of drafting of a calibration run, for each of its loads.

    Raises NotComparable when the run is a workload, and where fewer than two k were measured.
    """
    if facts.kind != "calibration":
        raise NotComparable(
            f"{facts.run_id}: kind is {facts.kind}, not calibration",
            "make one with: sakiyomi run PLAN.toml --calibrate",
        )
    planned = {arm.name: arm for arm in facts.plan.arms}
    groups: dict[tuple[str, str | None, str | None], list[str]] = {}
    for arm in facts.arms:
        spec = planned[arm.name].speculation
        if spec is not None:
            key = (arm.engine, arm.model, arm.speculative_method or spec.method)
            groups.setdefault(key, []).append(arm.name)
    fits = [
        _fit(facts, requests, key, [planned[name] for name in names], load.label)
        for key, names in groups.items()
        for load in facts.plan.loads
    ]
    found = tuple(fit for fit in fits if fit is not None)
    if not found:
        raise NotComparable(
            f"{facts.run_id}: fewer than two draft lengths were measured with their plain arm",
            "finish it: sakiyomi run --resume, or give calibrate.num_speculative_tokens two values",
        )
    return found


def _fit(
    facts: RunFacts,
    requests: Mapping[tuple[str, str, str], Sequence[Measured]],
    key: tuple[str, str | None, str | None],
    arms: Sequence[Arm],
    load: str,
) -> Calibration | None:
    baseline, rows = facts.plan.arms[0].name, []
    by_conversation: dict[str, dict[int, list[float]]] = {}
    for arm in arms:
        spec: Speculation | None = arm.speculation
        k = spec.num_speculative_tokens if spec else None
        if not k:
            continue
        logs: list[list[float]] = []
        for scenario in facts.plan.scenarios:
            mine = requests.get((scenario.name, arm.name, load))
            base = requests.get((scenario.name, baseline, load))
            for unit in pair(mine, base) if mine and base else ():
                if unit.num_steps > 0 and unit.num_step_tokens > 0:
                    log_cost = math.log(unit.num_step_tokens / unit.num_steps) - math.fsum(
                        unit.log_ratios
                    ) / len(unit.log_ratios)
                    logs.append([log_cost])
                    place = by_conversation.setdefault(unit.conversation_id, {})
                    place.setdefault(k, []).append(math.exp(log_cost))
        cost = stats.compare(logs)
        if cost is not None:
            rows.append(
                CalibratedCost(
                    arm=arm.name, num_speculative_tokens=k, forced=_forced(arm), step_cost=cost
                )
            )
    lengths = sorted({row.num_speculative_tokens for row in rows})
    whole = [costs for costs in by_conversation.values() if set(costs) == set(lengths)]
    if len(lengths) < 2 or not whole:
        return None
    means = [{k: math.fsum(c[k]) / len(c[k]) for k in lengths} for c in whole]
    lines = [fit_line([(float(k), cost) for k, cost in mean.items()]) for mean in means]
    fixed = stats.estimate_median([[value - 1] for _, value in lines], signed=True)
    per_draft = stats.estimate_median([[slope] for slope, _ in lines], signed=True)
    assert fixed is not None
    assert per_draft is not None
    at = {k: stats.estimate_median([[mean[k]] for mean in means]) for k in lengths}
    return Calibration(
        run=facts.run_id,
        engine=key[0],
        model=key[1],
        method=key[2],
        load=load,
        fixed=fixed,
        per_draft=per_draft,
        at={k: cost for k, cost in at.items() if cost is not None},
        arms=tuple(rows),
    )


def _forced(arm: Arm) -> Forced:
    ending = arm.name.rsplit("-", 1)[-1]
    return "none" if ending == "none" else "all" if ending == "all" else "real"


def cost_model(fit: Calibration) -> CostModel:
    """The fit as a cost model: measured C(k) where there is one, the line elsewhere."""
    return CostModel(
        name="calibrated",
        cost=StepCost(fixed=fit.fixed.point, per_draft=fit.per_draft.point),
        bounds=line_bounds(fit.at, line_through),
        at=fit.at,
    )


def find_fit(
    fits: Sequence[Calibration], *, engine: str, model: str | None, method: str | None, load: str
) -> Calibration | None:
    """The fit of this way of drafting; of the same load where there are several."""
    mine = [
        fit
        for fit in fits
        if fit.engine == engine
        and (fit.model == model or None in (fit.model, model))
        and (fit.method == method or None in (fit.method, method))
    ]
    return next((fit for fit in mine if fit.load == load), None)
