"""Quantization configs: the format that each module is stored in, and the bits of packed words.

They name the intention; a header names the bytes. They serve where no header is at hand (a bare
`config.json`) and where words of packed integers do not tell their width.
Descriptors: modelopt (`hf_quant_config.json`), compressed-tensors, fp8, mxfp4, gptq, awq, MLX.
"""

import fnmatch
import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any

from sakiyomi.models.formats import BYTES_PER_PARAMETER, integer_bytes

NEVER_QUANTIZED = re.compile(
    r"embed_tokens|norm|(?:^|\.)(?:gate|router|router\.proj)$|eh_proj$|mtp\.fc$"
)
HEAD = re.compile(r"(?:^|\.)lm_head$")
ALGORITHMS = {
    "NVFP4": "nvfp4",
    "W4A16_NVFP4": "nvfp4",
    "NVFP4_AWQ": "nvfp4",
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "FP8_PB_WO": "fp8 block",
    "MXFP4": "mxfp4",
    "MXFP8": "mxfp8",
    "W4A16_MXFP4": "mxfp4",
    "W8A8_SQ_PER_CHANNEL": "int8",
}


def find_quantization(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The quantization part of a config: at the top or in the language sub-config."""
    for scope in (config, config.get("text_config") or {}, config.get("llm_config") or {}):
        for name in ("quantization_config", "compression_config", "quantization"):
            found = scope.get(name)
            if isinstance(found, Mapping):
                return found
    return {}


def kv_element_bytes(quantization: Mapping[str, Any], modelopt: Mapping[str, Any]) -> float | None:
    """Bytes of a cached element where the checkpoint states them, else None (the engine's own)."""
    scheme = quantization.get("kv_cache_scheme")
    if isinstance(scheme, Mapping) and isinstance(scheme.get("num_bits"), int):
        return float(scheme["num_bits"]) / 8
    algorithm = modelopt.get("kv_cache_quant_algo") or quantization.get("kv_cache_quant_algo")
    by_name = {"FP8": 1.0, "INT8": 1.0, "NVFP4": 0.5625}
    return by_name.get(str(algorithm).upper()) if algorithm else None


class Names:
    """Patterns of module names: exact ones, parts of names, globs, `re:` regexes. Built once."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self.plain: set[str] = set()
        regexes = []
        for pattern in patterns:
            if pattern.startswith(("re:", ":")):
                regexes.append(pattern.split(":", 1)[1])
            elif "*" in pattern:
                regexes.append(fnmatch.translate(_bare(pattern)))
                regexes.append(fnmatch.translate(f"{_bare(pattern)}.*"))
            else:
                self.plain.add(_bare(pattern))
        self.regex = re.compile("|".join(f"(?:{regex})" for regex in regexes)) if regexes else None

    def match(self, module: str) -> bool:
        """Whether a pattern names the module, a module that holds it, or a part of its name."""
        bare = _bare(module)
        if self.regex and (self.regex.match(module) or self.regex.match(bare)):
            return True
        steps = bare.split(".")
        ends = range(len(steps) + 1)
        return any(
            ".".join(steps[first:last]) in self.plain
            for first in ends
            for last in ends
            if first < last
        )


class Quantization:
    """What the descriptors say of each module; asked once per module of a model."""

    def __init__(self, quantization: Mapping[str, Any], modelopt: Mapping[str, Any]) -> None:
        self.config = quantization
        self.algorithm = str(
            modelopt.get("quant_algo") or quantization.get("quant_algo") or ""
        ).upper()
        listed = quantization.get("quantized_layers") or modelopt.get("quantized_layers")
        self.listed = _by_bare_name(listed) if isinstance(listed, Mapping) else {}
        self.ignored = Names(
            str(name)
            for name in (
                *(quantization.get("ignore") or []),
                *(quantization.get("modules_to_not_convert") or []),
                *(modelopt.get("exclude_modules") or []),
                *(key[1:] for key in quantization.get("dynamic") or {} if key.startswith("-:")),
            )
        )
        groups = quantization.get("config_groups")
        self.groups = [
            (Names(str(target) for target in group.get("targets") or []), group)
            for group in (groups.values() if isinstance(groups, Mapping) else ())
        ]

    def packed_bits(self, module: str) -> float | None:
        """Bits of a packed integer weight of this module."""
        own = self.config.get(module)  # MLX writes exceptions under the module's own name
        if isinstance(own, Mapping) and isinstance(own.get("bits"), int):
            return float(own["bits"])
        group = self._group(module)
        if group is not None:
            bits = (group.get("weights") or {}).get("num_bits")
            return float(bits) if isinstance(bits, int) else None
        bits = self.config.get("bits", self.config.get("w_bit"))
        return float(bits) if isinstance(bits, int) else None

    def format_of(self, module: str, plain: str) -> str:
        """The format of a module; `plain` (bf16, ...) where it is not quantized."""
        own = self._listed(module)
        if own is not None:
            return ALGORITHMS.get(str(own.get("quant_algo")).upper(), plain)
        if NEVER_QUANTIZED.search(module) or self.ignored.match(module):
            return plain
        if self.algorithm == "MIXED_PRECISION":  # only the listed layers, looked up above
            return plain
        return ALGORITHMS.get(self.algorithm) or self._by_method(module, plain)

    def _by_method(self, module: str, plain: str) -> str:
        method = str(self.config.get("quant_method", "")).lower()
        if method == "compressed-tensors":
            group = self._group(module)
            return plain if group is None else _compressed_format(self.config, group)
        if HEAD.search(module):
            return plain
        if method in ("fp8", "fbgemm_fp8"):
            return "fp8 block" if self.config.get("weight_block_size") else "fp8"
        if method == "mxfp4" and ".experts." in f"{module}.":
            return "mxfp4"
        if method in ("gptq", "awq", "auto-round", "gptq_marlin", "awq_marlin"):
            return _integer(self.config.get("bits", self.config.get("w_bit", 4)), self.config)
        return plain

    def _group(self, module: str) -> Mapping[str, Any] | None:
        """The config group whose targets name this module; `Linear` targets all of them."""
        for targets, group in self.groups:
            if targets.match(module):
                return group  # type: ignore[no-any-return]  # JSON
        return next((group for targets, group in self.groups if "Linear" in targets.plain), None)

    def _listed(self, module: str) -> Mapping[str, Any] | None:
        """The entry of the module itself or of a module that holds it (`mlp.experts`)."""
        name = _bare(module) if self.listed else ""
        while name:
            entry = self.listed.get(name)
            if isinstance(entry, Mapping):
                return entry
            name = name.rpartition(".")[0]
        return None


def bytes_of(label: str) -> float:
    """Bytes of a parameter of a format that `format_of` names."""
    if label in BYTES_PER_PARAMETER:
        return BYTES_PER_PARAMETER[label]
    match = re.fullmatch(r"int(\d+)(?: g(\d+))?( asymmetric)?", label)
    if not match:
        raise KeyError(label)
    group = int(match[2]) if match[2] else None
    return integer_bytes(int(match[1]), group, zero_point=bool(match[3]))


def _integer(bits: Any, parameters: Mapping[str, Any]) -> str:
    group = parameters.get("group_size", parameters.get("q_group_size"))
    is_symmetric = parameters.get("sym", parameters.get("symmetric"))
    if is_symmetric is None:
        is_symmetric = not parameters.get("zero_point", True)
    label = f"int{bits}"
    if isinstance(group, int) and group > 0:
        label += f" g{group}"
    return label if is_symmetric else f"{label} asymmetric"


def _compressed_format(quantization: Mapping[str, Any], group: Mapping[str, Any]) -> str:
    weights = group.get("weights") or {}
    layout = str(group.get("format") or quantization.get("format") or "")
    if layout.startswith("mxfp4"):
        return "mxfp4"
    if weights.get("type") == "float":
        if weights.get("num_bits") == 4:
            return "mxfp4" if weights.get("group_size") == 32 else "nvfp4"
        return "fp8 block" if weights.get("strategy") == "block" else "fp8"
    if weights.get("num_bits") == 8:
        return "int8"
    return _integer(weights.get("num_bits", 4), weights)


def _by_bare_name(listed: Mapping[str, Any]) -> dict[str, Any]:
    """Entries by bare name; those of single experts serve for all experts of the layer."""
    entries = {_bare(name): entry for name, entry in listed.items()}
    for name, entry in [*entries.items()]:
        experts = re.match(r"(.*\bexperts)\.\d+\.", name)
        if experts:
            entries.setdefault(experts[1], entry)
    return entries


@functools.cache
def _bare(name: str) -> str:
    """A name without the prefixes in which exporters differ."""
    bare = re.sub(r"^(?:model\.|backbone\.)?(?:language_model\.)?(?:model\.)?", "", name)
    bare = re.sub(r"\bmixer\.(?=[qkvo]_proj)", "self_attn.", bare)
    bare = re.sub(r"\bmixer\.(?=experts|shared|gate|up_proj|down_proj)", "mlp.", bare)
    return re.sub(r"\b(?:block_sparse_moe|feed_forward)\.", "mlp.", bare)
