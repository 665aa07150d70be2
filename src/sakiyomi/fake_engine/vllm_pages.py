"""Metrics pages of vLLM, and of LMDeploy and llama.cpp, whose families have its names. Pure."""

from collections.abc import Callable, Sequence

from sakiyomi.fake_engine.counts import Counts
from sakiyomi.fake_engine.page_text import (
    Counters,
    Labels,
    PageState,
    Sample,
    engine_series,
    family,
    histogram_family,
    position_samples,
    total_of,
)


def vllm_page(state: PageState) -> list[str]:
    """Everything moves with every step; gauges are of the whole server."""
    write = Counters(state, "vllm:").lines
    engines = engine_series(state, state.live, "engine")
    lines = family("gauge", "process_start_time_seconds", [({}, state.started_at_s)])
    lines += family("gauge", "vllm:num_requests_running", first_only(engines, state.num_running))
    lines += family("gauge", "vllm:num_requests_waiting", first_only(engines, state.num_waiting))
    usage = min(1.0, 0.01 * state.num_running)
    lines += family("gauge", "vllm:kv_cache_usage_perc", first_only(engines, usage))
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
    write: Callable[[str, Sequence[Sample]], list[str]],
    engines: list[tuple[Labels, Counts]],
    *,
    late: bool = False,
) -> list[str]:
    """Render the four families that vLLM, LMDeploy and llama.cpp share by name."""
    lines: list[str] = []
    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
        samples = [(labels, getattr(counts, name)) for labels, counts in engines]
        lines += write(f"spec_decode_{name}", samples)
    positions = position_samples(state, engines, late=late)
    if positions or not late:
        lines += write("spec_decode_num_accepted_tokens_per_pos", positions)
    return lines


def first_only(engines: list[tuple[Labels, Counts]], value: float) -> list[Sample]:
    """Give a server-wide gauge to the first engine, zero to the others."""
    return [(labels, value if i == 0 else 0) for i, (labels, _) in enumerate(engines)]


def lmdeploy_page(state: PageState) -> list[str]:
    """Counters move with every step; the gauges are means of the whole life."""
    write = Counters(state, "lmdeploy:").lines
    engines = engine_series(state, state.live, "engine")
    lines: list[str] = []
    for name, value in (
        ("num_requests_running", state.num_running),
        ("num_requests_waiting", state.num_waiting),
        ("gpu_cache_usage_perc", 0.0),
    ):
        lines += family("gauge", f"lmdeploy:{name}", first_only(engines, value))
    for name, read in _LMDEPLOY_COUNTERS.items():
        lines += write(name, [(labels, read(counts)) for labels, counts in engines])
    reasons = ("stop", "length", "abort")
    finished = [
        (labels | {"finished_reason": reason}, counts.finished[reason])
        for labels, counts in engines
        for reason in reasons
    ]
    lines += write("request_success", finished)
    samples = [(labels, counts.step_s) for labels, counts in engines]
    lines += histogram_family("lmdeploy:iter_token_latency", samples)
    if state.k:
        lines += _spec_families(state, write, engines, late=True)
        lines += _lmdeploy_means(engines)
    return lines


_LMDEPLOY_COUNTERS: dict[str, Callable[[Counts], float]] = {
    "prompt_tokens": lambda counts: counts.num_prompt_tokens,
    "cached_tokens": lambda counts: counts.num_cached_tokens,
    "generation_tokens": lambda counts: counts.num_generated_tokens,
}


def _lmdeploy_means(engines: list[tuple[Labels, Counts]]) -> list[str]:
    """Render the life-time means beside the counters."""
    rates = [
        (labels, counts.num_accepted_tokens / max(counts.num_draft_tokens, 1))
        for labels, counts in engines
    ]
    lengths = [
        (labels, 1 + counts.num_accepted_tokens / max(counts.num_drafts, 1))
        for labels, counts in engines
    ]
    lines = family("gauge", "lmdeploy:spec_decode_mean_accept_rate", rates)
    return lines + family("gauge", "lmdeploy:spec_decode_mean_accept_length", lengths)


def llamacpp_page(state: PageState) -> list[str]:
    """Everything moves when the slot is released; no labels."""
    write = Counters(state, "llamacpp:").lines
    total = total_of(state.finished)
    engines: list[tuple[Labels, Counts]] = [({}, total)]
    lines: list[str] = []
    for name, value in (
        ("prompt_tokens", total.num_prompt_tokens - total.num_cached_tokens),
        ("prompt_seconds", total.prompt_s),
        ("prompt_tokens_cached", total.num_cached_tokens),
        ("tokens_predicted", total.num_generated_tokens),
        ("tokens_predicted_seconds", total.decode_s),
        ("n_decode", total.num_steps + total.num_requests),
    ):
        lines += write(name, [({}, value)])
    lines += _spec_families(state, write, engines, late=True)
    rate = total.num_generated_tokens / total.decode_s if total.decode_s else 0.0
    for name, gauge in (
        ("prompt_tokens_seconds", 0.0),
        ("predicted_tokens_seconds", rate),
        ("n_tokens_max", 0),
        ("requests_processing", state.num_running),
        ("requests_deferred", state.num_waiting),
        ("n_busy_slots_per_decode", 1.0 if total.num_steps else 0.0),
    ):
        lines += family("gauge", f"llamacpp:{name}", [({}, gauge)])
    return lines
