"""`NAME=URL`: how `run` and `watch` are told of servers and of their metrics pages."""

import re
from collections.abc import Sequence

from sakiyomi.errors import PlanError


def split_name(text: str) -> tuple[str, str]:
    """`NAME=URL` -> both; the name is empty where there is none."""
    named = re.match(r"^([\w.-]+)=(.*)$", text)
    return (named[1], named[2]) if named else ("", text)


def with_scheme(url: str) -> str:
    """A server's URL, also when it was given without `http://`."""
    return url if re.match(r"https?://", url, re.IGNORECASE) else f"http://{url}"


def pages_by_server(texts: Sequence[str], names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The URLs of `--metrics-url [NAME=]URL` by the name of their server, one of `names`.

    Raises PlanError for a page of no server, and for one without a name where there are several.
    """
    pages: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, url = split_name(text)
        if not name and len(names) > 1:
            known = " or ".join(f"{name}={text}" for name in names)
            raise PlanError(f"--metrics-url {text}: of which server?", f"write {known}")
        name = name or names[0]
        if name not in names:
            raise PlanError(
                f"--metrics-url {text}: no server of this name", "there is " + ", ".join(names)
            )
        pages[name] = (*pages.get(name, ()), url)
    return pages
