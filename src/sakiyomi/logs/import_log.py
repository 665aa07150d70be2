"""Own traffic -> a scenario: read, sample, mask. What was left out is counted, never silent."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from sakiyomi.errors import ScenarioError
from sakiyomi.logs.import_formats import BATCH_OUTPUT, NO_MESSAGES, read_entry
from sakiyomi.logs.import_messages import BadRow
from sakiyomi.logs.import_traces import NO_CONTENT
from sakiyomi.logs.log_baseline import Baseline, BaselineReader
from sakiyomi.logs.log_file import open_log, read_entries
from sakiyomi.logs.log_sample import Kept, LogSample
from sakiyomi.logs.masking import mask_texts
from sakiyomi.scenario import Conversation, Sampling, Scenario

DEFAULT_NUM_CONVERSATIONS = 64
MAX_EXAMPLES = 5
"""Skipped rows that are named by their line, for each reason."""

MAX_REASONS = 50
SAY_EVERY_ROWS = 100_000
COLUMN_FIELDS = (
    *("prompt", "system", "language", "category", "conversation", "model", "timestamp"),
    *("ttft_s", "ttft_ms", "e2e_s", "e2e_ms", "prompt_tokens", "completion_tokens"),
    *("temperature", "top_p", "max_tokens"),
)
"""What --column can name."""

_GUESSED_COLUMNS = ("prompt", "input", "question", "instruction", "text", "query", "message")


class ImportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to import. `columns`: our field -> the user's column or dotted key."""

    name: str
    num_conversations: int = DEFAULT_NUM_CONVERSATIONS
    seed: int = 1
    columns: dict[str, str] = {}
    mask: bool = True
    per_category: bool = False
    """A scenario for each category, each with `num_conversations`."""


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """Rows left out for one reason; `examples` are the first few as FILE:LINE."""

    reason: str
    num_rows: int
    examples: tuple[str, ...]


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """The scenarios (one, or one for each category) and an account of every row."""

    scenarios: tuple[Scenario, ...]
    baseline: Baseline | None
    num_rows: int
    num_requests: int
    num_distinct: int
    num_again: int
    """Requests that repeat a conversation or show it at another turn."""
    skipped: tuple[Skipped, ...]
    formats: dict[str, int]
    masked: dict[str, int]
    marks: dict[str, int]
    """Sampled conversations with tool results, images or files, which a scenario cannot carry."""
    sampling_from: tuple[str, ...]


class _Account:
    """What became of each row."""

    def __init__(self) -> None:
        self.num_rows = self.num_requests = 0
        self.formats: Counter[str] = Counter()
        self._skipped: dict[str, list[Any]] = {}

    def skip(self, reason: str, where: str) -> None:
        if reason not in self._skipped and len(self._skipped) >= MAX_REASONS:
            reason = "other reasons"
        entry = self._skipped.setdefault(reason, [0, []])
        entry[0] += 1
        if len(entry[1]) < MAX_EXAMPLES:
            entry[1].append(where)

    def skipped(self) -> tuple[Skipped, ...]:
        found = [
            Skipped(reason=reason, num_rows=num, examples=tuple(examples))
            for reason, (num, examples) in self._skipped.items()
        ]
        return tuple(sorted(found, key=lambda skipped: -skipped.num_rows))


def import_log(
    paths: Sequence[Path], options: ImportOptions, say: Callable[[str], None] = lambda _: None
) -> Imported:
    """Read logs and sample `num_conversations` distinct conversations.

    One pass; memory does not grow with the log. The sample depends on `seed` and on what is in
    the files, not on their order. Raises ScenarioError when no request is left.
    """
    account = _Account()
    sample = LogSample(options.num_conversations, options.seed)
    baseline = BaselineReader(options.seed)
    for path in paths:
        _read(path, options.columns, (account, sample, baseline), say)
    if not sample.population:
        raise _nothing(paths, account)
    found, origins = baseline.sampling()
    categories = sorted({s.category for s in sample.population}) if options.per_category else [None]
    scenarios, masked, marks = [], Counter[str](), Counter[str]()
    for category in categories:
        kept = sample.choose(category)
        for conversation in kept:
            marks.update(conversation.marks)
        own = f"{options.name}_{_slug(category)}" if category else options.name
        scenario, counts = _scenario(own, kept, Sampling(**found), mask=options.mask)
        scenarios.append(scenario)
        masked += counts
    return Imported(
        scenarios=tuple(scenarios),
        baseline=baseline.baseline(options.name, list(account.formats)),
        num_rows=account.num_rows,
        num_requests=account.num_requests,
        num_distinct=sample.population.total(),
        num_again=sample.num_again,
        skipped=account.skipped(),
        formats=dict(account.formats),
        masked=dict(masked.most_common()),
        marks=dict(marks.most_common()),
        sampling_from=tuple(origins),
    )


def _read(
    path: Path,
    columns: Mapping[str, str],
    into: tuple[_Account, LogSample, BaselineReader],
    say: Callable[[str], None],
) -> None:
    account, sample, baseline = into
    log = open_log(path, named_columns=bool(columns))
    for entry in read_entries(log):
        account.num_rows += 1
        if account.num_rows % SAY_EVERY_ROWS == 0:
            say(f"{account.num_rows:,} rows read")
        where = f"{path.name}:{entry.line}"
        if entry.problem:
            account.skip(entry.problem, where)
            continue
        if log.kind == "csv" and not columns:
            columns = _guess_columns(entry.value, path)
        try:
            requests = read_entry(entry.value, columns)
        except BadRow as problem:
            account.skip(str(problem), where)
            continue
        for logged in requests:
            account.num_requests += 1
            account.formats[logged.format] += 1
            baseline.add(logged)
            if logged.prompt is not None:
                sample.add(logged)
            else:
                account.skip(logged.reason, where)


def _guess_columns(row: Mapping[str, Any], path: Path) -> Mapping[str, str]:
    """Columns of a table without --column: an export's own names, or one that says prompt."""
    names = {name.lower(): name for name in row}
    if "messages" in names or {"startTime", "start_time"} & set(row):
        return {}
    for guess in _GUESSED_COLUMNS:
        if guess in names:
            others = {field: names[field] for field in COLUMN_FIELDS if field in names}
            return {**others, "prompt": names[guess]}
    raise ScenarioError(
        f"{path}: which column is the prompt? It has " + ", ".join(map(repr, list(row)[:12])),
        f"--column prompt={next(iter(row), 'NAME')} (and system=, language=, conversation=)",
    )


def _scenario(
    name: str, kept: Sequence[Kept], sampling: Sampling, *, mask: bool
) -> tuple[Scenario, Counter[str]]:
    counts: Counter[str] = Counter()
    conversations = []
    for index, one in enumerate(kept, start=1):
        system, *turns = one.system or "", *one.turns
        if mask:
            (system, *turns), found = mask_texts([system, *turns])
            counts += found
        conversations.append(
            Conversation(
                conversation_id=f"{name}-{index:04d}",
                system=system or None,
                turns=tuple(turns),
                language=one.stratum.language,
                category=one.stratum.category or None,
            )
        )
    languages = {conversation.language for conversation in conversations}
    categories = {conversation.category for conversation in conversations}
    scenario = Scenario(
        name=name,
        conversations=tuple(conversations),
        sampling=sampling,
        language=languages.pop() if len(languages) == 1 else "mixed",
        category=categories.pop() if len(categories) == 1 else None,
    )
    return scenario, counts


def _slug(text: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in text.lower()).strip("_")[:40] or "none"


def _nothing(paths: Sequence[Path], account: _Account) -> ScenarioError:
    """The error when no request is left, with the remedy for what was found instead."""
    files = ", ".join(path.name for path in paths)
    skipped = account.skipped()
    if not skipped:
        return ScenarioError(f"{files}: no requests in it", "see docs/scenarios.md for the formats")
    hints = {
        BATCH_OUTPUT: "give the batch input file, the one with the prompts "
        "(with the output beside it, its token counts are kept)",
        NO_MESSAGES: "LiteLLM stores prompts only with general_settings: "
        "store_prompts_in_spend_logs: true",
        NO_CONTENT: "let the instrumentation capture message content "
        "(OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true for most)",
    }
    worst = next((one for one in skipped if one.reason in hints), skipped[0])
    return ScenarioError(
        f"{files}: no request to import: {worst.num_rows} of {account.num_rows} rows are skipped: "
        f"{worst.reason} ({', '.join(worst.examples)})",
        hints.get(worst.reason, "see docs/scenarios.md for the formats"),
    )


def scenario_text(scenario: Scenario) -> str:
    """A scenario as the JSON lines of its file (contract, section 4)."""
    sampling = msgspec.to_builtins(scenario.sampling)
    header = {
        "name": scenario.name,
        "category": scenario.category,
        "language": scenario.language,
        "licence": scenario.licence,
        "sampling": {key: value for key, value in sampling.items() if value is not None},
    }
    lines: list[Any] = [{"scenario": {k: v for k, v in header.items() if v is not None}}]
    for conversation in scenario.conversations:
        fields = msgspec.to_builtins(conversation)
        fields["id"] = fields.pop("conversation_id")
        order = ("id", "system", "turns", "language", "category")
        lines.append({key: fields[key] for key in order if fields[key] is not None})
    return "".join(msgspec.json.encode(line).decode() + "\n" for line in lines)
