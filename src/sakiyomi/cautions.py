"""Rules that look at a cell's facts and say why a number may not be what it seems.

Each gives evidence and a remedy; the numbers in a message are in its `detail` too.
"""

from collections import Counter
from collections.abc import Callable

from sakiyomi import acceptance_cautions as acceptance
from sakiyomi.cell_facts import CellFacts
from sakiyomi.counter_cautions import (
    counter_reset,
    counters_short,
    metrics_incomplete,
    other_traffic,
    several_models,
)
from sakiyomi.record import Caution
from sakiyomi.stats import median

CACHED_SHARE = 0.1
"""Of a first turn's prompt: chat templates share a few tokens, a warm cache shares more."""
CACHE_HIT_SHARE = 0.01
SHORT_ANSWER_TOKENS = 32
CLIENT_LAG_S = 0.005
DRIFT = 0.10
RATE_GAP = 0.10
"""Client and server decode rates should agree within this (faults, F15)."""


def cell_cautions(cell: CellFacts) -> list[Caution]:
    """Every caution that the rules find, in their order."""
    return [caution for rule in RULES if (caution := rule(cell)) is not None]


def requests_failed(cell: CellFacts) -> Caution | None:
    """Failed requests are facts: counted, never averaged."""
    failed = [r.error for r in cell.requests if r.error is not None]
    if not failed:
        return None
    (reason, count), *_ = Counter(f"{e.kind}: {e.message}" for e in failed).most_common(1)
    return Caution(
        "requests_failed",
        f"{len(failed)} of {len(cell.requests)} requests failed, most often ({count}) "
        f"{reason[:160]}; the numbers are of the others",
        {"num_failed": len(failed), "reasons": dict(Counter(e.kind for e in failed))},
    )


def tokens_estimated(cell: CellFacts) -> Caution | None:
    """No count from the server."""
    guessed = [r for r in cell.good if r.latency.tokens == "estimated"]
    if not guessed:
        return None
    return Caution(
        "tokens_estimated",
        f"the server counted the tokens of only {len(cell.good) - len(guessed)} of "
        f"{len(cell.good)} answers; events were counted instead, a lower bound. Ask it for usage "
        "(stream_options.include_usage)",
        {"num_estimated": len(guessed)},
    )


def buffered_stream(cell: CellFacts) -> Caution | None:
    """Everything arrived in a burst: times inside the answer are not measurable."""
    held = [r for r in cell.good if r.latency.buffered]
    if not held:
        return None
    return Caution(
        "buffered_stream",
        f"{len(held)} of {len(cell.good)} answers came in bursts: something buffers the stream, so "
        "their TTFT and decode rate are not measurable. Turn buffering off (nginx: proxy_buffering "
        "off, X-Accel-Buffering: no) and use HTTP/1.1",
        {"num_buffered": len(held)},
    )


def tool_calls_at_once(cell: CellFacts) -> Caution | None:
    """Answers that a tool parser sent whole: there is no first token to see."""
    num_whole = sum(r.latency.tool_call_at_once for r in cell.good)
    if not num_whole:
        return None
    return Caution(
        "tool_calls_at_once",
        f"{num_whole} of {len(cell.good)} answers are a tool call that the server sent whole: its "
        "parser waits for the end. They have no TTFT and no decode rate; e2e_s is right",
        {"num_whole": num_whole},
    )


def looped_output(cell: CellFacts) -> Caution | None:
    """Repeating text fakes acceptance."""
    looped = [r for r in cell.good if r.looped]
    if not looped:
        return None
    return Caution(
        "looped_output",
        f"{len(looped)} of {len(cell.good)} answers ran into a loop; repeating text is easy to "
        "draft and fakes acceptance. Look at them; lower the cap or raise the temperature",
        {
            "num_looped": len(looped),
            "request_ids": [r.key.request_id for r in looped[:5]],
        },
    )


def cut_by_cap(cell: CellFacts) -> Caution | None:
    """Most answers were cut: the workload is the cap, not the answer."""
    cut = sum(r.finish_reason == "length" for r in cell.good)
    if not cell.good or cut / len(cell.good) < 0.5:
        return None
    return Caution(
        "cut_by_cap",
        f"{cut} of {len(cell.good)} answers were cut by the cap of {cell.max_tokens} tokens; what "
        "comes later in an answer is not in these numbers. Raise max_tokens",
        {"num_cut": cut, "max_tokens": cell.max_tokens},
    )


def cap_ignored(cell: CellFacts) -> Caution | None:
    """The server does not know the name of the cap, or has one of its own."""
    longest = max((r.num_tokens for r in cell.good), default=0)
    longer = sum(r.num_tokens > 1.1 * (r.max_tokens or r.num_tokens) + 4 for r in cell.good)
    if not longer:
        return None
    return Caution(
        "cap_ignored",
        f"{longer} of {len(cell.good)} answers are longer than the cap of {cell.max_tokens} tokens "
        f"(up to {longest}): the server ignores it. Set its own limit of new tokens",
        {"num_longer": longer, "num_tokens": longest, "max_tokens": cell.max_tokens},
    )


def no_answer_text(cell: CellFacts) -> Caution | None:
    """The budget went into thinking."""
    silent = sum(
        not r.has_answer and r.num_tokens > 1 and r.finish_reason == "length" for r in cell.good
    )
    if not silent:
        return None
    return Caution(
        "no_answer_text",
        f"{silent} of {len(cell.good)} answers reached the cap while thinking and have no visible "
        "text. Raise max_tokens or set enable_thinking = false",
        {"num_requests": silent},
    )


def ended_too_early(cell: CellFacts) -> Caution | None:
    """Answers too short to time."""
    if not cell.good:
        return None
    length = median([r.num_tokens for r in cell.good])
    if length >= SHORT_ANSWER_TOKENS:
        return None
    return Caution(
        "ended_too_early",
        f"half of the answers have {length:.0f} tokens or fewer; their decode rate rests on few "
        "steps. Ask for longer answers",
        {"median_num_tokens": length},
    )


def warm_prefix_cache(cell: CellFacts) -> Caution | None:
    """First turns are unique, so a hit there means that something else was cached."""
    first = [
        r.cached_prompt_tokens / r.prompt_tokens
        for r in cell.good
        if r.key.turn == 0 and r.cached_prompt_tokens is not None and r.prompt_tokens
    ]
    share = median(first) if first else 0.0
    threshold = CACHED_SHARE
    if not first and all(r.key.turn == 0 for r in cell.requests):
        counters = [window.counters for window in cell.windows]
        hits = sum(c.prefix_cache_hits or 0.0 for c in counters)
        queries = sum(c.prefix_cache_queries or 0.0 for c in counters)
        share, threshold = (hits / queries if queries else 0.0), CACHE_HIT_SHARE
    if share < threshold:
        return None
    return Caution(
        "warm_prefix_cache",
        f"{share:.0%} of the prompt tokens of first turns came from the prefix cache: TTFT is "
        "flattered. Restart the server or turn prefix caching off for the measurement",
        {"cached_share": share},
    )


def client_lag(cell: CellFacts) -> Caution | None:
    """The client sent late: it was the bottleneck."""
    lags = [r.latency.send_lag_s for r in cell.good if r.latency.send_lag_s is not None]
    if not lags or median(lags) <= CLIENT_LAG_S:
        return None
    return Caution(
        "client_lag",
        f"requests were sent {median(lags) * 1000:.1f} ms after their time (median): the client "
        "was busy. Lower the load or run the client on another machine",
        {"median_send_lag_s": median(lags)},
    )


def drift(cell: CellFacts) -> Caution | None:
    """The first and the last repeat differ."""
    rates = [rate for r in cell.repeats if (rate := r.get("decode_tokens_per_s"))]
    if len(rates) < 2 or not rates[0]:
        return None
    change = rates[-1] / rates[0] - 1
    if abs(change) < DRIFT or len(cell.starts) > 1:  # restarts in between: a caution of its own
        return None
    return Caution(
        "drift",
        f"the last repeat was {change:+.0%} against the first ({rates[0]:.3g} to {rates[-1]:.3g} "
        "tok/s): clocks, heat or other work on the machine. Repeats alternate so that it cancels; "
        "add --repeats",
        {"change": change, "decode_tokens_per_s": rates},
    )


def restarts_differ(cell: CellFacts) -> Caution | None:
    """A restart changed the speed: the spread between starts is part of the arm's own."""
    rates = [rate for row in cell.starts if (rate := row.get("decode_tokens_per_s"))]
    if len(rates) < 2 or max(rates) / min(rates) - 1 < DRIFT:
        return None
    return Caution(
        "restarts_differ",
        f"{len(rates)} starts of this engine decoded at {min(rates):.3g} to {max(rates):.3g} tok/s "
        f"(medians, {max(rates) / min(rates) - 1:.0%} apart): what a restart changes is as large "
        "as a gain. Add --repeats, so that each arm is started more often",
        {"starts": [dict(row) for row in cell.starts]},
    )


def rates_disagree(cell: CellFacts) -> Caution | None:
    """The server's own timing against the client's clock."""
    ratios = [
        r.latency.server_decode_tokens_per_s / r.latency.decode_tokens_per_s
        for r in cell.good
        if r.latency.server_decode_tokens_per_s and r.latency.decode_tokens_per_s
    ]
    if not ratios or abs(median(ratios) - 1) <= RATE_GAP:
        return None
    return Caution(
        "rates_disagree",
        f"the server times its decoding x{median(ratios):.2f} against the client's clock: a proxy "
        "or a slow network stands between, or its timings are wrong under speculation",
        {"server_over_client": median(ratios)},
    )


RULES: tuple[Callable[[CellFacts], Caution | None], ...] = (
    requests_failed,
    tokens_estimated,
    buffered_stream,
    tool_calls_at_once,
    acceptance.forced_acceptance,
    acceptance.lossy_acceptance,
    acceptance.acceptance_zero,
    acceptance.acceptance_one,
    acceptance.no_drafts,
    looped_output,
    other_traffic,
    counter_reset,
    counters_short,
    several_models,
    metrics_incomplete,
    acceptance.sources_disagree,
    acceptance.impossible_counts,
    warm_prefix_cache,
    client_lag,
    rates_disagree,
    drift,
    restarts_differ,
    no_answer_text,
    cut_by_cap,
    cap_ignored,
    ended_too_early,
    acceptance.k_unknown,
    acceptance.acceptance_estimated,
    acceptance.bursts_ambiguous,
)
