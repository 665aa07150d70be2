"""Metric families of the engines that others pass through or imitate -> counters per series."""

import math
from collections.abc import Mapping
from typing import Any

from sakiyomi.engines.prometheus import Page, by_position, series_keys
from sakiyomi.record import SeriesCounters, SpecDecodeCounters, SpecDecodeGauge

SCRAPER_LABELS = ("instance", "pod", "worker_id", "WorkerId", "ReplicaId")
"""Labels that a scraper, Ray or Dynamo adds to tell processes apart."""

VLLM_FIELDS = {
    "num_generated_tokens": ("generation_tokens_total",),
    "num_decode_steps": (
        "inter_token_latency_seconds_count",
        "time_per_output_token_seconds_count",
    ),
    "num_requests_finished": ("request_success_total",),
    "prefix_cache_queries": ("prefix_cache_queries_total",),
    "prefix_cache_hits": ("prefix_cache_hits_total",),
}
"""`inter_token_latency` has one observation per decode step of a request
(vllm/v1/metrics/loggers.py), under an older name before 0.11."""

LMDEPLOY_FIELDS = {
    "num_generated_tokens": ("generation_tokens_total",),
    "num_decode_steps": ("iter_token_latency_count",),
    "num_requests_finished": ("request_success_total",),
    "prefix_cache_queries": ("prompt_tokens_total",),
    "prefix_cache_hits": ("cached_tokens_total",),
}

TRTLLM_FIELDS = {
    "num_generated_tokens": ("generation_tokens_total",),
    "num_requests_finished": ("request_success_total",),
    "prefix_cache_queries": ("prompt_tokens_total",),
    "prefix_cache_hits": ("prompt_cached_tokens_total",),
}


def plain_series(
    page: Page, prefix: str, fields: Mapping[str, tuple[str, ...]], labels: tuple[str, ...]
) -> dict[str, dict[str, Any]]:
    """Sums by series key of each field's first family that is there."""
    found: dict[str, dict[str, Any]] = {}
    for field, names in fields.items():
        samples = next((s for name in names if (s := page.select(prefix + name))), ())
        for key, group in series_keys(samples, labels).items():
            found.setdefault(key, {})[field] = math.fsum(sample.value for sample in group)
    return found


def vllm_series(
    page: Page,
    prefix: str,
    fields: Mapping[str, tuple[str, ...]],
    labels: tuple[str, ...],
) -> dict[str, SeriesCounters]:
    """vLLM's four `spec_decode` counters, which LMDeploy has too, beside the plain ones."""
    found = plain_series(page, prefix, fields, labels)
    spec = prefix + "spec_decode_num_"
    drafts = series_keys(page.select(spec + "drafts_total"), labels)
    drafted = series_keys(page.select(spec + "draft_tokens_total"), labels)
    accepted = series_keys(page.select(spec + "accepted_tokens_total"), labels)
    positions = series_keys(page.select(spec + "accepted_tokens_per_pos_total"), labels)
    for key, group in drafts.items():
        found.setdefault(key, {})["speculation"] = SpecDecodeCounters(
            num_drafts=math.fsum(s.value for s in group),
            num_draft_tokens=math.fsum(s.value for s in drafted.get(key, [])),
            num_accepted_tokens=math.fsum(s.value for s in accepted.get(key, [])),
            accepted_per_position=by_position(positions.get(key, []), "position"),
        )
    return {key: SeriesCounters(**values) for key, values in sorted(found.items())}


def trtllm_series(page: Page, labels: tuple[str, ...]) -> dict[str, SeriesCounters]:
    """TensorRT-LLM's counters by position, with proposed tokens by position beside them.

    The totals over iterations (`spec_decode_num_*`) are not read: the collector logs only the
    latest of the queued iterations, so they undercount (tensorrt_llm/metrics/collector.py).
    """
    found = plain_series(page, "trtllm_", TRTLLM_FIELDS, labels)
    drafted = series_keys(page.select("trtllm_spec_decode_drafted_tokens_total"), labels)
    accepted = series_keys(page.select("trtllm_spec_decode_accepted_tokens_total"), labels)
    for key, group in drafted.items():
        proposed = by_position(group, "token_position") or ()
        taken = by_position(accepted.get(key, []), "token_position") or ()
        taken = (*taken, *(0.0,) * (len(proposed) - len(taken)))
        found.setdefault(key, {})["speculation"] = SpecDecodeCounters(
            num_drafts=proposed[0] if proposed else None,
            num_draft_tokens=math.fsum(proposed),
            num_accepted_tokens=math.fsum(taken),
            accepted_per_position=taken,
        )
    return {key: SeriesCounters(**values) for key, values in sorted(found.items())}


def without_priorities(page: Page) -> Page:
    """SGLang's page without the parts of a total that carry a priority; the total's is empty."""
    kept = {
        name: tuple(s for s in group if not s.labels.get("priority"))
        for name, group in page.samples.items()
    }
    return Page({name: group for name, group in kept.items() if group}, page.notes)


def sglang_series(page: Page) -> dict[str, SeriesCounters]:
    """SGLang's counters, all of which move when a request finishes: one series.

    Accepted = generated - first tokens - bonus tokens = generation - requests - verify calls
    (delivered tokens, so after truncation). Proposed tokens are not counted.
    """
    generated = page.total("sglang:generation_tokens_total")
    requests = page.total("sglang:num_requests_total")
    verified = page.total("sglang:spec_verify_calls_total")
    if generated is None and requests is None and verified is None:
        return {}
    speculation = None
    if verified is not None and generated is not None and requests is not None:
        accepted = generated - requests - verified if verified else 0.0
        speculation = SpecDecodeCounters(
            num_drafts=verified, num_accepted_tokens=accepted, num_steps=verified
        )
    return {
        "": SeriesCounters(
            speculation=speculation,
            num_generated_tokens=generated,
            num_requests_finished=requests,
            prefix_cache_queries=page.total("sglang:prompt_tokens_total"),
            prefix_cache_hits=page.total("sglang:cached_tokens_total"),
        )
    }


def sglang_gauge(page: Page) -> SpecDecodeGauge | None:
    """Means over the ranks that speculate; 0 means that speculation is off or nothing ran yet."""
    length = _mean_of_positive(page, "sglang:spec_accept_length")
    rate = _mean_of_positive(page, "sglang:spec_accept_rate")
    if length is None and rate is None:
        return None
    return SpecDecodeGauge(mean_acceptance_length=length, draft_acceptance_rate=rate)


def _mean_of_positive(page: Page, name: str) -> float | None:
    groups = series_keys(page.select(name), ("dp_rank", *SCRAPER_LABELS))
    values = [sample.value for group in groups.values() for sample in group if sample.value > 0]
    return math.fsum(values) / len(values) if values else None
