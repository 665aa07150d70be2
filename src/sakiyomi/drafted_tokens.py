"""The tokens that drafts reached: accepted or not, how uncertain the model was of them. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from sakiyomi.engines import find_engine
from sakiyomi.explained_gap import TokenFact
from sakiyomi.measured import drafts_every_step
from sakiyomi.record import ArmFacts, RequestRecord
from sakiyomi.text_kinds import near_sentence_end
from sakiyomi.token_logprobs import PlacedToken, entries, placed_tokens, uncertainty


def token_facts(
    record: RequestRecord, arm: ArmFacts, baseline: RequestRecord | None = None
) -> tuple[list[TokenFact], int] | str:
    """Tokens that drafts reached, of which some are known; or the reason why none is.

    An engine that gives no alternatives for drafted tokens (llama.cpp) borrows those of a plain
    arm's answer to the same prompt, as far as both texts are the same.
    """
    reached = _outcomes(record, arm)
    if reached is None:
        return "its events do not tell decode steps"
    own = entries(record)
    if len(own) == sum(_counts(record)) and _told(own):
        known = _own(record, own)
    elif baseline is not None and _told(entries(baseline)):
        known = _lent(record, baseline)
    else:
        return _why_untold(record, own)
    text = "".join(record.event_text)
    facts = []
    for index, accepted in reached.items():
        if index in known and (told := uncertainty(known[index].entry)) is not None:
            at_end = near_sentence_end(text, known[index].offset)
            facts.append(TokenFact(told.entropy, told.surprisal, accepted, told.unlisted, at_end))
    return facts, len(reached)


def _why_untold(record: RequestRecord, own: Sequence[Mapping[str, object]]) -> str:
    beside = "and no plain arm has any to lend"
    if not own:
        return f"no logprobs came with its tokens, {beside}"
    if not any(uncertainty(entry) for entry in own):
        return f"no alternatives came with its tokens (top_logprobs), {beside}"
    return (
        f"logprobs came for {len(own)} of {record.completion_tokens} tokens without telling "
        f"which, {beside}"
    )


def _outcomes(record: RequestRecord, arm: ArmFacts) -> dict[int, bool] | None:
    """Whether a draft of it was accepted, by token of the answer, where a draft reached it.

    The end of an answer can cut its last step inside the accepted drafts, which only a server
    that counts each step tells: without that the last step is left out.
    """
    found = find_engine(arm.engine).group_steps(record)
    if not found:
        return None
    k = arm.num_speculative_tokens if drafts_every_step(arm) else None
    is_marked = bool(record.event_step_mark)
    outcomes: dict[int, bool] = {}
    start = 1 if is_marked else _counts(record)[0]  # what prefill gave
    for number, step in enumerate(found, start=1):
        drafted, accepted = step.num_draft_tokens, step.num_accepted_tokens
        if drafted is None and not is_marked and number < len(found):
            drafted, accepted = k, step.num_tokens - 1
        if drafted and accepted is not None and accepted <= drafted:
            num_accepted = min(accepted, step.num_tokens)
            outcomes.update(dict.fromkeys(range(start, start + num_accepted), True))
            if accepted < min(step.num_tokens, drafted):
                outcomes[start + accepted] = False
        start += step.num_tokens
    return outcomes


def _counts(record: RequestRecord) -> list[int]:
    return [1 if number is None else number for number in record.event_tokens]


def _own(record: RequestRecord, own: Sequence[dict[str, Any]]) -> dict[int, PlacedToken]:
    """The answer's own tokens; inside an event their places are as good as their texts."""
    found: dict[int, PlacedToken] = {}
    index = offset = 0
    for text, count in zip(record.event_text, _counts(record), strict=True):
        inside = 0
        for entry in own[index : index + count]:
            found[index] = PlacedToken(offset + min(inside, len(text)), "", entry)
            inside += len(str(entry.get("token") or ""))
            index += 1
        offset += len(text)
    return found


def _lent(record: RequestRecord, baseline: RequestRecord) -> dict[int, PlacedToken]:
    """Tokens of the plain answer, by the token of this one that each is, until they differ."""
    starts = {token.offset: token for token in placed_tokens(baseline)}
    plain = "".join(baseline.event_text)
    found: dict[int, PlacedToken] = {}
    index = offset = 0
    is_held = False
    for text, count in zip(record.event_text, _counts(record), strict=True):
        end = offset + len(text)
        if plain[offset:end] != text:
            break
        tokens: list[PlacedToken] = []
        while offset < end and offset in starts:
            tokens.append(starts[offset])
            offset += len(tokens[-1].text)
        if offset == end and len(tokens) == count and not is_held:
            found |= dict(enumerate(tokens, start=index))
        is_held = not text and (is_held or count > 0)
        index += count
        offset = end
    return found


def _told(told: Sequence[Mapping[str, object]]) -> bool:
    return sum(uncertainty(entry) is not None for entry in told) > len(told) / 2
