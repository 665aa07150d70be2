"""The header of a safetensors file: 8 bytes of length, then JSON. No tensor data is read.

Format: https://huggingface.co/docs/safetensors/index#format
"""

import math
from typing import Any

import msgspec

from sakiyomi.errors import CheckpointError
from sakiyomi.models.tensors import Read, Tensor, wrong_span

HEADER_LIMIT_BYTES = 100_000_000
"""The format's own limit (safetensors, `MAX_HEADER_SIZE`)."""

DTYPE_BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U16": 16,
    "I16": 16,
    "F16": 16,
    "BF16": 16,
    "U32": 32,
    "I32": 32,
    "F32": 32,
    "U64": 64,
    "I64": 64,
    "F64": 64,
    "C64": 64,
}
"""Bits of one element; the shape of a sub-byte dtype counts elements, not bytes (safetensors,
`Dtype::bitsize`). A dtype that is not here keeps its bytes: `data_offsets` has them."""


def read_safetensors_header(read: Read, *, size_bytes: int, where: str) -> tuple[Tensor, ...]:
    """List a file's tensors in the order of their data. `size_bytes` is the whole file's size."""
    first = read(0, 8)
    if len(first) < 8:
        raise _broken(where, f"it has {len(first)} bytes; a safetensors header needs 8 and more")
    header_bytes = int.from_bytes(first, "little")
    if header_bytes > HEADER_LIMIT_BYTES:
        raise _broken(
            where,
            f"its header claims {header_bytes:,} bytes (limit {HEADER_LIMIT_BYTES:,})",
        )
    if 8 + header_bytes > size_bytes:
        raise _broken(
            where,
            f"its header claims {header_bytes:,} bytes, the file has {size_bytes:,}",
        )
    text = read(8, header_bytes)
    if len(text) < header_bytes:
        raise _broken(where, f"its header ends after {len(text):,} of {header_bytes:,} bytes")
    try:
        entries = msgspec.json.decode(text, type=dict[str, dict[str, Any]])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _broken(where, f"its header is not the JSON of a safetensors file: {error}") from None
    entries.pop("__metadata__", None)
    spans = [_tensor(name, entry, where) for name, entry in entries.items()]
    spans.sort(key=lambda span: span[0])
    if reason := wrong_span(spans, size_bytes - 8 - header_bytes):
        raise _broken(where, reason)
    return tuple(tensor for _begin, tensor in spans)


def _tensor(name: str, entry: dict[str, Any], where: str) -> tuple[int, Tensor]:
    try:
        dtype = msgspec.convert(entry.get("dtype"), str)
        shape = msgspec.convert(entry.get("shape"), tuple[int, ...])
        begin, end = msgspec.convert(entry.get("data_offsets"), tuple[int, int])
    except msgspec.ValidationError as error:
        raise _broken(where, f"tensor {name}: {error} in {entry}") from None
    if not 0 <= begin <= end or min(shape, default=0) < 0:
        raise _broken(where, f"tensor {name}: offsets {begin} to {end}, shape {list(shape)}")
    bits = DTYPE_BITS.get(dtype)
    expected_bytes = None if bits is None else (math.prod(shape) * bits + 7) // 8
    if expected_bytes is not None and expected_bytes != end - begin:
        raise _broken(
            where,
            f"tensor {name}: {dtype} {list(shape)} takes {expected_bytes:,} bytes, "
            f"its offsets span {end - begin:,}",
        )
    return begin, Tensor(name=name, dtype=dtype, shape=shape, num_bytes=end - begin)


def _broken(where: str, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{where}: {reason}",
        "the file is cut short, still loading or no safetensors file: fetch it again",
    )
