"""Metrics pages of SGLang, TensorRT-LLM, TGI and OpenVINO Model Server. Pure."""

from collections.abc import Callable

from sakiyomi.fake_engine.counts import Counts
from sakiyomi.fake_engine.page_text import (
    Counters,
    Labels,
    PageState,
    Sample,
    family,
    histogram_family,
    total_of,
)


def sglang_page(state: PageState) -> list[str]:
    """Counters move when a request ends, gauges every 40 decode steps, the realtime ones live."""
    model = {"model_name": state.config.model}
    total, live = total_of(state.finished), total_of(state.live)
    write = Counters(state, "sglang:").lines
    lines: list[str] = []
    for name, value in (
        ("prompt_tokens", total.num_prompt_tokens),
        ("generation_tokens", total.num_generated_tokens),
        ("num_requests", total.num_requests),
    ):
        lines += write(name, [(model | {"is_streaming": "true"}, value)])
    cached = model | {"cache_source": "device"}
    lines += write("cached_tokens", [(cached, total.num_cached_tokens)])
    if "no_spec_series" not in state.faults:
        lines += write("spec_verify_calls", [(model, total.num_drafts)])
    for name, histogram in (
        ("time_to_first_token_seconds", total.ttft_s),
        ("inter_token_latency_seconds", live.token_s),
    ):
        lines += histogram_family(f"sglang:{name}", [(model, histogram)])
    decoded = live.num_generated_tokens - live.num_prefills
    prefilled = live.num_prompt_tokens - live.num_cached_tokens
    modes = [
        (model | {"mode": "decode"}, decoded),
        (model | {"mode": "prefill_compute"}, prefilled),
    ]
    lines += write("realtime_tokens", modes)
    graphs = [(model | {"mode": "decode_cuda_graph"}, live.num_steps)]
    lines += write("cuda_graph_passes", graphs)
    return lines + _sglang_gauges(state)


def _sglang_gauges(state: PageState) -> list[str]:
    """Gauges of the scheduler: one series per data parallel rank, repeated per tensor rank."""
    num_ranks = int(state.faults.get("tp_ranks", 1))
    base = {"model_name": state.config.model, "engine_type": "unified", "pp_rank": "0"}
    ranks = [
        (index, base | {"dp_rank": str(index), "tp_rank": str(rank)})
        for index in range(len(state.live))
        for rank in range(num_ranks)
    ]
    lines: list[str] = []
    for name, read in _SGLANG_GAUGES.items():
        samples = [(labels, read(state, index)) for index, labels in ranks]
        lines += family("gauge", f"sglang:{name}", samples)
    return lines


_SGLANG_GAUGES: dict[str, Callable[[PageState, int], float]] = {
    "num_running_reqs": lambda state, index: 0 if index else state.num_running,
    "num_queue_reqs": lambda state, index: 0 if index else state.num_waiting,
    "token_usage": lambda _state, _index: 0.0,
    "gen_throughput": lambda _state, _index: 0.0,
    "spec_accept_length": lambda state, index: state.windows[index][0],
    "spec_accept_rate": lambda state, index: state.windows[index][1],
    "spec_num_steps": lambda state, _index: state.k,
    "spec_num_draft_tokens": lambda state, _index: state.k + 1 if state.k else 0,
}


def trtllm_page(state: PageState) -> list[str]:
    """`/prometheus/metrics`: positions move at request end; iteration totals undercount."""
    labels = {"model_name": state.config.model, "engine_type": "trtllm"}
    total = total_of(state.finished)
    write = Counters(state, "trtllm_").lines
    lines: list[str] = []
    for name, value in (
        ("prompt_tokens", total.num_prompt_tokens),
        ("prompt_cached_tokens", total.num_cached_tokens),
        ("generation_tokens", total.num_generated_tokens),
    ):
        lines += write(name, [(labels, value)])
    reasons = [
        (labels | {"finished_reason": reason}, total.finished[reason])
        for reason in ("stop", "length")
    ]
    lines += write("request_success", reasons)
    lines += histogram_family("trtllm_time_to_first_token_seconds", [(labels, total.ttft_s)])
    for name, gauge in (
        ("num_requests_running", state.num_running),
        ("num_requests_waiting", state.num_waiting),
        ("kv_cache_utilization", 0.0),
    ):
        lines += family("gauge", f"trtllm_{name}", [(labels, gauge)])
    return lines + (_trtllm_speculation(state, labels, total) if state.k else [])


def _trtllm_speculation(state: PageState, labels: Labels, total: Counts) -> list[str]:
    write = Counters(state, "trtllm_").lines
    lines = write("spec_decode_num_draft_tokens", [(labels, total.last_draft_tokens)])
    lines += write("spec_decode_num_accepted_tokens", [(labels, total.last_accepted_tokens)])
    length = 1 + total.num_accepted_tokens / max(total.num_drafts, 1)
    lines += family("gauge", "trtllm_spec_decode_acceptance_length", [(labels, length)])
    for name, counts in (
        ("drafted", total.drafted_per_position),
        ("accepted", total.accepted_per_position),
    ):
        samples: list[Sample] = [
            (labels | {"token_position": str(position)}, counts[position])
            for position in range(state.k)
            if counts[position] or total.num_drafts
        ]
        lines += write(f"spec_decode_{name}_tokens", samples)
    return lines


def tgi_page(state: PageState) -> list[str]:
    """One observation of tokens - 1 per generation step; the crate's names without `_total`."""
    total = total_of(state.live)
    lines = family("counter", "tgi_request_count", [({"method": "generate"}, total.num_prefills)])
    done = total.finished["stop"] + total.finished["length"]
    lines += family("counter", "tgi_request_success", [({"method": "generate"}, done)])
    decodes = [({"method": "decode"}, total.num_steps), ({"method": "prefill"}, total.num_prefills)]
    lines += family("counter", "tgi_batch_inference_count", decodes)
    lines += family("gauge", "tgi_queue_size", [({}, state.num_waiting)])
    lines += family("gauge", "tgi_batch_current_size", [({}, state.num_running)])
    name = "tgi_request_skipped_tokens"
    lines += [f"# TYPE {name} histogram"]
    running = 0
    for bound in range((state.config.k or 0) + 1):
        running += total.skipped[bound]
        lines.append(f'{name}_bucket{{le="{bound}"}} {running}')
    skipped = sum(tokens * times for tokens, times in total.skipped.items())
    lines.append(f'{name}_bucket{{le="+Inf"}} {total.skipped.total()}')
    return [*lines, f"{name}_sum {skipped}", f"{name}_count {total.skipped.total()}"]


def ovms_page(state: PageState) -> list[str]:
    """Requests only."""
    total = total_of(state.finished)
    labels = {"name": state.config.model, "api": "V3", "interface": "REST", "method": "Stream"}
    lines = family("counter", "ovms_requests_success", [(labels, total.num_requests)])
    current = [({"name": state.config.model}, state.num_running)]
    return lines + family("gauge", "ovms_current_requests", current)
