"""Metrics pages before and after each pass -> what the server's counters grew by."""

from collections.abc import Iterable, Mapping

import msgspec

from sakiyomi import counter_growth
from sakiyomi.counter_growth import Delta
from sakiyomi.engines.engine import Engine
from sakiyomi.errors import MetricsError
from sakiyomi.record import ArmFacts, EngineMetrics, SeriesCounters, Snapshot


class Window(msgspec.Struct, kw_only=True):
    """One pass between its two snapshots, all metrics pages of the arm together."""

    scenario: str
    arm: str
    load: str
    repeat: int
    number: int = 0
    before: dict[str, EngineMetrics] = {}
    after: dict[str, EngineMetrics] = {}
    problems: list[str] = []
    notes: list[str] = []
    models: tuple[str, ...] = ()
    clocks_mhz: list[float] = []
    powers_w: list[float] = []
    """Of the device, at both ends of the pass."""

    @property
    def delta(self) -> Delta | None:
        """Growth over all pages; None when a side is missing."""
        if not self.before or self.before.keys() != self.after.keys():
            return None
        parts = [counter_growth.delta(self.before[url], self.after[url]) for url in self.before]
        result = parts[0]
        for part in parts[1:]:
            result = counter_growth.add(result, part)
        return result

    @property
    def counters(self) -> SeriesCounters:
        """The sums; empty when there is no delta."""
        delta = self.delta
        return delta.counters if delta else SeriesCounters()


def read_windows(
    snapshots: Iterable[Snapshot], arms: Mapping[str, ArmFacts], engines: Mapping[str, Engine]
) -> dict[int, Window]:
    """Windows by their number. A page that cannot be read is a problem of its window."""
    windows: dict[int, Window] = {}
    for snapshot in snapshots:
        window = windows.setdefault(
            snapshot.window,
            Window(
                scenario=snapshot.scenario,
                arm=snapshot.arm,
                load=snapshot.load,
                repeat=snapshot.repeat,
                number=snapshot.window,
            ),
        )
        if snapshot.clock_mhz is not None:
            window.clocks_mhz.append(snapshot.clock_mhz)
        if snapshot.power_w is not None:
            window.powers_w.append(snapshot.power_w)
        if not snapshot.url:  # of the device alone: the engine has no metrics page
            continue
        if snapshot.error or snapshot.status != 200:
            window.problems.append(snapshot.error or f"{snapshot.url}: HTTP {snapshot.status}")
            continue
        facts = arms.get(snapshot.arm)
        try:
            page = engines[snapshot.arm].read_metrics(snapshot.text, facts.model if facts else None)
        except MetricsError as error:
            window.problems.append(f"{snapshot.url}: {error.message}")
            continue
        side = window.before if snapshot.moment == "before" else window.after
        side[snapshot.url] = page
        window.models = tuple(dict.fromkeys([*window.models, *page.models]))
        window.notes = list(dict.fromkeys([*window.notes, *page.notes]))
    return windows
