"""What importing a log costs: seconds, peak memory, and how both grow with the rows.

    python benchmarks/import_log.py [--rows 100000] [--rounds 3]

Each import runs in a fresh process over a log written beside it: JSON lines of chat requests, one
JSON array of the same, LiteLLM spend logs, and one OTLP/JSON object. `bare` decodes the same JSON
lines with msgspec and does nothing else: the floor. `x bare` is the median ratio of CPU seconds in
paired rounds: other work on the machine stretches the seconds, not the ratio. The last column is
the peak memory of ten times fewer rows: flat means the two are alike.
"""

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

KINDS = ("bare", "lines", "array", "litellm", "otlp")
JAPANESE = "先週の会議で決まったことを三つにまとめて、担当者に送る文面を書いてください。"
ENGLISH = (
    "Summarise what the team decided last week and write the message to the person in charge. "
)


def prompts(num_rows):
    """Messages of about 1 to 8 kB, a third Japanese, a tenth of them repeated."""
    rng = random.Random(1)
    for row in range(num_rows):
        number = rng.randrange(max(1, row)) if row % 10 == 9 else row
        own = random.Random(number)
        text = (JAPANESE if number % 3 == 0 else ENGLISH) * own.randint(4, 40)
        yield [
            {"role": "system", "content": "You are the assistant of a small company. " * 4},
            {"role": "user", "content": f"Case {number}. {text}"},
        ]


def chat_rows(num_rows):
    for messages in prompts(num_rows):
        yield {
            "model": "a-model",
            "messages": messages,
            "temperature": 0.7,
            "max_tokens": 1024,
            "response": {"choices": [{"message": {"content": ENGLISH * 8}}]},
            "usage": {"prompt_tokens": 900, "completion_tokens": 180},
        }


def litellm_rows(num_rows):
    for number, messages in enumerate(prompts(num_rows)):
        minute, second = divmod(number % 3600, 60)
        yield {
            "request_id": f"r{number}",
            "call_type": "acompletion",
            "startTime": f"2026-05-01T10:{minute:02}:{second:02}.100000Z",
            "completionStartTime": f"2026-05-01T10:{minute:02}:{second:02}.350000Z",
            "endTime": f"2026-05-01T10:{minute:02}:{second:02}.990000Z",
            "model": "a-model",
            "prompt_tokens": 900,
            "completion_tokens": 180,
            "messages": messages,
            "response": {"choices": [{"message": {"content": ENGLISH * 8}}]},
        }


def span_rows(num_rows):
    for number, messages in enumerate(prompts(num_rows)):
        asked = [
            {"role": m["role"], "parts": [{"type": "text", "content": m["content"]}]}
            for m in messages
        ]
        start = 1_777_630_000_000_000_000 + number * 1_000_000_007
        yield {
            "traceId": f"{number:032x}",
            "startTimeUnixNano": str(start),
            "endTimeUnixNano": str(start + 900_000_000),
            "attributes": [
                {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}},
                {"key": "gen_ai.input.messages", "value": {"stringValue": json.dumps(asked)}},
                {"key": "gen_ai.usage.output_tokens", "value": {"intValue": "180"}},
            ],
        }


def write_log(path, kind, num_rows):
    with path.open("w", encoding="utf-8") as file:
        if kind in ("bare", "lines", "litellm"):
            for row in litellm_rows(num_rows) if kind == "litellm" else chat_rows(num_rows):
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
            return
        head, tail, rows = "[", "]", chat_rows(num_rows)
        if kind == "otlp":
            head = '{"resourceSpans":[{"scopeSpans":[{"spans":['
            tail, rows = "]}]}]}", span_rows(num_rows)
        file.write(head)
        for number, row in enumerate(rows):
            file.write((",\n" if number else "") + json.dumps(row, ensure_ascii=False))
        file.write(tail)


def read(kind, path):
    """Run in a process of its own: seconds and peak memory of one import."""
    from sakiyomi.logs.import_log import ImportOptions, import_log

    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    if kind == "bare":
        import msgspec

        with Path(path).open("rb") as file:
            num = sum(1 for line in file if msgspec.json.decode(line))
    else:
        num = import_log([Path(path)], ImportOptions(name="log")).num_requests
    elapsed_s = time.perf_counter() - started_s
    cpu_s = time.process_time() - started_cpu_s
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found = {"elapsed_s": elapsed_s, "cpu_s": cpu_s, "peak_bytes": peak_bytes, "num": num}
    json.dump(found, sys.stdout)


def measure(kind, path, num_rows):
    command = [sys.executable, __file__, "--read", kind, str(path)]
    out = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found = json.loads(out.stdout)
    assert found["num"] == num_rows, found
    return found["elapsed_s"], found["cpu_s"], found["peak_bytes"] / 1e6


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--read", nargs=2)
    arguments = parser.parse_args()
    if arguments.read:
        read(*arguments.read)
        return
    with tempfile.TemporaryDirectory() as folder:
        logs = {}
        for kind in KINDS:
            for num_rows in (arguments.rows, arguments.rows // 10):
                logs[kind, num_rows] = Path(folder) / f"{kind}-{num_rows}.json"
                write_log(logs[kind, num_rows], kind, num_rows)
        seconds = {kind: [] for kind in KINDS}
        cpu = {kind: [] for kind in KINDS}
        peak = {kind: [] for kind in KINDS}
        for _ in range(arguments.rounds):
            for kind in KINDS:
                log = logs[kind, arguments.rows]
                elapsed_s, cpu_s, peak_mb = measure(kind, log, arguments.rows)
                seconds[kind].append(elapsed_s)
                cpu[kind].append(cpu_s)
                peak[kind].append(peak_mb)
        print(f"{arguments.rows} rows, {os.cpu_count()} CPUs")
        print(f"{'log':9}{'MB':>6}{'s':>8}{'CPU s':>8}{'x bare':>8}{'peak MB':>9}{'of 1/10':>9}")
        for kind in KINDS:
            path, small = logs[kind, arguments.rows], logs[kind, arguments.rows // 10]
            ratios = [a / b for a, b in zip(cpu[kind], cpu["bare"], strict=True)]
            small_mb = measure(kind, small, arguments.rows // 10)[2]
            print(
                f"{kind:9}{path.stat().st_size / 1e6:6.0f}{statistics.median(seconds[kind]):8.1f}"
                f"{statistics.median(cpu[kind]):8.1f}{statistics.median(ratios):8.1f}"
                f"{statistics.median(peak[kind]):9.1f}{small_mb:9.1f}"
            )


if __name__ == "__main__":
    main()
