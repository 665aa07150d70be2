"""A user's log on disk -> its entries, one at a time, whatever its encoding and packing."""

import csv
import gzip
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from sakiyomi.errors import ScenarioError
from sakiyomi.logs.json_values import (
    CONTAINERS,
    MAX_ENTRY_BYTES,
    NESTED,
    BrokenJson,
    decode,
    split_lines,
    split_values,
)
from sakiyomi.logs.text_encoding import detect_encoding, to_utf8

CHUNK_BYTES = 256 * 1024
HEAD_BYTES = 1024 * 1024
"""What the kind of a file is told from."""

UNREADABLE = "\N{REPLACEMENT CHARACTER}"


class Entry(msgspec.Struct, frozen=True):
    """One row of a log with the line it starts on; `problem` says why there is no value."""

    line: int
    value: Any = None
    problem: str = ""


class LogFile(msgspec.Struct, frozen=True, kw_only=True):
    """What a file is: `lines` or `values` of JSON, `csv` or `parquet`."""

    path: Path
    kind: str
    encoding: str = "utf-8"
    delimiter: str = ","
    wrapped: bool = False


def open_log(path: Path, *, named_columns: bool = False) -> LogFile:
    """Look at a file's beginning. Raises ScenarioError when it is nothing that can be read."""
    head = _head(path)
    if head[:4] == b"PAR1":
        return LogFile(path=path, kind="parquet")
    encoding = detect_encoding(_chunks(path))
    text = b"".join(to_utf8([head], encoding)).lstrip()
    if not text:
        raise ScenarioError(f"{path}: empty", "give a log with at least one request")
    if text[:1] not in (b"{", b"["):
        return _table(path, text, encoding, named_columns=named_columns)
    kind, wrapped = _json_kind(text, whole=len(head) < HEAD_BYTES)
    return LogFile(path=path, kind=kind, encoding=encoding, wrapped=wrapped)


def read_entries(log: LogFile) -> Iterator[Entry]:
    """The entries of a log in their order; memory holds one of them at a time."""
    if log.kind == "parquet":
        yield from _parquet_rows(log.path)
        return
    chunks = to_utf8(_chunks(log.path), log.encoding)
    if log.kind == "csv":
        yield from _csv_rows(chunks, log.delimiter)
        return
    pieces = (
        split_lines(chunks) if log.kind == "lines" else split_values(chunks, wrapped=log.wrapped)
    )
    # Only a decoder that had to replace bytes makes this mark out of another encoding.
    mark = UNREADABLE.encode() if log.encoding != "utf-8" else None
    for line, raw in pieces:
        if not raw.strip():
            continue
        if len(raw) > MAX_ENTRY_BYTES:
            yield Entry(line, problem="over 64 MB long, or never closed")
        elif mark and mark in raw:
            yield Entry(line, problem=f"bytes that are not {log.encoding}")
        else:
            try:
                yield Entry(line, decode(raw))
            except BrokenJson as problem:
                yield Entry(line, problem=str(problem))


def _open(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        magic = file.read(2)
    return cast("IO[bytes]", gzip.open(path)) if magic == b"\x1f\x8b" else path.open("rb")


def _chunks(path: Path) -> Iterator[bytes]:
    try:
        with _open(path) as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
    except (OSError, EOFError) as problem:
        raise ScenarioError(
            f"{path}: {getattr(problem, 'strerror', None) or problem}", "check the file"
        ) from None


def _head(path: Path) -> bytes:
    if not path.is_file():
        what = "a folder, not a file" if path.is_dir() else "no such file"
        raise ScenarioError(f"{path}: {what}", "give the files of a log: FILE...")
    head = b""
    for chunk in _chunks(path):
        head += chunk
        if len(head) >= HEAD_BYTES:
            break
    return head


_TOP_KEY = re.compile(rb'"([A-Za-z_]+)"\s*:\s*\[')


def _json_kind(text: bytes, *, whole: bool) -> tuple[str, bool]:
    """`lines` or `values`, and whether an object wraps the entries.

    The first line decides: a whole value on it makes JSON lines (an array with nothing after it
    is an array, whatever the file is called). A broken first line among whole ones is a bad row.
    """
    first, _, rest = text.partition(b"\n")
    value = _try(first)
    if isinstance(value, list):
        return ("lines" if rest.strip() else "values"), False
    if isinstance(value, dict):
        alone = whole and not rest.strip()
        return ("values", True) if alone and _wraps(text) else ("lines", False)
    others = rest.split(b"\n", 50)[:50]
    if text[:1] == b"{" and any(isinstance(_try(line), dict) for line in others):
        return "lines", False
    if not rest and not whole and text[:1] == b"{":  # one line that goes on after the head
        return ("values", True) if _wraps(text) else ("lines", False)
    return "values", text[:1] == b"{" and _wraps(text)


def _try(line: bytes) -> Any:
    try:
        return decode(line)
    except BrokenJson:
        return None


def _wraps(text: bytes) -> bool:
    """True when a key of the object at the top holds an array of entries."""
    depth = 0
    for match in re.finditer(rb'"(?:[^"\\]|\\.)*+"|[{}\[\]]', text, re.DOTALL):
        token = match[0]
        if token in (b"{", b"["):
            depth += 1
        elif token in (b"}", b"]"):
            depth -= 1
        elif depth == 1 and (key := _TOP_KEY.match(text, match.start())):
            name = key[1].decode()
            if name in CONTAINERS | NESTED:
                return True
    return False


# --- tables --------------------------------------------------------------------------------------


def _table(path: Path, text: bytes, encoding: str, *, named_columns: bool) -> LogFile:
    header = text.split(b"\n", 1)[0].decode("utf-8", "replace")
    delimiter = max(",\t;", key=header.count)
    is_table = header.count(delimiter) or path.suffix.lower() in (".csv", ".tsv") or named_columns
    if not is_table or path.suffix.lower() in (".parquet", ".xlsx", ".zip", ".zst"):
        raise ScenarioError(
            f"{path}: neither JSON, nor CSV with a header, nor parquet",
            "give JSON lines, a JSON array, or a CSV and --column prompt=NAME",
        )
    return LogFile(path=path, kind="csv", encoding=encoding, delimiter=delimiter)


def _csv_rows(chunks: Iterable[bytes], delimiter: str) -> Iterator[Entry]:
    csv.field_size_limit(MAX_ENTRY_BYTES)
    lines = (raw.decode("utf-8", "replace") + "\n" for _, raw in split_lines(chunks))
    reader = csv.reader(lines, delimiter=delimiter)
    header: list[str] | None = None
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as problem:
            yield Entry(line, problem=f"not CSV ({problem})")
            continue
        if not any(cells):
            continue
        if header is None:
            header = [name.strip() for name in cells]
        elif len(cells) > len(header):
            yield Entry(line, problem=f"{len(cells)} cells, the header has {len(header)}")
        elif any(UNREADABLE in cell for cell in cells):
            yield Entry(line, problem="bytes that cannot be decoded")
        else:
            yield Entry(line, dict(zip(header, cells, strict=False)))


def _parquet_rows(path: Path) -> Iterator[Entry]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise ScenarioError(
            f"{path}: a parquet file, and pyarrow is not installed",
            "pip install 'sakiyomi[parquet]'",
        ) from None
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=256):
                for row in batch.to_pylist():
                    number += 1
                    yield Entry(number, row)
    except (ArrowException, OSError) as problem:
        raise ScenarioError(f"{path}: {problem}", "the file is damaged") from None
