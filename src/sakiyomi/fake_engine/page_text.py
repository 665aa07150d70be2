"""Prometheus text: families of counters, gauges and histograms over engines. Pure."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from sakiyomi.fake_engine.config import FakeEngine, FaultValue
from sakiyomi.fake_engine.counts import Counts, Histogram

Labels = dict[str, str]
Sample = tuple[Labels, float]


class PageState(msgspec.Struct, frozen=True, kw_only=True):
    """What a page is drawn from; `live` and `finished` have one entry per engine.

    `live` moves with every step, `finished` when a request ends. `started_at_s` is Unix time.
    """

    config: FakeEngine
    live: tuple[Counts, ...]
    finished: tuple[Counts, ...]
    num_running: int = 0
    num_waiting: int = 0
    started_at_s: float = 0.0
    windows: tuple[tuple[float, float], ...] = ()
    """Per engine: acceptance length and rate of the last full window of decode steps."""
    faults: Mapping[str, FaultValue] = {}

    @property
    def k(self) -> int:
        """Positions that the page shows; 0: no series of speculation."""
        return 0 if "no_spec_series" in self.faults else self.config.k or 0


def family(kind: str, name: str, samples: Iterable[Sample]) -> list[str]:
    """Render a counter or gauge family; its samples carry the family's own name."""
    head = [f"# HELP {name} Scripted.", f"# TYPE {name} {kind}"]
    return head + [_line(name, labels, value) for labels, value in samples]


def histogram_family(name: str, samples: Iterable[tuple[Labels, Histogram]]) -> list[str]:
    """Render a histogram family: cumulative buckets, count and sum."""
    lines = [f"# HELP {name} Scripted.", f"# TYPE {name} histogram"]
    for labels, histogram in samples:
        running = 0
        bounds = [*(str(bound) for bound in histogram.bounds), "+Inf"]
        for bound, count in zip(bounds, histogram.counts, strict=True):
            running += count
            lines.append(_line(f"{name}_bucket", labels | {"le": bound}, running))
        lines.append(_line(f"{name}_count", labels, running))
        lines.append(_line(f"{name}_sum", labels, histogram.total))
    return lines


def total_of(counts: Iterable[Counts]) -> Counts:
    """Sum over engines."""
    total = Counts()
    for one in counts:
        total.add(one)
    return total


def _line(name: str, labels: Labels, value: float) -> str:
    inside = ",".join(f'{key}="{label}"' for key, label in labels.items())
    return f"{name}{{{inside}}} {float(value)!r}" if inside else f"{name} {float(value)!r}"


class Counters:
    """Writes counter families over engines, with the `*_created` gauges of prometheus_client."""

    def __init__(self, state: PageState, prefix: str) -> None:
        self.state, self.prefix = state, prefix
        faults = state.faults
        # the others run prometheus_client in multiprocess mode, which has none, or have their own
        native = state.config.dialect in {"vllm", "lmdeploy"} and "no_created" not in faults
        self.created = native or "created_gauges" in faults

    def lines(self, name: str, samples: Sequence[Sample]) -> list[str]:
        """Render one counter family without its `_total`."""
        lines = family("counter", f"{self.prefix}{name}_total", samples)
        if self.created:
            at_s = self.state.started_at_s
            stamps = [(labels, at_s) for labels, _ in samples]
            lines += family("gauge", f"{self.prefix}{name}_created", stamps)
        return lines


def engine_series(
    state: PageState, counts: tuple[Counts, ...], label: str
) -> list[tuple[Labels, Counts]]:
    """Give each engine's counts their labels; another model's series too under `extra_model`."""
    found = [
        ({label: str(index), "model_name": state.config.model}, one)
        for index, one in enumerate(counts)
    ]
    if "extra_model" in state.faults:
        other = Counts(
            num_drafts=1000,
            num_draft_tokens=1000 * max(state.k, 1),
            num_accepted_tokens=100,
            num_generated_tokens=1100,
            num_steps=1000,
            num_prompt_tokens=500,
        )
        other.accepted_per_position[0] = 100
        found.append(({label: "0", "model_name": "other-model"}, other))
    return found


def position_samples(
    state: PageState, engines: list[tuple[Labels, Counts]], *, late: bool = False
) -> list[Sample]:
    """One sample per engine and position; `late`: only positions that ever counted."""
    late = late or "late_position" in state.faults
    return [
        (labels | {"position": str(position)}, counts.accepted_per_position[position])
        for labels, counts in engines
        for position in range(state.k)
        if not late or counts.accepted_per_position[position]
    ]
