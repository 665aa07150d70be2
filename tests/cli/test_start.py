import json
import subprocess
import sys

import pytest

HEAVY = {
    "aiohttp",
    "httptools",
    "httpx",
    "numpy",
    "altair",
    "pyarrow",
    "rich",
    "asyncio",
    "ssl",
    "huggingface_hub",
    "prometheus_client",
    "xllamacpp",
    "multiprocessing",
    "sqlite3",
}


def modules_after(code):
    script = f"import json, sys\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in json.loads(out.stdout.splitlines()[-1])}


@pytest.mark.parametrize(
    "code",
    [
        "import sakiyomi",
        (
            "import contextlib, io\nfrom sakiyomi.cli import main\n"
            "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
            "    main(['--help'])"
        ),
        (
            "import contextlib, io\nfrom sakiyomi.cli import main\n"
            "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
            "    main(['run', '--help'])"
        ),
    ],
    ids=["import", "help", "run-help"],
)
def test_nothing_heavy_is_loaded(code):
    assert not modules_after(code) & HEAVY


def test_every_verb_has_help_and_stands_in_the_readme(sakiyomi):
    from pathlib import Path

    from sakiyomi.cli import VERBS

    top = sakiyomi("--help").stdout
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    for name, summary, _, _ in VERBS:
        assert name in top
        assert summary
        assert sakiyomi(name, "--help").returncode == 0
        assert f"sakiyomi {name}" in readme


def test_version_and_no_command(sakiyomi):
    from sakiyomi import __version__

    assert sakiyomi("--version").stdout == f"sakiyomi {__version__}\n"
    assert sakiyomi().returncode == 2
