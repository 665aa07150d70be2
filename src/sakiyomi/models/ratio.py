"""Why one model reads more than another: the ratio of their bytes as a product of factors.

    ratio = active parameters x bytes per parameter x head x recurrent state x KV cache

Each factor is a quotient of running sums, so that the product is the ratio exactly:
body bytes = parameters x bytes per parameter; body + head; + state; + KV cache.
"""

import math

import msgspec

from sakiyomi.models.roofline import Prediction, num_distinct, predict
from sakiyomi.models.weights import ReadBytes


class Factor(msgspec.Struct, frozen=True, kw_only=True):
    """One factor; `first` and `second` are the two models' values in `unit`."""

    name: str
    first: float
    second: float
    unit: str
    ratio: float


class ModelRatio(msgspec.Struct, frozen=True, kw_only=True):
    """Read bytes of the first model over those of the second, and what they come from.

    `attainment` is what is left of the ratio of measured times when the bytes are taken out:
    how much nearer the first model runs to its ceiling. None without speeds.
    """

    first: str
    second: str
    bytes_ratio: float
    factors: tuple[Factor, ...]
    time_ratio: float | None = None
    attainment: float | None = None


def compare_reads(
    first: ReadBytes,
    second: ReadBytes,
    *,
    context: float,
    batch: int,
    tokens_per_s: tuple[float, float] | None = None,
) -> ModelRatio:
    """Factor the ratio of two plain steps. `tokens_per_s` are measured plain speeds, if any."""
    steps = [predict(read, None, context=context, batch=batch, k=0) for read in (first, second)]
    parameters = [_body_parameters(read, batch) for read in (first, second)]
    body, head, state = (
        [_sum_without(step, left_out) for step in steps]
        for left_out in (("head", "state", "kv"), ("state", "kv"), ("kv",))
    )
    total = [step.plain_bytes for step in steps]
    factors = (
        _factor("active parameters", "billion, without head", [size / 1e9 for size in parameters]),
        _factor("bytes per parameter", "B", _each(body, parameters)),
        _factor("head", "x of the body", _each(head, body)),
        _factor("recurrent state", "x of the weights", _each(state, head)),
        _factor("KV cache", "x of weights and state", _each(total, state)),
    )
    bytes_ratio = math.prod(factor.ratio for factor in factors)
    time_ratio = tokens_per_s[1] / tokens_per_s[0] if tokens_per_s else None
    return ModelRatio(
        first=first.name,
        second=second.name,
        bytes_ratio=bytes_ratio,
        factors=factors,
        time_ratio=time_ratio,
        attainment=time_ratio / bytes_ratio if time_ratio else None,
    )


def _body_parameters(read: ReadBytes, batch: int) -> float:
    chosen = sum(
        group.num_parameters
        * num_distinct(group, batch=batch, k=0, routing="independent")
        / group.num_experts
        for group in read.experts
    )
    return read.always_parameters + chosen


def _sum_without(step: Prediction, names: tuple[str, ...]) -> float:
    return sum(part.num_bytes for part in step.plain_parts if part.name not in names)


def _each(upper: list[float], lower: list[float]) -> list[float]:
    return [above / below for above, below in zip(upper, lower, strict=True)]


def _factor(name: str, unit: str, values: list[float]) -> Factor:
    first, second = values
    return Factor(name=name, first=first, second=second, unit=unit, ratio=first / second)
