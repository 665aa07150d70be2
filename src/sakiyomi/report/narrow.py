"""Names and tables that keep to the columns of a terminal; wide characters count two."""

from collections.abc import Sequence

from rich.cells import cell_len, chop_cells

Row = tuple[str, ...]


def wrapped(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """Lines of at most `width` columns. A word longer than a line is cut."""
    lines: list[str] = []
    line, is_bare = first, True
    for word in text.split():
        for part in chop_cells(word, max(width - cell_len(rest), 2)):
            if not is_bare and cell_len(line) + 1 + cell_len(part) > width:
                lines.append(line)
                line, is_bare = rest, True
            line += part if is_bare else f" {part}"
            is_bare = False
    return lines if is_bare else [*lines, line]


def table(rows: Sequence[Row], width: int) -> list[str]:
    """Columns side by side, two spaces apart; a block a row where they do not fit."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    if sum(widths) + 2 * (len(widths) - 1) > width:
        return blocks(rows, width)
    return [
        "  ".join(
            text + " " * (room - cell_len(text)) for text, room in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def blocks(rows: Sequence[Row], width: int) -> list[str]:
    """Each row below its first two cells, a value a line. The first row holds the names.

    An empty first cell stands for the one above it. Values that are not known are left out.
    """
    lines: list[str] = []
    group = ""
    for row in rows[1:]:
        group = row[0] or group
        lines += wrapped(f"{group} x {row[1]}", width)
        for name, text in zip(rows[0][2:], row[2:], strict=True):
            if text not in ("", "-"):
                lines += wrapped(f"{name}: {text}", width, "  ", "    ")
    return lines
