"""A cell's tokens per step: which evidence tells it, and its interval. Pure."""

from collections.abc import Sequence

from sakiyomi import stats
from sakiyomi.counter_windows import Window
from sakiyomi.measured import Measured


def tokens_per_step(
    requests: Sequence[Measured], windows: Sequence[Window], seed: int
) -> stats.Estimate | None:
    """Delivered tokens / decode steps: from events, else the server's step counter, else bursts.

    The events are left aside when some carry more than k + 1 tokens (merged chunks).
    """
    good = [r for r in requests if r.error is None and r.steps is not None]
    from_stream = _steps_of_stream(good, seed)
    certain = good and all(r.steps_from == "events" and not r.num_merged_steps for r in good)
    if certain:
        return from_stream
    pairs = [
        (counts.num_generated_tokens - counts.num_requests_finished, counts.num_decode_steps)
        for counts in (window.counters for window in windows)
        if counts.num_generated_tokens is not None
        and counts.num_requests_finished is not None
        and counts.num_decode_steps
    ]
    if pairs:
        return stats.estimate_ratio(pairs, seed)
    guessed = bool(good) and all(r.steps_from == "bursts" for r in good)
    return from_stream if guessed else None


def _steps_of_stream(good: Sequence[Measured], seed: int) -> stats.Estimate | None:
    units: dict[str, list[float]] = {}
    for request in good:
        unit = units.setdefault(request.key.conversation_id, [0.0, 0.0])
        unit[0] += request.num_step_tokens
        unit[1] += (request.steps.num_steps or 0.0) if request.steps else 0.0
    return stats.estimate_ratio([(a, b) for a, b in units.values()], seed)
