"""Does entropy say where drafts miss? Tokens' entropy and surprisal against acceptance. Pure.

From a pass of its own that asks for logprobs, never from timed requests. The entropy of a token is
that of its listed alternatives, the rest taken as one: a lower bound. A token counts where a draft
reached it: accepted, or the target's own token after a rejection.

The share of the gap between two scenarios that entropy explains is a standardization (Kitagawa
1955, JASA 50, 1168-1194): acceptance by bin of entropy, averaged over both scenarios, weighted by
how differently the scenarios fill the bins.
"""

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from sakiyomi import intervals, stats
from sakiyomi.detail import Piece
from sakiyomi.draft_map import map_answer
from sakiyomi.engines import find_engine
from sakiyomi.measured import is_speculative
from sakiyomi.record import ArmFacts, RequestRecord, RunFacts
from sakiyomi.stats import Estimate

NUM_BINS = 10
NUM_RESAMPLES = 399
MIN_TOKENS = 30
"""Tokens of a conversation from which its own correlation is taken."""
MIN_CONVERSATIONS = 3


class TokenFact(msgspec.Struct, frozen=True):
    """One token that a draft reached. Entropy and surprisal in nats."""

    entropy: float
    surprisal: float
    accepted: bool


class ScenarioWhy(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario x arm. Negative correlations: uncertain text is drafted badly.

    `within`: of entropy and acceptance inside a conversation, median over conversations;
    `between`: of their means over conversations.
    """

    scenario: str
    arm: str
    num_conversations: int
    num_tokens: int
    mean_entropy: Estimate
    acceptance: Estimate
    entropy_of_accepted: Estimate | None
    entropy_of_rejected: Estimate | None
    within: Estimate | None
    within_surprisal: Estimate | None
    between: Estimate | None


class GapShare(msgspec.Struct, frozen=True, kw_only=True):
    """The acceptance gap of two scenarios, and how much of it their entropies explain."""

    arm: str
    higher: str
    lower: str
    gap: float
    explained: Estimate
    """In the unit of the gap: a difference of acceptance."""
    share: float


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the pass says. `silent`: where no usable logprobs came, and why."""

    scenarios: tuple[ScenarioWhy, ...]
    gaps: tuple[GapShare, ...]
    silent: dict[str, str] = {}


Unit = list[TokenFact]
"""The tokens of one conversation."""


def find_why(facts: RunFacts, records: Sequence[RequestRecord]) -> Why:
    """Correlations by scenario and arm, gaps between scenarios."""
    arms = {arm.name: arm for arm in facts.arms}
    baselines = _baseline_logprobs(records, arms)
    units: dict[tuple[str, str], dict[str, Unit]] = {}
    silent: dict[tuple[str, str], str] = {}
    for record in records:
        arm = arms.get(record.key.arm)
        if arm is None or record.key.warmup or record.error or not is_speculative(arm):
            continue
        found = token_facts(record, arm, baselines.get(_twin(record)))
        if isinstance(found, str):
            silent.setdefault((record.key.scenario, arm.name), found)
            continue
        cell = units.setdefault((record.key.scenario, arm.name), {})
        cell.setdefault(record.key.conversation_id, []).extend(found)
    seed = facts.plan.seed
    told = {key: [u for u in cell.values() if u] for key, cell in units.items()}
    for key, drafted in told.items():
        if not drafted:
            silent[key] = "no draft reached a token with known alternatives"
    told = {key: drafted for key, drafted in told.items() if drafted}
    return Why(
        scenarios=tuple(_scenario(key, found_in, seed) for key, found_in in told.items()),
        gaps=tuple(_gaps(told, seed)),
        silent={" x ".join(key): why for key, why in silent.items() if key not in told},
    )


def token_facts(
    record: RequestRecord, arm: ArmFacts, baseline: RequestRecord | None = None
) -> Unit | str:
    """Tokens that drafts reached, or the reason why none is known.

    An engine that gives no alternatives for drafted tokens (llama.cpp) borrows those of a plain
    arm's answer to the same prompt, as far as both texts are the same.
    """
    pieces = map_answer(record, find_engine(arm.engine), arm)
    if not pieces:
        return "its events do not tell decode steps"
    own = [uncertainty(entry) for entry in _entries(record)]
    if own and len(own) == sum(piece.num_tokens for piece in pieces) and _told(own):
        return _by_order(pieces, own)
    if baseline is not None and _told([uncertainty(e) for e in _entries(baseline)]):
        return _by_offset(pieces, baseline)
    return "no alternatives came with its tokens (top_logprobs), nor with a plain arm's"


def uncertainty(entry: Mapping[str, Any]) -> tuple[float, float] | None:
    """(entropy, surprisal) of one token's logprobs; None where nothing but the token is listed."""
    chosen = entry.get("logprob")
    listed = [o.get("logprob") for o in entry.get("top_logprobs") or []]
    logs = [float(v) for v in listed if isinstance(v, int | float) and v <= 0]
    if not isinstance(chosen, int | float) or len(logs) < 2:
        return None
    shares = [math.exp(value) for value in logs]
    rest = max(0.0, 1 - math.fsum(shares))
    entropy = -math.fsum(p * q for p, q in zip(shares, logs, strict=True))
    entropy -= rest * math.log(rest) if rest > 1e-12 else 0.0
    return entropy, max(0.0, -float(chosen))


def _by_order(pieces: Sequence[Piece], told: Sequence[tuple[float, float] | None]) -> Unit:
    facts: Unit = []
    at = 0
    for piece in pieces:
        for accepted, place in _outcomes(piece):
            known = told[at + place]
            if known is not None:
                facts.append(TokenFact(known[0], known[1], accepted))
        at += piece.num_tokens
    return facts


def _outcomes(piece: Piece) -> list[tuple[bool, int]]:
    """(accepted, which of the piece's tokens) for tokens that a draft reached."""
    if piece.mark == "accepted":
        return [(True, 0)]
    if piece.mark == "corrected":
        return [(False, 0)]
    if piece.mark != "step" or piece.num_accepted_tokens is None:
        return []
    own = piece.num_tokens - 1
    outcomes = [(True, place) for place in range(min(own, piece.num_accepted_tokens))]
    if piece.num_draft_tokens and piece.num_accepted_tokens < piece.num_draft_tokens:
        outcomes.append((False, own))
    return outcomes


def _by_offset(pieces: Sequence[Piece], baseline: RequestRecord) -> Unit:
    """Tokens of one-token pieces that start where a token of the plain answer starts."""
    starts: dict[int, tuple[float, float]] = {}
    offset = 0
    plain = []
    for entry in _entries(baseline):
        token = str(entry.get("token") or "")
        if (known := uncertainty(entry)) is not None:
            starts[offset] = known
        offset += len(token)
        plain.append(token)
    text, facts, offset = "".join(plain), [], 0
    for piece in pieces:
        if text[offset : offset + len(piece.text)] != piece.text:
            break  # from here on the answers differ
        known = starts.get(offset)
        if known is not None and piece.num_tokens == 1:
            facts += [TokenFact(known[0], known[1], ok) for ok, _ in _outcomes(piece)]
        offset += len(piece.text)
    return facts


def _entries(record: RequestRecord) -> list[dict[str, Any]]:
    found = record.evidence.get("logprobs")
    return [e for e in found if isinstance(e, dict)] if isinstance(found, list) else []


def _told(values: Sequence[tuple[float, float] | None]) -> bool:
    return sum(value is not None for value in values) > len(values) / 2


def _twin(record: RequestRecord) -> tuple[str, str, int]:
    return record.key.scenario, record.key.conversation_id, record.key.turn


def _baseline_logprobs(
    records: Iterable[RequestRecord], arms: Mapping[str, ArmFacts]
) -> dict[tuple[str, str, int], RequestRecord]:
    plain = {name for name, arm in arms.items() if not is_speculative(arm)}
    return {_twin(r): r for r in records if r.key.arm in plain and not r.key.warmup and not r.error}


def _scenario(key: tuple[str, str], units: Sequence[Unit], seed: int) -> ScenarioWhy:
    entropy = stats.estimate_ratio([(_sum(u, "entropy"), len(u)) for u in units], seed)
    acceptance = stats.estimate_ratio(
        [(sum(t.accepted for t in u), len(u)) for u in units], seed, upper=1.0
    )
    assert entropy is not None
    assert acceptance is not None
    return ScenarioWhy(
        scenario=key[0],
        arm=key[1],
        num_conversations=len(units),
        num_tokens=sum(len(u) for u in units),
        mean_entropy=entropy,
        acceptance=acceptance,
        entropy_of_accepted=_entropy_where(units, seed, accepted=True),
        entropy_of_rejected=_entropy_where(units, seed, accepted=False),
        within=_within(units, "entropy"),
        within_surprisal=_within(units, "surprisal"),
        between=stats.estimate_correlation(
            [(_sum(u, "entropy") / len(u), sum(t.accepted for t in u) / len(u)) for u in units]
        ),
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
            value = intervals.rank_correlation(pairs)
            if value is not None:
                found.append([value])
    return stats.estimate_median(found, signed=True) if found else None


def _gaps(told: Mapping[tuple[str, str], Sequence[Unit]], seed: int) -> list[GapShare]:
    """Each pair of scenarios of an arm, both with enough conversations."""
    gaps = []
    for arm in dict.fromkeys(arm for _, arm in told):
        mine = [(s, cell) for (s, a), cell in told.items() if a == arm]
        mine = [(s, cell) for s, cell in mine if len(cell) >= MIN_CONVERSATIONS]
        for index, (first, a) in enumerate(mine):
            for second, b in mine[index + 1 :]:
                ordered = sorted(((_rate(a), first, a), (_rate(b), second, b)), key=lambda x: x[0])
                gaps.append(_gap(arm, ordered[1], ordered[0], seed))
    return gaps


Side = tuple[float, str, Sequence[Unit]]


def _gap(arm: str, higher: Side, lower: Side, seed: int) -> GapShare:
    edges = _edges([t.entropy for side in (higher, lower) for unit in side[2] for t in unit])
    point = explained_gap(higher[2], lower[2], edges)
    rng = random.Random(seed)
    draws = sorted(
        explained_gap(
            rng.choices(higher[2], k=len(higher[2])), rng.choices(lower[2], k=len(lower[2])), edges
        )
        for _ in range(NUM_RESAMPLES)
    )
    tail = (1 - stats.LEVEL) / 2
    gap = higher[0] - lower[0]
    return GapShare(
        arm=arm,
        higher=higher[1],
        lower=lower[1],
        gap=gap,
        explained=Estimate(
            point=point,
            low=min(point, stats.quantile(draws, tail)),
            high=max(point, stats.quantile(draws, 1 - tail)),
            n=min(len(higher[2]), len(lower[2])),
        ),
        share=point / gap if gap else 0.0,
    )


def explained_gap(higher: Sequence[Unit], lower: Sequence[Unit], edges: Sequence[float]) -> float:
    """Sum over bins of (share of higher - share of lower) x mean acceptance of the bin."""
    one, other = _fill(higher, edges), _fill(lower, edges)
    totals = [sum(n for _, n in side) for side in (one, other)]
    explained = 0.0
    for (a, n), (b, m) in zip(one, other, strict=True):
        rates = [x / k for x, k in ((a, n), (b, m)) if k]
        if rates:
            explained += (n / totals[0] - m / totals[1]) * sum(rates) / len(rates)
    return explained


def _fill(units: Sequence[Unit], edges: Sequence[float]) -> list[tuple[int, int]]:
    """(accepted, tokens) by bin."""
    counts = [[0, 0] for _ in range(len(edges) + 1)]
    for unit in units:
        for token in unit:
            place = sum(token.entropy > edge for edge in edges)
            counts[place][0] += token.accepted
            counts[place][1] += 1
    return [(a, n) for a, n in counts]


def _edges(values: Sequence[float]) -> list[float]:
    """Inner edges of bins that hold as many tokens each."""
    ordered = sorted(values)
    return sorted({stats.quantile(ordered, i / NUM_BINS) for i in range(1, NUM_BINS)})


def _rate(units: Sequence[Unit]) -> float:
    return sum(t.accepted for u in units for t in u) / sum(len(u) for u in units)
