"""A small run folder with hostile names and texts, for the tests of the page."""

import math
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

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
from sakiyomi.run_writer import RunWriter
from sakiyomi.scenario import Sampling

SCRIPT = "</script><script>window.hacked = 1</script>"
IMAGE = '"><img src=x onerror="window.hacked = 1">'
ARMS = ("plain", "mtp-k3")
TEXTS = ("こんにちは", "、今日は", SCRIPT, "\u2028いい", "天気", "ですね。", IMAGE, "\n\n  x = 1")


ENGLISH = re.compile(r"(?:\b[A-Za-z]{2,}\b[,;:]? ){3,}\b[A-Za-z]{2,}\b")
"""Four English words in a row."""


def english(text: str, names: Iterable[str]) -> list[str]:
    """English sentences in a text, names of the run and commands left out."""
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, "")
    return [line for line in text.splitlines() if ENGLISH.search(line) and "sakiyomi " not in line]


def write_why(folder: Path) -> Path:
    """The pass with logprobs beside a run: accepted tokens are certain, rejections are not."""
    return write_run(folder.with_name(f"{folder.name}-why"), num_repeats=1, logprobs=True)


def write_run(
    folder: Path,
    *,
    num_conversations: int = 6,
    num_repeats: int = 2,
    text_times: int = 1,
    logprobs: bool = False,
    engine: str = "vllm",
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
                    Arm(name="plain", engine=engine, url="http://127.0.0.1:1"),
                    Arm(
                        name="mtp-k3",
                        engine=engine,
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
                    name="plain", engine=engine, url="http://127.0.0.1:1", argv=("vllm", SCRIPT)
                ),
                ArmFacts(
                    name="mtp-k3",
                    engine=engine,
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
                    record = _record(scenario, arm, f"c{index} {SCRIPT}", repeat, text_times)
                    if logprobs:
                        record = msgspec.structs.replace(record, evidence=_told(record))
                    writer.append(record)
    writer.close()
    return folder


def _told(record: RequestRecord) -> dict[str, object]:
    """Logprobs of every token, and what each step of 3 drafts accepted."""
    accepted = [num - 1 for num in record.event_tokens[1:] if num is not None]
    shares = [(0.5, 0.5)]
    for num in accepted:
        shares += [(0.98, 0.02)] * num + [(0.5, 0.4)]
    logs = [[math.log(share) for share in pair] for pair in shares]
    told = [
        {"token": "", "logprob": pair[0], "top_logprobs": [{"logprob": log} for log in pair]}
        for pair in logs
    ]
    spoken = {
        "num_accepted_draft_tokens": sum(accepted),
        "per_step_accepted": accepted,
        "per_step_drafted": [3] * len(accepted),
    }
    metrics = {"metrics": {"speculative_decoding": spoken}} if "mtp" in record.key.arm else {}
    return {"logprobs": told, **metrics}


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
