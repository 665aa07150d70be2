"""Report -> text, by the ending of its file."""

from collections.abc import Callable
from importlib import import_module

from sakiyomi.errors import StoreError
from sakiyomi.results import Report

RENDERERS = {".html": "html", ".md": "markdown", ".json": "json", ".csv": "csv", ".txt": "text"}


def find_renderer(ending: str) -> Callable[[Report], str]:
    """The renderer of a file ending; its module is imported when it is used.

    Raises StoreError for an ending that has none.
    """
    name = RENDERERS.get(ending.lower())
    if name is None:
        raise StoreError(
            f"no report format for {ending!r}", "end the file in " + ", ".join(RENDERERS)
        )
    render: Callable[[Report], str] = import_module(f"sakiyomi.report.{name}").render
    return render
