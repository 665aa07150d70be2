"""Every command that the documentation shows is one that the command line takes."""

import re
import shlex
from pathlib import Path

import pytest

from sakiyomi.cli import VERBS, build_parser

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "README.ja.md", *sorted((ROOT / "docs").rglob("*.md"))]


def shown(page):
    """Command lines of the fenced blocks of a page: comments and continuations taken off."""
    for block in re.findall(r"^```[a-z]*\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        text = re.sub(r"\\\n\s*", " ", block)
        for whole in text.splitlines():
            line = re.sub(r"\s+#.*$", "", whole.strip())
            if re.match(r"sakiyomi [a-z]", line):
                yield line


COMMANDS = sorted({(page.name, line) for page in PAGES for line in shown(page)})


def test_the_docs_show_commands_of_every_verb():
    assert len(COMMANDS) > 30
    used = {shlex.split(line)[1] for _, line in COMMANDS}
    assert {name for name, *_ in VERBS} - used <= {"fake-engine", "export", "history", "compare"}


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_a_shown_command_is_taken(page, line):
    words = shlex.split(line.replace("...", ""))
    verb = next((verb for verb in VERBS if verb[0] == words[1]), None)
    assert verb is not None, f"{page}: {line}"
    build_parser(verb).parse_args(words[2:])


@pytest.mark.parametrize(
    "line",
    [
        "sakiyomi report founding-case",
        "sakiyomi explain founding-case",
        "sakiyomi decide founding-case",
        "sakiyomi bytes ThinkingCap-Qwen3.6-27B-NVFP4 35B-A3B",
        "sakiyomi scenarios list",
        "sakiyomi history",
    ],
)
def test_what_needs_no_server_runs(sakiyomi, line):
    done = sakiyomi(*shlex.split(line)[1:])
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_japanese_readme_shows_the_same_commands():
    english, japanese = (list(shown(ROOT / name)) for name in ("README.md", "README.ja.md"))
    assert english == japanese
    tables = [
        re.findall(r"^\| `(sakiyomi [a-z-]+)", (ROOT / name).read_text(), re.MULTILINE)
        for name in ("README.md", "README.ja.md")
    ]
    assert tables[0] == tables[1]
    assert len(tables[0]) == len(VERBS)
