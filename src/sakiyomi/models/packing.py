"""From stored tensors to logical weights: unpack 4-bit formats on paper, count scales as bytes.

Bytes are the stored bytes, always. Parameters follow from the packed shape and the tensors beside
it: a U8 tensor of NVFP4 holds two weights a byte, an I32 tensor of GPTQ holds eight.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping

from sakiyomi.models.ggml_types import GGML_TYPES
from sakiyomi.models.safetensors_header import DTYPE_BITS
from sakiyomi.models.tensor_roles import NameScan, role_of, split_layer
from sakiyomi.models.tensors import Tensor, Weight

Bits = Callable[[str], float | None]
"""Bits of a packed weight that the quantization config states for a module, or None."""

PART = re.compile(
    r"^(?P<module>.*?)[._](?P<part>weight_scale_inv|weight_scale_2|weight_scale|weight_global_scale"
    r"|input_global_scale|input_scale|weight_packed|weight_zero_point|input_zero_point|weight_shape"
    r"|weight_g_idx|weight\.(?:absmax|quant_map|nested_absmax|nested_quant_map|quant_state\..+)"
    r"|weight_format|SCB|qweight|qzeros|scales|blocks|g_idx|scale_inv|biases|scale|weight|bias"
    r"|[kqv]_scale|kv_scale)$"
)
MAIN_PARTS = ("weight_packed", "qweight", "blocks", "weight", "")
NEVER_WEIGHTS = frozenset(
    {"input_scale", "k_scale", "q_scale", "v_scale", "kv_scale", "input_global_scale"}
)
GGML_NAMES = frozenset(name for name, _elements, _bytes in GGML_TYPES.values())
EIGHT_BIT_SCALES = ("F8_E4M3", "F8_E8M0", "U8")
NAMES = {"F8_E4M3": "fp8", "F8_E5M2": "fp8 e5m2", "BF16": "bf16", "F16": "fp16", "F32": "fp32"}


def split_module(name: str) -> tuple[str, str]:
    """Split a tensor's name into its module and its part (`weight`, `weight_scale`, ...)."""
    match = PART.match(name)
    return (match["module"], match["part"]) if match else (name, "")


def collect_weights(
    tensors: Iterable[Tensor],
    scan: NameScan,
    *,
    bits: Bits,
    assume_bits: float | None = None,
) -> tuple[tuple[Weight, ...], tuple[str, ...]]:
    """Join each module's tensors to a weight. Also returns cautions about what was assumed."""
    modules: dict[str, dict[str, Tensor]] = {}
    for tensor in tensors:
        module, part = split_module(tensor.name)
        modules.setdefault(module, {})[part] = tensor
    cautions: dict[str, None] = {}
    weights = []
    for module, parts in modules.items():
        weight, caution = _weight(module, parts, scan, bits(module), assume_bits)
        weights.append(weight)
        if caution:
            cautions[caution] = None
    return tuple(weights), tuple(cautions)


def _weight(
    module: str,
    parts: Mapping[str, Tensor],
    scan: NameScan,
    bits: float | None,
    assume_bits: float | None,
) -> tuple[Weight, str]:
    main = next((part for part in MAIN_PARTS if part in parts), None)
    name = next(iter(parts.values())).name
    if main is None:
        label = _label(next(iter(parts.values())).dtype)
        counted = [tensor for part, tensor in parts.items() if part not in NEVER_WEIGHTS]
        num_parameters: float = sum(_num_elements(tensor) for tensor in counted)
        caution = ""
    else:
        name = parts[main].name
        label, num_parameters, caution = _unpack(parts, main, bits, assume_bits)
        num_parameters += math.prod(parts["bias"].shape) if "bias" in parts else 0
    role = role_of(name, scan)
    stacked = role in ("experts", "draft_experts") and not re.search(r"experts\.\d+\.", name)
    num_experts = parts[main].shape[0] if stacked and main is not None and parts[main].shape else 1
    return (
        Weight(
            name=module,
            role=role,
            format=label,
            num_bytes=sum(tensor.num_bytes for tensor in parts.values()),
            num_parameters=num_parameters,
            layer=split_layer(name)[0],
            num_experts=num_experts,
            num_tensors=len(parts),
        ),
        caution,
    )


def _unpack(
    parts: Mapping[str, Tensor], main: str, bits: float | None, assume_bits: float | None
) -> tuple[str, float, str]:
    """Format, logical parameters and a caution (or "") of a module with its main tensor."""
    tensor = parts[main]
    stored = math.prod(tensor.shape)
    if main == "qweight" or tensor.dtype in ("I32", "U32"):
        return _unpack_words(parts, main, bits)
    if main == "blocks" or any(part.startswith("weight.quant_state") for part in parts):
        is_nf4 = "weight.quant_state.bitsandbytes__nf4" in parts
        return "mxfp4" if main == "blocks" else ("nf4" if is_nf4 else "fp4"), 2 * stored, ""
    if tensor.dtype in ("U8", "I8"):
        return _unpack_bytes(parts, main, bits)
    if tensor.dtype not in DTYPE_BITS and tensor.dtype not in GGML_NAMES:
        return _unknown(tensor, assume_bits)
    return _plain_label(parts, tensor), stored, ""


def _plain_label(parts: Mapping[str, Tensor], tensor: Tensor) -> str:
    """The format of a tensor whose shape counts its elements."""
    scale = _first(parts, "weight_scale_inv", "scale_inv", "weight_scale", "scale", "scales")
    if tensor.dtype == "F4":
        return "mxfp4" if scale and scale.dtype == "F8_E8M0" else "nvfp4"
    is_block = scale is not None and len(scale.shape) > 1 and scale.shape[-1] > 1
    return _label(tensor.dtype) + (" block" if tensor.dtype.startswith("F8_") and is_block else "")


def _unpack_bytes(
    parts: Mapping[str, Tensor], main: str, bits: float | None
) -> tuple[str, float, str]:
    """U8 or I8: two 4-bit floats a byte if a scale stands per 16 or 32 of them, else integers."""
    stored = math.prod(parts[main].shape)
    scale = _first(parts, "weight_scale", "scale", "scales", "weight_scale_inv")
    if scale is not None and scale.dtype in EIGHT_BIT_SCALES and _num_elements(scale):
        group = 2 * stored / _num_elements(scale)
        # Scales are padded to tiles in some exports, so that a group looks smaller than it is.
        if scale.dtype == "F8_E4M3" and (main == "weight_packed" or 8 <= group <= 16):
            return "nvfp4", 2 * stored, ""
        if scale.dtype != "F8_E4M3" and (main == "weight_packed" or 16 <= group <= 32):
            return "mxfp4", 2 * stored, ""
    if main == "weight_packed" or (parts[main].dtype == "U8" and bits is not None and bits < 8):
        width = bits or 4
        return f"int{width:g}", stored * 8 / width, ""
    return "int8", stored, ""


def _unpack_words(
    parts: Mapping[str, Tensor], main: str, bits: float | None
) -> tuple[str, float, str]:
    """I32 or U32 words of packed integers (GPTQ, AWQ, compressed-tensors, MLX)."""
    tensor = parts[main]
    scales = _first(parts, "scales", "weight_scale")
    caution = ""
    width = bits or _bits_from_neighbours(parts, main)
    if width is None:
        width = 4
        caution = f"{tensor.name}: packed in {tensor.dtype} words of unstated width, taken as 4 bit"
    num_parameters = math.prod(tensor.shape) * 32 / width
    num_scales = math.prod(scales.shape) if scales else 0
    group = f" g{round(num_parameters / num_scales)}" if num_scales else ""
    return f"int{width:g}{group}", num_parameters, caution


def _bits_from_neighbours(parts: Mapping[str, Tensor], main: str) -> float | None:
    """GPTQ packs rows (g_idx has one entry a row), AWQ packs columns (scales have them all)."""
    shape = parts[main].shape
    rows = _first(parts, "g_idx", "weight_g_idx")
    if rows is not None and rows.shape:
        packed = shape[0] if main == "qweight" else shape[-1]
        return _known_width(32 * packed / rows.shape[0])
    scales = parts.get("scales")
    if main == "qweight" and scales is not None and scales.shape[-1] != shape[-1]:
        return _known_width(32 * shape[-1] / scales.shape[-1])
    return None


def _known_width(width: float) -> float | None:
    return width if width in (2, 3, 4, 5, 6, 8) else None


def _unknown(tensor: Tensor, assume_bits: float | None) -> tuple[str, float, str]:
    label = tensor.dtype.lower()
    if assume_bits is not None:
        return label, tensor.num_bytes * 8 / assume_bits, ""
    caution = (
        f"tensor {tensor.name} has the unknown dtype {tensor.dtype}: its bytes are exact, "
        "its parameters are its shape's product (--assume-bits sets their width)"
    )
    return label, math.prod(tensor.shape), caution


def _num_elements(tensor: Tensor) -> int:
    return math.prod(tensor.shape)


def _first(parts: Mapping[str, Tensor], *names: str) -> Tensor | None:
    return next((parts[name] for name in names if name in parts), None)


def _label(dtype: str) -> str:
    if dtype in GGML_NAMES and dtype not in ("F32", "F16", "BF16"):
        return dtype
    return NAMES.get(dtype, dtype.lower())
