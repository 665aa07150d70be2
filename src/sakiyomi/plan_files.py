"""What a user writes, read from disk: plans, limits (SLO), scenarios; and the built-in ones."""

import contextlib
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from sakiyomi.errors import PlanError, SakiyomiError, ScenarioError
from sakiyomi.plan import Plan, ScenarioRef, Slo, parse_plan, parse_value
from sakiyomi.scenario import Scenario, apply_ref, parse_scenario


def read_text(path: Path, error: type[SakiyomiError]) -> str:
    """The text of a user's file: UTF-8 with or without BOM, UTF-16 with one.

    Raises `error` that names the line where another encoding shows, and the way out.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise error(f"{path}: no such file", _near_files(path)) from None
    except OSError as problem:
        raise error(f"{path}: {problem.strerror}", "check the path and its permissions") from None
    encoding = "utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as problem:
        line = raw[: problem.start].count(b"\n") + 1
        guess = "UTF-16 without a BOM" if b"\x00" in raw[:200] else _guess_encoding(raw)
        raise error(
            f"{path}:{line}: not UTF-8 (byte 0x{raw[problem.start]:02x}); it looks like {guess}",
            "save it as UTF-8, or: iconv -f CP932 -t UTF-8 FILE > NEW",
        ) from problem


def read_plan(path: Path) -> Plan:
    """Read a TOML plan. Relative scenario files are taken from its folder.

    Raises PlanError with the line of broken TOML or the path of a wrong value.
    """
    text = read_text(path, PlanError)
    try:
        raw = tomllib.loads(text.replace("\r\n", "\n"))
    except tomllib.TOMLDecodeError as problem:
        raise PlanError(f"{path}: {problem}", "check the TOML near that line") from problem
    plan = parse_plan(raw, str(path))
    refs = tuple(
        msgspec.structs.replace(ref, file=str((path.parent / ref.file).resolve()))
        if ref.file
        else ref
        for ref in plan.scenarios
    )
    return msgspec.structs.replace(plan, scenarios=refs)


def read_slo(path: Path) -> dict[str, Slo]:
    """Read limits by path from a TOML file: `[ja_chat]` or `[slo.ja_chat]` tables."""
    try:
        raw = tomllib.loads(read_text(path, PlanError))
    except tomllib.TOMLDecodeError as problem:
        raise PlanError(f"{path}: {problem}", "check the TOML near that line") from problem
    tables: dict[str, Any] = parse_value(raw.get("slo", raw), dict[str, Any], str(path))
    return {name: parse_value(table, Slo, f"{path}: {name}") for name, table in tables.items()}


def built_in_scenarios() -> list[str]:
    """Names of the scenarios that ship with sakiyomi."""
    folder = resources.files("sakiyomi") / "scenarios"
    return sorted(f.name[: -len(".jsonl")] for f in folder.iterdir() if f.name.endswith(".jsonl"))


def read_scenario(ref: ScenarioRef) -> Scenario:
    """The scenario that a plan refers to, with the plan's values applied."""
    if ref.file:
        path = Path(ref.file)
        text = read_text(path, ScenarioError)
        where = str(path)
    else:
        source = resources.files("sakiyomi") / "scenarios" / f"{ref.name}.jsonl"
        if not source.is_file():
            raise ScenarioError(
                f"scenario {ref.name!r} is not built in",
                "built in are " + ", ".join(built_in_scenarios()) + "; an own one needs a file",
            )
        text, where = source.read_text(encoding="utf-8"), f"{ref.name} (built in)"
    # JSON lines end at LF; other Unicode line ends may stand inside a string
    lines = (line.removesuffix("\r") for line in text.split("\n"))
    return apply_ref(parse_scenario(lines, ref.name, where), ref)


def _near_files(path: Path) -> str:
    parent = path.parent if path.parent.is_dir() else Path()
    try:
        names = sorted(p.name for p in parent.iterdir() if p.suffix == path.suffix)[:5]
    except OSError:
        names = []
    return "files like it there: " + ", ".join(names) if names else "check the path"


def _guess_encoding(raw: bytes) -> str:
    for encoding, name in (("cp932", "Shift_JIS (cp932)"), ("euc_jp", "EUC-JP")):
        with contextlib.suppress(UnicodeDecodeError):
            raw.decode(encoding)
            return name
    return "a binary file"
