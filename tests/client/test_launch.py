"""Real processes: small scripts stand for engines that start, hang, die and will not die."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from sakiyomi.engines.engine import LogRemedy
from sakiyomi.errors import EngineError, PlanError
from sakiyomi.launch import check_alive, free_port, launch
from sakiyomi.plan import Arm, Speculation
from sakiyomi.redaction import redact
from sakiyomi.start_command import fill_command
from sakiyomi.strays import end_strays, find_strays, start_mark, state_folder

pytestmark = pytest.mark.skipif(os.name == "nt", reason="process groups of POSIX")

SERVE = """
import http.server, os, sys
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(os.environ.get("WHO", "").encode())
    def log_message(self, *_): pass
def serve():
    http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Page).serve_forever()
"""
CHILDREN = """
import subprocess, sys
for _ in range(2):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print("child", child.pid, flush=True)
"""


@pytest.fixture(autouse=True)
def _own_ledger(tmp_path, monkeypatch):
    monkeypatch.setenv("SAKIYOMI_STATE", str(tmp_path / "state"))


async def probe(url):
    return await get(url) is not None


async def get(url):
    host, port = url.removeprefix("http://").split(":")
    try:
        reader, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return None
    writer.write(b"GET /health HTTP/1.0\r\n\r\n")
    answer = await reader.read()
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return answer.partition(b"\r\n\r\n")[2].decode() if b" 200 " in answer else None


def start(tmp_path, source, *, arm=None, **options):
    script = tmp_path / "engine.py"
    script.write_text(source)
    port = options.pop("port", None) or free_port()
    return launch(
        arm or Arm(name="plain", command=("engine",)),
        command=options.pop("command", [sys.executable, str(script), str(port)]),
        log_path=tmp_path / "engine.log",
        port=port,
        probe=options.pop("probe", probe),
        start_timeout_s=options.pop("start_timeout_s", 60),
        **options,
    )


def fails(tmp_path, source, **options):
    async def run():
        async with start(tmp_path, source, **options):
            pytest.fail("it must not start")

    with pytest.raises(EngineError) as caught:
        asyncio.run(run())
    assert entries() == []
    return caught.value


def entries():
    return list((state_folder() / "processes").glob("*"))


def lives(pid):
    return start_mark(pid) is not None


def children(log):
    return [int(line.split()[1]) for line in log.read_text().splitlines() if "child" in line]


def wait_for(condition):
    while not condition():
        time.sleep(0.02)


def test_an_engine_that_starts_late_is_up_when_it_answers_and_gone_afterwards(tmp_path):
    told = []
    go = tmp_path / "go"
    source = SERVE + (
        "import pathlib, time; print('noise')\n"
        "sys.stderr.write('\\r 10%\\r 55%'); sys.stderr.flush()\n"
        f"while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.02)\n"
        "serve()"
    )
    arm = Arm(name="a", command=("x",), env={"WHO": "me"})

    def on_progress(line, elapsed_s):
        told.append((line, elapsed_s))
        if line == "55%":
            go.touch()

    async def run():
        async with start(tmp_path, source, arm=arm, on_progress=on_progress) as up:
            assert await get(up.url) == "me"
            assert lives(up.pid)
            assert up.pid != os.getpgid(0)
            assert os.getpgid(up.pid) == up.pid
            assert up.start_s >= told[-1][1]
            [entry] = entries()
            assert json.loads(entry.read_text())["pid"] == up.pid
            assert find_strays() == []
            return up

    up = asyncio.run(run())
    assert not lives(up.pid)
    assert entries() == []
    assert told[-1][0] == "55%"
    assert told == sorted(told, key=lambda item: item[1])


def test_a_traceback_is_shown_with_the_exit_status(tmp_path):
    error = fails(tmp_path, "print('loading'); raise ValueError('head_dim 7 is odd')")
    assert "arm plain: the engine ended with status 1 after" in error.message
    assert "ValueError: head_dim 7 is odd" in error.message
    assert str(tmp_path / "engine.log") in error.message
    assert error.hint


@pytest.mark.parametrize(
    ("line", "meaning", "hint"),
    [
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has",
            "memory ran out",
            "smaller context",
        ),
        ("api_server.py: error: unrecognized arguments: --spec-foo 3", "does not know", "--help"),
        ("error: invalid argument: --draft-max", "does not know a flag", "--help"),
        ("OSError: [Errno 98] Address already in use", "port is taken", "free port"),
        ("OSError: q does not appear to have a file named config.json", "weights", "model"),
        ("error: model file not found: /m/x.gguf", "weights are missing", "existing"),
        ("NotImplementedError: Speculative decoding is not supported", "refuses", "method"),
        ("error: the embedded engine is missing: No module", "not installed", "sakiyomi[local]"),
        ("ModuleNotFoundError: No module named 'flash_attn'", "package", "install"),
    ],
)
def test_the_log_says_why(tmp_path, line, meaning, hint):
    source = (
        f"import sys; print('INFO ok'); print({line!r}, file=sys.stderr); print('bye'); sys.exit(3)"
    )
    error = fails(tmp_path, source)
    assert meaning in error.message
    assert line in error.message
    assert "bye" in error.message
    assert hint in error.hint


def test_an_engines_own_remedy_comes_first(tmp_path):
    own = LogRemedy(r"CUDA out of memory", "no room", "set --gpu-memory-utilization 0.8")
    error = fails(tmp_path, "raise SystemExit('CUDA out of memory')", remedies=(own,))
    assert "no room" in error.message
    assert error.hint == "set --gpu-memory-utilization 0.8"


def test_an_engine_killed_from_outside_is_told_apart(tmp_path):
    error = fails(tmp_path, "import os; os.kill(os.getpid(), 9)")
    assert "ended by SIGKILL" in error.message
    assert "memory ran out" in error.message
    assert "(it wrote nothing)" in error.message


def test_an_engine_that_hangs_is_ended_after_its_limit(tmp_path):
    source = "import os, time; print('pid', os.getpid(), flush=True); time.sleep(600)"
    error = fails(tmp_path, source, start_timeout_s=0.5)
    assert "not ready after 0.5 s (start_timeout_s)" in error.message
    assert "raise start_timeout_s" in error.hint
    pid = int((tmp_path / "engine.log").read_text().split()[1])
    assert f"pid {pid}" in error.message
    assert not lives(pid)


def test_a_probe_that_fails_is_no_answer(tmp_path):
    async def broken(_url):
        raise ConnectionResetError

    assert (
        "not ready" in fails(tmp_path, SERVE + "serve()", probe=broken, start_timeout_s=0.3).message
    )


def test_an_engine_that_ignores_sigterm_is_killed(tmp_path):
    source = SERVE + "import signal; signal.signal(15, signal.SIG_IGN); serve()"

    async def run():
        async with start(tmp_path, source, stop_timeout_s=0.3) as up:
            return up.pid

    assert not lives(asyncio.run(run()))
    assert entries() == []


@pytest.mark.parametrize(
    "ending", ["serve()", "import signal; signal.signal(15, signal.SIG_IGN); serve()"]
)
def test_what_the_engine_started_ends_with_it(tmp_path, ending):
    async def run():
        async with start(tmp_path, CHILDREN + SERVE + ending, stop_timeout_s=0.3) as up:
            pids = [up.pid, *children(tmp_path / "engine.log")]
            assert len(pids) == 3
            assert all(lives(pid) for pid in pids)
            return pids

    assert not any(lives(pid) for pid in asyncio.run(run()))


def test_children_of_an_engine_that_died_at_start_are_ended(tmp_path):
    fails(tmp_path, CHILDREN + "sys.exit(1)")
    left = children(tmp_path / "engine.log")
    assert len(left) == 2
    assert not any(lives(pid) for pid in left)


def test_a_busy_port_is_refused_before_anything_starts(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        error = fails(tmp_path, SERVE + "serve()", port=port)
    assert f"port {port} is taken" in error.message
    assert not (tmp_path / "engine.log").exists()


def test_a_missing_program_names_the_package(tmp_path):
    error = fails(
        tmp_path, "", command=["llama-servre-nowhere"], program="llama-server (from its releases)"
    )
    assert "'llama-servre-nowhere' is not installed" in error.message
    assert "llama-server (from its releases)" in error.hint
    assert "full path" in fails(tmp_path, "", command=["llama-servre-nowhere"]).hint


def test_a_file_that_is_no_program_is_refused(tmp_path):
    file = tmp_path / "tool"
    file.write_bytes(b"\x00not a program")
    file.chmod(0o755)
    assert "cannot be started" in fails(tmp_path, "", command=[str(file)]).message


def test_an_error_or_a_cancel_in_the_run_ends_the_engine(tmp_path):
    pids = []

    async def broken():
        async with start(tmp_path, SERVE + "serve()") as up:
            pids.append(up.pid)
            raise ZeroDivisionError

    async def cancelled():
        async with start(tmp_path, SERVE + "serve()") as up:
            pids.append(up.pid)
            asyncio.current_task().cancel()
            await asyncio.sleep(60)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(broken())
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    assert not any(lives(pid) for pid in pids)
    assert entries() == []


def test_an_engine_that_dies_in_use_says_why(tmp_path):
    source = SERVE + "import threading\nthreading.Thread(target=serve, daemon=True).start()\n"
    source += "sys.stdin.read(); import pathlib, time\n"
    source += f"while not pathlib.Path({str(tmp_path / 'go')!r}).exists(): time.sleep(0.01)\n"
    source += "raise SystemExit('CUDA out of memory')"

    async def run():
        async with start(tmp_path, source) as up:
            check_alive(up)
            (tmp_path / "go").touch()
            while lives(up.pid):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            with pytest.raises(EngineError, match="while it was in use: memory ran out"):
                check_alive(up)

    asyncio.run(run())


def test_the_log_of_an_earlier_start_is_not_taken_for_this_one(tmp_path):
    (tmp_path / "engine.log").write_text("CUDA out of memory\n")
    error = fails(tmp_path, "raise SystemExit('bad luck')")
    assert "memory" not in error.message
    assert "bad luck" in error.message
    assert (tmp_path / "engine.log").read_text().startswith("CUDA out of memory\n")


PARENT = """
import asyncio, signal, sys
from pathlib import Path
from sakiyomi.launch import launch
from sakiyomi.plan import Arm
async def never(url): return False
async def main():
    async with launch(
        Arm(name="left", command=("x",)), command=[sys.executable, sys.argv[1], "--api-key", "abc"],
        log_path=Path(sys.argv[2]), port=int(sys.argv[3]), probe=never, start_timeout_s=600,
    ):
        pass
# a runner may have been started with signals ignored (nohup, a shell's background job)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
asyncio.run(main())
"""
HANG = "import time; print('up', flush=True); time.sleep(600)"


@contextlib.contextmanager
def parent(tmp_path, source):
    """A sakiyomi that is waiting for its engine. Gives it and the engine's process id."""
    script, log = tmp_path / "engine.py", tmp_path / "engine.log"
    script.write_text(source)
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(script), str(log), str(free_port())],
        stderr=subprocess.PIPE,
    ) as process:
        try:
            wait_for(
                lambda: process.poll() is not None or (log.exists() and "up" in log.read_text())
            )
            assert process.poll() is None, process.stderr.read()
            [entry] = (state_folder() / "processes").glob("*.json")
            yield process, json.loads(entry.read_text())["pid"]
        finally:
            process.kill()
            end_strays(find_strays())


def test_a_killed_sakiyomi_leaves_nothing_that_the_next_does_not_find(tmp_path):
    with parent(tmp_path, CHILDREN + HANG) as (process, pid):
        family = [pid, *children(tmp_path / "engine.log")]
        assert find_strays() == []
        process.kill()
        process.wait()
        assert all(lives(member) for member in family)
        [stray] = find_strays()
        assert (stray.pid, stray.arm) == (pid, "left")
        assert stray.argv[-2:] == ("--api-key", "***")
        end_strays([stray])
        wait_for(lambda: not any(lives(member) for member in family))
        assert find_strays() == []
        assert entries() == []


def test_a_stray_whose_leader_is_gone_is_still_a_stray(tmp_path):
    with parent(tmp_path, CHILDREN + HANG) as (process, pid):
        left = children(tmp_path / "engine.log")
        process.kill()
        process.wait()
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not lives(pid))
        [stray] = find_strays()
        end_strays([stray])
        assert not any(lives(member) for member in left)


def test_a_stray_that_ignores_sigterm_is_killed(tmp_path):
    source = "import signal; signal.signal(15, signal.SIG_IGN)\n" + HANG
    with parent(tmp_path, source) as (process, pid):
        process.kill()
        process.wait()
        end_strays(find_strays(), wait_s=0.3)
        assert not lives(pid)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_sakiyomi_ends_the_engine(tmp_path, number):
    with parent(tmp_path, CHILDREN + HANG) as (process, pid):
        family = [pid, *children(tmp_path / "engine.log")]
        process.send_signal(number)
        assert process.wait() != 0
        assert not any(lives(member) for member in family)
        assert entries() == []


def test_a_second_interrupt_still_ends_the_engine(tmp_path):
    source = "import signal; signal.signal(15, signal.SIG_IGN)\n" + HANG
    with parent(tmp_path, source) as (process, pid):
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert lives(pid)
        process.send_signal(signal.SIGINT)
        process.wait()
        assert not lives(pid)
        assert entries() == []


def test_a_reused_process_id_is_not_ours(tmp_path):
    with parent(tmp_path, HANG) as (process, pid):
        process.kill()
        process.wait()
        [entry] = entries()
        facts = json.loads(entry.read_text())
        entry.write_text(json.dumps({**facts, "started": "1"}))
        assert find_strays() == []
        assert lives(pid)
        entry.write_text(json.dumps(facts))


def test_entries_of_other_machines_and_broken_ones_are_left_alone(tmp_path):
    with parent(tmp_path, HANG) as (process, _pid):
        process.kill()
        process.wait()
        [entry] = entries()
        facts = json.loads(entry.read_text())
        other = entry.with_name("other.json")
        other.write_text(json.dumps({**facts, "machine": "elsewhere|boot|ns"}))
        broken = entry.with_name("broken.json")
        broken.write_text("{")
        node = facts["machine"].split("|")[0]
        old = entry.with_name("old.json")
        old.write_text(json.dumps({**facts, "machine": f"{node}|earlier boot|ns"}))
        assert len(find_strays()) == 1
        assert other.exists()
        assert broken.exists()
        assert not old.exists()
        broken.unlink()
        other.unlink()


def test_a_state_folder_that_cannot_be_written_stops_nothing(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SAKIYOMI_STATE", str(tmp_path / "file"))

    async def run():
        async with start(tmp_path, SERVE + "serve()") as up:
            return up.pid

    assert not lives(asyncio.run(run()))


def test_secrets_do_not_reach_the_ledger():
    argv = ["vllm", "--api-key", "a", "--hf-token=b", "--max-num-batched-tokens", "8", "--token"]
    assert list(redact(argv)) == [
        "vllm",
        "--api-key",
        "***",
        "--hf-token=***",
        "--max-num-batched-tokens",
        "8",
        "--token",
    ]


def test_a_command_takes_model_port_and_the_engines_own_flags():
    arm = Arm(
        name="box",
        engine="llama.cpp",
        model="m.gguf",
        args=("-c", "512"),
        speculation=Speculation(method="ngram-simple", num_speculative_tokens=8),
        command=("docker", "run", "-p", "{port}:{port}", "-v", "{model}:{model}", "img", "{args}"),
    )
    filled = fill_command(arm, 7777)
    assert filled[:7] == ["docker", "run", "-p", "7777:7777", "-v", "m.gguf:m.gguf", "img"]
    rest = filled[7:]
    assert rest[rest.index("--port") + 1] == "7777"
    assert rest[rest.index("--spec-type") + 1] == "ngram-simple"
    assert rest[rest.index("--spec-draft-n-max") + 1] == "8"
    assert rest[-2:] == ["-c", "512"]


def test_a_command_that_cannot_be_filled_is_refused():
    with pytest.raises(PlanError, match="model"):
        fill_command(Arm(name="a", command=("x", "{model}")), 1)
    with pytest.raises(PlanError, match="args"):
        fill_command(Arm(name="a", engine="openai", command=("x", "{args}")), 1)
