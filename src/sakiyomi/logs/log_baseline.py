"""Times of real traffic: what a log says of production, kept apart from what is measured. Pure."""

import random
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from sakiyomi.logs.log_times import Timing
from sakiyomi.logs.logged import Logged, SamplingSeen

BASELINE_SCHEMA = "sakiyomi.baseline/1"
MAX_VALUES = 5_000
"""Of more values a random part is kept: medians need no more."""

MAX_NAMES = 1000
"""Distinct models and sampling values that are counted."""

MIN_OUTPUTS_FOR_CAP = 20
HOW = {
    "ttft_s": "first token - start, as the logging tool saw them; streamed answers only",
    "e2e_s": "end - start, as the logging tool saw them",
    "decode_tokens_per_s": "(completion tokens - 1) / (e2e - ttft)",
    "prompt_tokens": "the server's count",
    "completion_tokens": "the server's count",
}


class Quantity(msgspec.Struct, frozen=True, kw_only=True):
    """Quantiles of one quantity over requests. They are no measurement and have no interval."""

    median: float
    p10: float
    p90: float
    n: int
    how: str


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """`NAME.baseline.json`, beside the scenario."""

    schema: str
    scenario: str
    source: str
    num_requests: int
    num_failed: int
    first_at_s: float | None
    last_at_s: float | None
    models: dict[str, int]
    quantities: dict[str, Quantity]
    left_out: dict[str, int]
    notes: tuple[str, ...]


class _Values:
    """Values of one quantity: all of them up to MAX_VALUES, then a uniform sample (algorithm R)."""

    def __init__(self, seed: int) -> None:
        self.num = 0
        self.kept = array("d")
        self._random = random.Random(seed)

    def add(self, value: float) -> None:
        self.num += 1
        if len(self.kept) < MAX_VALUES:
            self.kept.append(value)
        elif (place := self._random.randrange(self.num)) < MAX_VALUES:
            self.kept[place] = value


class BaselineReader:
    """Times and sampling values while the log is read; `add` each request, then ask."""

    def __init__(self, seed: int) -> None:
        self._values = {name: _Values(seed) for name in HOW}
        self._num = self._num_failed = 0
        self._span: tuple[float, float] | None = None
        self._models: Counter[str] = Counter()
        self._left_out: Counter[str] = Counter()
        self._sampling: dict[str, Counter[Any]] = {
            name: Counter() for name in SamplingSeen.__struct_fields__
        }

    def add(self, logged: Logged) -> None:
        """Take one request into account."""
        timing = logged.timing
        self._num += 1
        self._num_failed += timing.failed
        if timing.distrust:
            self._left_out[timing.distrust] += 1
        if (at := timing.started_at_s) is not None:
            low, high = self._span or (at, at)
            self._span = min(low, at), max(high, at)
        if logged.model:
            _count(self._models, logged.model)
        for name, counts in self._sampling.items():
            if (value := getattr(logged.sampled, name)) is not None:
                _count(counts, value)
        if not timing.failed:
            for name, value in _quantities(timing).items():
                self._values[name].add(value)

    def baseline(self, scenario: str, formats: Sequence[str]) -> Baseline | None:
        """What production looked like; None when the log has neither times nor counts."""
        quantities = {
            name: _quantity(values, HOW[name])
            for name, values in self._values.items()
            if values.num
        }
        if not quantities:
            return None
        notes = [
            (
                "production numbers from a log, not measured by sakiyomi: load, network, gateway "
                "and caches of that time are in them; compare runs with runs"
            ),
        ]
        if not {"ttft_s", "e2e_s"} & set(quantities):
            notes.append("the log has token counts and no times that can be used")
        elif "ttft_s" not in quantities:
            notes.append("no time of the first token: not logged, or answers were not streamed")
        return Baseline(
            schema=BASELINE_SCHEMA,
            scenario=scenario,
            source=", ".join(formats),
            num_requests=self._num,
            num_failed=self._num_failed,
            first_at_s=self._span[0] if self._span else None,
            last_at_s=self._span[1] if self._span else None,
            models=dict(self._models.most_common(5)),
            quantities=quantities,
            left_out=dict(self._left_out),
            notes=tuple(notes),
        )

    def sampling(self) -> tuple[dict[str, Any], list[str]]:
        """The most frequent value of each sampling parameter, and a line on where it is from.

        Without a cap in the requests it comes from the lengths of the answers (90 %).
        """
        found: dict[str, Any] = {}
        origins: list[str] = []
        for name, counts in self._sampling.items():
            if counts:
                value, num = counts.most_common(1)[0]
                found[name] = value
                share = num / self._num
                origins.append(f"{name} {value} (in {share:.0%} of the requests)")
        outputs = self._values["completion_tokens"]
        if "max_tokens" not in found and outputs.num >= MIN_OUTPUTS_FOR_CAP:
            longest = _quantile(sorted(outputs.kept), 0.9)
            found["max_tokens"] = max(64, -(-int(longest) // 64) * 64)
            origins.append(f"max_tokens {found['max_tokens']} (covers 90% of the logged answers)")
        return found, origins


def _quantities(timing: Timing) -> Mapping[str, float]:
    values = {
        name: getattr(timing, name)
        for name in ("ttft_s", "e2e_s", "prompt_tokens", "completion_tokens")
    }
    tokens, first_s, all_s = timing.completion_tokens, timing.ttft_s, timing.e2e_s
    if tokens and tokens > 1 and first_s is not None and all_s is not None and all_s > first_s:
        values["decode_tokens_per_s"] = (tokens - 1) / (all_s - first_s)
    return {name: value for name, value in values.items() if value is not None}


def _quantity(values: _Values, how: str) -> Quantity:
    ranked = sorted(values.kept)
    if values.num > len(ranked):
        how += f"; quantiles of a random {len(ranked)} of them"
    return Quantity(
        median=_quantile(ranked, 0.5),
        p10=_quantile(ranked, 0.1),
        p90=_quantile(ranked, 0.9),
        n=values.num,
        how=how,
    )


def _quantile(ranked: Sequence[float], share: float) -> float:
    """Linear between order statistics (R's type 7, numpy's default)."""
    place = share * (len(ranked) - 1)
    low = int(place)
    high = min(low + 1, len(ranked) - 1)
    return float(f"{ranked[low] + (ranked[high] - ranked[low]) * (place - low):.6g}")


def _count(counts: Counter[Any], value: Any) -> None:
    if value in counts or len(counts) < MAX_NAMES:
        counts[value] += 1
