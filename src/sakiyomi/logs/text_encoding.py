"""Which encoding bytes are in, and the same bytes in UTF-8 without a BOM. Pure."""

import codecs
from collections.abc import Iterable, Iterator

WINDOW_BYTES = 1024 * 1024
"""Non-ASCII text that is looked at before a decision."""

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def detect_encoding(chunks: Iterable[bytes]) -> str:
    """`utf-8`, `utf-16`, `utf-32`, `cp932` (Shift_JIS) or `euc_jp`.

    A BOM decides; else zero bytes on every other place do (UTF-16 of mostly Latin text). Else the
    first megabyte from the first non-ASCII byte on: UTF-8 unless more of its lines with such bytes
    are broken than whole in it, and a Japanese encoding reads kana out of them. A few broken lines
    in UTF-8 stay broken lines.
    """
    window, is_first = b"", True
    for chunk in chunks:
        if is_first:
            is_first = False
            for bom, name in _BOMS:
                if chunk.startswith(bom):
                    return name
            if zeros := _utf16_without_bom(chunk[:4096]):
                return zeros
        if window or not chunk.isascii():
            window += chunk
            if len(window) >= WINDOW_BYTES:
                break
    return _decide(window)


def _utf16_without_bom(head: bytes) -> str | None:
    even, odd = head[0::2].count(0), head[1::2].count(0)
    if odd > len(head) / 8 and odd > 8 * even:
        return "utf-16-le"
    return "utf-16-be" if even > len(head) / 8 and even > 8 * odd else None


def _decide(window: bytes) -> str:
    lines = [line for line in window.split(b"\n") if not line.isascii()]
    if len(lines) > 1 and len(window) >= WINDOW_BYTES:
        lines.pop()  # the window cuts it
    broken = [line for line in lines if not _decodes(line, "utf-8")]
    if len(broken) * 2 <= len(lines):
        return "utf-8"
    if len(lines) == 1 and len(window) >= WINDOW_BYTES and _decodes(window[:-4], "utf-8"):
        return "utf-8"  # one long line, cut within a character
    sample = b"\n".join(broken)[:WINDOW_BYTES]
    kana = {name: _num_kana(sample, name) for name in ("cp932", "euc_jp")}
    best = max(kana, key=lambda name: kana[name])
    return best if kana[best] else "utf-8"


def _decodes(line: bytes, encoding: str) -> bool:
    try:
        codecs.getincrementaldecoder(encoding)().decode(line)  # a cut last character is no error
    except UnicodeDecodeError:
        return False
    return True


def _num_kana(sample: bytes, encoding: str) -> int:
    """Full-width kana minus what shows a wrong guess: half-width kana and undecodable bytes."""
    text = sample.decode(encoding, "replace")
    full = sum("\u3041" <= c <= "\u30ff" for c in text)
    wrong = sum("\uff61" <= c <= "\uff9f" or c == "\ufffd" for c in text)
    return max(0, full - 2 * wrong)


def to_utf8(chunks: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    """The same text in UTF-8, without a BOM. Undecodable bytes become U+FFFD, except in UTF-8."""
    if encoding == "utf-8":
        yield from _without_bom(chunks)
        return
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    for chunk in chunks:
        yield decoder.decode(chunk).encode("utf-8", "replace")
    yield decoder.decode(b"", final=True).encode("utf-8", "replace")


def _without_bom(chunks: Iterable[bytes]) -> Iterator[bytes]:
    start, is_start = b"", True
    for chunk in chunks:
        if not is_start:
            yield chunk
            continue
        start += chunk
        if len(start) >= len(codecs.BOM_UTF8):
            yield start.removeprefix(codecs.BOM_UTF8)
            is_start = False
    if is_start:
        yield start
