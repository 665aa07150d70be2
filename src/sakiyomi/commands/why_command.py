"""`run --why`: a second, untimed pass that asks for logprobs, then what entropy explains."""

import argparse
from collections.abc import Callable
from pathlib import Path

import msgspec

from sakiyomi import terminal
from sakiyomi.plan import ClosedLoad, Plan
from sakiyomi.record import RunFacts
from sakiyomi.report import why_text
from sakiyomi.store import RunReader
from sakiyomi.why import Why, find_why

RunPlan = Callable[[Plan, argparse.Namespace], tuple[Path, RunFacts]]
NUM_ALTERNATIVES = 8
NUM_CONVERSATIONS = 12
"""Enough for a correlation over conversations; logprobs make answers slow and large."""


def why_pass(plan: Plan, arguments: argparse.Namespace, run_plan: RunPlan) -> Why:
    """Run the pass in a folder of its own, print what came out, return it."""
    names = vars(arguments) | {"out": f"{arguments.out}-why" if arguments.out else None}
    folder, _ = run_plan(why_plan(plan), argparse.Namespace(**names))
    reader = RunReader(folder)
    why = find_why(reader.facts, list(reader.records()))
    if not arguments.json:
        terminal.write("\n" + why_text.render(why, min(terminal.width(), 100)).rstrip("\n"))
        terminal.write(f"saved: {folder.name}")
    return why


def why_plan(plan: Plan) -> Plan:
    """The plan of the pass: one repeat, a few conversations, one at a time, with logprobs.

    Greedy, so that a plain arm's alternatives are those of the speculative arm's own text.
    """
    asked = {"logprobs": True, "top_logprobs": NUM_ALTERNATIVES}
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
                num_conversations=min(
                    ref.num_conversations or NUM_CONVERSATIONS, NUM_CONVERSATIONS
                ),
            )
            for ref in plan.scenarios
        ),
    )
