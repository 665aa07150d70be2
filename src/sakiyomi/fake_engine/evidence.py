"""The per-request evidence that engines put beside an answer. Pure."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from sakiyomi.fake_engine.answer import Answer, ScriptedStep
from sakiyomi.fake_engine.config import FaultValue


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far an answer is. `decode_s`: time since its first token."""

    prompt_tokens: int
    cached_tokens: int | None = None
    num_tokens: int = 0
    num_iterations: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0

    def after(self, step: ScriptedStep, num_tokens: int, decode_s: float) -> "Progress":
        """Progress when this step has delivered `num_tokens`."""
        return Progress(
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            num_tokens=self.num_tokens + num_tokens,
            num_iterations=self.num_iterations + 1,
            num_draft_tokens=self.num_draft_tokens + step.num_draft_tokens,
            num_accepted_tokens=self.num_accepted_tokens + step.num_accepted_tokens,
            prefill_s=self.prefill_s if self.num_iterations else step.duration_s,
            decode_s=decode_s,
        )


def timings(progress: Progress, faults: Mapping[str, FaultValue]) -> dict[str, Any]:
    """Make llama.cpp's `timings`; all tokens of a step have the same `predicted_ms`.

    predicted_per_second = (predicted_n - 1) / t, as in builds since 2026.
    """
    prompt_n = progress.prompt_tokens - (progress.cached_tokens or 0)
    prompt_ms = max(progress.prefill_s * 1e3, 0.001)
    predicted_n = progress.num_tokens
    predicted_ms = max(progress.decode_s * 1e3, 0.001)
    rate = (predicted_n - 1) / predicted_ms * 1e3 if predicted_n > 1 else 0.0
    if "timings_zero" in faults:
        predicted_ms, rate = 0.0, 0.0
    found: dict[str, Any] = {
        "cache_n": progress.cached_tokens or 0,
        "prompt_n": prompt_n,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / max(prompt_n, 1),
        "prompt_per_second": prompt_n / prompt_ms * 1e3,
        "predicted_n": predicted_n,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": predicted_ms / max(predicted_n, 1),
        "predicted_per_second": rate,
    }
    if progress.num_draft_tokens:
        found["draft_n"] = progress.num_draft_tokens
        found["draft_n_accepted"] = progress.num_accepted_tokens
    return found


def speculative_decoding(answer: Answer, k: int, *, detailed: bool) -> dict[str, Any]:
    """Make vLLM's `metrics.speculative_decoding` (0.29+); entry j of the histogram: j accepted."""
    drafted = [step for step in answer.steps if step.num_draft_tokens]
    num_accepted = sum(step.num_accepted_tokens for step in drafted)
    num_draft_tokens = sum(step.num_draft_tokens for step in drafted)
    found: dict[str, Any] = {
        "mean_acceptance_length": 1 + num_accepted / len(drafted) if drafted else None,
        "draft_acceptance_rate": num_accepted / num_draft_tokens if num_draft_tokens else None,
        "acceptance_histogram": histogram(answer, k),
        "num_spec_steps": len(drafted),
        "num_accepted_draft_tokens": num_accepted,
        "num_draft_tokens": num_draft_tokens,
        "num_spec_tokens": k,
    }
    if detailed:
        found["per_step_accepted"] = [step.num_accepted_tokens for step in drafted]
        found["per_step_drafted"] = [step.num_draft_tokens for step in drafted]
    return found


def spec_tokens_details(answer: Answer, k: int) -> dict[str, Any] | None:
    """SGLang's `spec_tokens_details`, or None without a verify step.

    Proposed drafts are verify_ct times k, statically; the length includes the prefill token.
    """
    verify_ct = sum(step.num_draft_tokens > 0 for step in answer.steps)
    if not verify_ct:
        return None
    num_correct = sum(step.num_accepted_tokens for step in answer.steps)
    counts = histogram(answer, k)
    while len(counts) > 1 and not counts[-1]:
        counts.pop()
    return {
        "spec_accept_rate": num_correct / (verify_ct * k),
        "spec_accept_length": len(answer.tokens) / verify_ct,
        "spec_cap_length": None,
        "spec_block_accept_length": None,
        "spec_num_correct_drafts": num_correct,
        "spec_num_proposed_drafts": verify_ct * k,
        "spec_verify_ct": verify_ct,
        "spec_correct_drafts_histogram": counts,
        "spec_cap_lens_histogram": None,
    }


def perf_metrics(request_id: str, answer: Answer) -> dict[str, Any]:
    """Make TensorRT-LLM's record of a finished request."""
    num_drafted = sum(step.num_draft_tokens for step in answer.steps)
    num_accepted = sum(step.num_accepted_tokens for step in answer.steps)
    speculative = {
        "acceptance_rate": num_accepted / num_drafted if num_drafted else 0.0,
        "total_accepted_draft_tokens": num_accepted,
        "total_draft_tokens": num_drafted,
    }
    record = {"first_iter": 1, "last_iter": len(answer.steps), "speculative_decoding": speculative}
    return {"request_id": request_id, "perf_metrics": record}


def lmstudio_stats(progress: Progress, faults: Mapping[str, FaultValue]) -> dict[str, Any]:
    """LM Studio's `stats` of an OpenAI answer (0.4.24): empty without drafts, never a clock."""
    if not progress.num_draft_tokens:
        return {}
    times = int(faults.get("draft_counts_times", 1))
    drafted, accepted = times * progress.num_draft_tokens, times * progress.num_accepted_tokens
    return {
        "total_draft_tokens_count": drafted,
        "accepted_draft_tokens_count": accepted,
        "rejected_draft_tokens_count": drafted - accepted,
    }


def tabby_usage(progress: Progress, faults: Mapping[str, FaultValue]) -> dict[str, Any]:
    """What TabbyAPI adds to the usage: times, and draft counts since its pull request 452."""
    times = {"completion_time": progress.decode_s, "total_time": progress.decode_s}
    if "no_draft_details" in faults:
        return times
    details = {
        "accepted_prediction_tokens": progress.num_accepted_tokens,
        "rejected_prediction_tokens": progress.num_draft_tokens - progress.num_accepted_tokens,
    }
    return {**times, "completion_tokens_details": details}


def accept_lengths(progress: Progress) -> float:
    """TensorRT-LLM's `avg_decoded_tokens_per_iter`: tokens per iteration, the prefill included."""
    return progress.num_tokens / max(progress.num_iterations, 1)


def histogram(answer: Answer, k: int) -> list[int]:
    """Entry j: drafted steps with exactly j accepted tokens, length k+1."""
    counts = Counter(step.num_accepted_tokens for step in answer.steps if step.num_draft_tokens)
    return [counts[j] for j in range(k + 1)]
