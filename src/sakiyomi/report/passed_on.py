"""A report as it is passed on: file names in place of the maker's folders. Pure.

A value that is a path becomes its last part, and so does every mention of it in a sentence or a
command. What users and models wrote in requests stays as it is. The run folder keeps the paths.
"""

import contextlib
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from sakiyomi.results import Report

ROUTES = ("v1", "v2", "v3", "api")
"""First parts of routes on a server, which are no folders."""
_WHOLE = re.compile(r"(?:file://)?(?:~[\w.-]*|[A-Za-z]:|\.{1,2})?[/\\][^\n]+")
_IN_TEXT = re.compile(
    r"(?<![\w/.~\\])(?:file://)?(?:~[\w.-]*)?(?:/[^/\s'\"`<>|,;:()\[\]{}、。]+){2,}/?"
    r"|(?<!\w)[A-Za-z]:(?:\\{1,2}[^\\/\s'\"`<>|,;:*?]+)+"
)


def without_folders(report: Report, known: Iterable[str] = ()) -> Report:
    """The report with every folder left out. `known`: paths that stand in its commands."""
    requests = report.requests
    content = msgspec.to_builtins(msgspec.structs.replace(report, requests=None), str_keys=True)
    paths = {*known, *_path_values(content), *_path_values(_plan(report.plan_toml))}
    clean = _cleaner(paths)
    found = msgspec.convert(_map_texts(content, clean), Report)
    if requests is not None:
        rows = [
            msgspec.structs.replace(row, error=clean(row.error)) if row.error else row
            for row in requests.rows
        ]
        requests = msgspec.structs.replace(requests, rows=rows)
    return msgspec.structs.replace(found, requests=requests)


def _cleaner(paths: Iterable[str]) -> Callable[[str], str]:
    """A text -> the text with known paths, then whatever looks like one, cut to the last part."""
    texts = {form for path in paths if len(path) > 1 for form in (path, path.replace("\\", r"\\"))}
    longest_first = "|".join(map(re.escape, sorted(texts, key=len, reverse=True)))
    tail = r"(?:[/\\]+[^\s'\"`,;]*|(?![\w/\\-]))"
    known = re.compile(rf"(?<![\w/.\\])(?:{longest_first or '(?!)'}){tail}")
    return lambda text: _IN_TEXT.sub(_last_part, known.sub(_last_part, text))


def _last_part(match: re.Match[str]) -> str:
    parts = [part for part in re.split(r"[/\\]+", match[0]) if part]
    return match[0] if parts[0] in ROUTES else parts[-1]


def _path_values(value: Any) -> Iterator[str]:
    """Strings that are a path as a whole, or after `--flag=`."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _path_values(item)
    elif isinstance(value, str):
        text = value.partition("=")[2] if value.startswith("-") else value
        if _WHOLE.fullmatch(text) and text.strip("/\\").partition("/")[0] not in ROUTES:
            yield text


def _plan(text: str | None) -> dict[str, Any]:
    with contextlib.suppress(tomllib.TOMLDecodeError):
        return tomllib.loads(text or "")
    return {}


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list | tuple):
        return [_map_texts(item, change) for item in value]
    if isinstance(value, dict):
        return {key: _map_texts(item, change) for key, item in value.items()}
    return value
