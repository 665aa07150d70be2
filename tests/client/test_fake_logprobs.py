"""Logprobs of the fake engine in the forms of vLLM and llama.cpp, streamed and whole."""

import asyncio
import json
import math

import pytest

from sakiyomi.client import Client
from sakiyomi.fake_engine import FakeEngine, serve
from sakiyomi.record import RequestKey
from sakiyomi.token_logprobs import entries, uncertainty

KEY = RequestKey("r", "s", "c", 0, "a", "closed-1", 0, 0.0)
CERTAIN, UNCERTAIN = (0.9, 0.06), (0.5, 0.25, 0.2)
SAY = {"messages": [{"role": "user", "content": "Say something."}], "max_tokens": 24}
QUICK = {"ttft_s": 0.001, "step_s": 0.001, "certain": CERTAIN, "uncertain": UNCERTAIN}


def asked(config, body, path="/v1/chat/completions"):
    """(raw answer as text, record of the client, the server's log entry)."""

    async def main():
        async with serve(config) as server, Client() as client:
            url = server.url + path
            record = None
            if body.get("stream"):
                record = await client.stream(url, body, KEY, tokens_per_event=None)
            raw = await raw_answer(url, body)
            return raw, record, server.log[0]

    return asyncio.run(main())


async def raw_answer(url, body):
    host, port = url.split("/")[2].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    data = json.dumps(body).encode()
    head = f"POST /{url.split('/', 3)[3]} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(data) + data)
    answer = (await reader.read()).decode()
    writer.close()
    return answer


def whole_choice(answer):
    return json.loads(answer.split("\r\n\r\n", 1)[1])["choices"][0]


def choices(answer):
    """The choices of a stream's chunks."""
    events = [line[6:] for line in answer.split("\n") if line.startswith("data: {")]
    return [choice for event in events for choice in json.loads(event)["choices"]]


def logs(shares):
    return [pytest.approx(math.log(share)) for share in shares]


def test_vllm_tells_every_token_of_a_step_with_its_rivals():
    config = FakeEngine(k=3, script=(2, 0, 3), **QUICK)
    _, record, log = asked(config, SAY | {"stream": True, "logprobs": True, "top_logprobs": 2})
    told = entries(record)
    assert len(told) == log.completion_tokens == len(log.shares) == 24
    assert {len(shares) for shares in log.shares} == {2, 3}
    assert "".join(entry["token"] for entry in told) == "".join(record.event_text)
    for entry, shares in zip(told, log.shares, strict=True):
        assert entry["logprob"] == pytest.approx(math.log(shares[0]))
        assert [o["logprob"] for o in entry["top_logprobs"]] == logs(shares[:2])
        assert entry["top_logprobs"][0]["token"] == entry["token"]


def test_without_alternatives_vllm_tells_the_token_alone():
    _, record, _ = asked(FakeEngine(**QUICK), SAY | {"stream": True, "logprobs": True})
    assert all(entry["top_logprobs"] == [] for entry in entries(record))
    assert [uncertainty(entry) for entry in entries(record)] == [None] * 24


def test_vllms_old_form_on_completions_has_the_token_beside_its_rivals():
    body = {"prompt": "Say something.", "max_tokens": 6, "logprobs": 1}
    answer, _, log = asked(FakeEngine(**QUICK), body, "/v1/completions")
    told = whole_choice(answer)["logprobs"]
    assert set(told) == {"text_offset", "token_logprobs", "tokens", "top_logprobs"}
    assert "".join(told["tokens"]) == whole_choice(answer)["text"]
    assert told["text_offset"][:2] == [0, len(told["tokens"][0])]
    assert told["token_logprobs"] == logs([shares[0] for shares in log.shares])
    assert [list(options.values()) for options in told["top_logprobs"]] == [
        logs(shares[:2]) for shares in log.shares
    ]


@pytest.mark.parametrize("dialect", ["vllm", "llama.cpp"])
def test_nothing_is_told_unasked(dialect):
    answer, record, log = asked(FakeEngine(dialect=dialect, **QUICK), SAY | {"stream": True})
    assert all(not choice.get("logprobs") for choice in choices(answer))
    assert entries(record) == log.shares == []


def test_llamacpp_streams_no_logprobs_of_a_step_with_a_draft():
    config = FakeEngine(dialect="llama.cpp", k=3, script=(2, -1, -1, 3), **QUICK)
    body = SAY | {"stream": True, "logprobs": True, "top_logprobs": 2}
    answer, record, log = asked(config, body)
    plain = [step.num_draft_tokens == 0 for step in log.steps for _ in range(step.num_tokens)]
    shown = [choice for choice in choices(answer) if choice["delta"].get("content")]
    assert ["logprobs" in choice for choice in shown] == plain
    told = entries(record)
    assert len(told) == sum(plain) < log.completion_tokens
    expected = [shares for shares, is_plain in zip(log.shares, plain, strict=True) if is_plain]
    assert [entry["logprob"] for entry in told] == logs([shares[0] for shares in expected])


@pytest.mark.parametrize(
    ("path", "asks"),
    [
        ("/v1/chat/completions", SAY | {"logprobs": True, "top_logprobs": 2}),
        ("/v1/completions", {"prompt": "Say something.", "max_tokens": 24, "logprobs": 2}),
    ],
)
def test_llamacpp_in_one_piece_tells_drafted_tokens_without_alternatives(path, asks):
    config = FakeEngine(dialect="llama.cpp", k=3, script=(2, -1), **QUICK)
    answer, _, log = asked(config, asks, path)
    told = whole_choice(answer)["logprobs"]["content"]
    drafted = [step.num_draft_tokens > 0 for step in log.steps for _ in range(step.num_tokens)]
    assert [entry["top_logprobs"] == [] for entry in told] == drafted
    assert all(entry["logprob"] == 0.0 for entry in told if not entry["top_logprobs"])
    assert all(entry["top_logprobs"][0]["id"] == entry["id"] for entry in told[:1])


def test_llamacpp_drops_the_entry_of_a_token_that_was_held_back():
    config = FakeEngine(dialect="llama.cpp", language="ja", faults=("empty_tokens=3",), **QUICK)
    body = SAY | {"stream": True, "logprobs": True, "top_logprobs": 2}
    _, record, log = asked(config, body)
    told = entries(record)
    assert len(told) == len(record.event_text) < log.completion_tokens
    assert [entry["token"] for entry in told] == record.event_text


@pytest.mark.parametrize("dialect", ["vllm", "llama.cpp"])
def test_alternatives_without_the_switch_are_refused(dialect):
    answer, _, log = asked(FakeEngine(dialect=dialect, **QUICK), SAY | {"top_logprobs": 2})
    assert (log.status, "logprobs` must be set" in answer) == (400, True)


@pytest.mark.parametrize(
    ("fault", "num_told", "num_listed"),
    [("logprobs_null", 0, 0), ("logprobs_every=2", 12, 2), ("top_logprobs_cap=1", 24, 1)],
)
def test_faults_of_logprobs(fault, num_told, num_listed):
    config = FakeEngine(faults=(fault,), k=1, script=(1,), **QUICK)
    body = SAY | {"stream": True, "logprobs": True, "top_logprobs": 2}
    _, record, _ = asked(config, body)
    told = entries(record)
    assert abs(len(told) - num_told) <= 1  # the first token came alone
    assert all(len(entry["top_logprobs"]) == num_listed for entry in told)


def test_a_server_may_refuse_logprobs():
    config = FakeEngine(faults=("logprobs_400",), **QUICK)
    _, _, log = asked(config, SAY | {"logprobs": True, "top_logprobs": 2})
    assert log.status == 400
    _, _, log = asked(config, SAY)
    assert log.status == 200


def test_certain_tokens_are_accepted_as_scripted():
    config = FakeEngine(
        k=4,
        uncertain_share=0.5,
        acceptance_by_certainty=(1.0, 0.0),
        **QUICK,
    )
    body = SAY | {"stream": True, "max_tokens": 200, "logprobs": True, "top_logprobs": 2}
    _, _, log = asked(config, body)
    at = 1
    for step in log.steps[1:-1]:
        drafted_for = log.shares[at : at + 4]
        certain = [shares == CERTAIN for shares in drafted_for]
        assert step.num_accepted_tokens == [*certain, False].index(False)
        at += step.num_tokens


def test_an_arm_diverges_where_it_is_told():
    body = SAY | {"stream": True, "logprobs": True, "top_logprobs": 3}
    _, plain, _ = asked(FakeEngine(faults=("near_tie=8",), **QUICK), body)
    _, other, _ = asked(FakeEngine(k=2, faults=("near_tie=8", "diverges=8"), **QUICK), body)
    ours, theirs = entries(plain), entries(other)
    assert ours[:8] == theirs[:8]
    rival = ours[8]["top_logprobs"][1]
    assert theirs[8]["token"] == rival["token"]
    assert ours[8]["logprob"] - rival["logprob"] == pytest.approx(math.log(0.40 / 0.39))
    texts = ["".join(entry["token"] for entry in told) for told in (ours, theirs)]
    assert texts[0][:40] != texts[1][:40]
