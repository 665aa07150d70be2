"""What a voice can make of a text that is still growing: its first sentence, and whether it lasts.

Speech starts when the first sentence is complete, and must never overtake the text.
"""

import re
from collections.abc import Sequence

JAPANESE_CHARACTERS_PER_S = 7.0
"""420 characters a minute. News readers: 300 (NHK) to 350, 400 is called fast
(https://talkrescue.jp/archives/5153); a synthetic voice reads no slower, and fast is the hard case.
"""

LATIN_CHARACTERS_PER_S = 15.0
"""150 words a minute of 5 letters and a space. Audiobooks: 150 to 160 words a minute
(http://www.lisabmarshall.com/2014/01/23/how-fast-do-i-speak-update/)."""

MIN_LINE_CHARACTERS = 4
"""A line shorter than this (a list's number, a heading's mark) is no sentence."""

_CJK = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\uac00-\ud7af"
_CLOSERS = "」』）】〉》”’\"')]*_"
_END = re.compile(
    rf"(?P<wide>[。．！？｡।؟۔]+[{re.escape(_CLOSERS)}]*)"
    rf"|(?P<narrow>[.!?]+)(?P<after>[{re.escape(_CLOSERS)}]*(?=\s|$|[「『（]))?"
    r"|(?P<line>\n)"
)
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\"'])(?:[A-Z]|(?:[A-Za-z]\.)+[A-Za-z]|Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|Fig"
    r"|Vol|Inc|Ltd|Co|Corp|approx|cf|Nr|Abb|bzw|ca|Sra?|Mme)$"
    r"|^\W*\d{1,3}$"  # the number of a list's item
)


def first_sentence_end(text: str, *, has_ended: bool = True) -> int | None:
    """Number of characters up to the end of the first sentence; None when the text has none.

    Wide marks (。！？) always end one, with the brackets that close after them; narrow ones (.!?)
    only before a space, a closing quote or the end, so that 3.14, e.g. and a.py do not, or
    after a Japanese character; a line end does after at least four characters.
    `has_ended`: the text is whole, so that a mark at its very end counts.
    """
    for found in _END.finditer(text):
        before = text[: found.start()]
        if not before.strip():
            continue
        if found["wide"]:
            return found.end()
        if found["line"]:
            if len(before.strip()) >= MIN_LINE_CHARACTERS:
                return found.end()
        elif _narrow_mark_ends(found, before, at_end=found.end() == len(text) and not has_ended):
            return found.end()
    return None


def _narrow_mark_ends(found: re.Match[str], before: str, *, at_end: bool) -> bool:
    marks = found["narrow"]
    if re.search(rf"[{_CJK}」』）]$", before) and marks[0] in "!?":
        return True
    if found["after"] is None or at_end:
        return False
    if set(marks) == {"."}:
        last_line = before.rsplit("\n", 1)[-1]
        return len(marks) == 1 and not _ABBREVIATION.search(last_line)
    return True


def characters_per_s(text: str, language: str | None) -> float:
    """The pace at which this text would be spoken."""
    if language is not None:
        is_wide = language.lower().startswith(("ja", "zh", "ko"))
    else:
        is_wide = len(re.findall(rf"[{_CJK}]", text)) * 3 > len(text)
    return JAPANESE_CHARACTERS_PER_S if is_wide else LATIN_CHARACTERS_PER_S


def first_sentence_at_s(pieces: Sequence[tuple[float, str]]) -> float | None:
    """Arrival of the piece that completes the first sentence; of the last where there is none.

    `pieces`: (arrival, text) of the answer.
    """
    end = first_sentence_end("".join(text for _, text in pieces))
    num_characters = 0
    for at_s, text in pieces:
        num_characters += len(text)
        if end is not None and num_characters >= end:
            return at_s
    return pieces[-1][0] if pieces else None


def speech_margin_s(
    pieces: Sequence[tuple[float, str]], starts_at_s: float, pace: float
) -> float | None:
    """How far the text stays ahead of speech at its worst moment, in seconds of speech.

    Text grows when a piece arrives and is spoken at `pace` characters/s from `starts_at_s` on, so
    the worst moment is just before an arrival: (characters there - characters spoken) / pace.
    Negative: the voice had to wait that long.
    """
    margin_s: float | None = None
    num_characters = 0
    for at_s, text in pieces:
        if at_s > starts_at_s:
            ahead_s = num_characters / pace - (at_s - starts_at_s)
            margin_s = ahead_s if margin_s is None else min(margin_s, ahead_s)
        num_characters += len(text)
    if margin_s is None and num_characters:
        return num_characters / pace  # everything was there when speech began
    return margin_s
