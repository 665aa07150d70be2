"""A metrics page in Prometheus text form -> samples; the counters that are fine stay readable.

Pages lie in known ways: a whole page as one JSON string (ggml-org/llama.cpp#17384), a byte order
mark, NaN values, `_created` twins of every counter. Callers ask for exact sample names, so a
`_created` gauge never meets a counter.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from sakiyomi.errors import MetricsError

SHOWN_CHARACTERS = 60
"""How much of a body that is no metrics page an error shows."""

RANK_LABELS = ("tp_rank", "pp_rank", "moe_ep_rank")
"""Ranks of one scheduler: each repeats the same count, so one of them stands for all."""


class Sample(msgspec.Struct, frozen=True):
    """One finite sample of a page."""

    name: str
    labels: dict[str, str]
    value: float


class Page(msgspec.Struct, frozen=True):
    """The finite samples of a page by their exact name, and what was odd about it."""

    samples: dict[str, tuple[Sample, ...]]
    notes: tuple[str, ...] = ()

    def select(self, name: str) -> tuple[Sample, ...]:
        """All samples of this exact name."""
        return self.samples.get(name, ())

    def total(self, *names: str) -> float | None:
        """Sum over the series of the first of `names` that is there; None when none is."""
        for name in names:
            if found := self.select(name):
                return math.fsum(sample.value for sample in one_per_scheduler(found))
        return None

    def has_prefix(self, prefix: str) -> bool:
        """Whether any family of an engine (`vllm:`) is on the page."""
        return any(name.startswith(prefix) for name in self.samples)


def read_page(text: str) -> Page:
    """Parse a page. Raises MetricsError with the first characters when it is none."""
    notes: list[str] = []
    body = text.removeprefix("\ufeff").removeprefix("ï»¿")
    if body.lstrip().startswith('"'):
        body = _unquoted(body)
        notes.append("the page came as one JSON string and was unquoted")
    start = body.lstrip()[:1]
    if start in ("", "<", "{", "["):
        raise _not_metrics(text)
    try:
        samples = [
            sample for family in text_string_to_metric_families(body) for sample in family.samples
        ]
    except ValueError:
        samples, skipped = _line_by_line(body)
        if not samples:
            raise _not_metrics(text) from None
        notes.append(f"{len(skipped)} unreadable lines skipped, the first: {skipped[0]!r}")
    grouped: dict[str, list[Sample]] = {}
    num_not_finite = 0
    for name, labels, value, *_ in samples:
        if not math.isfinite(value):
            num_not_finite += 1
            continue
        grouped.setdefault(name, []).append(Sample(name, dict(labels), float(value)))
    if num_not_finite:
        notes.append(f"{num_not_finite} samples without a finite value left out")
    return Page({name: tuple(group) for name, group in grouped.items()}, tuple(notes))


def models_of(page: Page, prefix: str, label: str = "model_name") -> tuple[str, ...]:
    """The models that families with this prefix name, sorted."""
    return tuple(
        sorted(
            {
                sample.labels[label]
                for name, group in page.samples.items()
                if name.startswith(prefix)
                for sample in group
                if sample.labels.get(label)
            }
        )
    )


def of_model(page: Page, model: str | None, label: str = "model_name") -> Page:
    """The page with other models' series left out, when `model` is given and on the page."""
    named = {s.labels[label] for group in page.samples.values() for s in group if label in s.labels}
    if model is None or model not in named:
        return page
    kept = {
        name: tuple(s for s in group if s.labels.get(label, model) == model)
        for name, group in page.samples.items()
    }
    return Page({name: group for name, group in kept.items() if group}, page.notes)


def series_keys(samples: Iterable[Sample], labels: tuple[str, ...]) -> dict[str, list[Sample]]:
    """Samples grouped by the labels that tell engines apart: `engine=0`; `""` without any."""
    grouped: dict[str, list[Sample]] = {}
    for sample in one_per_scheduler(samples):
        grouped.setdefault(series_key(sample.labels, labels), []).append(sample)
    return grouped


def series_key(labels: Mapping[str, str], wanted: tuple[str, ...]) -> str:
    """`engine=0,replica=a` from those of the `wanted` labels that are there."""
    return ",".join(f"{name}={labels[name]}" for name in wanted if name in labels)


def one_per_scheduler(samples: Iterable[Sample]) -> list[Sample]:
    """Leave one tensor, pipeline or expert rank of each scheduler: they count the same tokens."""
    chosen: dict[frozenset[tuple[str, str]], Sample] = {}
    for sample in samples:
        rest = frozenset((k, v) for k, v in sample.labels.items() if k not in RANK_LABELS)
        if rest not in chosen or _rank(sample) < _rank(chosen[rest]):
            chosen[rest] = sample
    return list(chosen.values())


def by_position(samples: Iterable[Sample], label: str) -> tuple[float, ...] | None:
    """Counts ordered by their numeric position label, summed over series; None without any."""
    counts: dict[int, float] = {}
    for sample in samples:
        if sample.labels.get(label, "").isdigit():
            position = int(sample.labels[label])
            counts[position] = counts.get(position, 0.0) + sample.value
    if not counts:
        return None
    return tuple(counts.get(position, 0.0) for position in range(max(counts) + 1))


def _rank(sample: Sample) -> tuple[int, ...]:
    ranks = (sample.labels.get(name, "0") for name in RANK_LABELS)
    return tuple(int(rank) if rank.isdigit() else 0 for rank in ranks)


def _unquoted(body: str) -> str:
    try:
        decoded = msgspec.json.decode(body.strip())
    except msgspec.DecodeError as error:
        raise _not_metrics(body) from error
    return str(decoded)


def _line_by_line(body: str) -> tuple[list[Any], list[str]]:
    """Samples of the readable lines, and the lines that are not (`-nan(ind)`, cut lines)."""
    samples: list[Any] = []
    skipped: list[str] = []
    for line in body.splitlines():
        try:
            samples += [
                s for family in text_string_to_metric_families(line) for s in family.samples
            ]
        except ValueError:
            skipped.append(line[:SHOWN_CHARACTERS])
    return samples, skipped


def _not_metrics(text: str) -> MetricsError:
    shown = text[:SHOWN_CHARACTERS]
    if not text.strip():
        return MetricsError(
            "the metrics page is empty", "is this the engine's own metrics address?"
        )
    hint = "give the address of a Prometheus page with --metrics-url"
    if text.startswith("\x1f"):
        hint = "the body is compressed without saying so: turn compression off in the proxy"
    return MetricsError(f"not a Prometheus metrics page; it starts with {shown!r}", hint)
