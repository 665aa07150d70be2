"""`sakiyomi watch` as a process: JSON lines, plain lines, a table, signals, exit status."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import urllib.request

import pytest

QUICK = ("--k", "3", "--script", "3,0,2,1", "--step", "0", "--ttft", "0")


def command(*arguments):
    return [sys.executable, "-m", "sakiyomi.cli", "watch", *arguments]


@contextlib.contextmanager
def watching(*arguments):
    """A running watch, its outputs as pipes."""
    process = subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ask(url, *numbers, max_tokens=40):
    for number in numbers:
        body = {
            "messages": [{"role": "user", "content": f"tell me of {number}"}],
            "max_tokens": max_tokens,
        }
        request = urllib.request.Request(
            url + "/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        urllib.request.urlopen(request).read()


def test_json_lines_hold_the_servers_own_counts(fake_engine, tmp_path, home):
    log = tmp_path / "log.jsonl"
    url = fake_engine(*QUICK, "--log", str(log))
    with watching(url, "--every", "0.3", "--json") as process:
        first = json.loads(process.stdout.readline())
        assert first["schema"] == "sakiyomi.watch/1"
        assert first["servers"][0]["interval"] is None
        ask(url, 1, 2, 3)
        process.stdout.readline()  # it may have been read while they were asked
        reading = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        rest, summary = process.communicate(timeout=60)
    assert process.returncode == 0
    steps = [
        step
        for line in log.read_text().splitlines()
        for step in json.loads(line)["steps"]
        if step["num_draft_tokens"]
    ]
    found = reading["servers"][0]["since_start"]
    accepted = sum(step["num_accepted_tokens"] for step in steps)
    assert found["num_drafts"] == len(steps)
    assert found["num_accepted_tokens"] == accepted
    assert found["draft_acceptance_rate"]["point"] == accepted / (3 * len(steps))
    assert all(json.loads(line)["schema"] == "sakiyomi.watch/1" for line in rest.splitlines())
    assert f"accepted {accepted / (3 * len(steps)):.0%}" in summary
    assert len(log.read_text().splitlines()) == 3  # the watch asked nothing


def test_plain_lines_and_a_summary(fake_engine, sakiyomi):
    urls = fake_engine(*QUICK), fake_engine(*QUICK, "--dialect", "sglang")
    done = sakiyomi("watch", f"a={urls[0]}", f"b={urls[1]}/v1", "--every", "0.3", "--for", "3")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[1] for line in lines[:6]] == ["a:", "b:"] * 3
    assert "first reading" in lines[0]
    assert re.search(r" a: accepted -, length -, drafts/s 0, tok/s 0, running 0, ", lines[2])
    assert lines[6].endswith("3 readings")
    assert lines[7].startswith("a: accepted -")
    assert done.stderr.splitlines() == [
        "! b: SGLang does not count proposed drafts: no acceptance rate",
        "! b: SGLang counts a request when it ends: an interval has what ended in it",
    ]


def test_a_time_is_kept_whatever_the_readings_take(fake_engine, sakiyomi):
    url = fake_engine(*QUICK)
    done = sakiyomi("watch", url, "--every", "0.5", "--for", "2s", "--json")
    elapsed = [json.loads(line)["elapsed_s"] for line in done.stdout.splitlines()]
    assert elapsed[0] == 0
    assert elapsed[-1] <= 2.0
    assert {at / 0.5 for at in elapsed} <= {0, 1, 2, 3, 4}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_with_the_summary(fake_engine, home, number):
    url = fake_engine(*QUICK)
    with watching(f"mine={url}", "--every", "0.2") as process:
        process.stdout.readline()
        ask(url, 1)
        process.stdout.readline()
        process.stdout.readline()
        process.send_signal(number)
        rest, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "mine: accepted 50%, length 2.50" in rest
    assert errors == ""


def test_a_terminal_shows_a_table_of_80_columns(fake_engine, home):
    url = fake_engine(*QUICK)
    leader, follower = pty.openpty()
    with subprocess.Popen(
        command(
            f"a-server-with-a-long-name={url}",
            "b=http://127.0.0.1:9",
            *("--every", "0.3", "--for", "4", "--against", "founding-case"),
        ),
        stdout=follower,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "30"},
    ) as process:
        os.close(follower)
        ask(url, 1, 2)
        shown = b""
        with contextlib.suppress(OSError):  # the other side is closed
            while piece := os.read(leader, 65536):
                shown += piece
        assert process.wait(60) == 0
        assert process.stderr.read() == b""
    os.close(leader)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    lines = text.replace("\r", "\n").split("\n")
    table = lines[: next(i for i, line in enumerate(lines) if line.startswith("watched"))]
    assert max(map(len, table)) <= 80
    assert any(
        re.match(r" +accepted +even +length +drafts/s +tok/s +run\+wait +KV$", x) for x in table
    )
    assert any("23-29%" in line for line in table)
    assert any(line.startswith("! b: http://127.0.0.1:9/metrics: no") for line in table)


def test_what_stays_below_the_break_even_is_said_once(fake_engine, home):
    url = fake_engine("--k", "3", "--script", "0", "--step", "0", "--ttft", "0")
    with watching(url, "--every", "0.2", "--against", "founding-case") as process:
        for number in range(6):
            process.stdout.readline()
            ask(url, number)
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    (said,) = errors.splitlines()
    assert "below the measured break-even (23-29%) in 3 readings in a row" in said


def test_no_server_that_could_be_read_is_a_failure(fake_engine, sakiyomi):
    done = sakiyomi("watch", "http://127.0.0.1:9", "--every", "0.2", "--for", "2")
    assert done.returncode == 1
    assert "no server could be read" in done.stderr
    assert "connection refused" in done.stderr
    url = fake_engine("--dialect", "ollama")
    done = sakiyomi("watch", url)  # waiting would not help: it ends by itself
    assert done.returncode == 1
    assert "Ollama has no metrics page" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("http://a:1", "http://a:1"), "two servers are called 'a:1'"),
        (("http://a:1", "http://b:1", "--metrics-url", "http://c/metrics"), "of which server?"),
        (("http://a:1", "--metrics-url", "b=http://c/metrics"), "no server of this name"),
        (("http://a:1", "--every", "soon"), "--every soon: no time"),
        (("http://a:1", "--for", "0"), "--for 0"),
        (("http://a:1", "--api-key-env", "NOT_SET_HERE"), "NOT_SET_HERE is empty or not set"),
        (("http://a:1", "--against", "no-such-run"), "no-such-run"),
        (("http://user:secret@a:1",), "credentials"),
        (("http://a:1", "--engine", "vlm"), "did you mean"),
    ],
)
def test_what_cannot_be_meant_is_refused(sakiyomi, arguments, said):
    done = sakiyomi("watch", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "secret" not in done.stderr


def test_a_key_is_sent_and_a_metrics_page_is_a_url_too(fake_engine, sakiyomi):
    url = fake_engine(*QUICK, "--api-key", "sk-12345678", "--fault", "metrics_401")
    page = url + "/metrics"
    refused = sakiyomi("watch", page, "--every", "0.3", "--for", "2")
    assert refused.returncode == 1
    assert "asks for an API key" in refused.stderr
    arguments = ("watch", page, "--every", "0.3", "--for", "2", "--api-key-env", "KEY")
    done = sakiyomi(*arguments, KEY="sk-12345678")
    assert done.returncode == 0, done.stderr
    assert "sk-12345678" not in done.stdout + done.stderr


def test_a_reader_that_goes_ends_the_watch(fake_engine, home):
    url = fake_engine(*QUICK)
    with watching(url, "--every", "0.1", "--json") as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(60) == 0
        assert process.stderr.read() == ""
        process.stdout = None
