"""What a fake engine will say, decided before the first byte: tokens, steps, end. Pure.

Everything is drawn from the seed, the prompt and how often this prompt came: the same request
after the same history gives the same answer, whatever else runs.
"""

import hashlib
import math
import random
import re
from collections.abc import Iterator, Mapping
from itertools import takewhile, zip_longest

import msgspec

from sakiyomi.fake_engine.config import FakeEngine, FaultValue

COLD_FACTOR = 1.6
"""How much slower a cold request is: 69 against 43 tokens per second (z-lab/dflash#135)."""

SENTENCES = {
    "ja": (
        "うん、それはいいね🙂",
        "社内規定は全員に公共の場で共有するのが入口だよ。",
        "昨日の雨で道がぬれていたから、ゆっくり歩いて帰ったんだ。",
        "猫は朝の四時半に起こしてくるし、困ったものだね😅",
        "味噌ラーメンと担々麺なら、寒い日は味噌かな。",
        "日本🇯🇵の夏は蒸し暑いけれど、夕方の風は気持ちいい。",
        "まず一つ目の内容を確認して、それから元の表に戻そう✅",
        "へえ、そうなんだ!どうして?",
    ),
    "en": (
        " The server reads ahead and keeps what the target agrees with.",
        " A café down the street opens at seven, so we could meet there.",
        " First measure, then explain, then decide.",
        " It depends on the text: code repeats itself, small talk does not.",
        " Could you tell me more about the second case?",
    ),
    "code": (
        "def load(path: str) -> list[dict[str, int]]:\n    with open(path) as file:\n",
        "    rows = [json.loads(line) for line in file]\n    return rows\n\n",
        "for index, item in enumerate(items):\n    total += item.count\n",
        'if not found:\n    raise ValueError(f"no {name!r}")\n',
        "```python\nassert parse(text) == expected\n```\n",
    ),
}

NEAR_TIE = (0.4, 0.39, 0.1)
"""Half a percent of a logit's usual size apart: ln(0.40 / 0.39) = 0.025."""

RIVALS = (" the", " a", "は", "が", "だよ", "かな", "\n", " is", "。", "を", "(", " of", "で", ".")
_PIECE = {
    "ja": re.compile(r"[぀-ゟ]{1,3}|[゠-ヿ]{1,3}|[一-鿿]{1,2}|.", re.DOTALL),
    "en": re.compile(r" ?\w+| ?[^\w\s]|\s", re.DOTALL),
    "code": re.compile(r" *\w+|\n *| ?[^\w\s]{1,2}|\s", re.DOTALL),
}


class Token(msgspec.Struct, frozen=True):
    """One generated token. `text` may be empty; `reasoning` tokens come before the answer.

    `shares`: probabilities of the token and of its rivals. `drafted`: its step had a draft.
    """

    token_id: int
    text: str
    reasoning: bool = False
    shares: tuple[float, ...] = (1.0,)
    drafted: bool = False


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
    tokens = _loop(tokens, faults.get("loop_text"))
    tokens, stopped = _stop(tokens, wish.stop)
    tokens = _hold(tokens, faults.get("empty_tokens"))
    tokens = _with_shares(config, language, tokens, random.Random(f"{config.seed}/{digest}/shares"))
    if (at := faults.get("near_tie")) is not None and int(at) < len(tokens):
        tokens[int(at)] = msgspec.structs.replace(tokens[int(at)], shares=NEAR_TIE)
    if (at := faults.get("diverges")) is not None:
        other_rng = random.Random(f"{config.seed}/{digest}/other")
        tokens = _diverge(config, language, tokens, int(at), other_rng)
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


def language_of(prompt: str) -> str:
    """Guess a prompt's language: kana first, then code, else English."""
    if re.search(r"[ぁ-ヿ]", prompt):
        return "ja"
    if re.search(r"```|\bdef |\bclass |\bimport |\bfunction\b|\.py\b|[{};]\n", prompt):
        return "code"
    return "en"


def make_tokens(
    language: str, rng: random.Random, num_tokens: int, *, reasoning: bool = False
) -> Iterator[Token]:
    """Random sentences of a language, cut into pieces; the same piece has the same id."""
    made = 0
    while made < num_tokens:
        for piece in _PIECE[language].findall(rng.choice(SENTENCES[language])):
            if made == num_tokens:
                return
            made += 1
            yield Token(token_id(piece), piece, reasoning)


def answer_tokens(
    config: FakeEngine, language: str, rng: random.Random, num_tokens: int
) -> Iterator[Token]:
    """The visible answer: the configured text, repeated as needed, or random sentences."""
    if config.text is None:
        yield from make_tokens(language, rng, num_tokens)
        return
    pieces = _PIECE["ja" if config.text.strip() and language == "ja" else "en"].findall(config.text)
    for index in range(num_tokens):
        piece = pieces[index % len(pieces)] if pieces else ""
        yield Token(token_id(piece), piece)


def token_id(piece: str) -> int:
    """Give a piece a stable id between 1000 and 100999."""
    return 1000 + int.from_bytes(hashlib.sha256(piece.encode()).digest()[:4]) % 100_000


def _loop(tokens: list[Token], after: FaultValue | None) -> list[Token]:
    """From token `after` on, repeat the eight tokens before it for ever."""
    if after is None or int(after) >= len(tokens):
        return tokens
    start = int(after)
    phrase = tokens[max(0, start - 8) : start] or tokens[:1]
    return tokens[:start] + [phrase[i % len(phrase)] for i in range(len(tokens) - start)]


def _stop(tokens: list[Token], stop: tuple[str, ...]) -> tuple[list[Token], bool]:
    """Cut at the first stop string; the token that completes it is kept without text."""
    text = ""
    for index, token in enumerate(tokens):
        if token.reasoning:
            continue
        text += token.text
        if any(mark and mark in text for mark in stop):
            return [*tokens[:index], Token(token.token_id, "")], True
    return tokens, False


def _hold(tokens: list[Token], every: FaultValue | None) -> list[Token]:
    """Every `every`-th token has no text; the next one brings it along (half a character)."""
    if every is None:
        return tokens
    held = ""
    shifted = []
    for index, token in enumerate(tokens):
        text = held + token.text
        last = index + 1 == len(tokens) or tokens[index + 1].reasoning != token.reasoning
        hold = (index + 1) % int(every) == 0 and not last
        shifted.append(Token(token.token_id, "" if hold else text, token.reasoning))
        held = text if hold else ""
    return shifted


def _with_shares(
    config: FakeEngine, language: str, tokens: list[Token], rng: random.Random
) -> list[Token]:
    """Where the model is certain and where not: the same for every arm of a seed."""
    share = config.uncertain_share_by_language.get(language, config.uncertain_share)  # type: ignore[call-overload]
    return [
        msgspec.structs.replace(
            token, shares=config.uncertain if rng.random() < share else config.certain
        )
        for token in tokens
    ]


def rival_texts(token: Token, num_rivals: int) -> list[str]:
    """Texts that a token's rivals have; none is the token's own."""
    return [text for text in RIVALS if text != token.text][:num_rivals]


def _diverge(
    config: FakeEngine, language: str, tokens: list[Token], at: int, rng: random.Random
) -> list[Token]:
    """From token `at` on another text: its likeliest rival, then other sentences."""
    if at >= len(tokens):
        return tokens
    (rival,) = rival_texts(tokens[at], 1)
    other = list(make_tokens(language, rng, len(tokens) - at - 1))
    return [
        *tokens[:at],
        msgspec.structs.replace(tokens[at], token_id=token_id(rival), text=rival),
        *_with_shares(config, language, other, rng),
    ]


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
