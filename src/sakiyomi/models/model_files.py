"""The one model that a set of files holds: which files belong to it, and its configs.

Files come from a folder or from a hub repository; nothing but headers and JSON is read.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from sakiyomi.errors import CheckpointError
from sakiyomi.models.read_model import (
    Configs,
    derive_model,
    read_gguf_model,
    read_safetensors_model,
)
from sakiyomi.models.tensors import HeaderFile, Read
from sakiyomi.models.weights import ReadBytes

Files = Mapping[str, HeaderFile]
"""The files of a folder or a hub repository by their relative names."""

JSON_LIMIT_BYTES = 200_000_000
"""A larger index or config is refused; the index of a 1-trillion-parameter model takes 13 MB."""

INDEX = "model.safetensors.index.json"
SHARD = re.compile(
    r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.(?P<kind>gguf|safetensors)$"
)
SIDE_FILE = re.compile(r"(?:^|/)(?:mmproj|mtp|draft|imatrix)[-_.]", re.IGNORECASE)


def folder_files(folder: Path) -> Files:
    """The files of a folder (links followed, subfolders left out)."""
    try:
        return {
            entry.name: header_file(Path(entry.path))
            for entry in sorted(os.scandir(folder), key=lambda entry: entry.name)
            if entry.is_file()
        }
    except OSError as error:
        raise CheckpointError(f"{folder}: {error.strerror}", "check the folder") from error


def read_files(files: Files, *, name: str, assume_bits: float | None = None) -> ReadBytes:
    """Read the one model that these files hold."""
    if any(file.endswith(".safetensors") for file in files):
        return read_safetensors_files(files, name, assume_bits)
    sets = gguf_sets(files)
    if len(sets) > 1:
        raise CheckpointError(
            f"{name}: {len(sets)} GGUF models are here", "name one: " + ", ".join(sorted(sets)[:12])
        )
    if sets:
        (first,) = sets.values()
        return read_gguf_model([files[file] for file in first], name=name, assume_bits=assume_bits)
    configs = read_configs(files)
    if configs.config is None:
        raise CheckpointError(
            f"{name}: no *.safetensors, no *.gguf and no config.json",
            "give the folder of the checkpoint itself; .bin and .pt files have no readable header",
        )
    return derive_model(configs, name=name)


def gguf_sets(files: Files) -> dict[str, list[str]]:
    """GGUF models by the name of their first file; side files (projector, draft) left out."""
    sets: dict[str, list[str]] = {}
    for file in files:
        if not file.endswith(".gguf") or SIDE_FILE.search(file):
            continue
        names = shard_names(file)
        if names[0] in sets:
            continue
        require(names, files)
        sets[names[0]] = names
    return sets


def shard_names(file: str) -> list[str]:
    """All names of the set that a shard belongs to; the file itself where it is not split."""
    match = SHARD.match(file)
    if not match:
        return [file]
    count = int(match["count"])
    stem, kind = match["stem"], match["kind"]
    return [f"{stem}-{number:05d}-of-{count:05d}.{kind}" for number in range(1, count + 1)]


def require(names: list[str], files: Files) -> None:
    """Refuse a set of shards that is not complete; the message names what is missing."""
    lost = [name for name in names if name not in files]
    if lost:
        present = next((files[name].where for name in names if name in files), names[0])
        raise CheckpointError(
            f"{present}: {len(lost)} of its {len(names)} shards are missing: {', '.join(lost[:4])}",
            "put all shards into one folder",
        )


def read_safetensors_files(files: Files, name: str, assume_bits: float | None) -> ReadBytes:
    """Read the shards that the index names, or all of them without an index."""
    configs = read_configs(files)
    stored = [file for file in files if file.endswith(".safetensors")]
    cautions: tuple[str, ...] = ()
    if configs.weight_map is not None:
        chosen = _indexed(configs.weight_map, files, name)
        left = [file for file in stored if file not in chosen]
        if left:
            cautions = (f"not named by the index, so left out: {', '.join(left[:4])}",)
    else:
        # Mistral ships the same weights twice, under both names.
        chosen = [file for file in stored if not file.startswith("consolidated")] or stored
        for file in chosen:
            require(shard_names(file), files)
    return read_safetensors_model(
        [files[file] for file in chosen],
        configs,
        name=name,
        assume_bits=assume_bits,
        cautions=cautions,
    )


def _indexed(weight_map: Mapping[str, str], files: Files, name: str) -> list[str]:
    shards = sorted({*weight_map.values()})
    for shard in shards:
        if not shard.endswith(".safetensors"):
            raise CheckpointError(
                f"{name}: the index names {shard!r}, which is no safetensors file",
                f"{INDEX} is damaged: fetch it again",
            )
        if shard not in files:
            raise CheckpointError(
                f"{name}: the index names {shard}, which is not here",
                f"fetch it: {len(shards)} shards belong to the model",
            )
    return shards


def read_configs(files: Files) -> Configs:
    """Read what stands beside the weights."""
    index = _json(files, INDEX)
    weight_map = None
    total_size = None
    if index is not None:
        try:
            weight_map = msgspec.convert(index.get("weight_map"), dict[str, str])
        except msgspec.ValidationError as error:
            raise CheckpointError(
                f"{files[INDEX].where}: weight_map: {error}", "the index is damaged: fetch it again"
            ) from None
        total_size = (index.get("metadata") or {}).get("total_size")
    modelopt = (_json(files, "hf_quant_config.json") or {}).get("quantization")
    return Configs(
        config=_json(files, "config.json"),
        modelopt=modelopt if isinstance(modelopt, dict) else {},
        weight_map=weight_map,
        total_size_bytes=int(total_size) if isinstance(total_size, int | float) else None,
    )


def _json(files: Files, name: str) -> dict[str, Any] | None:
    file = files.get(name)
    if file is None:
        return None
    if file.size_bytes > JSON_LIMIT_BYTES:
        raise CheckpointError(f"{file.where}: {file.size_bytes:,} bytes of JSON", "fetch it again")
    try:
        # The standard library's decoder: configs written by Python hold Infinity.
        value = json.loads(file.read(0, file.size_bytes).decode("utf-8-sig"))
    except ValueError as error:
        hint = "the file is damaged: fetch it again"
        raise CheckpointError(f"{file.where}: {error}", hint) from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{file.where}: no JSON object", "fetch it again")
    return value


def header_file(path: Path) -> HeaderFile:
    """Give a local file to the core."""
    return HeaderFile(where=str(path), size_bytes=path.stat().st_size, read=_reader(path))


def _reader(path: Path) -> Read:
    def read(offset: int, length: int) -> bytes:
        try:
            with path.open("rb", buffering=0) as file:
                file.seek(offset)
                # a raw read may return less than asked for
                pieces = []
                while length > 0 and (piece := file.read(length)):
                    pieces.append(piece)
                    length -= len(piece)
        except OSError as error:
            raise CheckpointError(f"{path}: {error.strerror}", "check the file") from error
        return b"".join(pieces)

    return read
