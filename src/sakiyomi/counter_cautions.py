"""Cautions about a window of the server's counters. Pure."""

from sakiyomi.acceptance import MAX_FOREIGN_SHARE
from sakiyomi.cell_facts import CellFacts
from sakiyomi.record import Caution


def other_traffic(cell: CellFacts) -> Caution | None:
    """The server generated more than this run asked for."""
    share = cell.evidence.foreign_share
    if share is None or share <= MAX_FOREIGN_SHARE:
        return None
    return Caution(
        "other_traffic",
        f"{share:.0%} of the tokens that the server generated in the window were not from this "
        "run: its counters and its speed are shared. Measure on an idle server",
        {"foreign_share": share},
    )


def counter_reset(cell: CellFacts) -> Caution | None:
    """A counter fell or vanished."""
    if not cell.evidence.resets:
        return None
    return Caution(
        "counter_reset",
        f"counters fell or vanished in the window (series "
        f"{', '.join(cell.evidence.resets[:4])!r}): an engine was "
        "restarted. Their growth is a lower bound; repeat the run",
        {"series": list(cell.evidence.resets)},
    )


def metrics_incomplete(cell: CellFacts) -> Caution | None:
    """A page before or after a pass could not be read, or the pass was killed before its end."""
    problems = [problem for window in cell.windows for problem in window.problems]
    notes = [note for window in cell.windows for note in window.notes]
    void = {window.number for window in cell.windows if window.delta is None}
    num_uncounted = sum(request.key.window in void for request in cell.requests)
    if num_uncounted and len(void) < len(cell.windows):
        problems.append(
            f"{num_uncounted} of {len(cell.requests)} requests are of a pass without a page after "
            "it: counters do not cover them"
        )
    if not problems and not notes:
        return None
    texts = list(dict.fromkeys([*problems, *notes]))
    return Caution(
        "metrics_incomplete",
        f"metrics: {'; '.join(texts)[:300]}",
        {"num_problems": len(problems), "texts": texts[:10]},
    )


def counters_short(cell: CellFacts) -> Caution | None:
    """Each scrape may show another worker's counters (vllm-project/vllm#18053)."""
    if not cell.evidence.lower_bound or cell.evidence.resets:
        return None
    return Caution(
        "counters_short",
        "the metrics page counted fewer tokens than this run received: several workers stand "
        "behind its address, or it counts another model. Its counters are a lower bound; give "
        "each worker's page with --metrics-url",
    )


def several_models(cell: CellFacts) -> Caution | None:
    """Counters of several models, and no way to choose."""
    models = {model for window in cell.windows for model in window.models}
    if len(models) < 2 or cell.facts.model in models:
        return None
    return Caution(
        "several_models",
        f"the metrics page counts {len(models)} models ({', '.join(sorted(models)[:4])}) and none "
        f"is called {cell.facts.model!r}: its counters are of all of them. Name one with --model",
        {"models": sorted(models)},
    )
