"""The map of an answer in characters, readable without colour. Formats; computes nothing."""

from collections.abc import Iterable

from sakiyomi.detail import Piece
from sakiyomi.draft_map import map_answer
from sakiyomi.engines import find_engine
from sakiyomi.errors import StoreError
from sakiyomi.record import RequestRecord, RunFacts

LEGEND = """\
{accepted drafts}own token, a step ends at |   2:text| a step in one piece, 2 drafts accepted
"""


def render_map(facts: RunFacts, records: Iterable[RequestRecord], conversation_id: str) -> str:
    """Every answer of a conversation. Raises StoreError that names those that can be mapped."""
    arms = {arm.name: arm for arm in facts.arms}
    known: dict[str, None] = {}
    answers = []
    for record in records:
        key, arm = record.key, arms.get(record.key.arm)
        if arm is None or key.warmup:
            continue
        known[key.conversation_id] = None
        if key.conversation_id != conversation_id:
            continue
        pieces = map_answer(record, find_engine(arm.engine), arm)
        if pieces is not None:
            title = f"{key.scenario} x {key.arm}, turn {key.turn + 1}, repeat {key.repeat + 1}"
            answers.append(f"{title}\n{as_text(pieces)}\n")
    if conversation_id not in known:
        raise StoreError(
            f"{facts.run_id}: no conversation {conversation_id!r}",
            "it has " + (", ".join(list(known)[:12]) or "no requests"),
        )
    if not answers:
        raise StoreError(
            f"{conversation_id}: no answer whose decode steps are known",
            "only arms that draft have a map, on engines that tell their steps (docs/engines)",
        )
    return LEGEND + "\n" + "\n".join(answers)


def as_text(pieces: Iterable[Piece]) -> str:
    """`{accepted drafts}own`, a step's end as `|`; a step in one piece as `2:text|`."""
    out: list[str] = []
    step: int | None = None
    inside = False
    for piece in pieces:
        starts = piece.step != step
        if inside and (starts or piece.mark != "accepted"):
            out.append("}")
            inside = False
        if starts and step is not None:
            out.append("|")
        if piece.mark == "accepted" and not inside:
            out.append("{")
            inside = True
        if piece.mark == "step" and starts:
            out.append(f"{piece.num_accepted_tokens}:")
        step = piece.step
        out.append(piece.text)
    return "".join(out) + ("}" if inside else "")
