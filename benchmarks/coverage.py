"""How often the intervals hold the truth: a table, for every kind of figure that is printed.

    python benchmarks/coverage.py [--replicates 1000] [--units 8 16 32 64]

Nominal 95 %. Clustered, skewed conversations of known truth: a conversation has an effect of its
own, its turns and repeats scatter round it. `below` and `above` are the shares (%) of intervals
that lie wholly below and above the truth (2.5 each). `formed`: intervals that were not null.
`width`: median width over the truth. `percentile`: what a percentile bootstrap of such data holds.

Above 97: times rounded to a 5 ms clock (the truth sits on a tick, an interval holds it or misses by
a whole tick) and a share of which 16 conversations show one or two exceptions.

`k=2, one cost`: the speedup predicted at k = 2 from a run at k = 3, all of the cost being paid per
draft; `two costs`: k = 1 and 3 were run; `calibrated`: the costs come from four conversations of a
calibration. The truth is what a huge run at that k prints.
"""

import argparse
import math
import random
import statistics
from collections.abc import Callable

import numpy as np

from sakiyomi import best_k, cost_models, stats
from sakiyomi.calibration import Calibration, cost_model
from sakiyomi.drafting import StepCost
from sakiyomi.plan import Calibrate

NUM_TURNS = 4
CLOCK_S = 0.005
TRUTH_UNITS = 400_000
LONGEST = 3
NUM_CALIBRATED = Calibrate().num_conversations
PER_DRAFT = StepCost(per_draft=0.25)
SPLIT = StepCost(fixed=0.15, per_draft=0.18)


def effects(kind: str, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Positive conversation effects: times in seconds, or anything that scales like them."""
    if kind == "lognormal":
        return 0.3 * np.exp(0.6 * rng.normal(size=shape))
    if kind == "gamma":
        return 0.3 * rng.gamma(1.5, 1 / 1.5, shape)
    return 0.06 * np.exp(0.25 * rng.normal(size=shape))  # ties: near the tick of the clock


def times(kind: str, rng: np.random.Generator, n: int) -> np.ndarray:
    """(n, turns): request times of n conversations."""
    values = effects(kind, rng, (n, 1)) * np.exp(0.2 * rng.normal(size=(n, NUM_TURNS)))
    return np.round(values / CLOCK_S) * CLOCK_S if kind == "ties" else values


def acceptance(kind: str, rng: np.random.Generator, n: int) -> np.ndarray:
    """(n, 2): accepted and proposed tokens; long answers accept more, lengths are skewed."""
    length = rng.normal(size=n)
    proposed = {
        "lognormal": np.ceil(120 * np.exp(0.6 * length)),
        "gamma": np.ceil(rng.gamma(1.5, 80, n)) + 3,
        "ties": 3 * np.minimum(np.ceil(30 * np.exp(length)), 85),  # cut by a cap of 256 tokens
    }[kind]
    rate = 1 / (1 + np.exp(0.6 - 0.7 * (0.4 * length + 0.9 * rng.normal(size=n))))
    return np.stack([rng.binomial(proposed.astype(int), rate), proposed], axis=1)


def log_ratios(kind: str, rng: np.random.Generator, n: int) -> np.ndarray:
    """(n, repeats): ln speedup; skewed between conversations, noisy between repeats."""
    arm = effects(kind, rng, (n, 1)) * np.exp(0.1 * rng.normal(size=(n, NUM_TURNS)))
    plain = np.full((n, NUM_TURNS), 0.05)
    if kind == "ties":
        arm, plain = (np.maximum(np.round(x / CLOCK_S), 1) * CLOCK_S for x in (arm, plain))
    return np.log(plain / arm)


def with_shared_effect(kind: str, rng: np.random.Generator, n: int) -> np.ndarray:
    """(n, 4): as log_ratios, with a tenth more or less that a whole repeat shares."""
    values = log_ratios(kind, rng, n)
    return values + rng.normal(0, SHARED_EFFECT, (1, values.shape[1]))


def step_units(kind: str, rng: np.random.Generator, n: int) -> np.ndarray:
    """(n, 3): tokens, steps, ln speedup; the true step cost scatters round 1.7 x 0.9."""
    accepted, proposed = acceptance(kind, rng, n).T
    steps = proposed / 3
    tokens = steps + accepted
    cost = 1.7 * effects(kind, rng, (n,)) ** 0.1
    return np.stack([tokens, steps, np.log(tokens / steps / cost)], axis=1)


def draft_units(
    kind: str, rng: np.random.Generator, n: int, cost: StepCost, k: int = LONGEST
) -> np.ndarray:
    """(n, 1 + k + 3): steps with drafts of k, accepted at position 1 to k, C(1), C(2), C(3).

    As many tokens at any k; long answers accept more; what drafts cost is skewed over the
    conversations, and each C has 3 % of noise.
    """
    length = rng.normal(size=n)
    tokens = {
        "lognormal": 100 * np.exp(0.6 * length),
        "gamma": rng.gamma(1.5, 67, n) + 6,
        "ties": np.minimum(75 * np.exp(length), 215),  # cut by a cap
    }[kind]
    odds = 0.5 + 0.7 * (0.4 * length + 0.9 * rng.normal(size=n))
    rates = [1 / (1 + np.exp(-odds - 0.1 * position)) for position in range(k)]
    steps = np.ceil(tokens / (1 + np.cumprod(rates, axis=0).sum(axis=0))).astype(int)
    columns = [steps]
    for rate in rates:
        columns.append(rng.binomial(columns[-1], rate))
    excess = (effects(kind, rng, (n,)) / 0.3) ** 0.3
    for drafts in range(1, LONGEST + 1):
        noise = np.exp(0.03 * rng.normal(size=n))
        columns.append((1 + excess * (cost.at(drafts) - 1)) * noise)
    return np.stack(columns, axis=1).astype(float)


def speedup_at(kind: str, cost: StepCost, k: int) -> float:
    """The speedup that a huge run with drafts of k tokens prints."""
    x = draft_units(kind, np.random.default_rng(99), TRUTH_UNITS, cost, k)
    return float(np.median(x[:, : k + 1].sum(axis=1) / x[:, 0] / x[:, 2 * k]))


def predict_speedup(units: list, costs_at: tuple[int, ...], k: int) -> stats.Estimate:
    """As `decide` predicts it from a run at k = 3 and the costs at one or two draft lengths."""
    own = {str(i): {at: [unit[LONGEST + at]] for at in costs_at} for i, unit in enumerate(units)}
    costs = {at: stats.compare([[math.log(x[LONGEST + at])] for x in units]) for at in costs_at}
    if len(costs) > 1:
        model = cost_models.several_costs_model(costs, own)
    else:
        model, _ = cost_models.one_cost_models(costs[LONGEST], LONGEST, None, own)
    return best_k.predict(lengths_of(units), model, k)


def lengths_of(units: list) -> best_k.Lengths:
    """E(k) by conversation; the pooled E(k), whose interval takes long, has no part in them."""
    own = best_k.own_lengths({str(i): unit[: LONGEST + 1] for i, unit in enumerate(units)}, 0.0)
    return best_k.Lengths(estimates=(), num_seen=LONGEST, positions="measured", own=own)


def predict_calibrated(units: list, k: int) -> stats.Estimate:
    """The first conversations are those of a calibration at k = 1 and 3, which has no others."""
    calibration, work = units[:NUM_CALIBRATED], units[NUM_CALIBRATED:]
    fit = Calibration(
        run="",
        engine="",
        model=None,
        method=None,
        load="",
        fixed=stats.estimate_median([[1.5 * x[4] - 0.5 * x[6] - 1] for x in calibration]),
        per_draft=stats.estimate_median([[(x[6] - x[4]) / 2] for x in calibration]),
        at={at: stats.estimate_median([[x[LONGEST + at]] for x in calibration]) for at in (1, 3)},
        arms=(),
    )
    return best_k.predict(lengths_of(work), cost_model(fit), k)


def pairs(kind: str, rng: np.random.Generator, n: int) -> np.ndarray:
    """(n, 2): dependent figures of a conversation, heavy where both are large."""
    both = rng.normal(size=(n, 2))
    both[:, 1] = 0.6 * both[:, 0] + 0.8 * both[:, 1]
    scaled = both * np.sqrt(effects(kind, rng, (n, 1)))
    return np.round(scaled, 1) if kind == "ties" else scaled


def pooled(x: np.ndarray) -> float:
    return float(x[:, 0].sum() / x[:, 1].sum())


def ranks(x: np.ndarray) -> np.ndarray:
    _, place, counts = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place]


SHARED_EFFECT = 0.1
SHARE_LIMIT = {"lognormal": 0.66, "gamma": 0.66, "ties": 0.085}

# data, truth from a huge sample of them, estimate of a list of them
Figure = tuple[
    Callable[[str, np.random.Generator, int], np.ndarray],
    Callable[[np.ndarray, str], float],
    Callable[[list, str], stats.Estimate | None],
]
FIGURES: dict[str, Figure] = {
    "median": (
        times,
        lambda x, _: float(np.median(np.median(x, axis=1))),
        lambda units, _: stats.estimate_median(units),
    ),
    "speedup": (
        log_ratios,
        lambda x, _: float(np.exp(np.median(x.mean(axis=1)))),
        lambda units, _: stats.compare(units),
    ),
    "speedup, repeats differ": (
        with_shared_effect,
        # the repeats of a sample share their effects: the truth is that without them
        lambda x, kind: float(
            np.exp(np.median(log_ratios(kind, np.random.default_rng(1), len(x)).mean(axis=1)))
        ),
        lambda units, _: stats.compare(units),
    ),
    "step cost": (
        step_units,
        lambda x, _: float(np.median(x[:, 0] / x[:, 1] / np.exp(x[:, 2]))),
        lambda units, _: stats.estimate_step_cost([(a, b, [c]) for a, b, c in units]),
    ),
    "ratio of sums": (
        acceptance,
        lambda x, _: pooled(x),
        lambda units, _: stats.estimate_ratio(units, 1, upper=1),
    ),
    "share": (
        times,
        lambda x, kind: float(np.mean(x <= SHARE_LIMIT[kind])),
        lambda units, kind: stats.estimate_share(
            [[value <= SHARE_LIMIT[kind] for value in unit] for unit in units]
        ),
    ),
    "quantile 0.9": (
        times,
        lambda x, _: float(np.quantile(x, 0.9)),
        lambda units, _: stats.estimate_quantile(units, 0.9),
    ),
    "correlation": (
        pairs,
        lambda x, _: float(np.corrcoef(ranks(x[:, 0]), ranks(x[:, 1]))[0, 1]),
        lambda units, _: stats.estimate_correlation(units),
    ),
}


def predictions(cost: StepCost, k: int, num_more: int, estimate: Callable) -> Figure:
    """A figure of the speedup predicted at k, under a cost that its model can tell."""
    return (
        lambda kind, rng, n: draft_units(kind, rng, n + num_more, cost),
        lambda _, kind: speedup_at(kind, cost, k),
        lambda units, _: estimate(units, k),
    )


FIGURES |= {
    f"k={k}, {name}": predictions(cost, k, num_more, estimate)
    for name, cost, num_more, estimate in (
        ("one cost", PER_DRAFT, 0, lambda units, k: predict_speedup(units, (3,), k)),
        ("two costs", SPLIT, 0, lambda units, k: predict_speedup(units, (1, 3), k)),
        ("calibrated", SPLIT, NUM_CALIBRATED, predict_calibrated),
    )
    for k in (1, 2, 3)
}
KINDS = ("lognormal", "gamma", "ties")


def measure(name: str, kind: str, n: int, replicates: int, seed: int = 1) -> dict[str, float]:
    """Coverage of one figure's interval, in percent of those formed."""
    draw, true_of, estimate = FIGURES[name]
    truth = true_of(draw(kind, np.random.default_rng(99), TRUTH_UNITS), kind)
    rng = np.random.default_rng([seed, n])
    close = 1e-9 * abs(truth)
    formed = below = above = 0
    widths = []
    for _ in range(replicates):
        result = estimate(draw(kind, rng, n).tolist(), kind)
        if result is None or result.low is None or result.high is None:
            continue
        formed += 1
        below += result.high < truth - close
        above += result.low > truth + close
        widths.append((result.high - result.low) / abs(truth))
    share = 100 / max(formed, 1)
    return {
        "truth": truth,
        "formed": 100 * formed / replicates,
        "coverage": 100 - (below + above) * share,
        "below": below * share,
        "above": above * share,
        "width": statistics.median(widths) if widths else math.nan,
    }


def measure_percentile(name: str, kind: str, n: int, replicates: int, seed: int = 1) -> float:
    """What a percentile bootstrap over conversations (399 resamples) holds, in percent."""
    draw, true_of, _ = FIGURES[name]
    truth = true_of(draw(kind, np.random.default_rng(99), TRUTH_UNITS), kind)
    rng, close = np.random.default_rng([seed, n]), 1e-9 * abs(truth)
    picks = random.Random(seed)
    held = 0
    for _ in range(replicates):
        x = draw(kind, rng, n)
        if name == "ratio of sums":
            index = rng.integers(0, n, (399, n))
            draws = x[index, 0].sum(axis=1) / x[index, 1].sum(axis=1)
        else:
            draws = np.array([true_of(x[picks.choices(range(n), k=n)], kind) for _ in range(399)])
        low, high = np.quantile(draws, [0.025, 0.975])
        held += low - close <= truth <= high + close
    return 100 * held / replicates


def main() -> None:
    parser = argparse.ArgumentParser(description="Coverage of every interval that is printed")
    parser.add_argument("--replicates", type=int, default=1000)
    parser.add_argument("--units", type=int, nargs="*", default=[8, 16, 32, 64])
    parser.add_argument("--figures", nargs="*", default=list(FIGURES))
    parser.add_argument("--percentile", action="store_true", help="also a percentile bootstrap")
    args = parser.parse_args()
    print("figure            data        n  coverage  below  above  formed  width")
    for name in args.figures:
        for kind in KINDS:
            for n in args.units:
                row = measure(name, kind, n, args.replicates)
                print(
                    f"{name:17} {kind:9} {n:3d}  {row['coverage']:8.1f}  {row['below']:5.1f}"
                    f"  {row['above']:5.1f}  {row['formed']:6.1f}  {row['width']:5.3f}",
                    end="",
                )
                if args.percentile:
                    held = measure_percentile(name, kind, n, min(args.replicates, 400))
                    print(f"  percentile {held:5.1f}", end="")
                print(flush=True)


if __name__ == "__main__":
    main()
