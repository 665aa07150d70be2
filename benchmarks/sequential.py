"""Looking after every repeat: false verdicts, and how many repeats a verdict needs.

    python benchmarks/sequential.py [--experiments 2000]

Each experiment measures the same conversations in every repeat: ln(speedup) = ln(1 + gain) + own
effect of the conversation + noise of the repeat. It stops at the first established direction.
`every look at 95 %` is what the plain interval of `stats.compare` does when it is asked each time.
"""

import argparse
import math
import random

from sakiyomi import sequential, stats, verdicts

# (between conversations, between repeats): standard deviations of ln(speedup)
SPREADS = {"noise only": (0.0, 0.1), "both": (0.05, 0.1), "conversations differ": (0.15, 0.05)}


def experiment(
    rng: random.Random, gain: float, spread: tuple[float, float], n: int, max_looks: int
) -> tuple[str, int, str, int]:
    """Verdict and its look by `sequential`, then by looking each time at 95 %."""
    between, noise = spread
    own = [rng.gauss(math.log1p(gain), between) for _ in range(n)]
    units: list[list[float]] = [[] for _ in own]
    found: dict[str, tuple[str, int]] = {}
    for look in range(1, max_looks + 1):
        for unit, effect in zip(units, own, strict=True):
            unit.append(rng.gauss(effect, noise))
        told = {
            "sequential": sequential.sequential_verdict(units, look, max_looks),
            "naive": verdicts.verdict(stats.compare(units)),
        }
        for name, verdict in told.items():
            if verdict in ("faster", "slower"):
                found.setdefault(name, (verdict, look))
        if len(found) == len(told):
            break
    none = ("not_established", max_looks)
    return (*found.get("sequential", none), *found.get("naive", none))


def simulate(
    gain: float,
    spread: tuple[float, float],
    n: int,
    max_looks: int,
    experiments: int,
    seed: int = 1,
) -> dict[str, float]:
    """Shares in percent and the mean number of repeats."""
    rng = random.Random(seed)
    rows = [experiment(rng, gain, spread, n, max_looks) for _ in range(experiments)]
    return {
        "established": 100 * sum(row[0] != "not_established" for row in rows) / experiments,
        "wrong_way": 100 * sum(row[0] == "slower" for row in rows) / experiments,
        "repeats": sum(row[1] for row in rows) / experiments,
        "naive": 100 * sum(row[2] != "not_established" for row in rows) / experiments,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="False verdicts and repeats needed")
    parser.add_argument("--experiments", type=int, default=2000)
    args = parser.parse_args()
    print("established in % of experiments @ mean number of repeats; gain 0: false verdicts")
    print("looks   n  spread                every look at 95 %    0 %     3 %      10 %      30 %")
    for max_looks in (4, 8):
        for n in (8, 16, 32):
            for name, spread in SPREADS.items():
                none = simulate(0.0, spread, n, max_looks, args.experiments)
                cells = [f"{none['naive']:18.1f}  {none['established']:5.1f}"]
                for gain in (0.03, 0.1, 0.3):
                    row = simulate(gain, spread, n, max_looks, args.experiments // 4)
                    cells.append(f"{row['established']:3.0f}@{row['repeats']:.1f}")
                print(f"{max_looks:5d} {n:3d}  {name:20}  {'   '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
