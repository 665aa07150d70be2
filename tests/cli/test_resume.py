"""A run folder has one writer, whatever became of the one before."""

import json
import os
import signal
import subprocess
import sys
import time

COMMAND = (sys.executable, "-m", "sakiyomi.cli", "run")
ASK = ("--scenario", "en_chat", "--requests", "6", "--max-tokens", "24", "--repeats", "2")


def start(*arguments):
    return subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def wait_for_records(path, count):
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        time.sleep(0.02)


def test_a_run_that_is_being_written_is_not_resumed_beside_it(sakiyomi, fake_engine, home):
    url = fake_engine("--step", "0.02")
    folder = home / "runs" / "shared"
    killed = start("--url", url, "--name", "shared", *ASK)
    wait_for_records(folder / "requests.jsonl", 3)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert (folder / ".lock").read_text() == str(killed.pid)  # of the dead: no hindrance

    first = start("--resume", "shared")
    try:
        while (folder / ".lock").read_text() != str(first.pid):
            time.sleep(0.02)
        second = sakiyomi("run", "--resume", "shared")
    finally:
        first.wait()
    assert second.returncode == 2
    assert f"another sakiyomi is writing this run (process {first.pid})" in second.stderr
    assert "sakiyomi run --resume" in second.stderr

    assert first.returncode == 0
    assert not (folder / ".lock").exists()
    lines = (folder / "requests.jsonl").read_text().splitlines()
    keys = [json.loads(line)["key"] for line in lines]
    ids = [key["request_id"] for key in keys if not key.get("warmup")]
    assert len(set(ids)) == len(ids) == 12


def test_the_number_of_a_dead_writer_may_be_anothers_by_now(sakiyomi, fake_engine, home):
    url = fake_engine()
    folder = home / "runs" / "old"
    assert sakiyomi("run", "--url", url, "--name", "old", *ASK).returncode == 0
    (folder / ".lock").write_text(str(os.getpid()))
    assert sakiyomi("run", "--resume", "old", "--repeats", "3").returncode == 0
    assert not (folder / ".lock").exists()
