"""What a fake engine will say, decided before the first byte: tokens, steps, end. Pure.

Everything is drawn from the seed, the prompt and how often this prompt came: the same request
after the same history gives the same answer, whatever else runs.
"""

import hashlib
import math
import random
from collections.abc import Iterator, Mapping
from itertools import takewhile, zip_longest

import msgspec

from sakiyomi.fake_engine.config import FakeEngine, FaultValue
from sakiyomi.fake_engine.tokens import (
    NEAR_TIE,
    Token,
    answer_tokens,
    diverged,
    held_back,
    language_of,
    looped,
    make_tokens,
    stop_at,
    with_shares,
)

COLD_FACTOR = 1.6
"""How much slower a cold request is: 69 against 43 tokens per second (z-lab/dflash#135)."""


class ScriptedStep(msgspec.Struct, frozen=True):
    """One forward pass of the target: what was drafted and accepted, what it delivers.

    `num_accepted_tokens` is the engine's count, made before the end of the answer cuts the step:
    it can exceed `num_tokens` - 1. `duration_s` is the time since the step before.
    """

    num_draft_tokens: int
    num_accepted_tokens: int
    num_tokens: int
    duration_s: float


class Answer(msgspec.Struct, frozen=True):
    """A whole answer: step 0 is the prefill with the first token."""

    tokens: tuple[Token, ...]
    steps: tuple[ScriptedStep, ...]
    finish_reason: str
    stopped_by_string: bool = False


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a request asks of the answer. `num_draft_tokens`: its own k, None for the server's."""

    prompt: str
    max_tokens: int | None = None
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    thinking: bool = True
    num_draft_tokens: int | None = None
    repeat: int = 0


def script_answer(
    config: FakeEngine, wish: Wish, faults: Mapping[str, FaultValue], uncached_share: float = 1.0
) -> Answer:
    """Decide the whole answer. `uncached_share` of the prompt has to be computed."""
    digest = hashlib.sha256(wish.prompt.encode()).hexdigest()
    language = config.language or language_of(wish.prompt)
    num_tokens, finish_reason = answer_length(
        config, wish, faults, random.Random(f"{config.seed}/{digest}/length")
    )
    text_rng = random.Random(f"{config.seed}/{digest}/text")
    num_reasoning = config.reasoning_tokens if wish.thinking else 0
    ends = config.eos_token and finish_reason == "stop"
    tokens = [
        *make_tokens("en", text_rng, min(num_reasoning, num_tokens), reasoning=True),
        *answer_tokens(config, language, text_rng, max(0, num_tokens - num_reasoning - ends)),
    ]
    if ends and num_tokens:
        tokens.append(Token(2, ""))
    tokens = looped(tokens, faults.get("loop_text"))
    tokens, stopped = stop_at(tokens, wish.stop)
    tokens = held_back(tokens, faults.get("empty_tokens"))
    tokens = with_shares(config, language, tokens, random.Random(f"{config.seed}/{digest}/shares"))
    if (at := faults.get("near_tie")) is not None and int(at) < len(tokens):
        tokens[int(at)] = msgspec.structs.replace(tokens[int(at)], shares=NEAR_TIE)
    if (at := faults.get("diverges")) is not None:
        other_rng = random.Random(f"{config.seed}/{digest}/other")
        tokens = diverged(config, language, tokens, int(at), other_rng)
    step_rng = random.Random(f"{config.seed}/{digest}/{wish.repeat}/steps")
    steps = _steps(config, wish, language, tokens, step_rng)
    timed = _timed(config, steps, faults, uncached_share, step_rng)
    told = _with_drafted(tokens, timed)
    return Answer(told, timed, "stop" if stopped else finish_reason, stopped)


def answer_length(
    config: FakeEngine, wish: Wish, faults: Mapping[str, FaultValue], rng: random.Random
) -> tuple[int, str]:
    """How many tokens, and why it ends: `stop` by itself, `length` by the cap."""
    cap = None if "ignore_max_tokens" in faults else wish.max_tokens
    natural = config.num_tokens
    if natural is not None and config.num_tokens_spread:
        natural = max(1, round(natural * (1 + config.num_tokens_spread * rng.uniform(-1, 1))))
    if wish.ignore_eos:
        natural = None
    if "stop_early" in faults:
        natural = int(faults["stop_early"])
    if natural is None:
        return (256, "stop") if cap is None else (cap, "length")
    if cap is None or natural <= cap:
        return natural, "stop"
    return cap, "length"


def _with_drafted(tokens: list[Token], steps: tuple[ScriptedStep, ...]) -> tuple[Token, ...]:
    """Tokens that know whether their step had a draft."""
    drafted = [bool(step.num_draft_tokens) for step in steps for _ in range(step.num_tokens)]
    return tuple(
        msgspec.structs.replace(token, drafted=True) if has_draft else token
        for token, has_draft in zip_longest(tokens, drafted[: len(tokens)], fillvalue=False)
        if isinstance(token, Token)
    )


def _steps(
    config: FakeEngine, wish: Wish, language: str, tokens: list[Token], rng: random.Random
) -> Iterator[tuple[int, int, int]]:
    """(drafted, accepted, delivered) of each decode step after the prefill.

    llama.cpp caps a draft to the remaining tokens - 1; the others count before the cut.
    """
    num_drafted = config.k or 0
    rates = config.position_rates(language)
    if wish.num_draft_tokens is not None:
        num_drafted = wish.num_draft_tokens if num_drafted else 0
        rates = (*rates, *(rates[-1:] * max(0, num_drafted - len(rates))))[:num_drafted]
    if config.acceptance_spread:
        prompt_rng = random.Random(f"{config.seed}/{wish.prompt}/spread")
        power = math.exp(prompt_rng.gauss(0, config.acceptance_spread))
        rates = tuple(rate**power for rate in rates)
    remaining = len(tokens) - 1
    index = 0
    while remaining > 0:
        ahead = tokens[-remaining:][:num_drafted]
        accepted = _draw(config, rates, index, ahead, rng) if num_drafted else -1
        drafted = 0 if accepted < 0 else num_drafted
        accepted = max(0, accepted)
        if config.dialect == "llama.cpp":
            drafted = min(drafted, remaining - 1)
            accepted = min(accepted, drafted)
        delivered = min(accepted + 1, remaining)
        yield drafted, accepted, delivered
        remaining -= delivered
        index += 1


def _draw(
    config: FakeEngine,
    rates: tuple[float, ...],
    index: int,
    ahead: list[Token],
    rng: random.Random,
) -> int:
    """Accepted tokens of decode step `index`; -1: it has no draft. `ahead`: what it drafts for.

    One uniform number u per step: position i is accepted when u < P_i. As P never increases,
    this has exactly the unconditional rates P_i.
    """
    covered = config.draft_coverage >= 1 or rng.random() < config.draft_coverage
    uniform = rng.random()
    if config.script:
        return min(config.script[index % len(config.script)], len(rates))
    if not covered:
        return -1
    if config.acceptance_by_certainty is None:
        return sum(uniform < rate for rate in rates)
    certain, uncertain = config.acceptance_by_certainty
    chances = [uncertain if token.shares == config.uncertain else certain for token in ahead]
    return sum(1 for _ in takewhile(lambda chance: rng.random() < chance, chances))


def _timed(
    config: FakeEngine,
    steps: Iterator[tuple[int, int, int]],
    faults: Mapping[str, FaultValue],
    uncached_share: float,
    rng: random.Random,
) -> tuple[ScriptedStep, ...]:
    """Give every step its duration; the first is the prefill."""
    slow = COLD_FACTOR if "cold" in faults else 1.0
    ttft_s = config.ttft_s * uncached_share * slow + float(faults.get("slow_first_token_s", 0.0))
    timed = [ScriptedStep(0, 0, 1, ttft_s)]
    shift_s = 0.0
    for drafted, accepted, delivered in steps:
        base_s = config.step_s * (config.step_cost if drafted else 1.0) * slow
        # the shift of a step is given back by the next one: jitter does not add up
        new_shift_s = rng.uniform(-config.jitter_s, config.jitter_s) if config.jitter_s else 0.0
        duration_s = max(0.0, base_s + new_shift_s - shift_s)
        shift_s = new_shift_s
        timed.append(ScriptedStep(drafted, accepted, delivered, duration_s))
    return tuple(timed)
