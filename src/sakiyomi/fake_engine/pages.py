"""Metrics pages: the same counts as each engine's page shows them. Pure."""

from collections.abc import Callable, Iterable, Mapping

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
    faults: Mapping[str, FaultValue] = {}

    @property
    def k(self) -> int:
        """Positions that the page shows; 0: no series of speculation."""
        return 0 if "no_spec_series" in self.faults else self.config.k or 0


def metrics_page(state: PageState) -> str | None:
    """The page in the dialect, or None where the engine has none."""
    render = PAGES.get(state.config.dialect)
    return "".join(line + "\n" for line in render(state)) if render else None


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


def _line(name: str, labels: Labels, value: float) -> str:
    inside = ",".join(f'{key}="{label}"' for key, label in labels.items())
    return f"{name}{{{inside}}} {float(value)!r}" if inside else f"{name} {float(value)!r}"


class _Counters:
    """Writes counter families over engines, with the `*_created` gauges of prometheus_client."""

    def __init__(self, state: PageState, prefix: str) -> None:
        self.state, self.prefix = state, prefix
        faults = state.faults
        native = state.config.dialect == "vllm" and "no_created" not in faults
        self.created = native or "created_gauges" in faults

    def lines(self, name: str, samples: list[Sample]) -> list[str]:
        """Render one counter family without its `_total`."""
        lines = family("counter", f"{self.prefix}{name}_total", samples)
        if self.created:
            at_s = self.state.started_at_s
            stamps = [(labels, at_s) for labels, _ in samples]
            lines += family("gauge", f"{self.prefix}{name}_created", stamps)
        return lines


def _engines(
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


def _positions(
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


def _vllm(state: PageState) -> list[str]:
    write = _Counters(state, "vllm:").lines
    engines = _engines(state, state.live, "engine")
    lines = family("gauge", "process_start_time_seconds", [({}, state.started_at_s)])
    lines += family("gauge", "vllm:num_requests_running", _first(engines, state.num_running))
    lines += family("gauge", "vllm:num_requests_waiting", _first(engines, state.num_waiting))
    usage = min(1.0, 0.01 * state.num_running)
    lines += family("gauge", "vllm:kv_cache_usage_perc", _first(engines, usage))
    for name, read in _VLLM_COUNTERS.items():
        lines += write(name, [(labels, read(counts)) for labels, counts in engines])
    reasons = ("stop", "length", "abort", "error", "repetition")
    lines += write(
        "request_success",
        [
            (labels | {"finished_reason": reason}, counts.finished[reason])
            for labels, counts in engines
            for reason in reasons
        ],
    )
    for name, pick in (("time_to_first_token", "ttft_s"), ("inter_token_latency", "step_s")):
        samples = [(labels, getattr(counts, pick)) for labels, counts in engines]
        lines += histogram_family(f"vllm:{name}_seconds", samples)
    if state.k:
        lines += _spec_families(state, write, engines)
    return lines


_VLLM_COUNTERS: dict[str, Callable[[Counts], float]] = {
    "prompt_tokens": lambda counts: counts.num_prompt_tokens,
    "generation_tokens": lambda counts: counts.num_generated_tokens,
    "prefix_cache_queries": lambda counts: counts.num_prompt_tokens,
    "prefix_cache_hits": lambda counts: counts.num_cached_tokens,
}


def _spec_families(
    state: PageState,
    write: Callable[[str, list[Sample]], list[str]],
    engines: list[tuple[Labels, Counts]],
    *,
    late: bool = False,
) -> list[str]:
    """Render the four families that vLLM, LMDeploy and llama.cpp share by name."""
    lines: list[str] = []
    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
        samples = [(labels, getattr(counts, name)) for labels, counts in engines]
        lines += write(f"spec_decode_{name}", samples)
    positions = _positions(state, engines, late=late)
    if positions or not late:
        lines += write("spec_decode_num_accepted_tokens_per_pos", positions)
    return lines


def _first(engines: list[tuple[Labels, Counts]], value: float) -> list[Sample]:
    """Give a server-wide gauge to the first engine, zero to the others."""
    return [(labels, value if i == 0 else 0) for i, (labels, _) in enumerate(engines)]


def _llamacpp(state: PageState) -> list[str]:
    """Everything moves when the slot is released; no labels."""
    write = _Counters(state, "llamacpp:").lines
    total = Counts()
    for counts in state.finished:
        total.add(counts)
    engines: list[tuple[Labels, Counts]] = [({}, total)]
    lines: list[str] = []
    for name, value in (
        ("prompt_tokens", total.num_prompt_tokens - total.num_cached_tokens),
        ("prompt_seconds", total.prompt_s),
        ("prompt_tokens_cached", total.num_cached_tokens),
        ("tokens_predicted", total.num_generated_tokens),
        ("tokens_predicted_seconds", total.decode_s),
        ("n_decode", total.num_steps - total.num_drafts + total.num_requests),
    ):
        lines += write(name, [({}, value)])
    lines += _spec_families(state, write, engines, late=True)
    rate = total.num_generated_tokens / total.decode_s if total.decode_s else 0.0
    for name, gauge in (
        ("prompt_tokens_seconds", 0.0),
        ("predicted_tokens_seconds", rate),
        ("requests_processing", state.num_running),
        ("requests_deferred", state.num_waiting),
        ("n_busy_slots_per_decode", 1.0 if total.num_steps else 0.0),
    ):
        lines += family("gauge", f"llamacpp:{name}", [({}, gauge)])
    return lines


PAGES: dict[str, Callable[[PageState], list[str]]] = {"vllm": _vllm, "llama.cpp": _llamacpp}
