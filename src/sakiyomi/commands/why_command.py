"""`run --why`: a second, untimed pass that asks for logprobs, then what entropy explains.

The pass is a run folder of its own beside the run's: `RUN-why`.
"""

import argparse
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from sakiyomi import terminal
from sakiyomi.errors import RequestRefused
from sakiyomi.lossless import TextCheck, check_texts, collect_texts
from sakiyomi.plan import ClosedLoad, Plan
from sakiyomi.plan_files import read_scenario
from sakiyomi.record import RunFacts
from sakiyomi.report import why_text
from sakiyomi.report.decision_numbers import text_sentence
from sakiyomi.store import RunReader
from sakiyomi.why import Why, find_why

RunPlan = Callable[[Plan, argparse.Namespace, RunReader | None], tuple[Path, RunFacts]]
NUM_ALTERNATIVES = 20
"""The most that OpenAI's API and vLLM's default (`--max-logprobs`) allow."""
NUM_CONVERSATIONS = 12
"""Enough for a correlation over conversations; logprobs make answers slow and large."""


def why_pass(folder: Path, plan: Plan, arguments: argparse.Namespace, run_plan: RunPlan) -> None:
    """Run the pass beside the run in `folder` unless it was, and print what came out."""
    own, reader = why_folder(folder), open_why(folder)
    if reader is None or not reader.facts.finished:
        sizes = {ref.name: len(read_scenario(ref).conversations) for ref in plan.scenarios}
        changed = {"out": str(own), "until_established": False}
        names = argparse.Namespace(**(vars(arguments) | changed))
        try:
            run_plan(why_plan(plan, sizes), names, reader)
        except RequestRefused as refusal:
            terminal.warn(f"! why: the server gives no logprobs: {refusal.message}")
            return
        reader = RunReader(own)
    if arguments.json:
        return
    width = min(terminal.width(), 100)
    terminal.write("\n" + why_text.render(read_why(reader), width))
    for check in read_texts(reader):
        text = f"{check.scenario}: {text_sentence(check)}"
        terminal.write(textwrap.fill(text, width, break_on_hyphens=False) + "\n")
    terminal.write(f"saved: {own if arguments.out else own.name}")


def why_folder(folder: Path) -> Path:
    """Where the pass of a run is, if there was one."""
    return folder.with_name(f"{folder.name}-why")


def open_why(folder: Path) -> RunReader | None:
    """The pass of a run; None where there was none."""
    own = why_folder(folder)
    return RunReader(own) if (own / "run.json").exists() else None


def read_why(reader: RunReader) -> Why:
    """What a saved pass says."""
    return find_why(reader.facts, list(reader.records()))


def read_texts(reader: RunReader) -> tuple[TextCheck, ...]:
    """Whether the arms wrote the same texts in a run folder."""
    return check_texts(reader.facts, collect_texts(reader.records()))


def why_plan(plan: Plan, sizes: Mapping[str, int]) -> Plan:
    """The plan of the pass: one repeat, a few conversations, one at a time, with logprobs.

    `sizes`: conversations of each scenario as the plan asks it.

    Greedy, so that a plain arm's alternatives are those of the speculative arm's own text.
    """
    asked: dict[str, Any] = {"logprobs": True, "top_logprobs": NUM_ALTERNATIVES}
    if plan.arms[0].asks_completions:
        asked = {"logprobs": NUM_ALTERNATIVES}
    return msgspec.structs.replace(
        plan,
        name=f"{plan.name} why",
        arms=tuple(
            msgspec.structs.replace(arm, request={**arm.request, **asked}) for arm in plan.arms
        ),
        loads=(ClosedLoad(),),
        repeats=1,
        scenarios=tuple(
            msgspec.structs.replace(
                ref,
                temperature=0.0,
                num_conversations=min(sizes[ref.name], NUM_CONVERSATIONS),
            )
            for ref in plan.scenarios
        ),
    )
