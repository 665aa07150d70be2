"""What is known of a cell before its cautions are: the rules' only argument."""

from collections.abc import Sequence

import msgspec

from sakiyomi.acceptance_evidence import Evidence
from sakiyomi.counter_windows import Window
from sakiyomi.measured import Measured
from sakiyomi.record import ArmFacts
from sakiyomi.results import Acceptance


class CellFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules look at."""

    requests: Sequence[Measured]
    windows: Sequence[Window]
    facts: ArmFacts
    evidence: Evidence
    acceptance: Acceptance | None
    max_tokens: int | None
    repeats: Sequence[dict[str, float | int | None]]
    starts: Sequence[dict[str, float | int | None]] = ()

    @property
    def good(self) -> list[Measured]:
        """The requests that did not fail."""
        return [request for request in self.requests if request.error is None]
