"""Shared by the tests that drive the product from outside: real processes, real sockets."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# `make test ARGS="--hypothesis-profile=explore"` looks much further than a plain run does.
settings.register_profile("explore", max_examples=3000, deadline=None)

Start = Callable[..., str]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder of its own for runs and history."""
    folder = tmp_path / "home"
    monkeypatch.setenv("SAKIYOMI_HOME", str(folder))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "80")
    return folder


@pytest.fixture
def fake_engine() -> Iterator[Start]:
    """Starts fake engines as processes; returns their URLs; ends them all."""
    started: list[subprocess.Popen[str]] = []

    def start(*options: str) -> str:
        process = subprocess.Popen(
            [sys.executable, "-m", "sakiyomi.fake_engine", "--port", "0", *options],
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        return process.stdout.readline().strip()

    yield start
    for process in started:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
def sakiyomi(home: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the command as a user would; both outputs are kept."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "sakiyomi.cli", *arguments],
            capture_output=True,
            text=True,
            encoding=environment.pop("encoding", "utf-8"),
            env={**os.environ, **environment},
            check=False,
        )

    del home
    return run
