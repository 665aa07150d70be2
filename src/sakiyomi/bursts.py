"""Decode steps guessed from arrival times, for engines that say nothing.

Such engines send an event a token, and the tokens of a step in one burst. Valid for a single
stream without a buffering proxy. It refuses whenever the gaps are not clearly of two kinds, or
bursts are larger than a step can be.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Protocol

import msgspec

from sakiyomi.record import Step

FLOOR_S = 1e-4
"""No model takes a step in less; gaps below it count as this long (events of one read have 0)."""

MIN_GAPS = 30
"""Fewer gaps than this do not show two kinds."""

MIN_SEPARATION = 3.0
"""The fast end (10 %) of the gaps between steps over the slow end (90 %) of the gaps inside."""

MIN_SHARE = 0.03
"""Each kind of gap must be at least this share: else it is a stray, not a kind."""

MAX_OVERSIZE_SHARE = 0.02
"""Bursts above k+1 tokens up to this share are jitter; above, two steps arrive as one."""


class Arrivals(Protocol):
    """What the arrivals of one answer tell: a record, or the part of it that is kept."""

    @property
    def sent_at_s(self) -> float:
        """When the request went out."""

    @property
    def closed_at_s(self) -> float:
        """When its answer ended."""

    @property
    def event_at_s(self) -> Sequence[float]:
        """Arrivals of the token-bearing events."""

    @property
    def event_tokens(self) -> Sequence[int | None]:
        """Tokens of each; None counts as 1."""


class Bursts(msgspec.Struct, frozen=True, kw_only=True):
    """Steps by the position of their record, and the gap that parts two steps. Estimated."""

    steps: tuple[tuple[Step, ...], ...]
    threshold_s: float


def from_bursts(
    records: Sequence[Arrivals], num_speculative_tokens: int | None = None
) -> Bursts | str:
    """Steps of each record, or the reason why the arrivals do not tell them."""
    if _overlap(records):
        return "several streams at a time: bursts of one are hidden by the others"
    gaps = [
        max(later - earlier, FLOOR_S)
        for record in records
        for earlier, later in itertools.pairwise(record.event_at_s)
    ]
    if len(gaps) < MIN_GAPS:
        return f"{len(gaps)} gaps between events are too few to tell bursts from steps"
    threshold = _threshold(gaps)
    if isinstance(threshold, str):
        return threshold
    found = tuple(tuple(_steps(record, threshold)) for record in records)
    sizes = [step.num_tokens for one in found for step in one]
    if num_speculative_tokens is not None and sizes:
        oversize = sum(size > num_speculative_tokens + 1 for size in sizes) / len(sizes)
        if oversize > MAX_OVERSIZE_SHARE:
            return (
                f"{oversize:.0%} of the bursts hold more than k + 1 = "
                f"{num_speculative_tokens + 1} tokens: something merges steps on the way"
            )
    return Bursts(steps=found, threshold_s=threshold)


def _steps(record: Arrivals, threshold_s: float) -> list[Step]:
    """The bursts after the first event's, which is prefill's."""
    sizes: list[int] = []
    previous: float | None = None
    for at_s, tokens in zip(record.event_at_s, record.event_tokens, strict=True):
        if previous is None or at_s - previous > threshold_s:
            sizes.append(0)
        sizes[-1] += 1 if tokens is None else tokens
        previous = at_s
    return [Step(num_tokens=size) for size in sizes[1:] if size]


def _threshold(gaps: Sequence[float]) -> float | str:
    """The gap that best parts two kinds (Otsu's method on log gaps), or why there are not two."""
    logs = sorted(math.log(gap) for gap in gaps)
    total, running = math.fsum(logs), 0.0
    best, split = 0.0, 0
    for index in range(1, len(logs)):
        running += logs[index - 1]
        low_mean, high_mean = running / index, (total - running) / (len(logs) - index)
        between = index * (len(logs) - index) * (high_mean - low_mean) ** 2
        if between > best:
            best, split = between, index
    low, high = logs[:split], logs[split:]
    share = min(len(low), len(high)) / len(logs)
    if not low or share < MIN_SHARE:
        return "the gaps between events are of one kind: no bursts to be seen"
    inside, between_steps = low[int(0.9 * (len(low) - 1))], high[int(0.1 * (len(high) - 1))]
    if math.exp(between_steps - inside) < MIN_SEPARATION:
        return (
            f"the gaps between events are not of two clear kinds: up to "
            f"{math.exp(inside) * 1e3:.3g} ms and from {math.exp(between_steps) * 1e3:.3g} ms"
        )
    return math.exp((inside + between_steps) / 2)


def _overlap(records: Sequence[Arrivals]) -> bool:
    spans = sorted((record.sent_at_s, record.closed_at_s) for record in records)
    return any(later[0] < earlier[1] for earlier, later in itertools.pairwise(spans))
