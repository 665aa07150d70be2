"""A job from flags: its run folder, facts, timeouts and keys."""

import argparse
import os
from pathlib import Path
from typing import Literal

import msgspec

from sakiyomi import terminal
from sakiyomi.client import Timeouts
from sakiyomi.environment import read_environment
from sakiyomi.errors import PlanError
from sakiyomi.job import Job, ServerAccess, finished_conversations
from sakiyomi.plan import Arm, Plan
from sakiyomi.record import RUN_FORMAT, Caution, RunFacts, ScenarioFacts
from sakiyomi.run_writer import RunWriter
from sakiyomi.scenario import Scenario
from sakiyomi.store import RunReader, now_text

TLS_NOT_VERIFIED = Caution("tls_not_verified", "TLS certificates were not verified (--insecure)")


def make_job(
    arguments: argparse.Namespace,
    plan: Plan,
    scenarios: dict[str, Scenario],
    schedule: str,
    reader: RunReader | None,
    kind: Literal["workload", "calibration"] = "workload",
) -> Job:
    """The job of a new run folder, or of a resumed one. `kind`: what the run is good for."""
    api_keys = {arm.name: _api_key(arm) for arm in plan.arms}
    if reader:
        writer = RunWriter(reader.folder)
        facts = msgspec.structs.replace(reader.facts, plan=plan, finished=False, interrupted=False)
        if any(f.content_hash != scenarios[f.name].content_hash for f in facts.scenarios):
            raise PlanError(
                f"{reader.folder.name}: a scenario has changed since the run began",
                "restore the scenario file, or start a new run",
            )
    else:
        writer = RunWriter.create(plan.name, Path(arguments.out) if arguments.out else None)
        facts = RunFacts(
            format=RUN_FORMAT,
            run_id=f"{writer.folder.name}-{os.urandom(3).hex()}",
            created=now_text(),
            plan=plan,
            kind=kind,
            environment=read_environment(),
            scenarios=tuple(_scenario_facts(scenario) for scenario in scenarios.values()),
        )
    if arguments.insecure and TLS_NOT_VERIFIED not in facts.cautions:
        facts = msgspec.structs.replace(facts, cautions=(*facts.cautions, TLS_NOT_VERIFIED))
    if arguments.force:
        facts = msgspec.structs.replace(facts, forced=True)
    writer.claim()
    writer.write_facts(facts)
    timeouts = Timeouts()
    if arguments.first_token_timeout:
        timeouts = msgspec.structs.replace(timeouts, first_token_s=arguments.first_token_timeout)
    if arguments.silence_timeout:
        timeouts = msgspec.structs.replace(timeouts, silence_s=arguments.silence_timeout)
    return Job(
        plan=plan,
        scenarios=scenarios,
        schedule=schedule,
        facts=facts,
        writer=writer,
        progress=terminal.Progress(quiet=False),
        access=ServerAccess(
            timeouts=timeouts,
            ca_file=arguments.ca_file,
            insecure=arguments.insecure,
            api_keys=api_keys,
        ),
        finished=finished_conversations(reader.records(), scenarios) if reader else set(),
        first_window=max((r.key.window for r in reader.records()), default=0) if reader else 0,
    )


def _scenario_facts(scenario: Scenario) -> ScenarioFacts:
    return ScenarioFacts(
        name=scenario.name,
        num_conversations=len(scenario.conversations),
        sampling=scenario.sampling,
        content_hash=scenario.content_hash,
        language=scenario.language,
        category=scenario.category,
    )


def _api_key(arm: Arm) -> str | None:
    if not arm.api_key_env:
        return None
    key = os.environ.get(arm.api_key_env)
    if not key:
        raise PlanError(
            f"arm {arm.name}: environment variable {arm.api_key_env} is empty or not set",
            f"export {arm.api_key_env}=...",
        )
    return key
