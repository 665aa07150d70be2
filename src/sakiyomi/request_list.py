"""Records -> the compact list of requests that a page holds. Pure.

Every request is a point of the time series; answers are kept until the page is full, the first
repeat's first and all arms alike, so that each number has conversations behind it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from sakiyomi.detail import RequestList, RequestRow
from sakiyomi.draft_map import map_answer
from sakiyomi.engines import find_engine
from sakiyomi.measured import Measured, measure_request
from sakiyomi.record import ArmFacts, RequestRecord, RunFacts

MAX_ANSWER_BYTES = 900_000
MAX_ROW_BYTES = 500_000
MAX_ROWS = 2500
MAX_ANSWER_CHARACTERS = 6000
MAX_PROMPT_CHARACTERS = 1500
CANDIDATE_REPEATS = 2
"""Answers of later repeats are not looked at: the page would be full."""
MAX_CANDIDATES = 200
"""Answers of a cell's repeat and turn that are kept in memory to choose from."""

Prompts = Mapping[str, Mapping[str, Sequence[str]]]


def list_requests(
    facts: RunFacts, records: Iterable[RequestRecord], prompts: Prompts | None = None
) -> RequestList:
    """Rows in the order of sending. `prompts`: user turns by scenario and conversation."""
    arms = {arm.name: arm for arm in facts.arms}
    languages = {scenario.name: scenario.language for scenario in facts.scenarios}
    rows: dict[str, RequestRow] = {}
    sent_at_s: dict[str, float] = {}
    num_kept: Counter[tuple[str, str, str, int, int]] = Counter()
    for record in records:
        key = record.key
        if key.arm not in arms or (record.error and record.error.kind == "cancelled"):
            continue
        measured = measure_request(
            record,
            find_engine(arms[key.arm].engine),
            arms[key.arm],
            language=languages.get(key.scenario),
        )
        name = f"warmup {len(rows)}" if key.warmup else key.request_id
        cell = (key.scenario, key.load, key.arm, key.repeat, key.turn)
        num_kept[cell] += 1
        wanted = not key.warmup and key.repeat < CANDIDATE_REPEATS
        wanted = wanted and num_kept[cell] <= MAX_CANDIDATES
        rows[name] = _row(record, measured, arms[key.arm], with_answer=wanted)
        sent_at_s[name] = record.sent_at_s
    placed = _place(rows, sent_at_s)
    kept = _fit_rows(placed)
    filled, num_answers = _fit_answers(kept)
    return RequestList(
        rows=filled,
        num_requests=sum(not row.warmup for row in placed),
        num_answers=num_answers,
        prompts=_shorten(prompts or {}),
    )


def join_requests(lists: Sequence[RequestList]) -> RequestList:
    """Several lists as one page holds them."""
    filled, num_answers = _fit_answers(_fit_rows([row for one in lists for row in one.rows]))
    prompts: dict[str, dict[str, list[str]]] = {}
    for one in lists:
        for scenario, conversations in one.prompts.items():
            prompts.setdefault(scenario, {}).update(conversations)
    return RequestList(
        rows=filled,
        num_requests=sum(one.num_requests for one in lists),
        num_answers=num_answers,
        prompts=prompts,
    )


def _row(
    record: RequestRecord, measured: Measured, arm: ArmFacts, *, with_answer: bool
) -> RequestRow:
    key, latency = record.key, measured.latency
    counts = measured.response or measured.steps
    pieces = text = None
    if with_answer:
        pieces = map_answer(record, find_engine(arm.engine), arm)
        if pieces is not None and sum(len(piece.text) for piece in pieces) > MAX_ANSWER_CHARACTERS:
            pieces = None
        if pieces is None:
            text = "".join(record.event_text)[:MAX_ANSWER_CHARACTERS]
    return RequestRow(
        scenario=key.scenario,
        arm=key.arm,
        load=key.load,
        conversation_id=key.conversation_id,
        turn=key.turn,
        repeat=key.repeat,
        at_s=0.0,
        num_tokens=measured.num_tokens,
        warmup=key.warmup,
        prompt_tokens=record.prompt_tokens,
        ttft_s=_short(latency.ttft_s),
        decode_tokens_per_s=_short(latency.decode_tokens_per_s),
        e2e_s=_short(latency.e2e_s),
        num_accepted_tokens=counts.num_accepted_tokens if counts else None,
        num_draft_tokens=counts.num_draft_tokens if counts else None,
        finish_reason=record.finish_reason,
        error=f"{record.error.kind}: {record.error.message}"[:300] if record.error else None,
        looped=measured.looped,
        text=text,
        pieces=pieces,
    )


def _short(value: float | None) -> float | None:
    """Five digits: a page shows three."""
    return None if value is None else float(f"{value:.5g}")


def _pass_of(row: RequestRow) -> tuple[str, str, str, int]:
    return row.scenario, row.load, row.arm, row.repeat


def _place(rows: Mapping[str, RequestRow], sent_at_s: Mapping[str, float]) -> list[RequestRow]:
    """Rows with their time after the first measured request of their pass; warm-up before it."""
    began: dict[tuple[str, str, str, int], float] = {}
    for name, row in rows.items():
        if not row.warmup:
            at_s = sent_at_s[name]
            began[_pass_of(row)] = min(at_s, began.get(_pass_of(row), at_s))
    placed = [
        msgspec.structs.replace(row, at_s=round(sent_at_s[name] - began[_pass_of(row)], 3))
        for name, row in rows.items()
        if _pass_of(row) in began
    ]
    return sorted(placed, key=lambda row: (*_pass_of(row), row.at_s))


def _fit_rows(rows: list[RequestRow]) -> list[RequestRow]:
    """At most MAX_ROWS, evenly thinned: a time series keeps its shape."""
    if len(rows) <= MAX_ROWS:
        return rows
    return [rows[index * len(rows) // MAX_ROWS] for index in range(MAX_ROWS)]


def _fit_answers(rows: list[RequestRow]) -> tuple[list[RequestRow], int]:
    """Answers by repeat and turn, then one of each cell in turn, until the page is full."""
    ranks: dict[tuple[str, str, str, int, int], int] = {}
    order = []
    for index, row in enumerate(rows):
        cell = (row.scenario, row.load, row.arm, row.repeat, row.turn)
        ranks[cell] = ranks.get(cell, 0) + 1
        order.append(((row.repeat, row.turn, ranks[cell]), index))
    filled, used, num_answers = list(rows), 0, 0
    for _, index in sorted(order):
        row = rows[index]
        size = len(msgspec.json.encode(row.pieces if row.pieces is not None else row.text))
        if row.pieces is None and row.text is None:
            continue
        if used + size > MAX_ANSWER_BYTES:
            filled[index] = msgspec.structs.replace(row, pieces=None, text=None)
            continue
        used += size
        num_answers += 1
    return filled, num_answers


def _shorten(prompts: Prompts) -> dict[str, dict[str, list[str]]]:
    found: dict[str, dict[str, list[str]]] = {}
    room = MAX_ROW_BYTES // 2
    for scenario, conversations in prompts.items():
        found[scenario] = {}
        for conversation_id, turns in conversations.items():
            texts = [text[:MAX_PROMPT_CHARACTERS] for text in turns]
            room -= sum(len(text.encode()) for text in texts)
            if room > 0:
                found[scenario][conversation_id] = texts
    return found
