"""A watch as text: a table for a terminal, a line a server elsewhere, a summary at the end."""

import textwrap
from collections.abc import Sequence

from rich.cells import cell_len

from sakiyomi.live_rows import Rates, Row
from sakiyomi.readings import NUM_BELOW
from sakiyomi.report import format as fmt
from sakiyomi.report.format import number

MAX_NAME = 20
MAX_POSITIONS = 12
BY_POSITION = "by position"
HEAD = ("", "accepted", "even", "length", "drafts/s", "tok/s", "run+wait", "KV")


def table(rows: Sequence[Row], title: str, width: int = 80) -> str:
    """Two lines a server: the last interval and since the start; then what to know of them."""
    lines: list[tuple[str, ...]] = [HEAD]
    for row, name in zip(rows, names(rows), strict=True):
        now, ever = _figures(row.interval), _figures(row.since_start)
        load = "+".join(map(_count, (row.num_requests_running, row.num_requests_waiting)))
        load = "-" if load == "-+-" else load
        lines.append(
            (_short(name), now[0], _even(row), *now[1:], load, _percent(row.kv_cache_usage))
        )
        if row.engine:
            lines.append(("  since start", ever[0], "", *ever[1:], "", ""))
    columns = [i for i in range(len(HEAD)) if HEAD[i] != "even" or any(map(_even, rows))]
    widths = [max(cell_len(line[i]) for line in lines) for i in range(len(HEAD))]
    body = ["  ".join(_padded(line[i], widths[i], i) for i in columns).rstrip() for line in lines]
    return "\n".join([title, "", *body, "", *_below(rows, width)]).rstrip()


def line(row: Row, name: str, at: str) -> str:
    """One reading of one server: the last interval; then since the start."""
    if row.problem:
        return f"{at} {name}: no reading: {row.problem}"
    load = (
        f"running {_count(row.num_requests_running)}, waiting {_count(row.num_requests_waiting)}, "
        f"KV {_percent(row.kv_cache_usage)}"
    )
    note = f"; {row.note}" if row.note else ""
    if row.interval is None:
        return f"{at} {name}: {load}{note}"
    parts = [_sentence(row.interval), _positions(row.interval), load]
    parts += [f"break-even {_even(row)}"] if row.break_even_rate else []
    since = f"since start {_sentence(row.since_start)}"
    return f"{at} {name}: {', '.join(filter(None, parts))}; {since}{note}"


def summary(rows: Sequence[Row], elapsed_s: float, num_readings: int) -> str:
    """The whole watch: what each server did since the start, and what is missing in it."""
    lines = [f"watched {_time(elapsed_s)}, {num_readings} readings"]
    for row, name in zip(rows, names(rows), strict=True):
        lines.append(f"{name}: {_sentence(row.since_start)}" if row.engine else f"{name}: nothing")
        lines += [f"  {text}" for text in (_positions(row.since_start), *_gaps(row)) if text]
        if row.problem:
            lines.append(f"  last: {row.problem}")
    sizes = {row.readings_per_unit for row in rows if _has_interval(row.since_start)}
    if sizes:
        units = " and ".join("readings" if n == 1 else f"{n} readings" for n in sorted(sizes))
        lines.append(f"intervals: 95 %, over {units} as units")
    return "\n".join(lines)


def remarks(row: Row, name: str) -> list[str]:
    """What holds for more than this reading: what the page cannot tell, a rate that stays low."""
    texts = [f"! {name}: {note}" for note in row.notes]
    if row.below_break_even:
        texts.append(
            f"! {name}: its acceptance was below the measured break-even ({_even(row)}) in "
            f"{NUM_BELOW} readings in a row: drafts cost it time"
        )
    return texts


def names(rows: Sequence[Row]) -> list[str]:
    """The server, and what tells its rows apart: page, engine, model."""
    found = []
    for row in rows:
        mine = [other for other in rows if other.server == row.server]
        parts = [row.server]
        parts += [
            str(getattr(row, field))
            for field in ("page", "engine", "model")
            if len({getattr(other, field) for other in mine}) > 1
        ]
        found.append(" ".join(part.replace("http://", "") for part in parts if part))
    return found


def _figures(rates: Rates | None) -> tuple[str, ...]:
    if rates is None:
        return ("-",) * 4
    mark = "~" if rates.source == "gauge" else ""
    return (
        mark + fmt.percent(rates.draft_acceptance_rate),
        mark + _length(rates),
        _number(rates.drafts_per_s),
        _number(rates.generated_tokens_per_s),
    )


def _sentence(rates: Rates | None) -> str:
    accepted, length, drafts, tokens = _figures(rates)
    return f"accepted {accepted}, length {length}, drafts/s {drafts}, tok/s {tokens}"


def _length(rates: Rates) -> str:
    if rates.mean_acceptance_length is None:
        return _number(rates.tokens_per_step)
    return number(rates.mean_acceptance_length.point)


def _below(rows: Sequence[Row], width: int) -> list[str]:
    """What stands below the table: positions, problems, remarks."""
    texts: list[str] = []
    for row, name in zip(rows, names(rows), strict=True):
        if now := _positions(row.interval):
            since = _positions(row.since_start).removeprefix(BY_POSITION)
            texts.append(f"{name}: {now}; since start{since}")
        texts += [f"! {name}: {text}" for text in (row.problem, row.note) if text]
        texts += remarks(row, name)
    return [part for text in texts for part in textwrap.wrap(text, width, subsequent_indent="  ")]


def _positions(rates: Rates | None) -> str:
    if rates is None or not rates.per_position:
        return ""
    shares = " ".join(f"{share:.0%}" for share in rates.per_position[:MAX_POSITIONS])
    return f"{BY_POSITION} {shares}" + (" ..." if len(rates.per_position) > MAX_POSITIONS else "")


def _gaps(row: Row) -> list[str]:
    found = []
    if row.num_missed:
        found.append(f"{row.num_missed} of {row.num_missed + row.num_readings} readings failed")
    if row.num_void:
        found.append(f"intervals left out: {row.num_void}; the last: {row.last_void}")
    return found


def _has_interval(rates: Rates | None) -> bool:
    if rates is None:
        return False
    known = (rates.draft_acceptance_rate, rates.mean_acceptance_length)
    return any(estimate is not None and estimate.low is not None for estimate in known)


def _even(row: Row) -> str:
    if row.break_even_rate is None:
        return ""
    least, most = (f"{rate * 100:.0f}" for rate in row.break_even_rate)
    return f"{least}%" if least == most else f"{least}-{most}%"


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _number(value: float | None) -> str:
    return "-" if value is None else number(value) if value else "0"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "min"), (rest, "s"))
    return " ".join(f"{count} {unit}" for count, unit in parts if count) or "0 s"


def _short(name: str) -> str:
    while cell_len(name) > MAX_NAME:
        name = name[:-2] + "…"
    return name


def _padded(text: str, width: int, column: int) -> str:
    """Names and shares to the left, numbers to the right."""
    fill = " " * (width - cell_len(text))
    return text + fill if column < 3 else fill + text
