"""Do the arms of one model write the same text? At temperature 0 speculation may change none. Pure.

Lossless verification gives the target's own greedy text (Leviathan et al. 2211.17192). In floating
point the batch of k + 1 rows may round otherwise than a single row, so that two tokens of nearly
the same logit swap, after which the texts go apart for good: a near tie, no fault. Anything more
is one. Turns are compared until the first divergence of a conversation; later prompts differ.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Literal

import msgspec

from sakiyomi import stats
from sakiyomi.measured import is_speculative
from sakiyomi.record import ArmFacts, RequestRecord, RunFacts
from sakiyomi.stats import Estimate
from sakiyomi.token_logprobs import PlacedToken, placed_tokens
from sakiyomi.workload import shared_urls

NEAR_TIE_NATS = 0.25
"""Two steps of bf16 between 16 and 32, where the logits of likely tokens lie (8 bits of
significand: steps of 0.125)."""
MAX_TIE_RATE = 0.05
"""Divergences per compared token. Near ties are rarer: in 1,000 greedy answers of Qwen3-235B the
first came at token 103 (Thinking Machines, "Defeating Nondeterminism in LLM Inference", 2025).
At more than one in twenty tokens the arms do not follow the same distribution."""
MIN_DIVERGENCES = 3
"""Fewer tell nothing of a rate."""
CONTEXT_CHARACTERS = 24
CUT_CHARACTERS = 16
"""At the cap an engine may drop what the last step delivered beyond it: ends differ, not texts."""

UNREADABLE = "\N{REPLACEMENT CHARACTER}"

Sameness = Literal["same", "near_ties", "not_told", "differs"]
Key = tuple[str, str, str]
"""(scenario, arm, load)."""


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """An answer as it was written; `tokens`: those with alternatives, where they came."""

    text: str
    num_tokens: int
    finish_reason: str | None = None
    tokens: tuple[PlacedToken, ...] = ()


Texts = dict[Key, dict[tuple[str, int, int], Text]]
"""By (scenario, arm, load), then by (conversation, repeat, turn)."""


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """Where two texts part: what both wrote before, and how each goes on.

    `gap_nats`: ln p(the baseline's token) - ln p(the arm's) there; None without logprobs.
    """

    conversation_id: str
    repeat: int
    turn: int
    character: int
    before: str
    baseline: str
    arm: str
    gap_nats: float | None = None


class TextCheck(msgspec.Struct, frozen=True, kw_only=True):
    """A speculative arm of a path against the plain arm of the same model.

    `divergences_per_token`: over the tokens up to a divergence or the end. `verdict`: `same`;
    `near_ties` (each divergence is one); `not_told` (no logprobs say, and they are rare enough);
    `differs` (one is no near tie, or they are too many for it).
    """

    scenario: str
    arm: str
    baseline: str
    load: str
    share_equal: Estimate
    num_compared: int
    num_diverged: int
    num_near_ties: int
    num_not_told: int
    divergences_per_token: float
    first: Divergence | None
    verdict: Sameness


def collect_texts(records: Iterable[RequestRecord]) -> Texts:
    """Texts of good requests; of a repeated request the last one counts."""
    texts: Texts = {}
    for record in records:
        key = record.key
        if key.warmup or record.error is not None:
            continue
        texts.setdefault((key.scenario, key.arm, key.load), {})[
            key.conversation_id, key.repeat, key.turn
        ] = Text(
            text="".join(record.event_text),
            num_tokens=record.completion_tokens or len(record.event_at_s),
            finish_reason=record.finish_reason,
            tokens=tuple(placed_tokens(record)),
        )
    return texts


def check_texts(facts: RunFacts, texts: Texts) -> tuple[TextCheck, ...]:
    """Every speculative arm against a plain arm of its model, where both decode greedily.

    Nothing to compare where arms share a server: their prompts differ on purpose (prefix cache).
    """
    arms = {arm.name: arm for arm in facts.arms}
    greedy = {s.name for s in facts.scenarios if s.sampling.temperature == 0}
    if shared_urls(facts.plan.arms):
        return ()
    found = []
    for (scenario, name, load), mine in texts.items():
        arm = arms.get(name)
        if scenario not in greedy or arm is None or not is_speculative(arm):
            continue
        plain = plain_twin(arm, facts.arms)
        theirs = texts.get((scenario, plain.name, load)) if plain else None
        if plain is None or theirs is None:
            continue
        check = _check((scenario, name, load), plain.name, mine, theirs)
        if check is not None:
            found.append(check)
    return tuple(found)


def settle_texts(
    run: Sequence[TextCheck], told: Sequence[TextCheck], loads: Sequence[str]
) -> tuple[TextCheck, ...]:
    """The checks of a run, or those of its pass with logprobs (`--why`) where these know more.

    The pass asks the same conversations greedily: it tells of scenarios that the run samples, of
    near ties, and of an arm that no near tie excuses. What it says of an arm holds at all loads.
    """
    settled = {(check.scenario, check.arm, check.load): check for check in run}
    for check in told:
        for load in loads:
            key = check.scenario, check.arm, load
            known = settled.get(key)
            if (
                known is None
                or check.verdict == "differs"
                or (known.verdict, check.verdict) == ("not_told", "near_ties")
            ):
                settled[key] = msgspec.structs.replace(check, load=load)
    return tuple(settled.values())


def plain_twin(arm: ArmFacts, arms: Sequence[ArmFacts]) -> ArmFacts | None:
    """The first arm of the same model and quantization that does not speculate."""
    return next(
        (
            other
            for other in arms
            if not is_speculative(other)
            and (other.model, other.quantization) == (arm.model, arm.quantization)
        ),
        None,
    )


def _check(
    key: Key,
    baseline: str,
    mine: Mapping[tuple[str, int, int], Text],
    theirs: Mapping[tuple[str, int, int], Text],
) -> TextCheck | None:
    equal: dict[str, list[bool]] = {}
    divergences: list[Divergence] = []
    num_tokens = 0.0
    parted: set[tuple[str, int]] = set()
    for place in sorted(mine):
        conversation, repeat, _ = place
        if place not in theirs or (conversation, repeat) in parted:
            continue
        divergence = find_divergence(place, theirs[place], mine[place])
        equal.setdefault(conversation, []).append(divergence is None)
        share = 1.0
        if divergence is not None:
            divergences.append(divergence)
            parted.add((conversation, repeat))
            share = divergence.character / max(len(theirs[place].text), 1)
        num_tokens += max(theirs[place].num_tokens * min(share, 1.0), 1.0)
    share_equal = stats.estimate_share(list(equal.values()))
    if share_equal is None:
        return None
    num_near_ties = sum(
        d.gap_nats is not None and abs(d.gap_nats) <= NEAR_TIE_NATS for d in divergences
    )
    num_not_told = sum(d.gap_nats is None for d in divergences)
    per_token = len(divergences) / num_tokens
    return TextCheck(
        scenario=key[0],
        arm=key[1],
        baseline=baseline,
        load=key[2],
        share_equal=share_equal,
        num_compared=sum(map(len, equal.values())),
        num_diverged=len(divergences),
        num_near_ties=num_near_ties,
        num_not_told=num_not_told,
        divergences_per_token=per_token,
        first=min(divergences, key=lambda d: d.character) if divergences else None,
        verdict=_verdict(len(divergences), num_near_ties, num_not_told, per_token),
    )


def _verdict(num_diverged: int, num_near_ties: int, num_not_told: int, rate: float) -> Sameness:
    if num_diverged == 0:
        return "same"
    if num_near_ties + num_not_told < num_diverged:
        return "differs"
    if num_not_told == 0:
        return "near_ties"
    often = num_diverged >= MIN_DIVERGENCES and rate > MAX_TIE_RATE
    return "differs" if often else "not_told"


def find_divergence(place: tuple[str, int, int], baseline: Text, arm: Text) -> Divergence | None:
    """Where two answers part; None when they are the same, but for a cut at the cap."""
    ours, theirs = arm.text, baseline.text
    if ours == theirs:
        return None
    at = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False)))
    is_prefix = at == min(len(ours), len(theirs))
    cut = "length" in (arm.finish_reason, baseline.finish_reason)
    if is_prefix and cut and abs(len(ours) - len(theirs)) <= CUT_CHARACTERS:
        return None
    return Divergence(
        conversation_id=place[0],
        repeat=place[1],
        turn=place[2],
        character=at,
        before=theirs[max(0, at - CONTEXT_CHARACTERS) : at],
        baseline=theirs[at : at + CONTEXT_CHARACTERS],
        arm=ours[at : at + CONTEXT_CHARACTERS],
        gap_nats=_gap(baseline.tokens, at, ours),
    )


def _gap(tokens: Sequence[PlacedToken], at: int, other: str) -> float | None:
    """How much likelier the baseline's token is than the one that the other text goes on with.

    At least so much where that one is not among the alternatives; None where they cannot tell.
    """
    place = next((t for t in tokens if t.offset <= at < t.offset + len(t.text)), None)
    if place is None:
        return None
    rest, mine = other[place.offset :], place.entry.get("logprob")
    own = place.entry.get("token")
    options = [o for o in place.entry.get("top_logprobs") or () if o.get("token") != own]
    if mine is None or not options:
        return None
    texts = [str(option.get("token") or "") for option in options]
    fitting = [i for i, text in enumerate(texts) if text and rest.startswith(text)]
    if fitting:
        best = max(fitting, key=lambda index: len(texts[index]))
        return float(mine) - float(options[best]["logprob"])
    if not rest or any(not text or UNREADABLE in text for text in texts):
        return None  # the end of a text, or parts of characters: which one it took is not told
    return float(mine) - min(float(option["logprob"]) for option in options)
