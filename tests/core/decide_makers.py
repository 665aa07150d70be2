"""Synthetic runs for the tests of decisions: measured requests of known speed and acceptance."""

import random
from statistics import NormalDist

from sakiyomi.cells import make_cell
from sakiyomi.engines.engine import QUALITIES
from sakiyomi.latency import RequestLatency
from sakiyomi.measured import Measured
from sakiyomi.pairing import compare_arms
from sakiyomi.plan import Arm, ClosedLoad, Plan, ScenarioRef, Speculation
from sakiyomi.record import (
    ArmFacts,
    Environment,
    RequestError,
    RequestKey,
    RunFacts,
    ScenarioFacts,
    SpecDecodeCounters,
)
from sakiyomi.results import SCHEMA, Report
from sakiyomi.scenario import Sampling

PLAIN_RATE = 50.0


def request(arm, conversation, repeat, rate, **fields):
    """One request; `fields` may hold latency values, an error, or step counts."""
    scenario = fields.pop("scenario", "chat")
    load = fields.pop("load", "closed-1")
    counts = fields.pop("counts", None)
    failed = fields.pop("failed", False)
    tokens = fields.pop("num_tokens", 101)
    latency = {
        "ttft_s": 0.05,
        "decode_tokens_per_s": rate,
        "tpot_s": 1 / rate,
        "e2e_s": 0.05 + (tokens - 1) / rate,
        "first_event_tokens": 1,
        **fields,
    }
    return Measured(
        key=RequestKey(
            request_id=f"{scenario}/{load}/{arm}/{repeat}/{conversation}",
            scenario=scenario,
            conversation_id=conversation,
            turn=0,
            arm=arm,
            load=load,
            repeat=repeat,
            scheduled_at_s=0.0,
            window=repeat,
        ),
        error=RequestError(kind="reset", message="gone") if failed else None,
        latency=RequestLatency(**latency),
        gap_s=1 / rate,
        response=counts,
        steps=counts,
        num_step_tokens=round(counts.num_steps + counts.num_accepted_tokens) if counts else 100,
        num_merged_steps=0,
        finish_reason="length",
        prompt_tokens=10,
        cached_prompt_tokens=0,
        num_tokens=tokens,
        looped=False,
        has_answer=True,
        sent_at_s=10.0 * repeat,
        closed_at_s=10.0 * repeat + 5,
        max_tokens=tokens,
    )


def drafted(positions, num_steps=100):
    """Counts of a request whose drafts fared exactly so."""
    accepted = tuple(rate * num_steps for rate in positions)
    return SpecDecodeCounters(
        num_drafts=num_steps,
        num_draft_tokens=num_steps * len(positions),
        num_accepted_tokens=sum(accepted),
        accepted_per_position=accepted,
        num_steps=num_steps,
    )


def arm_facts(name, k=None, **fields):
    return ArmFacts(
        name=name,
        engine=fields.pop("engine", "vllm"),
        url="",
        model=fields.pop("model", "M"),
        speculative_method=fields.pop("method", "mtp" if k else None),
        num_speculative_tokens=k,
        **fields,
    )


def make_facts(arms, *, scenarios=("chat",), loads=None, slo=None, **fields):
    plan = Plan(
        name="synthetic",
        arms=tuple(
            Arm(
                name=arm.name,
                engine=arm.engine,
                model=arm.model,
                speculation=Speculation(
                    method=arm.speculative_method,
                    num_speculative_tokens=arm.num_speculative_tokens,
                )
                if arm.num_speculative_tokens
                else None,
            )
            for arm in arms
        ),
        scenarios=tuple(ScenarioRef(name=name) for name in scenarios),
        loads=tuple(loads or (ClosedLoad(),)),
        slo=slo or {},
    )
    return RunFacts(
        format=1,
        run_id="synthetic",
        created="2026-12-01T00:00:00Z",
        plan=plan,
        environment=Environment(tool_version="test"),
        arms=tuple(arms),
        scenarios=tuple(
            ScenarioFacts(name=name, num_conversations=16, sampling=Sampling(), content_hash="x")
            for name in scenarios
        ),
        **fields,
    )


def make_report(facts, requests):
    """The report of measured requests, by the product's own cells and comparisons."""
    arms = {arm.name: arm for arm in facts.arms}
    cells = [
        make_cell(
            facts, arms[arm.name], load, requests[ref.name, arm.name, load.label], [], QUALITIES
        )
        for ref in facts.plan.scenarios
        for load in facts.plan.loads
        for arm in facts.plan.arms
        if (ref.name, arm.name, load.label) in requests
    ]
    return Report(
        schema=SCHEMA,
        run=facts.run_id,
        name=facts.plan.name,
        created=facts.created,
        baseline=facts.plan.arms[0].name,
        environment={},
        arms=[],
        scenarios=[],
        cells=cells,
        comparisons=compare_arms(facts.plan, arms, requests, cells, facts.looks),
        explanation=None,
        decision=None,
        cautions=[],
    )


def group(requests):
    """Requests by (scenario, arm, load)."""
    grouped = {}
    for one in requests:
        key = one.key
        grouped.setdefault((key.scenario, key.arm, key.load), []).append(one)
    return grouped


def two_arms(gain, *, conversations=16, repeats=2, spread=0.05, seed=1, drawn=False, **fields):
    """Requests of a plain arm and of `fast`, whose speedup scatters round 1 + gain.

    The scatter is the same whatever the gain, so that only the gain moves between runs. Without
    `drawn` conversations lie at the quantiles of a normal distribution: their median is the gain.
    """
    rng = random.Random(seed)
    quantiles = [
        NormalDist().inv_cdf((index + 0.5) / conversations) for index in range(conversations)
    ]
    rng.shuffle(quantiles)
    found = []
    for index in range(conversations):
        own = spread * (rng.gauss(0, 1) if drawn else quantiles[index])
        base = PLAIN_RATE * rng.uniform(0.9, 1.1)
        for repeat in range(repeats):
            noise = rng.gauss(0, spread / 10)
            ratio = (1 + gain) * 2.718281828 ** (own + noise)
            found.append(request("plain", f"c{index}", repeat, base, **fields))
            found.append(request("fast", f"c{index}", repeat, base * ratio, **fields))
    return found
