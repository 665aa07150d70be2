"""What two arms differ in besides speculation. Pure.

A speedup is of all that differs together: it is said, field by field. Another version of the same
engine, or another device, makes two arms not comparable at all.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from sakiyomi.measured import is_speculative
from sakiyomi.plan import Arm
from sakiyomi.record import ArmFacts, Caution

CLOCK_GAP = 0.05
"""Clocks of a device that differ by more than this move a decode rate visibly."""

SYNCHRONOUS_METHODS = ("ngram", "suffix")
"""vLLM turns asynchronous scheduling off for these, on for the rest (vllm/config, 0.24 - 0.33)."""

QUIET_SETTINGS = (
    "system_fingerprint",
    "metrics_notes",
    "avg_spec_accept_length",
    "speculative",
    "num_gpu_blocks",
    "kv_cache_size_tokens",
    "kv_cache_max_concurrency",
)
"""Differ with speculation itself (drafts take memory), with the past, or with the version."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One field and both values. `forbids`: the arms cannot be compared because of it."""

    field: str
    baseline: Any
    arm: Any
    forbids: bool = False

    @property
    def words(self) -> str:
        """Field and values in a line."""
        return f"{self.field} ({_shown(self.baseline)} against {_shown(self.arm)})"


def find_differences(
    baseline: ArmFacts,
    arm: ArmFacts,
    plans: Mapping[str, Arm] | None = None,
    clocks_mhz: Mapping[str, float] | None = None,
) -> list[Difference]:
    """Fields that differ, those that forbid a comparison first.

    `plans`: the plan's arms by name; `clocks_mhz`: the median clock of the device in each arm's
    repeats. What one side does not tell is no difference.
    """
    found = [
        *_named(baseline, arm),
        *_scheduling(baseline, arm),
        *_settings(baseline.settings, arm.settings),
        *_clocks(baseline, arm, clocks_mhz or {}),
    ]
    if plans and baseline.name in plans and arm.name in plans:
        found += _plan_differences(plans[baseline.name], plans[arm.name])
    unique = {difference.field: difference for difference in reversed(found)}
    return sorted(unique.values(), key=lambda one: (not one.forbids, one.field))


def difference_cautions(
    baseline: ArmFacts, arm: ArmFacts, differences: Sequence[Difference], *, forced: bool
) -> list[Caution]:
    """`not_comparable` for what forbids a comparison, `arms_differ` for the rest."""
    forbidding = [one for one in differences if one.forbids and not forced]
    stated = [one for one in differences if one not in forbidding]
    cautions = []
    if forbidding:
        cautions.append(
            Caution(
                "not_comparable",
                f"{arm.name} and {baseline.name} differ in "
                f"{', '.join(one.words for one in forbidding)}: no verdict. Measure both alike, or "
                "compare all the same with --force",
                _detail(baseline, arm, forbidding),
            )
        )
    if stated:
        cautions.append(
            Caution(
                "arms_differ",
                f"{arm.name} differs from {baseline.name} in more than speculation: "
                f"{', '.join(one.words for one in stated[:6])}"
                f"{' and more' if len(stated) > 6 else ''}. The ratio is of all of it together",
                _detail(baseline, arm, stated),
            )
        )
    return cautions


def _detail(baseline: ArmFacts, arm: ArmFacts, found: Sequence[Difference]) -> dict[str, Any]:
    return {
        "arm": arm.name,
        "baseline": baseline.name,
        "differences": [
            {"field": one.field, "baseline": one.baseline, "arm": one.arm} for one in found
        ],
    }


def _named(baseline: ArmFacts, arm: ArmFacts) -> Iterator[Difference]:
    """Versions of different engines are no two versions of one thing."""
    for field in ("engine", "model", "quantization"):
        yield from _compare(field, getattr(baseline, field), getattr(arm, field))
    if baseline.engine == arm.engine:
        yield from _compare(
            "engine_version", baseline.engine_version, arm.engine_version, forbids=True
        )
    yield from _compare("device", baseline.device, arm.device, forbids=True)


def _scheduling(baseline: ArmFacts, arm: ArmFacts) -> Iterator[Difference]:
    """Asynchronous scheduling as the engine tells it, else by what is known of the method."""
    mine, theirs = _asynchronous(baseline), _asynchronous(arm)
    if mine is None or theirs is None:
        return
    words = {True: "asynchronous", False: "synchronous"}
    yield from _compare("scheduling", words[mine], words[theirs])


def _asynchronous(facts: ArmFacts) -> bool | None:
    if facts.engine != "vllm":
        return None
    told = facts.settings.get("scheduler_config")
    told = told.get("async_scheduling") if isinstance(told, dict) else None
    if isinstance(told, bool):
        return told
    if "cpu" in (facts.engine_version or ""):
        return False
    return not is_speculative(facts) or facts.speculative_method not in SYNCHRONOUS_METHODS


def _settings(
    baseline: Mapping[str, Any], arm: Mapping[str, Any], prefix: str = ""
) -> Iterator[Difference]:
    """Plain values that both sides tell; nested objects by their path."""
    for key in baseline.keys() & arm.keys():
        if key in QUIET_SETTINGS or (key == "async_scheduling" and prefix):
            continue
        mine, theirs = baseline[key], arm[key]
        if isinstance(mine, dict) and isinstance(theirs, dict):
            yield from _settings(mine, theirs, f"{prefix}{key}.")
        else:
            yield from _compare(prefix + key, mine, theirs)


def _clocks(
    baseline: ArmFacts, arm: ArmFacts, clocks_mhz: Mapping[str, float]
) -> Iterator[Difference]:
    mine, theirs = clocks_mhz.get(baseline.name), clocks_mhz.get(arm.name)
    if mine and theirs and abs(theirs / mine - 1) > CLOCK_GAP:
        yield Difference(field="gpu_clock_mhz", baseline=mine, arm=theirs)


def _plan_differences(baseline: Arm, arm: Arm) -> Iterator[Difference]:
    """Arguments, request keys, and names of environment variables (their values may be secret)."""
    mine, theirs = _flags(baseline.args), _flags(arm.args)
    for flag in sorted(mine.keys() | theirs.keys()):
        if mine.get(flag) != theirs.get(flag):
            yield Difference(field=flag, baseline=mine.get(flag), arm=theirs.get(flag))
    for name in sorted(baseline.env.keys() | arm.env.keys()):
        if baseline.env.get(name) != arm.env.get(name):
            said = ("set" if name in one.env else None for one in (baseline, arm))
            yield Difference(field=f"env.{name}", baseline=next(said), arm=next(said))


def _flags(args: Sequence[str]) -> dict[str, str]:
    """`--flag value`, `--flag=value` and bare flags -> value by flag; a bare flag's is `on`."""
    flags: dict[str, str] = {}
    last = ""
    for word in args:
        if word.startswith("-") and not word[1:2].isdigit():
            last, _, value = word.partition("=")
            flags[last] = value or "on"
        elif last:
            flags[last] = word if flags[last] == "on" else f"{flags[last]} {word}"
    per_request = "--per-request-spec-decode-metrics"  # refused by arms that do not speculate
    return {flag: value for flag, value in flags.items() if flag != per_request}


def _compare(field: str, baseline: Any, arm: Any, *, forbids: bool = False) -> Iterator[Difference]:
    if baseline is not None and arm is not None and baseline != arm:
        yield Difference(field=field, baseline=baseline, arm=arm, forbids=forbids)


def _shown(value: Any) -> str:
    return "not set" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
