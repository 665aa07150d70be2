"""Header files and configs to read bytes: the one path that every model takes."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from sakiyomi.errors import CheckpointError
from sakiyomi.models.derived import derive_weights
from sakiyomi.models.formats import BYTES_PER_PARAMETER
from sakiyomi.models.gguf_config import shape_of_gguf
from sakiyomi.models.gguf_header import GgufHeader, read_gguf_header
from sakiyomi.models.model_config import shape_of_config
from sakiyomi.models.model_shape import ModelShape
from sakiyomi.models.packing import collect_weights
from sakiyomi.models.quantization import (
    Quantization,
    bytes_of,
    find_quantization,
    kv_element_bytes,
)
from sakiyomi.models.safetensors_header import read_safetensors_header
from sakiyomi.models.tensor_roles import NameScan, scan_names
from sakiyomi.models.tensors import HeaderFile, Role, Tensor, Weight
from sakiyomi.models.weights import Origin, ReadBytes, read_bytes

PLAIN_FORMATS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


class Configs(msgspec.Struct, frozen=True, kw_only=True):
    """What stands beside the weights: `config.json`, `hf_quant_config.json`'s quantization."""

    config: Mapping[str, Any] | None = None
    modelopt: Mapping[str, Any] = {}
    weight_map: Mapping[str, str] | None = None
    total_size_bytes: int | None = None


def read_safetensors_model(
    files: Sequence[HeaderFile],
    configs: Configs,
    *,
    name: str,
    assume_bits: float | None = None,
    cautions: tuple[str, ...] = (),
) -> ReadBytes:
    """Read a checkpoint from the headers of its safetensors files."""
    tensors: dict[str, Tensor] = {}
    for file in files:
        header = read_safetensors_header(file.read, size_bytes=file.size_bytes, where=file.where)
        for tensor in header:
            if tensor.name in tensors:
                raise CheckpointError(
                    f"{file.where}: tensor {tensor.name} is in another file already",
                    "the folder mixes two checkpoints: keep one, with its index",
                )
            tensors[tensor.name] = tensor
    _check_index(tensors, configs, name)
    config = configs.config
    quantization = find_quantization(config) if config else {}
    scan = scan_names(tensors)
    weights, notes = collect_weights(
        tensors.values(),
        scan,
        bits=Quantization(quantization, configs.modelopt).packed_bits,
        assume_bits=assume_bits,
    )
    shape = shape_of_config(config) if config is not None else None
    origin = Origin(
        name=name,
        source=f"headers of {len(files)} safetensors file{'s' if len(files) > 1 else ''}",
        kv_element_bytes=kv_element_bytes(quantization, configs.modelopt),
        num_draft_modules=_num_draft_modules(scan, shape),
        cautions=(*cautions, *notes, *_size_cautions(tensors, configs)),
    )
    return read_bytes(weights, shape, origin)


def read_gguf_model(
    files: Sequence[HeaderFile],
    *,
    name: str,
    assume_bits: float | None = None,
    cautions: tuple[str, ...] = (),
) -> ReadBytes:
    """Read a GGUF model from the headers of its files, the first shard first."""
    headers = [
        read_gguf_header(
            file.read, size_bytes=file.size_bytes, where=file.where, assume_bits=assume_bits
        )
        for file in files
    ]
    tensors = {tensor.name: tensor for header in headers for tensor in header.tensors}
    _check_split(headers, len(tensors), files)
    scan = scan_names(tensors)
    weights, notes = collect_weights(
        tensors.values(), scan, bits=lambda _module: None, assume_bits=assume_bits
    )
    first = headers[0]
    shape = shape_of_gguf(first.metadata, first.array_lengths, scan.linear_layers)
    count = f"{len(files)} GGUF file{'s' if len(files) > 1 else ''}"
    origin = Origin(
        name=name,
        source=f"headers of {count}",
        num_draft_modules=_num_draft_modules(scan, shape),
        cautions=(*cautions, *notes),
    )
    return read_bytes(weights, shape, origin)


def derive_model(configs: Configs, *, name: str) -> ReadBytes:
    """Derive a model from its config alone: sizes follow from shapes, marked as derived."""
    config = configs.config or {}
    shape = shape_of_config(config)
    text = config.get("text_config") or {}
    dtype = text.get("dtype") or text.get("torch_dtype") or config.get("dtype")
    plain = PLAIN_FORMATS.get(str(dtype or config.get("torch_dtype") or "bfloat16"), "bf16")
    quantization = find_quantization(config)

    stated = Quantization(quantization, configs.modelopt)

    def choose(module: str, _role: Role) -> tuple[str, float]:
        label = _derived_format(stated, module, plain, len(shape.layers))
        return label, bytes_of(label)

    cautions = ["derived from shapes, without headers: norms, biases and convolutions left out"]
    if shape.tied is None:
        cautions.append("the config does not say whether embeddings are tied: taken as untied")
    if shape.num_draft_layers:
        cautions.append(
            "the draft head is the config's claim: only tensor names can tell whether it is stored"
        )
    if "vision_config" in config or "audio_config" in config:
        cautions.append("the vision or audio tower is left out (a text step does not read it)")
    weights = derive_weights(shape, choose)
    if (quantization or configs.modelopt) and {weight.format for weight in weights} == {plain}:
        cautions.append(f"the quantization config names no layer known here: all taken as {plain}")
    origin = Origin(
        name=name,
        source="derived from config.json",
        kv_element_bytes=kv_element_bytes(quantization, configs.modelopt),
        num_draft_modules=max(1, shape.num_draft_layers),
        cautions=tuple(cautions),
    )
    return read_bytes(weights, shape, origin)


def derive_by_role(
    shape: ModelShape,
    formats: Mapping[str, str],
    *,
    name: str,
    source: str,
    vision_parameters: float = 0.0,
) -> ReadBytes:
    """Derive a model whose formats are stated by role (`mlp: nvfp4`); the rest is bf16."""

    def choose(_module: str, role: Role) -> tuple[str, float]:
        label = formats.get(role, "bf16")
        return label, BYTES_PER_PARAMETER[label]

    weights = list(derive_weights(shape, choose))
    if vision_parameters:
        label, width = choose("visual", "vision")
        tower = Weight(
            name="visual",
            role="vision",
            format=label,
            num_bytes=vision_parameters * width,
            num_parameters=vision_parameters,
        )
        weights.append(tower)
    modules = max(1, shape.num_draft_layers)
    origin = Origin(name=name, source=source, num_draft_modules=modules)
    return read_bytes(weights, shape, origin)


def _derived_format(stated: Quantization, module: str, plain: str, num_layers: int) -> str:
    """A draft layer goes by two names: `mtp.layers.0` and, behind the last layer, its number."""
    label = stated.format_of(module, plain)
    prefix = "mtp.layers."
    if label != plain and module.startswith(prefix):
        index, _, rest = module[len(prefix) :].partition(".")
        return stated.format_of(f"model.layers.{num_layers + int(index)}.{rest}", plain)
    return label


def _num_draft_modules(scan: NameScan, shape: ModelShape | None) -> int:
    """Prediction modules that take turns: by their projections, at most as the config says."""
    stated = shape.num_draft_layers if shape else 0
    layers = max(scan.num_draft_modules, len(scan.draft_layers), 1)
    return min(layers, stated) if stated else layers


def _check_index(tensors: Mapping[str, Tensor], configs: Configs, name: str) -> None:
    if configs.weight_map is None:
        return
    lost = [tensor for tensor in configs.weight_map if tensor not in tensors]
    if lost:
        raise CheckpointError(
            f"{name}: the index names {len(lost)} tensors that no file holds, first {lost[0]}",
            "the index belongs to other files: fetch both again",
        )


def _size_cautions(tensors: Mapping[str, Tensor], configs: Configs) -> list[str]:
    stored = sum(tensor.num_bytes for tensor in tensors.values())
    stated = configs.total_size_bytes
    if stated is None or stated == stored:
        return []
    return [f"the index states {stated:,} bytes, the headers hold {stored:,}: the headers count"]


def _check_split(
    headers: Sequence[GgufHeader], num_tensors: int, files: Sequence[HeaderFile]
) -> None:
    first = headers[0].metadata
    count, total = first.get("split.count"), first.get("split.tensors.count")
    if isinstance(count, int) and count > 1 and count != len(files):
        raise CheckpointError(
            f"{files[0].where}: {len(files)} of its {count} shards are here",
            "put all shards into one folder",
        )
    if isinstance(total, int) and isinstance(count, int) and count > 1 and total != num_tensors:
        raise CheckpointError(
            f"{files[0].where}: the shards hold {num_tensors} tensors, it claims {total}",
            "a shard is of another file: fetch them again",
        )
