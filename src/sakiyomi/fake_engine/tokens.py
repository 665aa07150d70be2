"""The scripted text as tokens: loops, stops, held-back pieces, rivals and where it diverges."""

import hashlib
import random
import re
from collections.abc import Iterator

import msgspec

from sakiyomi.fake_engine.config import FakeEngine, FaultValue

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


def looped(tokens: list[Token], after: FaultValue | None) -> list[Token]:
    """From token `after` on, repeat the eight tokens before it for ever."""
    if after is None or int(after) >= len(tokens):
        return tokens
    start = int(after)
    phrase = tokens[max(0, start - 8) : start] or tokens[:1]
    return tokens[:start] + [phrase[i % len(phrase)] for i in range(len(tokens) - start)]


def stop_at(tokens: list[Token], stop: tuple[str, ...]) -> tuple[list[Token], bool]:
    """Cut at the first stop string; the token that completes it is kept without text."""
    text = ""
    for index, token in enumerate(tokens):
        if token.reasoning:
            continue
        text += token.text
        if any(mark and mark in text for mark in stop):
            return [*tokens[:index], Token(token.token_id, "")], True
    return tokens, False


def held_back(tokens: list[Token], every: FaultValue | None) -> list[Token]:
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


def with_shares(
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


def diverged(
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
        *with_shares(config, language, other, rng),
    ]
