"""What a model file's header says: tensors as stored, weights as they are read."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

import msgspec

Read = Callable[[int, int], bytes]
"""`read(offset, length)`: at most `length` bytes from `offset`; fewer only at the file's end."""

Role = Literal[
    "embedding",
    "attention",
    "linear",
    "mlp",
    "experts",
    "shared",
    "router",
    "norm",
    "head",
    "vision",
    "audio",
    "draft",
    "draft_experts",
    "draft_embedding",
    "draft_head",
    "other",
]
"""What a weight does in a decode step, and so whether the step reads it:

- `embedding`: one row per token; `vision`, `audio`: nothing in text decode
- `attention`, `linear` (recurrent: GDN, KDA, Mamba), `mlp`, `shared`, `router`, `norm`, `head`,
  `other` (names that nobody knows): all of it
- `experts`: those that the router chose
- `draft`, `draft_experts`, `draft_head`: once per draft; `draft_embedding`: one row per draft
"""


class HeaderFile(msgspec.Struct, frozen=True, kw_only=True):
    """A model file as the core sees it: a name for messages, its size, and how to read of it."""

    where: str
    size_bytes: int
    read: Read


class Tensor(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor of a header: its stored shape (packed, if it is) and its bytes in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int


class Weight(msgspec.Struct, frozen=True, kw_only=True):
    """A module's weight with its scales, zero points and biases: one thing that is read together.

    `num_parameters` is logical: unpacked, without scales, zero points and index tensors.
    `num_bytes` is stored bytes (a fraction only where it is derived from a shape).
    `num_experts` is 1, or the number of experts that are stacked in the tensor.
    """

    name: str
    role: Role
    format: str
    num_bytes: float
    num_parameters: float
    layer: int | None = None
    num_experts: int = 1
    num_tensors: int = 1


def wrong_span(spans: Sequence[tuple[int, Tensor]], data_bytes: int) -> str | None:
    """Why tensors cannot lie so in a file's data: one overlaps the next, or ends after the file.

    `spans`: (offset in the data, tensor) in the order of offsets.
    """
    for (offset, tensor), (next_offset, next_tensor) in pairwise(spans):
        if offset + tensor.num_bytes > next_offset:
            return f"tensors {tensor.name} and {next_tensor.name} overlap"
    for offset, tensor in spans:
        end = offset + tensor.num_bytes
        if end > data_bytes:
            return (
                f"tensor {tensor.name} ends at byte {end:,} of the data, "
                f"the file has {data_bytes:,}"
            )
    return None
