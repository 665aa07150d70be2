"""Writes small but real checkpoints with the writers of safetensors and gguf themselves.

A *spec* is a list of `(name, dtype, shape)`; shapes are the stored ones.
"""

import ctypes
import json
import math
from pathlib import Path

import gguf
import numpy as np
from safetensors import TensorSpec, serialize_file

DTYPES = {
    "BF16": ("bfloat16", 2),
    "F16": ("float16", 2),
    "F32": ("float32", 4),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E8M0": ("float8_e8m0fnu", 1),
    "U8": ("uint8", 1),
    "I8": ("int8", 1),
    "I32": ("int32", 4),
    "I64": ("int64", 8),
    "U32": ("uint32", 4),
}


def write_safetensors(path: Path, spec: list) -> int:
    """Write the tensors (zeros) and return the bytes of their data."""
    keep = []
    tensors = {}
    for name, dtype, shape in spec:
        word, width = DTYPES[dtype]
        length = math.prod(shape) * width
        buffer = ctypes.create_string_buffer(max(1, length))
        keep.append(buffer)
        tensors[name] = TensorSpec(
            dtype=word, shape=list(shape), data_ptr=ctypes.addressof(buffer), data_len=length
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    serialize_file(tensors, str(path))
    raw = path.read_bytes()
    return len(raw) - 8 - int.from_bytes(raw[:8], "little")


def write_folder(folder: Path, config: dict, spec: list, *, shards: int = 0, **files: dict) -> int:
    """Write a checkpoint folder, with an index when sharded; return the bytes of all data."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    if not shards:
        return write_safetensors(folder / "model.safetensors", spec)
    total, weight_map = 0, {}
    for number in range(shards):
        name = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        part = spec[number::shards]
        total += write_safetensors(folder / name, part)
        weight_map |= {tensor: name for tensor, _dtype, _shape in part}
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


def plain(*names_and_shapes: tuple) -> list:
    return [(name, "BF16", shape) for name, shape in names_and_shapes]


def nvfp4(module: str, rows: int, columns: int) -> list:
    """modelopt's four tensors of one linear layer."""
    return [
        (f"{module}.weight", "U8", (rows, columns // 2)),
        (f"{module}.weight_scale", "F8_E4M3", (rows, columns // 16)),
        (f"{module}.weight_scale_2", "F32", ()),
        (f"{module}.input_scale", "F32", ()),
    ]


def write_gguf(
    path: Path, architecture: str, spec: list, metadata: dict, *, vocab: int = 0
) -> None:
    """Write a GGUF file; `spec` is `(name, type, logical shape)`, rows first."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        full = key if key.startswith(("general.", "split.")) else f"{architecture}.{key}"
        if isinstance(value, bool):
            writer.add_bool(full, value)
        elif isinstance(value, list):
            writer.add_array(full, value)
        elif isinstance(value, float):
            writer.add_float32(full, value)
        elif key.startswith("split.") and key != "split.tensors.count":
            writer.add_uint16(full, value)
        else:
            writer.add_uint32(full, value)
    if vocab:
        writer.add_token_list([f"token{number}" for number in range(vocab)])
    for name, kind, shape in spec:
        number = gguf.GGMLQuantizationType[kind]
        block, width = gguf.GGML_QUANT_SIZES[number]
        row_bytes = shape[-1] // block * width
        data = np.zeros((*shape[:-1], row_bytes), dtype=np.uint8)
        if kind == "F32":
            writer.add_tensor(name, np.zeros(shape, dtype=np.float32))
        elif kind == "F16":
            writer.add_tensor(name, np.zeros(shape, dtype=np.float16))
        else:
            writer.add_tensor(name, data, raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
