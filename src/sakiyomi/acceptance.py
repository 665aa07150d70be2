"""How drafts fared: ratios of counts, and what cannot be in counts. Counts in, ratios out.

Ratios are formed from sums and never clamped: an impossible value is a data error and is said.
"""

import itertools
import math

from sakiyomi.counter_growth import SPEC_FIELDS
from sakiyomi.record import SpecDecodeCounters

TOLERANCE = 1e-6
"""Slack of the invariants: counts are whole numbers, sums of them may round."""

MAX_FOREIGN_SHARE = 0.05
"""Tokens of others on the server up to this share are the engine's own rounding (over-run steps
after a stop, the client's aborted requests); above it the counters are not the run's own."""


def draft_acceptance_rate(counters: SpecDecodeCounters) -> float | None:
    """Accepted / proposed draft tokens. The bonus token is in neither."""
    return _ratio(counters.num_accepted_tokens, counters.num_draft_tokens)


def mean_acceptance_length(counters: SpecDecodeCounters) -> float | None:
    """1 + accepted / drafts, the bonus token included."""
    accepted = _ratio(counters.num_accepted_tokens, counters.num_drafts)
    return None if accepted is None else 1.0 + accepted


def position_rates(counters: SpecDecodeCounters) -> tuple[float, ...] | None:
    """Share of drafts in which at least i+1 draft tokens were accepted."""
    if counters.accepted_per_position is None or not counters.num_drafts:
        return None
    return tuple(count / counters.num_drafts for count in counters.accepted_per_position)


def foreign_share(own: float | None, server: float | None) -> float | None:
    """Share of the server's count (tokens, requests) that this run did not cause; 0 if none."""
    if own is None or not server:
        return None
    return max(0.0, (server - own) / server)


def check(counters: SpecDecodeCounters, num_speculative_tokens: int | None = None) -> list[str]:
    """What cannot be in these counts. Data errors in words, with their numbers; empty when sound.

    Chain drafts only: trees accept along one path and may break the position rules.
    """
    wrong: list[str] = []
    drafts, drafted = counters.num_drafts, counters.num_draft_tokens
    accepted, positions = counters.num_accepted_tokens, counters.accepted_per_position
    for name in SPEC_FIELDS:
        value = getattr(counters, name)
        if value is not None and value < 0:
            wrong.append(f"{name} is negative: {value:g}")
    if accepted is not None and drafted is not None and accepted > drafted + TOLERANCE:
        share = f" ({accepted / drafted:.0%})" if drafted else ""
        wrong.append(f"more accepted than proposed: {accepted:g} of {drafted:g}{share}")
    if accepted is not None and drafts is not None:
        length = mean_acceptance_length(counters)
        if length is None and accepted > 0:
            wrong.append(f"{accepted:g} accepted tokens without a draft")
        k = num_speculative_tokens
        if length is not None and k is not None and length > k + 1 + TOLERANCE:
            wrong.append(f"mean acceptance length {length:.2f} above k + 1 = {k + 1}")
    if positions is not None:
        wrong += _wrong_positions(positions, drafts, accepted)
    return wrong


def agree(
    one: SpecDecodeCounters,
    other: SpecDecodeCounters,
    num_requests: int,
    num_speculative_tokens: int | None = None,
) -> str | None:
    """Why two sources of the same requests disagree, or None when truncation explains it.

    An engine counts a step's drafts before EOS, `max_tokens` or a stop string cuts its tokens, so
    sources may differ by one step: a draft, k proposed and k accepted tokens a request.
    """
    k = num_speculative_tokens or max(
        (len(c.accepted_per_position or ()) for c in (one, other)), default=0
    )
    for field, slack in (
        ("num_drafts", 1.0),
        ("num_draft_tokens", float(k)),
        ("num_accepted_tokens", float(k)),
    ):
        mine, theirs = getattr(one, field), getattr(other, field)
        if mine is None or theirs is None:
            continue
        if abs(mine - theirs) > slack * num_requests + TOLERANCE:
            return (
                f"{field}: {mine:g} against {theirs:g}, more apart than the last step of "
                f"{num_requests} requests explains ({slack * num_requests:g})"
            )
    return None


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _wrong_positions(
    positions: tuple[float, ...], drafts: float | None, accepted: float | None
) -> list[str]:
    wrong = []
    if drafts is not None and positions and positions[0] > drafts + TOLERANCE:
        wrong.append(f"position 0 accepted in {positions[0]:g} of {drafts:g} drafts")
    wrong += [
        f"position {index} accepted more often ({deep:g}) than position {index - 1} ({shallow:g})"
        for index, (shallow, deep) in enumerate(itertools.pairwise(positions), start=1)
        if deep > shallow + TOLERANCE
    ]
    summed = math.fsum(positions)
    if accepted is not None and abs(summed - accepted) > TOLERANCE * max(1.0, accepted):
        wrong.append(f"positions sum to {summed:g}, accepted is {accepted:g}")
    return wrong
