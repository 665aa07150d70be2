"""The error of the ruler: what the client measured against what the fake engine did.

    python benchmarks/ruler.py [--requests 12]

The fake engine runs in a process of its own and logs when each event's bytes went to the socket,
on the same monotonic clock. Goals: one stream, steps of 5 ms and more: TTFT within 1 ms, decode
tok/s within 0.1 % at the median; 64 streams at once: within 2 ms and 0.5 %.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from sakiyomi.client import Client
from sakiyomi.fake_engine import LoggedRequest
from sakiyomi.fake_engine.log import body_hash
from sakiyomi.latency import measure
from sakiyomi.record import RequestKey

CASES = (
    # name, streams at once, step_s, extra options of the fake engine, goals (TTFT ms, decode %)
    ("1 stream, 5 ms, plain", 1, 0.005, (), (1.0, 0.1)),
    ("1 stream, 5 ms, k=3", 1, 0.005, ("--k", "3"), (1.0, 0.1)),
    ("1 stream, 20 ms, k=3, jitter", 1, 0.020, ("--k", "3", "--jitter", "0.004"), (1.0, 0.1)),
    ("64 streams, 40 ms, k=3", 64, 0.040, ("--k", "3"), (2.0, 0.5)),
)

STAGGER_S = 0.05
"""Between the starts of streams: the fake engine reads requests one after the other, and
one that waits in its socket, or for the log of the one before it, would count as an error of the
client."""


async def ask(url, num_streams, num_requests, num_tokens):
    """Body hash -> record."""
    bodies = [
        {
            "model": "fake-model",
            "messages": [{"role": "user", "content": f"Tell me of the number {index}."}],
            "max_tokens": num_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
        for index in range(num_requests)
    ]
    free = asyncio.Semaphore(num_streams)
    async with Client() as client:
        await client.preopen(url, num_streams)

        async def one(index, body):
            key = RequestKey(
                request_id=str(index),
                scenario="s",
                conversation_id="c",
                turn=0,
                arm="a",
                load="l",
                repeat=0,
                scheduled_at_s=0.0,
            )
            await asyncio.sleep(STAGGER_S * index if num_streams > 1 else 0.0)
            async with free:
                await asyncio.sleep(0.2 if num_streams == 1 else 0.0)
                return await client.stream(url, body, key)

        records = await asyncio.gather(*(one(index, body) for index, body in enumerate(bodies)))
    return {
        body_hash(msgspec.json.encode(body)): record
        for body, record in zip(bodies, records, strict=True)
    }


def run(num_streams, num_requests, step_s, options):
    """TTFT errors in ms, decode rate errors in %, by request; lags in ms, by event."""
    num_tokens = 400
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.jsonl"
        command = [sys.executable, "-m", "sakiyomi.fake_engine", "--step", str(step_s)]
        command += ["--ttft", "0.05", "--log", str(log), *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                url = server.stdout.readline().strip() + "/v1/chat/completions"
                records = asyncio.run(ask(url, num_streams, num_requests, num_tokens))
            finally:
                server.terminate()
        logged = [
            msgspec.json.decode(line, type=LoggedRequest) for line in log.read_bytes().splitlines()
        ]
    ttft, decode, arrival = [], [], []
    for truth in logged:
        record = records[truth.body_hash]
        assert record.error is None, record.error
        assert record.event_tokens == [event.num_tokens for event in truth.token_events]
        found = measure(record)
        assert found.num_tokens == truth.completion_tokens == num_tokens
        written_at_s = [event.written_at_s for event in truth.token_events]
        arrival += [
            (at_s - sent_s) * 1e3
            for at_s, sent_s in zip(record.event_at_s, written_at_s, strict=True)
        ]
        ttft.append((found.ttft_s - truth.ttft_s) * 1e3)
        decode.append((found.decode_tokens_per_s / truth.decode_tokens_per_s - 1) * 100)
    assert len(logged) == num_requests
    return ttft, decode, arrival


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=12)
    arguments = parser.parse_args()
    print(f"load of this machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    print(f"{'':30}{'TTFT error ms':>22}{'decode rate error %':>26}{'event lag':>12}")
    print(f"{'':30}{'median':>12}{'worst':>10}{'median':>16}{'worst':>10}{'median':>12}")
    failed = False
    for name, num_streams, step_s, options, (ttft_goal, decode_goal) in CASES:
        num_requests = max(num_streams, arguments.requests)
        ttft, decode, arrival = run(num_streams, num_requests, step_s, options)
        middle = statistics.median(map(abs, ttft)), statistics.median(map(abs, decode))
        kept = middle[0] <= ttft_goal and middle[1] <= decode_goal
        failed |= not kept
        print(
            f"{name:30}{middle[0]:12.3f}{max(ttft, key=abs):10.3f}{middle[1]:16.4f}"
            f"{max(decode, key=abs):10.4f}{statistics.median(arrival):12.3f}"
            f"  {'kept' if kept else 'NOT KEPT'} (within {ttft_goal} ms, {decode_goal} %)"
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
