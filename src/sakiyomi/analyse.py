"""Run facts, records and snapshots -> a report. Pure: works from the folder, anywhere."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from sakiyomi import cell_acceptance, stats
from sakiyomi.cautions import CellFacts, cell_cautions
from sakiyomi.counter_windows import Window, read_windows
from sakiyomi.engines import find_engine
from sakiyomi.engines.engine import Engine
from sakiyomi.measured import Measured, is_speculative, measure_request
from sakiyomi.plan import Load, Plan
from sakiyomi.record import ArmFacts, Caution, RequestRecord, RunFacts, Snapshot
from sakiyomi.results import SCHEMA, Cell, Comparison, Report
from sakiyomi.stats import Estimate
from sakiyomi.suspects import match

STEP_COST_GAP = 1.03
"""C(k) of two scenarios may differ by this much (analytics, section 6)."""
PLAIN_STEP = 0.02
"""A baseline whose tokens per step lie within this of 1 is a plain one."""


def analyse(
    facts: RunFacts,
    records: Iterable[RequestRecord],
    snapshots: Iterable[Snapshot],
    logs: Mapping[str, str] | None = None,
) -> Report:
    """The report of a run. `logs`: texts of launched engines' logs, searched for known defects."""
    arms = {arm.name: arm for arm in facts.arms}
    engines = {arm.name: find_engine(arm.engine) for arm in facts.arms}
    requests = reduce_records(facts, records, arms, engines)
    windows = read_windows(snapshots, arms, engines)
    plan = facts.plan
    cells: list[Cell] = []
    for ref in plan.scenarios:
        for load in plan.loads:
            for arm in plan.arms:
                mine = requests.get((ref.name, arm.name, load.label), [])
                if mine and arm.name in arms:
                    own = [w for w in windows.values() if _of(w, ref.name, arm.name, load.label)]
                    cells.append(_cell(facts, arms[arm.name], load, mine, own))
    comparisons = _comparisons(plan, arms, requests, cells)
    cells = [_with_more_needed(cell, comparisons) for cell in cells]
    return Report(
        schema=SCHEMA,
        run=facts.run_id,
        name=plan.name,
        created=facts.created,
        baseline=plan.arms[0].name,
        environment=_environment(facts),
        arms=[msgspec.to_builtins(arm) for arm in facts.arms],
        scenarios=[msgspec.to_builtins(scenario) for scenario in facts.scenarios],
        cells=cells,
        comparisons=comparisons,
        explanation=None,
        decision=None,
        cautions=[
            *facts.cautions,
            *_step_costs_differ(comparisons),
            *_suspects(facts, logs or {}),
        ],
        provenance=facts.provenance,
        num_repeats=max((cell.num_repeats for cell in cells), default=0),
    )


def reduce_records(
    facts: RunFacts,
    records: Iterable[RequestRecord],
    arms: Mapping[str, ArmFacts],
    engines: Mapping[str, Engine],
) -> dict[tuple[str, str, str], list[Measured]]:
    """Measured requests by (scenario, arm, load); of a repeated request the last one counts."""
    languages = {scenario.name: scenario.language for scenario in facts.scenarios}
    paces = {name: slo.speech_characters_per_s for name, slo in facts.plan.slo.items()}
    last: dict[str, Measured] = {}
    for record in records:
        if record.key.warmup or record.key.arm not in engines:
            continue
        last[record.key.request_id] = measure_request(
            record,
            engines[record.key.arm],
            arms[record.key.arm],
            language=languages.get(record.key.scenario),
            characters_per_s=paces.get(record.key.scenario),
        )
    grouped: dict[tuple[str, str, str], list[Measured]] = {}
    for request in last.values():
        key = request.key
        if request.error is None or request.error.kind != "cancelled":
            grouped.setdefault((key.scenario, key.arm, key.load), []).append(request)
    return grouped


def _of(window: Window, scenario: str, arm: str, load: str) -> bool:
    return (window.scenario, window.arm, window.load) == (scenario, arm, load)


def by_conversation(requests: Sequence[Measured], field: str) -> list[list[float]]:
    """A latency field's values by conversation; those that are not defined are left out."""
    units: dict[str, list[float]] = {}
    for request in requests:
        value = getattr(request.latency, field)
        if request.error is None and value is not None:
            units.setdefault(request.key.conversation_id, []).append(value)
    return list(units.values())


def _cell(
    facts: RunFacts, arm: ArmFacts, load: Load, requests: list[Measured], windows: list[Window]
) -> Cell:
    seed = facts.plan.seed
    good = [request for request in requests if request.error is None]
    evidence = cell_acceptance.gather(requests, windows, arm)
    accepted = cell_acceptance.report(evidence, arm, seed)
    scenario = requests[0].key.scenario
    sampling = next((s.sampling for s in facts.scenarios if s.name == scenario), None)
    repeats = _repeats(good)
    cautions = cell_cautions(
        CellFacts(
            requests=requests,
            windows=windows,
            facts=arm,
            evidence=evidence,
            acceptance=accepted,
            max_tokens=sampling.max_tokens if sampling else None,
            repeats=repeats,
        )
    )
    prompt = [r for r in good if r.cached_prompt_tokens is not None and r.prompt_tokens]

    def median_of(field: str, *, signed: bool = False) -> Estimate | None:
        return stats.estimate_median(by_conversation(requests, field), signed=signed)

    gaps: dict[str, list[float]] = {}
    for request in good:
        if request.gap_s is not None:
            gaps.setdefault(request.key.conversation_id, []).append(request.gap_s)
    return Cell(
        scenario=scenario,
        arm=arm.name,
        load=load,
        num_requests=len(requests),
        num_failed=len(requests) - len(good),
        num_repeats=len({request.key.repeat for request in requests}),
        num_conversations=len({request.key.conversation_id for request in good}),
        ttft_s=median_of("ttft_s"),
        time_to_answer_s=median_of("time_to_answer_s"),
        time_to_first_sentence_s=median_of("time_to_first_sentence_s"),
        decode_tokens_per_s=median_of("decode_tokens_per_s"),
        tpot_s=median_of("tpot_s"),
        inter_event_s=stats.estimate_median(list(gaps.values())),
        tokens_per_event=median_of("tokens_per_event"),
        tokens_per_step=_tokens_per_step(requests, windows, arm, seed),
        e2e_s=median_of("e2e_s"),
        speech_margin_s=median_of("speech_margin_s", signed=True),
        output_tokens_per_s=_output_rate(good),
        num_output_tokens=sum(request.num_tokens for request in good),
        num_without_decode_rate=sum(r.latency.decode_tokens_per_s is None for r in good),
        finish_reasons=dict(Counter(r.finish_reason or "none" for r in good)),
        cached_prompt_share=sum(r.cached_prompt_tokens or 0 for r in prompt)
        / sum(r.prompt_tokens or 0 for r in prompt)
        if prompt
        else None,
        tokens="estimated" if any(r.latency.tokens == "estimated" for r in good) else "server",
        acceptance=accepted,
        num_speculative_tokens=arm.num_speculative_tokens,
        repeats=repeats,
        cautions=cautions,
    )


def _tokens_per_step(
    requests: list[Measured], windows: list[Window], arm: ArmFacts, seed: int
) -> Estimate | None:
    found = cell_acceptance.tokens_per_step(requests, windows, seed)
    if found is None or (not is_speculative(arm) and found.point < 1):
        return None
    return found


def _repeats(good: Sequence[Measured]) -> list[dict[str, Any]]:
    """Medians by repeat: what drift looks like."""
    rows = []
    for repeat in sorted({request.key.repeat for request in good}):
        mine = [request for request in good if request.key.repeat == repeat]
        rates = [r.latency.decode_tokens_per_s for r in mine if r.latency.decode_tokens_per_s]
        firsts = [r.latency.ttft_s for r in mine if r.latency.ttft_s is not None]
        rows.append(
            {
                "repeat": repeat,
                "decode_tokens_per_s": stats.median(rates) if rates else None,
                "ttft_s": stats.median(firsts) if firsts else None,
            }
        )
    return rows


def _output_rate(good: Sequence[Measured]) -> float | None:
    """All output tokens / wall time, over the windows in which they were asked."""
    tokens, wall_s = 0, 0.0
    for window in {request.key.window for request in good}:
        mine = [request for request in good if request.key.window == window]
        tokens += sum(request.num_tokens for request in mine)
        wall_s += max(r.closed_at_s for r in mine) - min(r.sent_at_s for r in mine)
    return tokens / wall_s if wall_s > 0 else None


class Paired(msgspec.Struct, frozen=True):
    """One conversation in both arms: ln(arm / baseline) by repeat, and the arm's step counts."""

    conversation_id: str
    log_ratios: list[float]
    num_step_tokens: float
    num_steps: float


def pair(arm: Sequence[Measured], baseline: Sequence[Measured]) -> list[Paired]:
    """Pair decode rates by conversation and repeat: same prompt, alternating arms.

    A conversation's rate in a repeat is its decoded tokens over its decoding time, all turns
    together.
    """
    ours, theirs = _rates(arm), _rates(baseline)
    steps: dict[str, list[float]] = {}
    for request in arm:
        if request.error is None and request.steps is not None:
            unit = steps.setdefault(request.key.conversation_id, [0.0, 0.0])
            unit[0] += request.num_step_tokens
            unit[1] += request.steps.num_steps or 0.0
    paired: dict[str, list[float]] = {}
    for (conversation_id, repeat), rate in sorted(ours.items()):
        other = theirs.get((conversation_id, repeat))
        if other:
            paired.setdefault(conversation_id, []).append(math.log(rate / other))
    return [Paired(name, ratios, *steps.get(name, [0.0, 0.0])) for name, ratios in paired.items()]


def _rates(requests: Sequence[Measured]) -> dict[tuple[str, int], float]:
    sums: dict[tuple[str, int], list[float]] = {}
    for request in requests:
        rate = request.latency.decode_tokens_per_s
        if request.error is None and rate:
            tokens = request.num_tokens - (request.latency.first_event_tokens or 1)
            unit = sums.setdefault((request.key.conversation_id, request.key.repeat), [0.0, 0.0])
            unit[0] += tokens
            unit[1] += tokens / rate
    return {key: tokens / seconds for key, (tokens, seconds) in sums.items() if seconds > 0}


def _comparisons(
    plan: Plan,
    arms: Mapping[str, ArmFacts],
    requests: Mapping[tuple[str, str, str], list[Measured]],
    cells: Sequence[Cell],
) -> list[Comparison]:
    baseline = plan.arms[0].name
    found = []
    for cell in cells:
        base = requests.get((cell.scenario, baseline, cell.load.label))
        if cell.arm == baseline or not base:
            continue
        units = pair(requests[cell.scenario, cell.arm, cell.load.label], base)
        ratio = stats.compare([unit.log_ratios for unit in units])
        cost = None
        base_cell = next(
            c for c in cells if (c.scenario, c.arm, c.load) == (cell.scenario, baseline, cell.load)
        )
        if cell.tokens_per_step and _is_plain(base_cell, arms[baseline]):
            cost = stats.estimate_step_cost(
                [
                    (u.num_step_tokens, u.num_steps, math.fsum(u.log_ratios) / len(u.log_ratios))
                    for u in units
                    if u.num_steps
                ]
            )
        k = cell.num_speculative_tokens
        found.append(
            Comparison(
                scenario=cell.scenario,
                arm=cell.arm,
                baseline=baseline,
                load=cell.load,
                metric="decode_tokens_per_s",
                ratio=ratio,
                verdict=stats.verdict(ratio, plan.min_gain),
                step_cost=cost,
                break_even_rate=stats.break_even_rate(cost, k) if cost and k else None,
            )
        )
    return found


def _is_plain(cell: Cell, facts: ArmFacts) -> bool:
    """A step cost is against a plain step: the baseline must not speculate."""
    if cell.tokens_per_step is None:
        return not is_speculative(facts)
    return abs(cell.tokens_per_step.point - 1) <= PLAIN_STEP


def _with_more_needed(cell: Cell, comparisons: Sequence[Comparison]) -> Cell:
    """Add the caution that says how many conversations would settle the verdict."""
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
    more = stats.num_more_units(mine.ratio)
    gain = mine.ratio.point - 1
    ask = f"About {more} more would settle it" if more else "More of them, or longer answers, may"
    caution = Caution(
        "too_few_conversations",
        f"{cell.num_conversations} conversations are too few for a difference of {gain:+.0%}. "
        f"{ask}",
        {"num_conversations": cell.num_conversations, "num_more": more, "gain": gain},
    )
    return msgspec.structs.replace(cell, cautions=[*cell.cautions, caution])


def _step_costs_differ(comparisons: Sequence[Comparison]) -> list[Caution]:
    """A physical check: C(k) may not depend on the text."""
    cautions = []
    groups: dict[tuple[str, str], list[Comparison]] = {}
    for comparison in comparisons:
        if comparison.step_cost:
            groups.setdefault((comparison.arm, comparison.load.label), []).append(comparison)
    for (arm, load), group in groups.items():
        group.sort(key=lambda c: c.step_cost.point if c.step_cost else 0.0)
        low, high = group[0], group[-1]
        cheap, dear = low.step_cost, high.step_cost
        if cheap is None or dear is None or cheap.high is None or dear.low is None:
            continue
        if dear.low <= cheap.high or dear.point / cheap.point < STEP_COST_GAP:
            continue
        cautions.append(
            Caution(
                "step_cost_differs",
                f"{arm}: a speculative step costs {dear.point:.2f} plain steps on "
                f"{high.scenario} and {cheap.point:.2f} on {low.scenario}. It cannot depend on the text: one of the "
                "runs is contaminated (short answers, clock ramp, other traffic, context length)",
                {
                    "arm": arm,
                    "load": load,
                    "step_cost": {c.scenario: c.step_cost.point for c in group if c.step_cost},
                },
            )
        )
    return cautions


def _suspects(facts: RunFacts, logs: Mapping[str, str]) -> list[Caution]:
    """Known engine defects that a launched engine's log shows."""
    cautions = []
    for arm in facts.arms:
        text = "\n".join(log for name, log in logs.items() if name.startswith(f"engine-{arm.name}"))
        cautions += [
            Caution(
                "suspect",
                f"{arm.name}: {suspect.symptom} ({suspect.url}). {suspect.remedy}",
                {"arm": arm.name, "url": suspect.url},
            )
            for suspect in match(arm.engine, arm.engine_version, text)
        ]
    return cautions


def _environment(facts: RunFacts) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(facts.environment)
    if facts.arms:
        first = facts.arms[0]
        found.setdefault("engine", find_engine(first.engine).title)
        found.setdefault("engine_version", first.engine_version)
        if first.device:
            found["device"] = first.device
    return found
