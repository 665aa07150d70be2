"""Bytes of a parameter by storage format, scales and zero points counted."""

BYTES_PER_PARAMETER: dict[str, float] = {
    "fp32": 4,
    "bf16": 2,
    "fp16": 2,
    "int8": 1,
    "fp8": 1,
    "fp8 block": 1 + 4 / (128 * 128),  # one fp32 scale per 128 x 128 block
    "mxfp8": 1 + 1 / 32,  # an e8m0 scale per 32
    "nvfp4": (4 + 8 / 16) / 8,  # an fp8 scale per 16
    "mxfp4": (4 + 8 / 32) / 8,  # an e8m0 scale per 32
    "int4 g128 asymmetric": 0.5 + (2 + 0.5) / 128,  # fp16 scale and 4-bit zero point per 128
    "int4 g128": 0.5 + 2 / 128,
    "Q2_K": 84 / 256,
    "Q3_K": 110 / 256,
    "Q4_0": 18 / 32,
    "IQ4_NL": 18 / 32,
    "IQ4_XS": 136 / 256,
    "Q4_K": 144 / 256,
    "Q5_K": 176 / 256,
    "Q6_K": 210 / 256,
    "Q8_0": 34 / 32,
}


def integer_bytes(bits: float, group_size: int | None, *, zero_point: bool) -> float:
    """Bytes of a parameter of grouped integers: an fp16 scale, and a zero point, per group."""
    if not group_size or group_size < 0:
        return bits / 8
    return bits / 8 + (2 + (bits / 8 if zero_point else 0)) / group_size
