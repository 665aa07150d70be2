"""Finds a model wherever it lies: a folder, a file, a hub id. Its weights are never read.

A folder of safetensors (sharded or not, with or without index), a GGUF file (any shard of a split
one resolves to the set), a hub id, or a bare `config.json` (sizes are then derived from shapes).
"""

import os
import re
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path

from sakiyomi.errors import CheckpointError
from sakiyomi.models.model_files import (
    INDEX,
    folder_files,
    header_file,
    read_configs,
    read_files,
    read_safetensors_files,
    require,
    shard_names,
)
from sakiyomi.models.published import published_models
from sakiyomi.models.read_model import derive_model, read_gguf_model
from sakiyomi.models.weights import ReadBytes

HUB_ID = re.compile(r"^[\w.-]+/[\w.-]+(?:@[\w.-]+)?(?::[\w.-]+|/.+\.gguf)?$")


def open_checkpoint(
    model: str,
    *,
    assume_bits: float | None = None,
    on_header: Callable[[int, int], None] | None = None,
) -> ReadBytes:
    """Read the bytes of a folder, a file or a hub id. Raises CheckpointError with what to try.

    `on_header`: called as the headers of a hub's files come, with how many have and of how many.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return read_files(folder_files(path), name=path.resolve().name, assume_bits=assume_bits)
    if path.is_file():
        return _read_file(path, assume_bits)
    if HUB_ID.match(model) and not model.startswith((".", "/", "~")):
        from sakiyomi.models.hub import open_hub

        try:
            return open_hub(model, assume_bits=assume_bits, on_header=on_header)
        except CheckpointError as error:
            near = _near(path)  # `models/lama` may have been a folder
            hint = f"{near} Or {error.hint}" if near else error.hint
            raise CheckpointError(error.message, hint) from error
    hint = "give a folder with *.safetensors, a .gguf file, a config.json, or a hub id ORG/NAME"
    raise CheckpointError(f"{model}: no such folder or file, and no hub id", _near(path) or hint)


def _read_file(path: Path, assume_bits: float | None) -> ReadBytes:
    files = folder_files(path.parent)
    if path.suffix == ".gguf" or header_file(path).read(0, 4) == b"GGUF":
        names = shard_names(path.name)
        require(names, files)
        shards = [files[name] for name in names]
        return read_gguf_model(shards, name=names[0], assume_bits=assume_bits)
    if path.name.endswith(".index.json") or path.suffix == ".safetensors":
        if path.suffix == ".safetensors":
            names = shard_names(path.name)
            keep = {*names, "config.json", "hf_quant_config.json", *([INDEX] if names[1:] else [])}
            files = {name: file for name, file in files.items() if name in keep}
        return read_safetensors_files(files, path.name, assume_bits)
    if path.suffix == ".json":
        beside = files.get("hf_quant_config.json")
        chosen = {"config.json": files[path.name]}
        if path.name == "config.json" and beside is not None:
            chosen["hf_quant_config.json"] = beside
        return derive_model(read_configs(chosen), name=path.resolve().parent.name or path.name)
    raise CheckpointError(
        f"{path}: neither safetensors nor GGUF nor a config.json",
        ".bin and .pt files have no readable header: convert the checkpoint",
    )


def _near(path: Path) -> str:
    """Files beside the path, and published models, that are called much like it."""
    parent = path.parent
    names = [entry.name for entry in os.scandir(parent)] if parent.is_dir() else []
    close = [str(parent / name) for name in get_close_matches(path.name, names, n=3, cutoff=0.5)]
    published = {model.name.lower(): model.name for model in published_models()}
    found = get_close_matches(path.name.lower(), published, n=3, cutoff=0.6)
    close += [published[name] for name in found]
    return f"did you mean {', '.join(close)}?" if close else ""
