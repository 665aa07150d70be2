"""Acceptance by segment of the answers, with intervals over conversations. Pure.

A decode step belongs to the segment in which it starts: that is where its draft was made, and how
many tokens were accepted has no say in it. A segment's difference is its rate minus the rate of all
other steps of the same cell, with a delete-one-conversation jackknife.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from sakiyomi import intervals, stats
from sakiyomi.detail import Piece, SegmentRate, SegmentReport
from sakiyomi.draft_map import map_answer
from sakiyomi.engines import find_engine
from sakiyomi.measured import drafts_every_step
from sakiyomi.record import ArmFacts, RequestRecord, RunFacts
from sakiyomi.stats import Estimate
from sakiyomi.text_kinds import Blocks, character_class, near_sentence_end

MIN_STEPS = 20
MIN_CONVERSATIONS = 3
NUM_LARGEST = 3
ALL = ""
"""Scenario of a dimension that compares scenarios."""
CONTEXT_EDGES = (512, 2048, 8192, 32_768)
POSITION_EDGES = (32, 128, 512)

Counts = list[float]
Key = tuple[str, str, str, str]
"""(scenario or ALL, arm, load, dimension)"""


class StepSpan(msgspec.Struct, frozen=True):
    """A drafted step: where its text starts, how many tokens came before, how the draft fared."""

    offset: int
    num_tokens_before: int
    kind: str
    num_accepted_tokens: float
    num_draft_tokens: float


def find_segments(facts: RunFacts, records: Iterable[RequestRecord]) -> SegmentReport | None:
    """Rates and differences of every segment; None when no step tells its draft."""
    arms = {arm.name: arm for arm in facts.arms}
    temperatures = {scenario.name: scenario.sampling.temperature for scenario in facts.scenarios}
    sums: dict[Key, dict[str, dict[str, Counts]]] = {}
    last: dict[str, dict[tuple[Key, str], Counts]] = {}
    units: dict[str, str] = {}
    for record in records:
        arm = arms.get(record.key.arm)
        if arm is None or record.key.warmup or record.error is not None:
            continue
        counts = _count_record(record, arm, temperatures)
        if counts:
            last[record.key.request_id] = counts  # of a repeated request the last one counts
            units[record.key.request_id] = f"{record.key.scenario}/{record.key.conversation_id}"
    for request_id, counts in last.items():
        for (key, segment), (accepted, drafted, num_steps) in counts.items():
            unit = sums.setdefault(key, {}).setdefault(segment, {})
            into = unit.setdefault(units[request_id], [0.0, 0.0, 0.0])
            into[0] += accepted
            into[1] += drafted
            into[2] += num_steps
    return _report(sums, facts.plan.seed) if sums else None


def step_spans(pieces: Iterable[Piece], facts: ArmFacts) -> Iterator[StepSpan]:
    """Drafted steps of a map; those whose draft is unknown are left out."""
    k = facts.num_speculative_tokens if drafts_every_step(facts) else None
    offset = num_tokens = 0
    step: int | None = None
    for piece in pieces:
        if piece.step != step and piece.mark not in ("first", "unknown"):
            drafted = piece.num_draft_tokens if piece.num_draft_tokens is not None else k
            accepted = piece.num_accepted_tokens
            if drafted and accepted is not None:
                yield StepSpan(offset, num_tokens, piece.kind, accepted, drafted)
        step = piece.step
        offset += len(piece.text)
        num_tokens += piece.num_tokens


def _count_record(
    record: RequestRecord, arm: ArmFacts, temperatures: Mapping[str, float]
) -> dict[tuple[Key, str], Counts]:
    pieces = map_answer(record, find_engine(arm.engine), arm)
    if not pieces:
        return {}
    text = "".join(piece.text for piece in pieces)
    blocks = Blocks(text)
    key = record.key
    found: dict[tuple[Key, str], Counts] = {}
    for span in step_spans(pieces, arm):
        segments = {name: find(text, span, record, blocks) for name, find in DIMENSIONS.items()}
        for dimension, segment in segments.items():
            _add(found, ((key.scenario, key.arm, key.load, dimension), segment), span)
        across = {
            "scenario": key.scenario,
            "temperature": f"{temperatures.get(key.scenario, 0.0):g}",
        }
        for dimension, segment in across.items():
            _add(found, ((ALL, key.arm, key.load, dimension), segment), span)
    return found


def _add(found: dict[tuple[Key, str], Counts], where: tuple[Key, str], span: StepSpan) -> None:
    into = found.setdefault(where, [0.0, 0.0, 0.0])
    into[0] += span.num_accepted_tokens
    into[1] += span.num_draft_tokens
    into[2] += 1


def _block(_text: str, span: StepSpan, _record: RequestRecord, blocks: Blocks) -> str:
    return "tool call" if span.kind == "tool" else blocks.at(span.offset)


def _kind(_text: str, span: StepSpan, _record: RequestRecord, _blocks: Blocks) -> str:
    return span.kind


def _characters(text: str, span: StepSpan, _record: RequestRecord, _blocks: Blocks) -> str:
    return character_class(text, span.offset)


def _sentence(text: str, span: StepSpan, _record: RequestRecord, _blocks: Blocks) -> str:
    return "sentence end" if near_sentence_end(text, span.offset) else "inside a sentence"


def _position(_text: str, span: StepSpan, _record: RequestRecord, _blocks: Blocks) -> str:
    return f"token {_bin(span.num_tokens_before, POSITION_EDGES)}"


def _context(_text: str, span: StepSpan, record: RequestRecord, _blocks: Blocks) -> str:
    if record.prompt_tokens is None:
        return "unknown"
    return f"{_bin(record.prompt_tokens + span.num_tokens_before, CONTEXT_EDGES)} tokens"


def _turn(_text: str, _span: StepSpan, record: RequestRecord, _blocks: Blocks) -> str:
    return f"turn {record.key.turn + 1}" if record.key.turn < 2 else "turn 3 or later"


def _bin(value: float, edges: tuple[int, ...]) -> str:
    low = max((edge for edge in edges if edge <= value), default=0)
    high = min((edge for edge in edges if edge > value), default=None)
    return f"{low} to {high - 1}" if high is not None else f"{low} or more"


DIMENSIONS: dict[str, Callable[[str, StepSpan, RequestRecord, Blocks], str]] = {
    "part": _kind,
    "block": _block,
    "characters": _characters,
    "sentence": _sentence,
    "position": _position,
    "context": _context,
    "turn": _turn,
}


def _report(sums: Mapping[Key, Mapping[str, Mapping[str, Counts]]], seed: int) -> SegmentReport:
    rates: list[SegmentRate] = []
    for (scenario, arm, load, dimension), segments in sums.items():
        if len(segments) < 2:
            continue  # nothing to compare with
        for segment, units in segments.items():
            rate = stats.estimate_ratio([(a, d) for a, d, _ in units.values()], seed, upper=1.0)
            if rate is None:
                continue
            rates.append(
                SegmentRate(
                    scenario=scenario,
                    arm=arm,
                    load=load,
                    dimension=dimension,
                    segment=segment,
                    num_steps=int(sum(steps for _, _, steps in units.values())),
                    rate=rate,
                    difference=_difference(segments, segment),
                )
            )
    rates.sort(key=lambda r: (r.arm, r.load, r.scenario, list(_ORDER).index(r.dimension)))
    largest = _largest(rates)
    return SegmentReport(
        rates=rates,
        largest=largest,
        num_compared=sum(rate.difference is not None for rate in rates),
        summary=[sentence(rates[index]) for index in largest],
    )


_ORDER = (*DIMENSIONS, "scenario", "temperature")


def _difference(segments: Mapping[str, Mapping[str, Counts]], segment: str) -> Estimate | None:
    """Rate inside minus rate outside; a unit is a conversation with both of its parts."""
    names = {name for units in segments.values() for name in units}
    pairs = []
    for name in sorted(names):
        inside = segments[segment].get(name, [0.0, 0.0, 0.0])
        others = [
            units[name] for other, units in segments.items() if other != segment and name in units
        ]
        outside = [math.fsum(column) for column in zip(*others, strict=True)] or [0.0, 0.0, 0.0]
        pairs.append((inside, outside))
    num_inside = sum(inside[1] > 0 for inside, _ in pairs)
    num_outside = sum(outside[1] > 0 for _, outside in pairs)
    units = min(num_inside, num_outside)
    enough = all(math.fsum(pair[side][2] for pair in pairs) >= MIN_STEPS for side in (0, 1))
    if units < MIN_CONVERSATIONS or not enough:
        return None
    totals = [[math.fsum(pair[side][i] for pair in pairs) for i in (0, 1)] for side in (0, 1)]
    point = totals[0][0] / totals[0][1] - totals[1][0] / totals[1][1]
    without = []
    for inside, outside in pairs:
        (a, b), (c, d) = totals
        if b > inside[1] and d > outside[1]:
            without.append((a - inside[0]) / (b - inside[1]) - (c - outside[0]) / (d - outside[1]))
    error = intervals.jackknife_error(without)
    spread = intervals.student_quantile((1 + stats.LEVEL) / 2, units - 1) * error
    return Estimate(point=point, low=point - spread, high=point + spread, n=units)


def _largest(rates: list[SegmentRate]) -> list[int]:
    """Differences whose interval is on one side of 0, the largest first, mirrors left out."""
    clear = []
    for index, rate in enumerate(rates):
        found = rate.difference
        if rate.scenario == ALL:  # kinds of work differ in more than one thing
            continue
        if found is None or found.low is None or found.high is None:
            continue
        if found.low > 0 or found.high < 0:
            clear.append((-abs(found.point), index))
    chosen: list[int] = []
    seen: set[tuple[str, str, str, str, int]] = set()
    for size, index in sorted(clear):
        rate = rates[index]
        mark = (rate.scenario, rate.arm, rate.load, rate.dimension, round(-size * 1e9))
        if mark not in seen:
            chosen.append(index)
        seen.add(mark)
    return chosen[:NUM_LARGEST]


def sentence(rate: SegmentRate) -> str:
    """`mtp-k3 on ja_chat, characters, hiragana: 21% accepted, 14 points below the rest`."""
    where = f"{rate.arm} on {rate.scenario}" if rate.scenario else rate.arm
    text = f"{where}, {rate.dimension}, {rate.segment}: {rate.rate.point:.0%} of drafts accepted"
    found = rate.difference
    if found is None or found.low is None or found.high is None:
        return text + "."
    side = "above" if found.point > 0 else "below"
    ends = sorted((abs(found.low), abs(found.high)))
    return (
        f"{text}, {abs(found.point) * 100:.0f} points {side} the rest "
        f"({ends[0] * 100:.0f} to {ends[1] * 100:.0f})."
    )
