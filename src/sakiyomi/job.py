"""One run to be carried out: what it measures, where it writes, what was done before."""

from collections.abc import Callable, Iterable

import msgspec

from sakiyomi.client import Client, Timeouts
from sakiyomi.plan import Plan
from sakiyomi.record import RequestRecord, RunFacts
from sakiyomi.run_writer import RunWriter
from sakiyomi.scenario import Scenario
from sakiyomi.terminal import Progress


class ServerAccess(msgspec.Struct, frozen=True, kw_only=True):
    """How servers are reached."""

    timeouts: Timeouts = Timeouts()
    ca_file: str | None = None
    insecure: bool = False
    api_keys: dict[str, str | None] = {}
    """Key by arm; lives in memory only."""

    def client(self, arm: str) -> Client:
        """A client of the arm's own, so that its key goes nowhere else."""
        return Client(
            timeouts=self.timeouts,
            ca_file=self.ca_file,
            insecure=self.insecure,
            api_key=self.api_keys.get(arm),
        )


class Job(msgspec.Struct, kw_only=True):
    """One run that is under way. `finished` holds what a resumed run need not repeat."""

    plan: Plan
    scenarios: dict[str, Scenario]
    schedule: str
    facts: RunFacts
    writer: RunWriter
    progress: Progress
    access: ServerAccess = ServerAccess()
    finished: set[tuple[str, str, str, int, str]] = set()
    first_window: int = 0
    after_repeat: Callable[[int], bool] | None = None
    """Called after each repeat; True ends the run (until-established)."""


def finished_conversations(
    records: Iterable[RequestRecord], scenarios: dict[str, Scenario]
) -> set[tuple[str, str, str, int, str]]:
    """Conversations that need no second try: all turns answered, or failed for good.

    A request that was stopped or never reached a server is asked again.

    Keys are (arm, load, scenario, repeat, conversation).
    """
    num_turns = {
        (name, conversation.conversation_id): len(conversation.turns)
        for name, scenario in scenarios.items()
        for conversation in scenario.conversations
    }
    finished = set()
    for record in records:
        key = record.key
        last = key.turn + 1 >= num_turns.get((key.scenario, key.conversation_id), 0)
        if key.warmup or (record.error and record.error.kind in ("cancelled", "connect")):
            continue
        if last or record.error:
            finished.add((key.arm, key.load, key.scenario, key.repeat, key.conversation_id))
    return finished
