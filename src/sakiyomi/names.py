"""Names that people give -> names of files. Pure."""

import re


def slug(name: str) -> str:
    """A file or folder name from a plan's name; other scripts' letters stay."""
    return re.sub(r"[^\w.-]+", "-", name.lower()).strip("-.")[:60] or "run"


def engine_file(arm: str, number: int, ending: str) -> str:
    """Name of a file about the `number`-th start of an arm's engine: its log, its config."""
    return f"engine-{slug(arm)}-{number}.{ending}"


def is_engine_log(file_name: str, arm: str) -> bool:
    """Whether a file is a log of this arm's engine, and not of another with a longer name."""
    return bool(re.fullmatch(rf"engine-{re.escape(slug(arm))}-\d+\.log", file_name))
