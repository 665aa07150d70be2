"""A cell: scenario x arm x load, from its requests and metrics windows. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sakiyomi import acceptance_evidence, cell_acceptance, cell_steps, stats
from sakiyomi.cautions import cell_cautions
from sakiyomi.cell_facts import CellFacts
from sakiyomi.counter_windows import Window
from sakiyomi.measured import Measured, is_speculative
from sakiyomi.plan import Load
from sakiyomi.record import ArmFacts, Quality, RunFacts
from sakiyomi.results import Cell
from sakiyomi.stats import Estimate


def by_conversation(requests: Sequence[Measured], field: str) -> list[list[float]]:
    """A latency field's values by conversation; those that are not defined are left out."""
    units: dict[str, list[float]] = {}
    for request in requests:
        value = getattr(request.latency, field)
        if request.error is None and value is not None:
            units.setdefault(request.key.conversation_id, []).append(value)
    return list(units.values())


def make_cell(
    facts: RunFacts,
    arm: ArmFacts,
    load: Load,
    requests: list[Measured],
    windows: list[Window],
    qualities: Mapping[str, Quality],
) -> Cell:
    """Estimates, acceptance and cautions of one cell. `qualities`: the engine's, by source."""
    seed = facts.plan.seed
    good = [request for request in requests if request.error is None]
    evidence = acceptance_evidence.gather(requests, windows, arm, qualities)
    accepted = cell_acceptance.report(evidence, arm, seed)
    scenario = requests[0].key.scenario
    repeats, starts = _repeats(good), _starts(good)
    seen = CellFacts(
        requests=requests,
        windows=windows,
        facts=arm,
        evidence=evidence,
        acceptance=accepted,
        max_tokens=_cap(facts, scenario),
        repeats=repeats,
        starts=starts,
    )

    def median_of(field: str, *, signed: bool = False) -> Estimate | None:
        return stats.estimate_median(by_conversation(requests, field), signed=signed)

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
        inter_event_s=stats.estimate_median(_gaps(good)),
        tokens_per_event=median_of("tokens_per_event"),
        tokens_per_step=_tokens_per_step(requests, windows, arm, seed),
        e2e_s=median_of("e2e_s"),
        speech_margin_s=median_of("speech_margin_s", signed=True),
        output_tokens_per_s=_output_rate(good),
        num_output_tokens=sum(request.num_tokens for request in good),
        num_without_decode_rate=sum(r.latency.decode_tokens_per_s is None for r in good),
        finish_reasons=dict(Counter(r.finish_reason or "none" for r in good)),
        cached_prompt_share=_cached_share(good),
        tokens="estimated" if any(r.latency.tokens == "estimated" for r in good) else "server",
        acceptance=accepted,
        num_speculative_tokens=arm.num_speculative_tokens,
        context_tokens=_context(good),
        repeats=repeats,
        cautions=cell_cautions(seen),
        starts=starts,
    )


def _cap(facts: RunFacts, scenario: str) -> int | None:
    """The cap of a scenario's answers."""
    return next((s.sampling.max_tokens for s in facts.scenarios if s.name == scenario), None)


def _tokens_per_step(
    requests: list[Measured], windows: list[Window], arm: ArmFacts, seed: int
) -> Estimate | None:
    found = cell_steps.tokens_per_step(requests, windows, seed)
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


def _starts(good: Sequence[Measured]) -> list[dict[str, Any]]:
    """Medians by start of the engine: a restart may lay memory out anew, or land elsewhere."""
    rows = []
    for start in sorted({request.key.start for request in good if request.key.start}):
        mine = [request for request in good if request.key.start == start]
        rates = [r.latency.decode_tokens_per_s for r in mine if r.latency.decode_tokens_per_s]
        rows.append(
            {
                "start": start,
                "num_requests": len(mine),
                "decode_tokens_per_s": stats.median(rates) if rates else None,
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


def _gaps(good: Sequence[Measured]) -> list[list[float]]:
    units: dict[str, list[float]] = {}
    for request in good:
        if request.gap_s is not None:
            units.setdefault(request.key.conversation_id, []).append(request.gap_s)
    return list(units.values())


def _cached_share(good: Sequence[Measured]) -> float | None:
    """Cached over all prompt tokens, of the requests whose server tells."""
    told = [r for r in good if r.cached_prompt_tokens is not None and r.prompt_tokens]
    cached = sum(r.cached_prompt_tokens or 0 for r in told)
    return cached / sum(r.prompt_tokens or 0 for r in told) if told else None


def _context(good: Sequence[Measured]) -> float | None:
    """Prompt and half of the answer: what the middle step of an answer attends to."""
    known = [r.prompt_tokens + r.num_tokens / 2 for r in good if r.prompt_tokens is not None]
    return sum(known) / len(known) if known else None
