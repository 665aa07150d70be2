"""Whether an arm was one server from its first answer to its last. Pure.

Answers are signed (`system_fingerprint`) and name their model; a metrics page knows when its
process began. What changes within an arm is a restart, or another replica behind one address.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from sakiyomi import counter_growth
from sakiyomi.counter_windows import Window
from sakiyomi.measured import Measured
from sakiyomi.record import Caution, EngineMetrics

ANSWER_FIELDS = {"system_fingerprint": "answers signed", "served_model": "answers of the model"}
PROCESS = "process_start_s"
COUNTERS = "counters"


class Seen(msgspec.Struct, frozen=True):
    """One observation: in which window, what, and which value it had."""

    window: int
    field: str
    value: Any


class ServerChange(msgspec.Struct, frozen=True, kw_only=True):
    """A caution, and the windows in which the server was not the one of the beginning."""

    caution: Caution
    windows: frozenset[int]


def server_changes(
    arm: str, requests: Sequence[Measured], windows: Mapping[int, Window]
) -> list[ServerChange]:
    """What changed between an arm's answers and between its metrics pages; empty for one server.

    A launched engine is started several times by design: each start is looked at alone.
    """
    starts = {request.key.window: request.key.start for request in requests}
    seen = list(_answers(requests))
    for start in sorted(set(starts.values())):
        mine = {n: windows[n] for n in sorted(starts) if starts[n] == start and n in windows}
        seen += _pages(start, mine)
    by_field: dict[str, list[Seen]] = {}
    for one in seen:
        by_field.setdefault(one.field, []).append(one)
    return [
        _change(arm, field, found)
        for field, found in by_field.items()
        if len({one.value for one in found}) > 1
    ]


def _answers(requests: Sequence[Measured]) -> Iterator[Seen]:
    for request in sorted(requests, key=lambda one: (one.key.window, one.sent_at_s)):
        for field in ANSWER_FIELDS:
            if (value := getattr(request, field)) is not None:
                yield Seen(request.key.window, field, value)


def _pages(start: int, windows: Mapping[int, Window]) -> Iterator[Seen]:
    """When the process of each page began; where it does not tell, how often its counters fell."""
    last: dict[str, EngineMetrics] = {}
    falls: dict[str, int] = {}
    for number, window in windows.items():
        for url, page in (*window.before.items(), *window.after.items()):
            fell = url in last and bool(counter_growth.delta(last[url], page).resets)
            falls[url] = falls.get(url, 0) + fell
            last[url] = page
            if page.process_start_s is not None:
                yield Seen(number, f"{PROCESS} {start} {url}", page.process_start_s)
            else:
                yield Seen(number, f"{COUNTERS} {start} {url}", falls[url])


def _change(arm: str, field: str, seen: Sequence[Seen]) -> ServerChange:
    values = list(dict.fromkeys(one.value for one in seen))
    turns = [one.value for i, one in enumerate(seen) if i == 0 or seen[i - 1].value != one.value]
    counts = {str(value): sum(one.value == value for one in seen) for value in values}
    several = len(turns) > len(values)
    name = field.partition(" ")[0]
    if name in ANSWER_FIELDS:
        shown = " and ".join(f"{value} ({counts[str(value)]})" for value in values[:4])
        what = f"{ANSWER_FIELDS[name]} {shown}"
    elif name == PROCESS:
        shown = " and ".join(f"{datetime.fromtimestamp(v, UTC):%F %T}" for v in values[:4])
        what = f"metrics pages of processes that began at {shown} (UTC)"
    else:
        what = "its counters began anew"
    meaning = (
        "they alternate: replicas behind one address. Measure each by its own URL"
        if several
        else "a restart, or another replica behind the same address. Repeat the run on one server"
    )
    return ServerChange(
        caution=Caution(
            "server_changed",
            f"{arm} was not one server: {what}; {meaning}. The numbers are of all of them together",
            {"arm": arm, "field": name, "values": values[:8], "counts": counts},
        ),
        windows=frozenset(one.window for one in seen if one.value != values[0]),
    )
