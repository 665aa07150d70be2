"""What kind of text stands at a place of an answer: block, character class, sentence end. Pure."""

import bisect
import re
import unicodedata

END_MARKS = "。！？!?．"
END_DISTANCE = 4
"""Characters before an end mark that count as the sentence's end: だね。 and しますか？ fit."""
FENCE = re.compile(r"^[ \t]*(```|~~~).*$", re.MULTILINE)
TABLE_LINE = re.compile(r"^[ \t]*\|.*$", re.MULTILINE)
JSON_START = re.compile(r"\s*[\[{]\s*[\"\[{\]}]")
KATAKANA_DOT = 0x30FB
SCRIPTS = (
    (0x3005, 0x3006, "kanji"),
    (0x3040, 0x309F, "hiragana"),
    (0x30A0, 0x30FF, "katakana"),
    (0xFF66, 0xFF9F, "katakana"),
    (0x3400, 0x4DBF, "kanji"),
    (0x4E00, 0x9FFF, "kanji"),
    (0xF900, 0xFAFF, "kanji"),
    (0x20000, 0x323AF, "kanji"),
    (0x1F000, 0x1FAFF, "emoji"),
    (0x2600, 0x27BF, "emoji"),
)


class Blocks:
    """Blocks of one text, found once: code between fences, table lines, JSON, prose."""

    def __init__(self, text: str) -> None:
        fences = [(match.start(), match.end()) for match in FENCE.finditer(text)]
        self._code: list[tuple[int, int]] = []
        for index in range(0, len(fences), 2):
            end = fences[index + 1][1] if index + 1 < len(fences) else len(text)
            self._code.append((fences[index][1], end))
        self._tables = [(match.start(), match.end()) for match in TABLE_LINE.finditer(text)]
        self._is_json = JSON_START.match(text) is not None

    def at(self, offset: int) -> str:
        """`code`, `table`, `json` or `prose`."""
        if _inside(self._code, offset):
            return "code"
        if _inside(self._tables, offset):
            return "table"
        return "json" if self._is_json else "prose"


def _inside(spans: list[tuple[int, int]], offset: int) -> bool:
    index = bisect.bisect_right(spans, (offset, 1 << 60)) - 1
    return index >= 0 and spans[index][0] <= offset < spans[index][1]


def character_class(text: str, offset: int) -> str:
    """The class of what starts at `offset`; a space before a word belongs to the word."""
    rest = text[offset : offset + 3]
    if not rest:
        return "other"
    if rest[0] in "\r\n":
        return "line end"
    if rest[0] in " \t\u3000":
        at_line_start = offset > 0 and text[offset - 1] in "\r\n \t"
        if at_line_start or rest[0] == "\t" or rest[1:2] in (" ", "\t"):
            return "indentation"
        rest = rest[1:] or rest
    return _class_of(rest[0])


def _class_of(character: str) -> str:
    code = ord(character)
    if code == KATAKANA_DOT:
        return "punctuation"
    for low, high, name in SCRIPTS:
        if low <= code <= high:
            return name
    category = unicodedata.category(character)
    if category[0] == "L":
        return "latin" if "LATIN" in unicodedata.name(character, "") else "other letters"
    return {"Nd": "digits"}.get(category) or {"P": "punctuation", "S": "punctuation"}.get(
        category[0], "other"
    )


def near_sentence_end(text: str, offset: int) -> bool:
    """Whether an end mark, or a full stop before a space, is within the next few characters."""
    window = text[offset : offset + END_DISTANCE + 2]
    for index, character in enumerate(window[: END_DISTANCE + 1]):
        if character in END_MARKS:
            return True
        if character == "." and (index + 1 >= len(window) or window[index + 1] in " \n\r\t"):
            return True
    return False
