"""The report as JSON: section 5 of the contract. Never NaN, never Infinity."""

import msgspec

from sakiyomi.results import Report


def render(report: Report) -> str:
    """Indented JSON. msgspec writes NaN and Infinity as null."""
    return msgspec.json.format(msgspec.json.encode(report)).decode() + "\n"
