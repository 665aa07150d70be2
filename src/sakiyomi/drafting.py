"""What draft length pays: tokens per step E(k), step cost C(k), speedup S(k) = E(k) / C(k).

Positions count from 1: P_i is the share of drafts with at least i accepted draft tokens
(`per_position[i-1]`), a_i the acceptance at position i given all before. The iid model has one
a for all positions (Leviathan et al. 2211.17192, Chen et al. 2302.01318); real heads accept
less at first and more deep inside a run, so it overstates P_1 by a few points.
"""

import math
from collections.abc import Sequence

import msgspec


class StepCost(msgspec.Struct, frozen=True, kw_only=True):
    """C(k) = 1 + fixed + per_draft * k + verification, in plain steps."""

    fixed: float = 0.0
    per_draft: float = 0.0
    verification: float = 0.0

    def at(self, num_speculative_tokens: int) -> float:
        """Cost of a step with this draft length; a plain step is 1."""
        if num_speculative_tokens == 0:
            return 1.0
        return 1.0 + self.fixed + self.verification + self.per_draft * num_speculative_tokens


def expected_length(acceptance: float, num_speculative_tokens: int) -> float:
    """E(k) = (1 - a^(k+1)) / (1 - a) for iid acceptance a; k + 1 at a = 1."""
    return 1.0 + math.fsum(iid_positions(acceptance, num_speculative_tokens))


def length_from_positions(per_position: Sequence[float]) -> float:
    """E(k) = 1 + sum of P_i."""
    return 1.0 + math.fsum(per_position)


def iid_positions(acceptance: float, num_speculative_tokens: int) -> tuple[float, ...]:
    """P_i = a^i for i = 1..k."""
    return tuple(acceptance**position for position in range(1, num_speculative_tokens + 1))


def marginal(conditional: Sequence[float]) -> tuple[float, ...]:
    """P_i = a_1 * ... * a_i."""
    product, positions = 1.0, []
    for rate in conditional:
        product *= rate
        positions.append(product)
    return tuple(positions)


def conditional(per_position: Sequence[float]) -> tuple[float | None, ...]:
    """a_i = P_i / P_(i-1); None where nothing reached the position."""
    before = (1.0, *per_position[:-1])
    return tuple(p / b if b > 0 else None for p, b in zip(per_position, before, strict=True))


def rate_from_acceptance(acceptance: float, num_speculative_tokens: int) -> float:
    """r(k) = (a + ... + a^k) / k: falls with k by construction, whatever the drafter."""
    positions = iid_positions(acceptance, num_speculative_tokens)
    return math.fsum(positions) / num_speculative_tokens


def acceptance_from_rate(rate: float, num_speculative_tokens: int) -> float:
    """The iid acceptance a that gives this accepted/drafted rate: inverse of r(k), by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if rate_from_acceptance(middle, num_speculative_tokens) < rate:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def first_position_bounds(mean_accepted: float, num_speculative_tokens: int) -> tuple[float, float]:
    """P_1 when only m = sum of P_i is known: between m/k and min(1, m), as P_i never rises."""
    return mean_accepted / num_speculative_tokens, min(1.0, mean_accepted)


def speedup(tokens_per_step: float, step_cost: float) -> float:
    """S = E / C."""
    return tokens_per_step / step_cost


def break_even_rate(step_cost: float, num_speculative_tokens: int) -> float:
    """r* = (C(k) - 1) / k: the accepted/drafted rate at which speculation pays nothing."""
    return (step_cost - 1.0) / num_speculative_tokens


def extending_pays(
    next_position_rate: float, speedup_now: float, cost_now: float, cost_next: float
) -> bool:
    """Extend k to k+1 exactly when P_(k+1) > S(k) * (C(k+1) - C(k))."""
    return next_position_rate > speedup_now * (cost_next - cost_now)


def first_draft_pays(first_position_rate: float, cost: StepCost) -> bool:
    """A single draft (k = 1) pays exactly when P_1 > c0 + c + v(1)."""
    return first_position_rate > cost.fixed + cost.per_draft + cost.verification


def solve_step_cost(short: tuple[int, float], long: tuple[int, float]) -> StepCost:
    """Fixed and per-draft cost from C at two draft lengths; one k cannot tell them apart.

    Verification is part of `fixed` here: it is flat for the row counts of a single stream.
    """
    (k_short, c_short), (k_long, c_long) = short, long
    per_draft = (c_long - c_short) / (k_long - k_short)
    return StepCost(per_draft=per_draft, fixed=c_short - 1.0 - per_draft * k_short)


def speedups(per_position: Sequence[float], cost: StepCost) -> tuple[float, ...]:
    """S(k) for k = 0..len(per_position); conservative when P was measured at the largest k."""
    return tuple(
        length_from_positions(per_position[:k]) / cost.at(k) for k in range(len(per_position) + 1)
    )


def best_num_speculative_tokens(per_position: Sequence[float], cost: StepCost) -> int:
    """The k of the largest S(k); 0 when no draft pays."""
    values = speedups(per_position, cost)
    return max(range(len(values)), key=lambda k: values[k])


def accepted_sd(per_position: Sequence[float]) -> float:
    """Standard deviation of the accepted tokens of one draft.

    The number accepted N has P(N >= i) = P_i, so E[N] = sum P_i and
    E[N^2] = sum (2i - 1) P_i.
    """
    mean = math.fsum(per_position)
    square = math.fsum((2 * i - 1) * p for i, p in enumerate(per_position, start=1))
    return math.sqrt(max(0.0, square - mean * mean))


def length_half_width(per_position: Sequence[float], num_drafts: float, z: float = 1.96) -> float:
    """Half-width of an interval of E from drafts alone; too narrow when drafts are correlated."""
    return z * accepted_sd(per_position) / math.sqrt(num_drafts)
