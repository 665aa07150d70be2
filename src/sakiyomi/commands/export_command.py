"""`sakiyomi export RUN --parquet FILE`: one row a request, for analysts."""

import argparse
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from sakiyomi import store, terminal
from sakiyomi.engines import find_engine
from sakiyomi.errors import SakiyomiError, WriteError
from sakiyomi.measured import measure_request
from sakiyomi.record import ArmFacts, RequestRecord, RunFacts

ROWS_AT_ONCE = 5000
"""Rows in memory: a run of any length is written in flat memory."""

COLUMNS: dict[str, str] = {
    "run": "string",
    "request_id": "string",
    "scenario": "string",
    "arm": "string",
    "load": "string",
    "conversation_id": "string",
    "turn": "int32",
    "repeat": "int32",
    "warmup": "bool_",
    "scheduled_at_s": "float64",
    "sent_at_s": "float64",
    "closed_at_s": "float64",
    "ttft_s": "float64",
    "time_to_answer_s": "float64",
    "time_to_first_sentence_s": "float64",
    "decode_tokens_per_s": "float64",
    "e2e_s": "float64",
    "prompt_tokens": "int64",
    "cached_prompt_tokens": "int64",
    "completion_tokens": "int64",
    "reasoning_tokens": "int64",
    "num_drafts": "float64",
    "num_draft_tokens": "float64",
    "num_accepted_tokens": "float64",
    "num_steps": "float64",
    "num_events": "int64",
    "finish_reason": "string",
    "error_kind": "string",
    "error_message": "string",
    "looped": "bool_",
    "text": "string",
}


def export_command(arguments: argparse.Namespace) -> int:
    """Write the table. Raises SakiyomiError that names the extra when pyarrow is missing."""
    reader = store.open_run(arguments.run)
    path = Path(arguments.parquet)
    num_rows = write_parquet(path, request_rows(reader.facts, reader.records()))
    terminal.warn(f"wrote {path}: {num_rows} requests")
    return 0


def request_rows(facts: RunFacts, records: Iterable[RequestRecord]) -> Iterator[dict[str, Any]]:
    """One row a request, failed ones and warm-up included, None where a quantity is not known."""
    arms = {arm.name: arm for arm in facts.arms}
    languages = {scenario.name: scenario.language for scenario in facts.scenarios}
    for record in records:
        if (arm := arms.get(record.key.arm)) is not None:
            yield _row(facts, record, arm, languages.get(record.key.scenario))


def _row(
    facts: RunFacts, record: RequestRecord, arm: ArmFacts, language: str | None
) -> dict[str, Any]:
    measured = measure_request(record, find_engine(arm.engine), arm, language=language)
    counts = measured.response or measured.steps
    found: dict[str, Any] = dict.fromkeys(COLUMNS)
    for source in (measured.latency, record, record.key, counts):
        found |= {name: getattr(source, name) for name in COLUMNS if hasattr(source, name)}
    error = record.error
    return found | {
        "run": facts.run_id,
        "num_events": len(record.event_at_s),
        "error_kind": error.kind if error else None,
        "error_message": error.message if error else None,
        "looped": measured.looped,
        "text": "".join(record.event_text),
    }


def write_parquet(path: Path, rows: Iterable[dict[str, Any]]) -> int:
    """Write rows a few thousand at a time; how many there were."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise SakiyomiError(
            "writing Parquet needs pyarrow", "pip install 'sakiyomi[parquet]'"
        ) from None
    schema = pa.schema([(name, getattr(pa, kind)()) for name, kind in COLUMNS.items()])
    iterator, num_rows = iter(rows), 0
    try:
        with parquet.ParquetWriter(path, schema) as writer:
            while part := list(islice(iterator, ROWS_AT_ONCE)):
                writer.write_table(pa.Table.from_pylist(part, schema=schema))
                num_rows += len(part)
    except OSError as problem:
        raise WriteError(f"{path}: {problem.strerror or problem}", "choose another file") from None
    return num_rows
