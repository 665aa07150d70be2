"""A run's categories in the form in which Spec-Bench and SPEED-Bench publish theirs. Pure.

For scenarios that `sakiyomi scenarios import --per-category` made of these question sets: named
NAME_CATEGORY, one for each category. Spec-Bench prints the mean accepted tokens, both speeds and
their ratio by task (evaluation/speed.py of hemingkx/Spec-Bench); its mean accepted tokens are the
tokens of a decoding step, 1 without drafts. SPEED-Bench prints the acceptance length by category
(table 1 of arXiv 2604.09557) and the acceptance rate.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from sakiyomi.plan import Load
from sakiyomi.results import Cell, Report
from sakiyomi.stats import Estimate

MULTI_TURN = (
    *("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem"),
    "humanities",
)
SPEC_BENCH = (*MULTI_TURN, "translation", "summarization", "qa", "math_reasoning", "rag")
SPEED_BENCH = (
    *("coding", "humanities", "math", "multilingual", "qa", "rag", "reasoning", "roleplay"),
    *("stem", "summarization", "writing"),
)
NOTES = {
    "Spec-Bench": "Theirs: speedup as the ratio of mean tok/s over three runs, its first eight "
    "categories pooled as multi-turn conversation, and an overall row over all questions. Ours: "
    "the paired median, and no row beyond the scenarios that were run.",
    "SPEED-Bench": "Theirs: mean length and mean speedup over its eleven categories beneath. Ours: "
    "no row beyond the scenarios that were run.",
}


class FormRow(msgspec.Struct, frozen=True, kw_only=True):
    """One category and arm."""

    category: str
    arm: str
    is_baseline: bool
    tokens_per_step: Estimate | None
    mean_acceptance_length: Estimate | None
    draft_acceptance_rate: Estimate | None
    decode_tokens_per_s: Estimate | None
    baseline_tokens_per_s: Estimate | None
    speedup: Estimate | None


class PublishedForm(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one question set under one load, in the set's own order."""

    benchmark: str
    load: Load
    rows: tuple[FormRow, ...]

    @property
    def note(self) -> str:
        """Where their numbers are formed otherwise than these."""
        return NOTES[self.benchmark]


def published_forms(report: Report) -> list[PublishedForm]:
    """A form for each question set and load of a run; none for other scenarios."""
    forms = []
    for benchmark, categories in _question_sets(report.scenarios):
        for load in dict.fromkeys(cell.load for cell in report.cells):
            rows = [
                _row(report, cell, category)
                for category, scenario in categories.items()
                for cell in report.cells
                if (cell.scenario, cell.load) == (scenario, load)
            ]
            if rows:
                forms.append(PublishedForm(benchmark=benchmark, load=load, rows=tuple(rows)))
    return forms


def _question_sets(
    scenarios: Iterable[Mapping[str, Any]],
) -> list[tuple[str, dict[str, str]]]:
    """(benchmark, category -> scenario) of each NAME that has two categories or more."""
    groups: dict[str, dict[str, str]] = {}
    for scenario in scenarios:
        name, category = str(scenario["name"]), scenario.get("category")
        if category and name.endswith(f"_{category}"):
            groups.setdefault(name.removesuffix(f"_{category}"), {})[category] = name
    found = []
    for name, categories in groups.items():
        benchmark = _benchmark(name, set(categories))
        if benchmark and len(categories) > 1:
            order = SPEC_BENCH if benchmark == "Spec-Bench" else SPEED_BENCH
            found.append((benchmark, {c: categories[c] for c in order if c in categories}))
    return found


def _benchmark(name: str, categories: set[str]) -> str | None:
    """Which set has all these categories; where both have, the name decides."""
    fitting = [
        benchmark
        for benchmark, known in (("Spec-Bench", SPEC_BENCH), ("SPEED-Bench", SPEED_BENCH))
        if categories <= set(known)
    ]
    if len(fitting) == 2:
        return "SPEED-Bench" if "speed" in name.lower() else "Spec-Bench"
    return fitting[0] if fitting else None


def _row(report: Report, cell: Cell, category: str) -> FormRow:
    place = cell.scenario, cell.load
    baseline = next(
        (c for c in report.cells if (c.scenario, c.load, c.arm) == (*place, report.baseline)), None
    )
    compared = next(
        (
            c
            for c in report.comparisons
            if (c.scenario, c.load, c.arm, c.metric) == (*place, cell.arm, "decode_tokens_per_s")
        ),
        None,
    )
    acceptance = cell.acceptance
    return FormRow(
        category=category,
        arm=cell.arm,
        is_baseline=cell.arm == report.baseline,
        tokens_per_step=cell.tokens_per_step,
        mean_acceptance_length=acceptance.mean_acceptance_length if acceptance else None,
        draft_acceptance_rate=acceptance.draft_acceptance_rate if acceptance else None,
        decode_tokens_per_s=cell.decode_tokens_per_s,
        baseline_tokens_per_s=baseline.decode_tokens_per_s if baseline else None,
        speedup=compared.ratio if compared else None,
    )
