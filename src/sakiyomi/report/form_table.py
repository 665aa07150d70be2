"""Published forms as the cells of a table, for text and Markdown. Formats; computes nothing."""

from sakiyomi.published_forms import FormRow, PublishedForm
from sakiyomi.report import format as fmt

HEADERS = {
    "Spec-Bench": (
        *("category", "arm", "#mean accepted tokens", "tokens/s", "baseline tokens/s"),
        "speedup",
    ),
    "SPEED-Bench": ("category", "arm", "acceptance length", "acceptance rate", "speedup"),
}


def title(form: PublishedForm) -> str:
    """The line above the table."""
    return f"by category, in the form of {form.benchmark} ({form.load.label})"


def rows(form: PublishedForm) -> list[tuple[str, ...]]:
    """The header, then a row for each category and arm; a category is named once."""
    found = [HEADERS[form.benchmark]]
    previous = None
    for row in form.rows:
        name = "" if row.category == previous else row.category
        found.append((name, row.arm, *_values(row, form.benchmark)))
        previous = row.category
    return found


def _values(row: FormRow, benchmark: str) -> tuple[str, ...]:
    speedup = f"{fmt.number(row.speedup.point)}x" if row.speedup else "-"
    speedup = "1x" if row.is_baseline else speedup
    if benchmark == "Spec-Bench":
        return (
            fmt.point(row.tokens_per_step),
            fmt.point(row.decode_tokens_per_s),
            fmt.point(row.baseline_tokens_per_s),
            speedup,
        )
    return (fmt.point(row.mean_acceptance_length), fmt.percent(row.draft_acceptance_rate), speedup)
