"""A fair sample of a log's distinct conversations, in one pass and in flat memory. Pure.

Every conversation has a number that a keyed hash of its opening gives. A stratum keeps the N
smallest: a uniform sample of what is distinct, whatever the order and however often a row comes
(bottom-k sampling; E. Cohen and H. Kaplan, PODC 2007).
"""

import hashlib
import heapq
from collections import Counter
from collections.abc import Sequence

import msgspec

from sakiyomi.logs.language import detect_language, estimate_tokens
from sakiyomi.logs.logged import Logged

OPENING_CHARACTERS = 24
"""Turns are taken into the key until they are this long: a bare "hello" opens many conversations,
and rows of a chat log carry the same conversation again, each time with one turn more."""

MAX_CATEGORIES = 64
"""Further categories share a stratum: a column of user names must not become strata."""

_SEEN_BITS = 1 << 26


class Stratum(msgspec.Struct, frozen=True, order=True):
    """Where a conversation belongs: its category, language, and length class of the opening.

    `length`: the estimated tokens of system text and first turn lie below 2 ** length.
    """

    category: str
    language: str
    length: int


class Kept(msgspec.Struct, kw_only=True):
    """A conversation that is in the sample so far; a later row may bring more turns of it."""

    stratum: Stratum
    turns: tuple[str, ...]
    system: str | None
    marks: tuple[str, ...]


class LogSample:
    """The sample while the log is read; `add` each request, then `choose`."""

    def __init__(self, num_conversations: int, seed: int) -> None:
        self._num = num_conversations
        self._key = seed.to_bytes(16, "big", signed=True)
        self._heaps: dict[Stratum, list[int]] = {}
        self._kept: dict[int, Kept] = {}
        self._seen = bytearray(_SEEN_BITS // 8)
        self._categories: set[str] = set()
        self.population: Counter[Stratum] = Counter()
        """Distinct conversations of each stratum."""
        self.num_again = 0
        """Rows that repeat a conversation, or show it at another turn."""

    def add(self, logged: Logged) -> None:
        """Take one request into account."""
        prompt = logged.prompt
        assert prompt is not None
        if logged.is_turn:
            opening = f"\x01{logged.conversation}"
        else:
            opening = prompt.system or ""
            length = 0
            for turn in prompt.turns:
                opening += "\x00" + turn
                length += len(turn)
                if length >= OPENING_CHARACTERS:
                    break
        digest = hashlib.blake2b(
            opening.encode("utf-8", "replace"), digest_size=16, key=self._key
        ).digest()
        number = int.from_bytes(digest[:8], "big")
        if self._is_new(digest):
            self._add_new(number, logged)
        else:
            if not logged.is_turn:
                self.num_again += 1
            if number in self._kept:
                self._extend(self._kept[number], logged)

    def _add_new(self, number: int, logged: Logged) -> None:
        prompt = logged.prompt
        assert prompt is not None
        stratum = self._stratum(logged)
        self.population[stratum] += 1
        heap = self._heaps.setdefault(stratum, [])
        if len(heap) >= self._num and number >= -heap[0]:
            return
        kept = Kept(stratum=stratum, turns=prompt.turns, system=prompt.system, marks=prompt.marks)
        self._kept[number] = kept
        if len(heap) < self._num:
            heapq.heappush(heap, -number)
        else:
            del self._kept[-heapq.heapreplace(heap, -number)]

    def _extend(self, kept: Kept, logged: Logged) -> None:
        prompt = logged.prompt
        assert prompt is not None
        if logged.is_turn:
            kept.turns += prompt.turns
        elif (len(prompt.turns), prompt.turns) > (len(kept.turns), kept.turns):
            kept.turns, kept.marks = prompt.turns, prompt.marks

    def _is_new(self, digest: bytes) -> bool:
        """Four bits of a Bloom filter of 8 MiB: wrong once in 100,000 among a million."""
        seen, is_new = self._seen, False
        for start in (0, 4, 8, 12):
            bit = int.from_bytes(digest[start : start + 4], "little") % _SEEN_BITS
            if not seen[bit >> 3] & (1 << (bit & 7)):
                seen[bit >> 3] |= 1 << (bit & 7)
                is_new = True
        return is_new

    def _stratum(self, logged: Logged) -> Stratum:
        assert logged.prompt is not None
        category = logged.category or ""
        if category not in self._categories:
            if len(self._categories) >= MAX_CATEGORIES:
                category = "other categories"
            self._categories.add(category)
        opening = logged.prompt.turns[0]
        num_tokens = estimate_tokens(opening) + estimate_tokens(logged.prompt.system or "")
        return Stratum(
            category=category,
            language=(logged.language or detect_language(opening))[:20],
            length=num_tokens.bit_length(),
        )

    def choose(self, category: str | None = None) -> list[Kept]:
        """The sample: strata in proportion to what is distinct, in the order of the hash.

        That order is random, so that the first few stand for all. `category`: of it alone.
        """
        strata = sorted(s for s in self._heaps if category is None or s.category == category)
        quotas = allocate([self.population[stratum] for stratum in strata], self._num)
        numbers: list[int] = []
        for stratum, quota in zip(strata, quotas, strict=True):
            numbers += sorted(-number for number in self._heaps[stratum])[:quota]
        return [self._kept[number] for number in sorted(numbers)]


def allocate(sizes: Sequence[int], num: int) -> list[int]:
    """Split `num` places over strata in proportion to their sizes, by largest remainders.

    Each stratum gets one place at least where there are enough for all, and never more than it has.
    """
    total = sum(sizes)
    if num >= total:
        return list(sizes)
    floor = 1 if num >= len(sizes) else 0
    exact = [size * num / total for size in sizes]
    places = [min(size, max(floor, int(share))) for size, share in zip(sizes, exact, strict=True)]
    while sum(places) < num:
        open_strata = [i for i, size in enumerate(sizes) if places[i] < size]
        places[min(open_strata, key=lambda i: (places[i] - exact[i], i))] += 1
    while sum(places) > num:
        index = max(range(len(sizes)), key=lambda i: (places[i] > floor, places[i] - exact[i]))
        places[index] -= 1
    return places
