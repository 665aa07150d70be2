"""What the client costs, beside other ways to read the same stream.

    python benchmarks/client_cost.py [--rounds 3]

A server in its own process sends events of 64 streams, 100 a second each (`many`), and one stream
as fast as it can (`flood`). Each reader runs in a fresh process; its CPU time is what counts.
Lateness is the reader's instant minus the server's, which share the machine's monotonic clock.

- `sakiyomi`: the product, from the socket to the record.
- `bare`: asyncio and httptools, reading and stamping, parsing nothing: the floor.
- `aiohttp+stream`: aiohttp's reader in front of the product's stream parser: the other candidate.
- `httpx+json`: httpx's line iterator and json.loads, as many tools do it.
"""

import argparse
import asyncio
import gc
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

READERS = ("sakiyomi", "bare", "aiohttp+stream", "httpx+json")
MANY = {"num_streams": 64, "num_events": 300, "gap_s": 0.01}
FLOOD = {"num_streams": 1, "num_events": 200_000, "gap_s": 0.0}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def event(index):
    """A chunk as vLLM sends it, with its token ids."""
    chunk = {
        "id": "chatcmpl-0123456789abcdef0123456789abcdef",
        "object": "chat.completion.chunk",
        "created": 1767225600,
        "model": "a-model-of-some-size",
        "choices": [
            {
                "index": 0,
                "delta": {"content": f" word{index % 100}"},
                "logprobs": None,
                "finish_reason": None,
                "token_ids": [index % 50_000],
            }
        ],
    }
    data = b"data: " + json.dumps(chunk).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


def serve(listener, num_streams, num_events, gap_s, log):
    """Send every stream's events; write the instants of the sends to `log`."""
    events = [event(index) for index in range(100)]
    streams = []
    for _ in range(num_streams):
        stream, _ = listener.accept()
        stream.recv(65536)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.sendall(HEAD)
        streams.append(stream)
    sent_at_s = []
    start_s = time.perf_counter() + 0.2
    if gap_s:
        for index in range(num_events):
            time.sleep(max(0.0, start_s + index * gap_s - time.perf_counter()))
            for stream in streams:
                sent_at_s.append(time.perf_counter())
                stream.sendall(events[index % 100])
    else:
        block = b"".join(events)
        for _ in range(num_events // 100):
            streams[0].sendall(block)
    end = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
    for stream in streams:
        stream.sendall(b"%x\r\n%s\r\n" % (len(end), end) + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
    Path(log).write_text(json.dumps(sent_at_s))
    for stream in streams:  # until the reader has gone: closing early would reset what it lacks
        stream.shutdown(socket.SHUT_WR)
        while stream.recv(65536):
            pass
        stream.close()


# --- readers: each returns the instants of every stream's events --------------------------------


async def read_sakiyomi(url, num_streams):
    from sakiyomi.client import Client
    from sakiyomi.record import RequestKey

    key = RequestKey(
        request_id="r",
        scenario="s",
        conversation_id="c",
        turn=0,
        arm="a",
        load="l",
        repeat=0,
        scheduled_at_s=0.0,
    )
    async with Client() as client:
        await client.preopen(url, num_streams)
        records = await asyncio.gather(
            *(client.stream(url, {"model": "m"}, key) for _ in range(num_streams))
        )
    assert all(record.error is None for record in records), records[0].error
    return [record.event_at_s for record in records]


class Bare(asyncio.Protocol):
    def __init__(self):
        import httptools

        self.parser = httptools.HttpResponseParser(self)
        self.done = asyncio.get_running_loop().create_future()
        self.at_s = []
        self.now_s = 0.0

    def connection_made(self, transport):
        transport.write(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}")

    def data_received(self, data):
        self.now_s = time.perf_counter()
        self.parser.feed_data(data)

    def on_body(self, body):
        self.at_s.append(self.now_s)

    def on_message_complete(self):
        self.done.set_result(None)


async def read_bare(url, num_streams):
    port = int(url.rsplit(":", 1)[1].split("/")[0])
    loop = asyncio.get_running_loop()
    opened = await asyncio.gather(
        *(loop.create_connection(Bare, "127.0.0.1", port) for _ in range(num_streams))
    )
    await asyncio.gather(*(protocol.done for _, protocol in opened))
    return [protocol.at_s for _, protocol in opened]


async def read_aiohttp(url, num_streams):
    import aiohttp

    from sakiyomi.stream import TokenStream

    async def one(session):
        stream = TokenStream()
        async with session.post(url, json={"model": "m"}) as response:
            async for data in response.content.iter_any():
                stream.feed(data, time.perf_counter())
        return stream.event_at_s

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        return await asyncio.gather(*(one(session) for _ in range(num_streams)))


async def read_httpx(url, num_streams):
    import httpx

    async def one(client):
        at_s = []
        async with client.stream("POST", url, json={"model": "m"}) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    chunk = json.loads(line[6:])
                    if chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
                        at_s.append(time.perf_counter())
        return at_s

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=None) as client:
        return await asyncio.gather(*(one(client) for _ in range(num_streams)))


def read(reader, url, num_streams):
    """Run in a process of its own: prints CPU seconds and the instants."""
    function = {
        "sakiyomi": read_sakiyomi,
        "bare": read_bare,
        "aiohttp+stream": read_aiohttp,
        "httpx+json": read_httpx,
    }[reader]

    async def main():
        gc.collect()
        started_s = time.process_time()
        at_s = await function(url, num_streams)
        return time.process_time() - started_s, at_s

    cpu_s, at_s = asyncio.run(main())
    json.dump({"cpu_s": cpu_s, "at_s": at_s}, sys.stdout)


def measure(reader, num_streams, num_events, gap_s):
    """CPU microseconds an event, and lateness (median, 99 %) in microseconds."""
    log = f"/tmp/client_cost.{os.getpid()}.json"
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/chat/completions"
        server = os.fork()
        if server == 0:
            try:
                serve(listener, num_streams, num_events, gap_s, log)
            finally:
                os._exit(0)
        command = [sys.executable, __file__, "--read", reader, url, str(num_streams)]
        out = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        os.waitpid(server, 0)
    found = json.loads(out.stdout)
    seen = sum(map(len, found["at_s"]))
    if reader == "bare":
        seen = num_streams * num_events  # it knows no events, only pieces of body
    assert seen == num_streams * num_events, (reader, seen)
    late = []
    sent_at_s = json.loads(Path(log).read_text())
    Path(log).unlink()
    if sent_at_s and reader != "bare":
        # The server accepts in any order: pair each event with the earliest send of its tick.
        for index in range(num_events):
            tick = sent_at_s[index * num_streams : (index + 1) * num_streams]
            arrived = sorted(at_s[index] for at_s in found["at_s"])
            late += [(b - a) * 1e6 for a, b in zip(tick, arrived, strict=True)]
        late.sort()
    return found["cpu_s"] / seen * 1e6, late


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--read", nargs=3)
    arguments = parser.parse_args()
    if arguments.read:
        reader, url, num_streams = arguments.read
        read(reader, url, int(num_streams))
        return
    for name, load in (("flood", FLOOD), ("many", MANY)):
        cost = {reader: [] for reader in READERS}
        late = {reader: [] for reader in READERS}
        for _ in range(arguments.rounds):
            for reader in READERS:
                cpu, lateness = measure(reader, **load)
                cost[reader].append(cpu)
                late[reader] += lateness
        print(f"\n{name}: {load}")
        print(f"{'reader':16}{'CPU us/event':>14}{'x sakiyomi':>12}{'late p50 us':>13}{'p99':>8}")
        for reader in READERS:
            cpu = statistics.median(cost[reader])
            row = f"{reader:16}{cpu:14.2f}{cpu / statistics.median(cost['sakiyomi']):12.2f}"
            if late[reader]:
                ranked = sorted(late[reader])
                row += f"{ranked[len(ranked) // 2]:13.0f}{ranked[len(ranked) * 99 // 100]:8.0f}"
            print(row)


if __name__ == "__main__":
    main()
