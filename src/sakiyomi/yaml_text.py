"""YAML of plain values. Scalars are JSON, which YAML 1.2 contains: no quoting rule is needed."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec


def to_yaml(value: Any, indent: int = 0) -> str:
    """Block YAML of objects and lists; scalars as JSON."""
    pad = "  " * indent
    if isinstance(value, Mapping) and value:
        return "".join(
            f"{pad}{key}:\n{to_yaml(item, indent + 1)}"
            if isinstance(item, Mapping | list) and item
            else f"{pad}{key}: {scalar(item)}\n"
            for key, item in value.items()
        )
    if isinstance(value, list) and value:
        lines = []
        for item in value:
            text = to_yaml(item, indent + 1)
            lines.append(f"{pad}- {text[len(pad) + 2 :]}")
        return "".join(lines)
    return f"{pad}{scalar(value)}\n"


def scalar(value: Any) -> str:
    """A scalar as JSON; what YAML would not print or would take for a line end is escaped."""
    text = msgspec.json.encode(value).decode()
    return _NOT_PLAIN.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


_NOT_PLAIN = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
