"""A cell's tokens per step: which evidence tells it, and its interval. Pure."""

from collections.abc import Sequence

from sakiyomi import stats
from sakiyomi.counter_windows import Window
from sakiyomi.measured import Measured


def tokens_per_step(
    requests: Sequence[Measured], windows: Sequence[Window], seed: int
) -> stats.Estimate | None:
    """Delivered tokens / decode steps: by request, else the server's step counter, else bursts.

    Events are left aside when some carry more than k + 1 tokens (merged chunks), unless the server
    tells each request's steps.
    """
    good = [r for r in requests if r.error is None and r.decoding is not None]
    by_request = _steps_by_request(good, seed)
    if good and all(_is_certain(request) for request in good):
        return by_request
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
    return by_request if guessed else None


def _is_certain(request: Measured) -> bool:
    """Whether its steps were counted, not guessed."""
    if request.num_told_steps is not None:
        return True
    return request.steps_from == "events" and not request.num_merged_steps


def _steps_by_request(good: Sequence[Measured], seed: int) -> stats.Estimate | None:
    units: dict[str, list[float]] = {}
    for request in good:
        tokens, steps = request.decoding or (0.0, 0.0)
        unit = units.setdefault(request.key.conversation_id, [0.0, 0.0])
        unit[0] += tokens
        unit[1] += steps
    return stats.estimate_ratio([(a, b) for a, b in units.values()], seed)
