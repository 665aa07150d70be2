"""The header of a GGUF file: metadata and tensor infos. No tensor data is read.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import struct

import msgspec

from sakiyomi.errors import CheckpointError
from sakiyomi.models.ggml_types import GGML_TYPES
from sakiyomi.models.tensors import Read, Tensor, wrong_span

HEADER_LIMIT_BYTES = 512_000_000
"""A header beyond this is refused: the largest vocabularies take about 20 MB."""

KEEP_ARRAY_ITEMS = 4096
"""Longer arrays are skipped: they hold the vocabulary, not a value per layer."""

FIRST_WINDOW_BYTES = 1 << 18
LAST_WINDOW_BYTES = 1 << 24
DEFAULT_ALIGNMENT = 32

STRING, ARRAY = 8, 9
SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}

Scalar = int | float | bool | str
Value = Scalar | list[Scalar]


class GgufHeader(msgspec.Struct, frozen=True, kw_only=True):
    """Metadata (arrays of more than 4,096 items by their length only) and the tensors."""

    metadata: dict[str, Value]
    array_lengths: dict[str, int]
    tensors: tuple[Tensor, ...]
    data_bytes: int
    """Bytes from the first tensor to the file's end: tensors and their padding."""
    alignment: int


class _Cursor:
    """A position in a header, read through a window that grows as the header proves long."""

    def __init__(self, read: Read, size_bytes: int, where: str) -> None:
        self.read, self.size_bytes, self.where = read, size_bytes, where
        self.offset = 0  # of the window in the file
        self.window = b""
        self.position = 0  # in the window
        self.window_bytes = FIRST_WINDOW_BYTES
        self.order = "<"

    def tell(self) -> int:
        return self.offset + self.position

    def need(self, length: int) -> None:
        """Have `length` bytes in the window at the position."""
        if self.position + length <= len(self.window):
            return
        start = self.tell()
        if start + length > min(self.size_bytes, HEADER_LIMIT_BYTES):
            raise _broken(self.where, f"its header goes on past byte {start:,}")
        self.offset, self.position = start, 0
        self.window = self.read(start, max(length, self.window_bytes))
        self.window_bytes = min(2 * self.window_bytes, LAST_WINDOW_BYTES)
        if len(self.window) < length:
            raise _broken(self.where, f"its header ends at byte {start + len(self.window):,}")

    def skip(self, length: int) -> None:
        if self.position + length <= len(self.window):
            self.position += length
            return
        self.offset, self.position, self.window = self.tell() + length, 0, b""

    def number(self, code: str) -> int:
        layout = struct.Struct(self.order + code)
        self.need(layout.size)
        (value,) = layout.unpack_from(self.window, self.position)
        self.position += layout.size
        return value  # type: ignore[no-any-return]  # struct unpacks what its code says

    def text(self) -> str:
        length = self.number("Q")
        self.need(length)
        raw = self.window[self.position : self.position + length]
        self.position += length
        return raw.decode("utf-8", errors="replace")

    def skip_strings(self, count: int) -> None:
        """Step over `count` strings: the loop that a 250,000 word vocabulary spends its time in."""
        unpack = struct.Struct(self.order + "Q").unpack_from
        while count:
            window, position, last = self.window, self.position, len(self.window) - 8
            while count and position <= last:
                end: int = position + 8 + unpack(window, position)[0]
                if end > last + 8:
                    break
                position = end
                count -= 1
            self.position = position
            if count:
                length = self.number("Q")
                self.need(length)
                self.skip(length)
                count -= 1


def read_gguf_header(
    read: Read, *, size_bytes: int, where: str, assume_bits: float | None = None
) -> GgufHeader:
    """Parse the header. A tensor type that is not known is an error unless `assume_bits` is set."""
    cursor = _Cursor(read, size_bytes, where)
    num_tensors, num_keys = _counts(cursor)
    metadata: dict[str, Value] = {}
    array_lengths: dict[str, int] = {}
    for _ in range(num_keys):
        key = cursor.text()
        value, length = _value(cursor, cursor.number("I"))
        if value is not None:
            metadata[key] = value
        if length is not None:
            array_lengths[key] = length
    spans = [_tensor(cursor, assume_bits) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0:
        raise _broken(where, f"general.alignment is {alignment}")
    data_bytes = max(0, size_bytes - math.ceil(cursor.tell() / alignment) * alignment)
    known = [span for span in spans if not span[1].dtype.startswith("type ")]  # not assumed sizes
    if reason := wrong_span(sorted(known, key=lambda span: span[0]), data_bytes):
        raise _broken(where, reason)
    return GgufHeader(
        metadata=metadata,
        array_lengths=array_lengths,
        tensors=tuple(tensor for _offset, tensor in spans),
        data_bytes=data_bytes if spans else 0,
        alignment=alignment,
    )


def _counts(cursor: _Cursor) -> tuple[int, int]:
    """Numbers of tensors and keys, after magic and version; sets the byte order."""
    cursor.need(4)
    if cursor.window[:4] != b"GGUF":
        raise _broken(cursor.where, f"it starts with {cursor.window[:4]!r}, not with b'GGUF'")
    cursor.skip(4)
    version = cursor.number("I")
    if version & 0xFFFF == 0:  # a big-endian file read as little-endian
        cursor.order = ">"
        version = int.from_bytes(version.to_bytes(4, "little"), "big")
    if version not in (2, 3):
        raise CheckpointError(
            f"{cursor.where}: GGUF version {version} is not known (2 and 3 are)",
            "convert the file with a current llama.cpp, or update sakiyomi",
        )
    num_tensors, num_keys = cursor.number("Q"), cursor.number("Q")
    # The smallest tensor info takes 24 bytes, the smallest key and value 13.
    if 24 * num_tensors + 13 * num_keys > cursor.size_bytes:
        raise _broken(cursor.where, f"it claims {num_tensors:,} tensors and {num_keys:,} keys")
    return num_tensors, num_keys


def _value(cursor: _Cursor, kind: int) -> tuple[Value | None, int | None]:
    """A metadata value; for an array also its length. None for an array that is skipped."""
    if kind == STRING:
        return cursor.text(), None
    if kind in SCALARS:
        return cursor.number(SCALARS[kind]), None
    if kind != ARRAY:
        raise _broken(cursor.where, f"a metadata value has type {kind}")
    item_kind, length = cursor.number("I"), cursor.number("Q")
    if item_kind == STRING:
        if length <= 64:  # languages, tags: a vocabulary is longer
            return [cursor.text() for _ in range(length)], length
        cursor.skip_strings(length)
        return None, length
    if item_kind not in SCALARS:
        raise _broken(cursor.where, f"a metadata array has items of type {item_kind}")
    if length > KEEP_ARRAY_ITEMS:
        cursor.skip(length * struct.calcsize(SCALARS[item_kind]))
        return None, length
    return [cursor.number(SCALARS[item_kind]) for _ in range(length)], length


def _tensor(cursor: _Cursor, assume_bits: float | None) -> tuple[int, Tensor]:
    name = cursor.text()
    num_dimensions = cursor.number("I")
    if num_dimensions > 8:
        raise _broken(cursor.where, f"tensor {name} claims {num_dimensions} dimensions")
    # GGUF stores the fastest dimension first; rows first is what everybody else writes.
    shape = tuple(reversed([cursor.number("Q") for _ in range(num_dimensions)]))
    kind, offset = cursor.number("I"), cursor.number("Q")
    num_elements = math.prod(shape)
    if kind in GGML_TYPES:
        dtype, block_elements, block_bytes = GGML_TYPES[kind]
        if shape and shape[-1] % block_elements:
            raise _broken(
                cursor.where,
                f"tensor {name}: a row of {list(shape)} is no multiple of {block_elements}",
            )
        return offset, Tensor(
            name=name,
            dtype=dtype,
            shape=shape,
            num_bytes=num_elements // block_elements * block_bytes,
        )
    if assume_bits is None:
        raise CheckpointError(
            f"{cursor.where}: tensor {name} has the unknown type {kind}: its size is not known",
            "update sakiyomi, or go on with --assume-bits BITS (bits of a parameter of such types)",
        )
    num_bytes = math.ceil(num_elements * assume_bits / 8)
    return offset, Tensor(name=name, dtype=f"type {kind}", shape=shape, num_bytes=num_bytes)


def _broken(where: str, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{where}: {reason}",
        "the file is cut short, still loading or no GGUF file: fetch it again",
    )
