"""Does entropy say where drafts miss? Tokens' entropy and surprisal against acceptance. Pure.

From a pass of its own that asks for logprobs, never from timed requests. A token counts where a
draft reached it: accepted, or the target's own token after a rejection.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import msgspec

from sakiyomi import correlations, stats
from sakiyomi.acceptance_bins import AcceptanceBin, acceptance_bins
from sakiyomi.drafted_tokens import token_facts
from sakiyomi.explained_gap import GapShare, TokenFact, Unit, find_gap
from sakiyomi.measured import is_speculative
from sakiyomi.record import ArmFacts, RequestRecord, RunFacts
from sakiyomi.stats import Estimate

MIN_TOKENS = 30
"""Tokens of a conversation from which its own correlation is taken."""
INSIDE, ENDS = "inside sentences", "sentence ends"


class ScenarioWhy(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario x arm. Negative correlations: uncertain text is drafted badly.

    `num_reached`: tokens that drafts reached; `num_tokens`: those of them whose alternatives are
    known, from which everything else is. `unlisted`: their mean probability beyond the listed
    alternatives, for which `entropy` takes the least that it can be.
    `within`: of entropy and acceptance inside a conversation, median over conversations;
    `between`: of their means over conversations. `ends`: acceptance inside sentences against
    that near their ends.
    """

    scenario: str
    arm: str
    num_conversations: int
    num_tokens: int
    num_reached: int
    unlisted: float
    mean_entropy: Estimate
    acceptance: Estimate
    entropy_of_accepted: Estimate | None
    entropy_of_rejected: Estimate | None
    within: Estimate | None
    within_surprisal: Estimate | None
    between: Estimate | None
    ends: GapShare | None
    by_entropy: tuple[AcceptanceBin, ...] = ()
    by_surprisal: tuple[AcceptanceBin, ...] = ()


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the pass says. `silent`: where no usable logprobs came, and why."""

    scenarios: tuple[ScenarioWhy, ...]
    gaps: tuple[GapShare, ...]
    silent: dict[str, str] = {}


Key = tuple[str, str]
"""(scenario, arm)."""


def find_why(facts: RunFacts, records: Sequence[RequestRecord]) -> Why:
    """Correlations by scenario and arm, gaps between scenarios."""
    arms = {arm.name: arm for arm in facts.arms}
    baselines = _baseline_logprobs(records, arms)
    units: dict[Key, dict[str, list[TokenFact]]] = {}
    num_reached: dict[Key, int] = {}
    silent: dict[Key, str] = {}
    for record in records:
        arm = arms.get(record.key.arm)
        if arm is None or record.key.warmup or record.error or not is_speculative(arm):
            continue
        key = record.key.scenario, arm.name
        found = token_facts(record, arm, baselines.get(_twin(record)))
        if isinstance(found, str):
            silent.setdefault(key, found)
            continue
        known, reached = found
        units.setdefault(key, {}).setdefault(record.key.conversation_id, []).extend(known)
        num_reached[key] = num_reached.get(key, 0) + reached
    told = {key: [u for u in cell.values() if u] for key, cell in units.items()}
    for key, drafted in told.items():
        if not drafted:
            silent[key] = "no draft reached a token with known alternatives"
    told = {key: drafted for key, drafted in told.items() if drafted}
    seed = facts.plan.seed
    return Why(
        scenarios=tuple(_scenario(key, mine, num_reached[key], seed) for key, mine in told.items()),
        gaps=tuple(_gaps(told)),
        silent={" x ".join(key): why for key, why in silent.items() if key not in told},
    )


def _twin(record: RequestRecord) -> tuple[str, str, int]:
    return record.key.scenario, record.key.conversation_id, record.key.turn


def _baseline_logprobs(
    records: Iterable[RequestRecord], arms: Mapping[str, ArmFacts]
) -> dict[tuple[str, str, int], RequestRecord]:
    plain = {name for name, arm in arms.items() if not is_speculative(arm)}
    return {_twin(r): r for r in records if r.key.arm in plain and not r.key.warmup and not r.error}


def _scenario(key: Key, units: Sequence[Unit], num_reached: int, seed: int) -> ScenarioWhy:
    entropy = stats.estimate_ratio([(_sum(u, "entropy"), len(u)) for u in units], seed)
    acceptance = stats.estimate_ratio(
        [(sum(t.accepted for t in u), len(u)) for u in units], seed, upper=1.0
    )
    assert entropy is not None
    assert acceptance is not None
    num_tokens = sum(len(u) for u in units)
    inside, ends = ([[t for t in u if t.at_end is end] for u in units] for end in (False, True))
    return ScenarioWhy(
        scenario=key[0],
        arm=key[1],
        num_conversations=len(units),
        num_tokens=num_tokens,
        num_reached=num_reached,
        unlisted=math.fsum(_sum(u, "unlisted") for u in units) / num_tokens,
        mean_entropy=entropy,
        acceptance=acceptance,
        entropy_of_accepted=_entropy_where(units, seed, accepted=True),
        entropy_of_rejected=_entropy_where(units, seed, accepted=False),
        within=_within(units, "entropy"),
        within_surprisal=_within(units, "surprisal"),
        between=stats.estimate_correlation(
            [(_sum(u, "entropy") / len(u), sum(t.accepted for t in u) / len(u)) for u in units]
        ),
        ends=find_gap(key[1], (INSIDE, inside), (ENDS, ends), scenario=key[0]),
        by_entropy=acceptance_bins(units, "entropy", seed),
        by_surprisal=acceptance_bins(units, "surprisal", seed),
    )


def _sum(unit: Unit, field: str) -> float:
    return math.fsum(getattr(token, field) for token in unit)


def _entropy_where(units: Sequence[Unit], seed: int, *, accepted: bool) -> Estimate | None:
    kept = [[t for t in unit if t.accepted is accepted] for unit in units]
    return stats.estimate_ratio([(_sum(u, "entropy"), len(u)) for u in kept if u], seed)


def _within(units: Sequence[Unit], field: str) -> Estimate | None:
    """Rank correlation inside each conversation; the median over conversations."""
    found = []
    for unit in units:
        if len(unit) >= MIN_TOKENS:
            pairs = [(getattr(t, field), float(t.accepted)) for t in unit]
            value = correlations.rank_correlation(pairs)
            if value is not None:
                found.append([value])
    return stats.estimate_median(found, signed=True) if found else None


def _gaps(told: Mapping[Key, Sequence[Unit]]) -> list[GapShare]:
    """Each pair of scenarios of an arm, both with enough conversations."""
    gaps = []
    for arm in dict.fromkeys(arm for _, arm in told):
        mine = [(scenario, units) for (scenario, name), units in told.items() if name == arm]
        gaps += [find_gap(arm, first, second) for first, second in combinations(mine, 2)]
    return [gap for gap in gaps if gap is not None]
