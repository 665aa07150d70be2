"""`sakiyomi scenarios list|show|import`."""

import argparse
import statistics
import textwrap
from pathlib import Path
from typing import Any

import msgspec

from sakiyomi import store, terminal
from sakiyomi.errors import PlanError
from sakiyomi.logs.import_log import (
    COLUMN_FIELDS,
    DEFAULT_NUM_CONVERSATIONS,
    Imported,
    ImportOptions,
    import_log,
    scenario_text,
)
from sakiyomi.logs.language import estimate_tokens
from sakiyomi.logs.log_baseline import Baseline
from sakiyomi.names import slug
from sakiyomi.plan import ScenarioRef
from sakiyomi.plan_files import built_in_scenarios, read_scenario
from sakiyomi.scenario import Conversation, Scenario


def scenarios_command(arguments: argparse.Namespace) -> int:
    """Dispatch the action."""
    return {"list": _list, "show": _show, "import": _import}[arguments.action](arguments)


# --- list and show -------------------------------------------------------------------------------


def _list(arguments: argparse.Namespace) -> int:
    rows = [_summary(_read(name)) for name in arguments.names or built_in_scenarios()]
    if arguments.json:
        _write_json(rows)
        return 0
    wide = max(8, *(len(row["name"]) for row in rows)) + 2
    terminal.write(
        f"{'scenario':{wide}}{'kind':13}{'language':9}{'conversations':>13}{'requests':>9}"
        f"{'~prompt tokens':>16}{'cap':>6}"
    )
    for row in rows:
        low, middle, high = (row["prompt_tokens"][key] for key in ("min", "median", "max"))
        tokens = f"{middle} ({low}-{high})"
        terminal.write(
            f"{row['name']:{wide}}{(row['category'] or '-')[:12]:13}{row['language'] or '-':9}"
            f"{row['num_conversations']:13}{row['num_requests']:9}{tokens:>16}"
            f"{row['sampling']['max_tokens']:6}"
        )
    terminal.write("")
    terminal.write("~ estimated from characters: median (least-most) of the first requests")
    terminal.write(
        "read one: sakiyomi scenarios show NAME   own traffic: sakiyomi scenarios import"
    )
    return 0


def _show(arguments: argparse.Namespace) -> int:
    if not arguments.names:
        raise PlanError(
            "scenarios show: no scenario named",
            "one of " + ", ".join(built_in_scenarios()) + ", or a .jsonl file",
        )
    scenarios = [_read(name) for name in arguments.names]
    if arguments.json:
        _write_json(
            [
                {**_summary(scenario), "conversations": msgspec.to_builtins(scenario.conversations)}
                for scenario in scenarios
            ]
        )
        return 0
    for scenario in scenarios:
        _write_scenario(scenario)
    return 0


def _write_scenario(scenario: Scenario) -> None:
    row = _summary(scenario)
    tokens = row["prompt_tokens"]
    sampling = ", ".join(f"{k} {v}" for k, v in row["sampling"].items() if v is not None)
    terminal.write(f"{scenario.name}: {scenario.category or '-'}, {scenario.language or '-'}")
    terminal.write(
        f"{row['num_conversations']} conversations, {row['num_requests']} requests, first requests "
        f"of about {tokens['min']} to {tokens['max']} tokens (estimated), {sampling}"
    )
    for conversation in scenario.conversations:
        labels = [conversation.language, conversation.category]
        terminal.write("")
        terminal.write(
            f"--- {conversation.conversation_id}  "
            + "  ".join(label for label in labels if label)
            + f"  ~{_prompt_tokens(conversation)} tokens"
        )
        if conversation.system:
            terminal.write(_indented("system", conversation.system))
        for turn in conversation.turns:
            terminal.write(_indented("user", turn))


def _indented(role: str, text: str) -> str:
    lines = text.split("\n")
    return "\n".join(f"{role if i == 0 else '':8}{line}".rstrip() for i, line in enumerate(lines))


def _summary(scenario: Scenario) -> dict[str, Any]:
    tokens = [_prompt_tokens(conversation) for conversation in scenario.conversations]
    return {
        "name": scenario.name,
        "category": scenario.category,
        "language": scenario.language,
        "licence": scenario.licence,
        "num_conversations": len(scenario.conversations),
        "num_requests": sum(len(conversation.turns) for conversation in scenario.conversations),
        "prompt_tokens": {
            "min": min(tokens),
            "median": round(statistics.median(tokens)),
            "max": max(tokens),
            "estimated": True,
        },
        "sampling": msgspec.to_builtins(scenario.sampling),
        "content_hash": scenario.content_hash,
    }


def _read(name: str) -> Scenario:
    """A built-in scenario by name, or a file by its path."""
    is_file = name.endswith((".jsonl", ".json")) or "/" in name or "\\" in name
    return read_scenario(ScenarioRef(name=Path(name).stem, file=name if is_file else None))


def _prompt_tokens(conversation: Conversation) -> int:
    """About how many tokens the first request of a conversation has."""
    return estimate_tokens(conversation.system or "") + estimate_tokens(conversation.turns[0])


def _write_json(value: Any) -> None:
    terminal.write(msgspec.json.format(msgspec.json.encode(value)).decode())


# --- import --------------------------------------------------------------------------------------


def _import(arguments: argparse.Namespace) -> int:
    paths = [Path(name) for name in arguments.names]
    if not paths:
        raise PlanError(
            "scenarios import: no file named",
            "sakiyomi scenarios import LOG.jsonl --name support -o support.jsonl",
        )
    output = Path(arguments.output) if arguments.output else None
    name = arguments.name or slug((output or paths[0]).name.split(".")[0])
    output = output or Path(f"{name}.jsonl")
    if any(path.exists() and output.exists() and path.samefile(output) for path in paths):
        raise PlanError(f"{output}: is one of the logs", "give another file with -o")
    num = DEFAULT_NUM_CONVERSATIONS
    if arguments.num_conversations is not None:
        num = arguments.num_conversations
    if num < 1:
        raise PlanError(f"--num-conversations {num}: must be at least 1", "8 to 64 are usual")
    options = ImportOptions(
        name=name,
        num_conversations=num,
        seed=arguments.seed,
        columns=_columns(arguments.column),
        mask=not arguments.no_mask,
        per_category=arguments.per_category,
    )
    imported = import_log(paths, options, terminal.warn)
    files = _write_files(imported, output)
    if arguments.json:
        account = msgspec.to_builtins(imported)
        account["scenarios"] = [_summary(scenario) for scenario in imported.scenarios]
        _write_json({**account, "files": files})
    else:
        for line in _account(imported, files, mask=options.mask):
            terminal.write(line if line[:1] == " " else _wrapped(line))
    return 0


def _columns(flags: list[str]) -> dict[str, str]:
    columns = {}
    for flag in flags:
        field, equals, column = flag.partition("=")
        if not equals or not column or field not in COLUMN_FIELDS:
            raise PlanError(
                f"--column {flag}: not FIELD=NAME",
                "FIELD is one of " + ", ".join(COLUMN_FIELDS),
            )
        columns[field] = column
    if columns and "prompt" not in columns:
        raise PlanError("--column: no prompt among the columns", "add --column prompt=NAME")
    return columns


def _write_files(imported: Imported, output: Path) -> list[str]:
    files = []
    for scenario in imported.scenarios:
        only = len(imported.scenarios) == 1
        path = output if only else output.with_name(f"{scenario.name}.jsonl")
        store.write_text(path, scenario_text(scenario))
        files.append(str(path))
    if imported.baseline is not None:
        path = output.with_name(f"{output.stem}.baseline.json")
        text = msgspec.json.format(msgspec.json.encode(imported.baseline)).decode()
        store.write_text(path, text + "\n")
        files.append(str(path))
    return files


def _account(imported: Imported, files: list[str], *, mask: bool) -> list[str]:
    """What was read, kept, left out, masked and written, for a person."""
    num_kept = sum(len(scenario.conversations) for scenario in imported.scenarios)
    formats = ", ".join(f"{name} {num:,}" for name, num in imported.formats.items())
    lines = [
        f"kept {num_kept:,} of {imported.num_distinct:,} conversations",
        f"rows       {imported.num_rows:,}, of which {imported.num_again:,} repeat or continue one",
        f"formats    {formats}",
    ]
    for scenario in imported.scenarios:
        row = _summary(scenario)
        tokens = row["prompt_tokens"]
        counts: dict[str, int] = {}
        for conversation in scenario.conversations:
            label = conversation.language or "-"
            counts[label] = counts.get(label, 0) + 1
        languages = " ".join(f"{name} {num}" for name, num in sorted(counts.items()))
        lines.append(
            f"{scenario.name}: {languages}; first requests of about {tokens['min']} to "
            f"{tokens['max']} tokens, median {tokens['median']} (estimated)"
        )
    lines += [f"sampling   {line}" for line in imported.sampling_from or ("none in the log",)]
    masked = ", ".join(f"{kind} {num}" for kind, num in imported.masked.items())
    lines.append(
        f"masked     {masked or 'nothing found'}" if mask else "masked     off (--no-mask)"
    )
    for skipped in imported.skipped:
        more = ", ..." if skipped.num_rows > 3 else ""
        examples = ", ".join(skipped.examples[:3])
        lines.append(f"skipped    {skipped.num_rows:,} rows: {skipped.reason} ({examples}{more})")
    lines += [
        f"left out   {num} conversations had {mark}, which a scenario cannot carry"
        for mark, num in imported.marks.items()
    ]
    lines += _baseline_lines(imported.baseline)
    lines.append("wrote      " + ", ".join(files))
    lines.append("in a plan:")
    for scenario, file in zip(imported.scenarios, files, strict=False):
        lines += [
            "  [[scenarios]]",
            f"  name = {_quoted(scenario.name)}",
            f"  file = {_quoted(file)}",
        ]
    if mask:
        lines.append("names and addresses have no form and are not masked: read the file once")
    return lines


def _wrapped(line: str) -> str:
    return textwrap.fill(
        line, 80, subsequent_indent=" " * 11, break_on_hyphens=False, break_long_words=False
    )


def _quoted(text: str) -> str:
    """A TOML string; JSON's escapes are TOML's."""
    return msgspec.json.encode(text).decode()


def _baseline_lines(baseline: Baseline | None) -> list[str]:
    if baseline is None:
        return ["baseline   none: neither times nor token counts in the log"]
    lines = [
        f"baseline   {name} median {q.median:.4g} (p10 {q.p10:.4g}, p90 {q.p90:.4g}, n {q.n:,})"
        for name, q in baseline.quantities.items()
    ]
    if baseline.num_failed:
        lines.append(f"baseline   {baseline.num_failed:,} requests failed, not in these numbers")
    lines += [f"baseline   {num:,} without times: {why}" for why, num in baseline.left_out.items()]
    return lines + [f"baseline   {note}" for note in baseline.notes]
