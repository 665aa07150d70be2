"""A small run folder with hostile names and texts, for the tests of the page."""

from pathlib import Path

from sakiyomi.plan import Arm, ClosedLoad, Plan, ScenarioRef, Speculation
from sakiyomi.record import (
    ArmFacts,
    Caution,
    Environment,
    RequestKey,
    RequestRecord,
    RunFacts,
    ScenarioFacts,
)
from sakiyomi.scenario import Sampling
from sakiyomi.store import RunWriter

SCRIPT = "</script><script>window.hacked = 1</script>"
IMAGE = '"><img src=x onerror="window.hacked = 1">'
ARMS = ("plain", "mtp-k3")
TEXTS = ("こんにちは", "、今日は", SCRIPT, "\u2028いい", "天気", "ですね。", IMAGE, "\n\n  x = 1")


def write_run(
    folder: Path, *, num_conversations: int = 6, num_repeats: int = 2, text_times: int = 1
) -> Path:
    """Two arms, two scenarios; the speculative arm is twice as fast, in steps of 1 to 4 tokens."""
    writer = RunWriter.create("page", folder)
    scenarios = ("ja_chat", f"own {IMAGE}")
    writer.write_facts(
        RunFacts(
            format=1,
            run_id=folder.name,
            created="2026-07-01T12:00:00+09:00",
            plan=Plan(
                name=f"page {SCRIPT}",
                arms=(
                    Arm(name="plain", engine="vllm", url="http://127.0.0.1:1"),
                    Arm(
                        name="mtp-k3",
                        engine="vllm",
                        url="http://127.0.0.1:2",
                        speculation=Speculation(method="mtp", num_speculative_tokens=3),
                    ),
                ),
                scenarios=tuple(ScenarioRef(name=name, file="none.jsonl") for name in scenarios),
                repeats=num_repeats,
            ),
            environment=Environment(tool_version="0", cpu=f"CPU {IMAGE}"),
            arms=(
                ArmFacts(
                    name="plain", engine="vllm", url="http://127.0.0.1:1", argv=("vllm", SCRIPT)
                ),
                ArmFacts(
                    name="mtp-k3",
                    engine="vllm",
                    url="http://127.0.0.1:2",
                    speculative_method="mtp",
                    num_speculative_tokens=3,
                ),
            ),
            scenarios=tuple(
                ScenarioFacts(
                    name=name,
                    num_conversations=num_conversations,
                    sampling=Sampling(),
                    content_hash="0",
                    language="ja",
                )
                for name in scenarios
            ),
            cautions=(Caution("suspect", f"look here {SCRIPT}"),),
            finished=True,
        )
    )
    for scenario in scenarios:
        for repeat in range(num_repeats):
            for index in range(num_conversations):
                for arm in ARMS:
                    writer.append(_record(scenario, arm, f"c{index} {SCRIPT}", repeat, text_times))
    writer.close()
    return folder


def _record(
    scenario: str, arm: str, conversation_id: str, repeat: int, text_times: int
) -> RequestRecord:
    texts = list(TEXTS) * 4 * text_times
    tokens = [1] * len(texts) if arm == "plain" else [1, 4, 2, 1, 3, 1, 2, 4] * 4 * text_times
    start_s = 100.0 * repeat + float(conversation_id[1]) + (0.5 if arm == "plain" else 0.0)
    step_s = 0.01 + 0.0002 * float(conversation_id[1])
    return RequestRecord(
        key=RequestKey(
            request_id=f"{scenario}/{arm}/{repeat}/{conversation_id}",
            scenario=scenario,
            conversation_id=conversation_id,
            turn=0,
            arm=arm,
            load=ClosedLoad().label,
            repeat=repeat,
            scheduled_at_s=start_s,
        ),
        sent_at_s=start_s,
        closed_at_s=start_s + 1,
        event_at_s=[start_s + 0.05 + step_s * i for i in range(len(texts))],
        event_tokens=list(tokens),
        event_kind=["answer"] * len(texts),
        event_text=texts,
        prompt_tokens=40,
        completion_tokens=sum(tokens),
        finish_reason="stop",
        done=True,
        max_tokens=512,
    )
