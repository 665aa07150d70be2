"""Rules about a cell's acceptance: where it cannot be trusted, and why there is none."""

from sakiyomi.cell_facts import CellFacts
from sakiyomi.measured import is_speculative
from sakiyomi.record import Caution

MIN_DRAFTS = 20


def acceptance_zero(cell: CellFacts) -> Caution | None:
    """Usually a broken or missing draft head."""
    found = cell.acceptance
    if not found or (found.num_drafts or found.num_draft_tokens or 0) < MIN_DRAFTS:
        return None
    if found.num_accepted_tokens:
        return None
    return Caution(
        "acceptance_zero",
        f"not one of {found.num_draft_tokens or 0:.0f} draft tokens was accepted: usually a "
        "missing or dropped draft head (look for mtp or nextn tensors in the checkpoint, and at "
        "the log)",
        {"num_draft_tokens": found.num_draft_tokens},
    )


def acceptance_one(cell: CellFacts) -> Caution | None:
    """Too good to be true."""
    found = cell.acceptance
    if not found or (found.num_draft_tokens or 0) < MIN_DRAFTS:
        return None
    if found.num_accepted_tokens != found.num_draft_tokens:
        return None
    return Caution(
        "acceptance_one",
        f"every one of {found.num_draft_tokens:.0f} draft tokens was accepted: forced acceptance, "
        "looping text, or a defect of the engine (vllm-project/vllm#40756)",
        {"num_draft_tokens": found.num_draft_tokens},
    )


def no_drafts(cell: CellFacts) -> Caution | None:
    """Speculation silently off."""
    if cell.acceptance or not cell.good or not is_speculative(cell.facts):
        return None
    if not cell.evidence.can_tell:
        return None
    return Caution(
        "no_drafts",
        f"the arm speculates ({cell.facts.speculative_method}), and no draft was seen: it is off "
        "or finds nothing to draft",
        {"method": cell.facts.speculative_method},
    )


def forced_acceptance(cell: CellFacts) -> Caution | None:
    """Fiction by request."""
    if not cell.facts.forced_acceptance:
        return None
    return Caution(
        "forced_acceptance",
        "acceptance was forced by the engine's settings: it measures the cost of a step, and says "
        "nothing about a workload",
    )


def lossy_acceptance(cell: CellFacts) -> Caution | None:
    """The sampler changes the text."""
    if not cell.facts.lossy_acceptance:
        return None
    return Caution(
        "lossy_acceptance",
        "the engine accepts drafts that the model would not have sampled (lossy): the text differs",
    )


def k_unknown(cell: CellFacts) -> Caution | None:
    """No break-even without k."""
    if not cell.acceptance or cell.facts.num_speculative_tokens:
        return None
    return Caution(
        "k_unknown",
        "the draft length k is not known: no break-even rate. Write it into the plan "
        "(speculation.num_speculative_tokens)",
    )


def acceptance_estimated(cell: CellFacts) -> Caution | None:
    """Not counted by the engine."""
    if not cell.acceptance or cell.acceptance.quality != "estimated":
        return None
    return Caution(
        "acceptance_estimated",
        f"acceptance is an estimate (from {cell.acceptance.source}): the engine gives no better "
        "evidence here",
        {"source": cell.acceptance.source},
    )


def bursts_ambiguous(cell: CellFacts) -> Caution | None:
    """Steps could only have come from the arrivals, and they do not tell."""
    refused = cell.evidence.bursts_refused
    if refused is None or cell.acceptance is not None:
        return None
    return Caution(
        "bursts_ambiguous",
        f"no acceptance and no tokens per step: the engine tells neither, and {refused}. Measure "
        "a single stream (--concurrency 1) close to the server, without a proxy, long answers",
        {"reason": refused},
    )


def sources_disagree(cell: CellFacts) -> Caution | None:
    """Two sources, two numbers."""
    if not cell.evidence.disagreement:
        return None
    return Caution(
        "sources_disagree",
        f"two sources of the acceptance disagree: {cell.evidence.disagreement}",
        {"disagreement": cell.evidence.disagreement},
    )


def impossible_counts(cell: CellFacts) -> Caution | None:
    """A data error, never clamped."""
    if not cell.evidence.impossible:
        return None
    return Caution(
        "impossible_counts",
        f"the engine's counts cannot be: {'; '.join(cell.evidence.impossible[:3])}",
        {"problems": cell.evidence.impossible},
    )
