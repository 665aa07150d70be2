"""A run folder -> its report, computed anew from the facts."""

from sakiyomi.analyse import analyse
from sakiyomi.results import Report
from sakiyomi.store import RunReader


def read_report(reader: RunReader) -> Report:
    """The report of a saved run: cells, comparisons, cautions."""
    return analyse(reader.facts, reader.records(), reader.snapshots(), logs=reader.logs())
