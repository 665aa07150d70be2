"""Numbers as people read them. Formats; computes nothing."""

from sakiyomi.results import Cell, Comparison, Report
from sakiyomi.stats import Estimate

TOO_WIDE = 50.0
"""Two noisy repeats can give 0.005 to 233."""


def number(value: float) -> str:
    """Three significant digits, without an exponent: 131, 72.0, 1.85, 0.042."""
    size = abs(value)
    if size >= 99.95:
        return f"{value:.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    if size >= 0.9995 or size == 0:
        return f"{value:.2f}"
    return f"{value:.3g}" if size >= 0.0001 else f"{value:.1e}"


def estimate(value: Estimate | None, scale: float = 1.0) -> str:
    """`72.0 (71 to 73)`; the point alone when no interval could be formed."""
    if value is None:
        return "-"
    point = number(value.point * scale)
    if value.low is None or value.high is None:
        return f"{point} (n={value.n})" if value.n else point
    if is_too_wide(value):
        return f"{point} (too wide to tell)"
    return f"{point} ({number(value.low * scale)} to {number(value.high * scale)})"


def is_too_wide(value: Estimate) -> bool:
    """Whether the ends of a positive figure lie so far apart that their digits tell nothing."""
    return bool(value.low and value.high and value.high > TOO_WIDE * value.low > 0)


def short_interval(value: Estimate | None, scale: float = 1.0) -> str:
    """`72.0 (71-73)`, for narrow columns; whole numbers where they suffice."""
    if value is None:
        return "-"
    point = number(value.point * scale)
    if value.low is None or value.high is None:
        return point
    if is_too_wide(value):
        return f"{point} (?)"
    low, high = value.low * scale, value.high * scale
    ends = (f"{low:.0f}", f"{high:.0f}") if high >= 20 else (number(low), number(high))
    return f"{point} ({ends[0]}-{ends[1]})"


def point(value: Estimate | None) -> str:
    """The point alone."""
    return "-" if value is None else number(value.point)


def percent(value: Estimate | None) -> str:
    """`36% (28-44)`."""
    if value is None:
        return "-"
    if value.low is None or value.high is None:
        return f"{value.point:.0%}"
    return f"{value.point:.0%} ({value.low * 100:.0f}-{value.high * 100:.0f})"


def milliseconds(value: Estimate | None) -> str:
    """The point in milliseconds."""
    return "-" if value is None else number(value.point * 1000)


def verdict(comparison: Comparison | None) -> str:
    """The contract's word, as people write it."""
    return "" if comparison is None else comparison.verdict.replace("_", " ")


def speedup(report: Report, cell: Cell) -> Comparison | None:
    """The comparison of a cell against the baseline, if it has one."""
    return next(
        (
            comparison
            for comparison in report.comparisons
            if comparison.scenario == cell.scenario
            and comparison.arm == cell.arm
            and comparison.load == cell.load
            and comparison.metric == "decode_tokens_per_s"
        ),
        None,
    )


def tokens_mark(cell: Cell) -> str:
    """`~` before a rate whose tokens are an estimate."""
    return "~" if cell.tokens == "estimated" else ""


def title(report: Report) -> str:
    """The first line: what was measured, on what, how often."""
    environment = report.environment
    parts = [
        report.name,
        " ".join(
            str(environment[key]) for key in ("engine", "engine_version") if environment.get(key)
        ),
        str(environment.get("device") or environment.get("cpu") or ""),
        f"{report.num_repeats} repeats" if report.num_repeats > 1 else "1 repeat",
    ]
    return " · ".join(part for part in parts if part)
