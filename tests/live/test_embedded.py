"""The embedded engine as it is: started, asked, counted, ended. Fetches the model the first time."""

import asyncio
import contextlib
import math
from pathlib import Path

import msgspec
import pytest

from sakiyomi.acceptance import position_rates
from sakiyomi.client import Client
from sakiyomi.counter_growth import delta, total_speculation
from sakiyomi.embedded import embedded_arms, self_draft_arm
from sakiyomi.engines import llamacpp
from sakiyomi.errors import EngineError, PlanError
from sakiyomi.launch import free_port, launch
from sakiyomi.record import RequestKey
from sakiyomi.start_command import fill_command
from sakiyomi.strays import start_mark

pytestmark = pytest.mark.live
pytest.importorskip("xllamacpp", reason="the extra `local`")

CODE = """class Account:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        self.balance += amount
        return self.balance
"""
PROMPTS = (
    f"Rewrite this Python code with type hints and repeat the whole file:\n```python\n{CODE}```",
    "Write a Python function that parses a CSV file and returns a list of dicts.",
    "Tell a long story about a fox that learns to count.",
)


@pytest.fixture(autouse=True)
def _own_ledger(tmp_path, monkeypatch):
    monkeypatch.setenv("SAKIYOMI_STATE", str(tmp_path / "state"))


@contextlib.asynccontextmanager
async def up(arm, tmp_path):
    """A launched arm and a client for it."""
    port = free_port()
    async with Client() as client:

        async def healthy(url):
            try:
                return (await client.fetch(url + "/health", timeout_s=5)).status == 200
            except EngineError:
                return False

        async with launch(
            arm,
            command=fill_command(arm, port),
            log_path=tmp_path / f"{arm.name}.log",
            port=port,
            probe=healthy,
            remedies=llamacpp.LOG_REMEDIES,
        ) as launched:
            yield launched, client


async def ask(client, url, prompt, max_tokens, number=0):
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "timings_per_token": True,
        "cache_prompt": False,
    }
    key = RequestKey(
        request_id=str(number),
        scenario="s",
        conversation_id=str(number),
        turn=0,
        arm="a",
        load="closed-1",
        repeat=0,
        scheduled_at_s=0,
    )
    record = await client.stream(url + "/v1/chat/completions", body, key, tokens_per_event=1)
    assert record.error is None
    return record


async def measured(arm, tmp_path, *, max_tokens, prompts=PROMPTS):
    """Records of all prompts, and the difference of the server's own counters around them."""
    async with up(arm, tmp_path) as (launched, client):
        before = await client.fetch(launched.url + "/metrics", timeout_s=20)
        records = [
            await ask(client, launched.url, prompt, max_tokens, number)
            for number, prompt in enumerate(prompts)
        ]
        after = await client.fetch(launched.url + "/metrics", timeout_s=20)
    assert start_mark(launched.pid) is None
    counted = delta(llamacpp.read_metrics(before.text), llamacpp.read_metrics(after.text))
    assert not counted.lower_bound
    return records, counted.counters.speculation


def told_by(records):
    """The engine's own words with every request, summed."""
    told = [llamacpp.read_response(record) for record in records]
    return total_speculation(counts for counts in told if counts)  # None: no draft was found


def test_drafting_from_the_text_changes_no_token_and_is_counted_three_times_alike(tmp_path):
    plain, ngram = embedded_arms(None, say=print)
    alone, no_drafts = asyncio.run(measured(plain, tmp_path, max_tokens=120, prompts=PROMPTS[:2]))
    drafted, counted = asyncio.run(measured(ngram, tmp_path, max_tokens=120, prompts=PROMPTS[:2]))
    assert ["".join(r.event_text) for r in drafted] == ["".join(r.event_text) for r in alone]
    assert no_drafts.num_draft_tokens == 0
    told = told_by(drafted)
    assert told.num_draft_tokens == counted.num_draft_tokens > 0
    assert told.num_accepted_tokens == counted.num_accepted_tokens
    assert told.num_drafts == counted.num_drafts


def test_forced_acceptance_is_measured_back_per_position(tmp_path):
    plain, _ = embedded_arms(None, say=print)
    rates = (0.8, 0.6, 0.4)
    arm = llamacpp.force_acceptance(self_draft_arm(Path(plain.model)), rates)
    assert llamacpp.read_arm(arm).forced_acceptance
    records, counted = asyncio.run(measured(arm, tmp_path, max_tokens=200))
    assert counted.num_drafts > 150
    for rate, seen in zip(rates, position_rates(counted), strict=True):
        assert abs(seen - rate) < 4 * math.sqrt(rate * (1 - rate) / counted.num_drafts)
    told = told_by(records)
    assert told.accepted_per_position == counted.accepted_per_position
    assert told.num_drafts == counted.num_drafts
    assert told.num_draft_tokens == counted.num_draft_tokens


@pytest.mark.parametrize(("rate", "per_step"), [(0.0, 1.0), (1.0, 4.0)])
def test_none_and_all_of_the_drafts_can_be_accepted(tmp_path, rate, per_step):
    plain, _ = embedded_arms(None, say=print)
    arm = llamacpp.force_acceptance(self_draft_arm(Path(plain.model)), (rate,) * 3)
    records, _ = asyncio.run(measured(arm, tmp_path, max_tokens=41, prompts=PROMPTS[2:]))
    steps = llamacpp.group_steps(records[0])
    drafting = [step for step in steps if step.num_draft_tokens == 3]
    assert len(drafting) >= 9
    assert {step.num_tokens for step in drafting} == {per_step}


@pytest.mark.parametrize("num_speculative_tokens", [1, 3, 4])
def test_a_lookup_draft_can_be_refused_by_force(tmp_path, num_speculative_tokens):
    _, ngram = embedded_arms(None, say=print)
    arm = llamacpp.force_acceptance(ngram, (0.0,) * num_speculative_tokens)
    records, counted = asyncio.run(measured(arm, tmp_path, max_tokens=60, prompts=PROMPTS[:1]))
    assert counted.num_drafts > 0
    assert counted.num_draft_tokens == pytest.approx(
        counted.num_drafts * num_speculative_tokens, rel=0.1
    )
    assert counted.num_accepted_tokens == 0
    assert {step.num_tokens for step in llamacpp.group_steps(records[0])} == {1}


@pytest.mark.parametrize(
    ("change", "says", "hint"),
    [
        ({"model": "/nowhere/x.gguf"}, "weights are missing", "model"),
        ({"args": ("--no-such-flag", "1")}, "unrecognized arguments: --no-such-flag", "--help"),
        ({"spec": "ngram-nonsense"}, "ngram-nonsense", "method"),
        ({"gguf": b"GGUF but cut off"}, "could not be loaded", ".gguf"),
    ],
)
def test_an_embedded_engine_that_cannot_start_says_why(tmp_path, change, says, hint):
    _, arm = embedded_arms(None, say=print)
    if "gguf" in change:
        broken = tmp_path / "broken.gguf"
        broken.write_bytes(change["gguf"])
        change = {"model": str(broken)}
    if "spec" in change:
        speculation = msgspec.structs.replace(arm.speculation, method=change["spec"])
        change = {"speculation": speculation}
    arm = msgspec.structs.replace(arm, **change)

    async def run():
        async with up(arm, tmp_path):
            pytest.fail("it must not start")

    with pytest.raises(EngineError) as caught:
        asyncio.run(run())
    assert says in caught.value.message
    assert hint in caught.value.hint


def test_a_model_that_is_not_there_is_refused_before_anything_starts():
    with pytest.raises(PlanError, match="no such file"):
        embedded_arms("/nowhere/x.gguf", say=print)
