"""What we ask: scenarios and their conversations, read from JSON lines."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from sakiyomi.errors import ScenarioError
from sakiyomi.plan import Count, ScenarioRef, Temperature, TopP, Value

DEFAULT_MAX_TOKENS = 512
"""The cap of a scenario that names none (contract, section 4)."""


class Sampling(Value, frozen=True):
    """How the answers are drawn; recorded with every number."""

    temperature: Temperature = 0.0
    top_p: TopP | None = None
    max_tokens: Count = DEFAULT_MAX_TOKENS
    enable_thinking: bool | None = None


class Conversation(Value, frozen=True):
    """The unit of statistics: one prompt with its turns; the model's answers are carried along."""

    conversation_id: str
    turns: tuple[str, ...]
    system: str | None = None
    language: str | None = None
    category: str | None = None


class Scenario(Value, frozen=True):
    """A kind of work on one path of a product."""

    name: str
    conversations: tuple[Conversation, ...]
    sampling: Sampling = Sampling()
    category: str | None = None
    language: str | None = None
    licence: str | None = None

    @property
    def content_hash(self) -> str:
        """Twelve hex digits that change when what is asked, or how, changes."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:12]


class _Message(msgspec.Struct):
    role: str
    content: str | None = None


class _Line(msgspec.Struct):
    """One line of a scenario file; unknown keys are the user's own notes."""

    id: str | int | None = None
    system: str | None = None
    turns: list[str] | None = None
    messages: list[_Message] | None = None
    language: str | None = None
    category: str | None = None


class _Header(Value, frozen=True):
    name: str | None = None
    category: str | None = None
    language: str | None = None
    licence: str | None = None
    sampling: Sampling = Sampling()


def parse_scenario(lines: Iterable[str], name: str, where: str) -> Scenario:
    """Read a scenario from the lines of its file.

    `where` names the file in errors; every error gives the number of its line.
    """
    header = _Header()
    conversations: list[Conversation] = []
    seen: dict[str, int] = {}
    for number, raw in _numbered_objects(lines, where):
        if "scenario" in raw:
            if conversations or seen:
                raise ScenarioError(f"{where}:{number}: the scenario line must come first")
            header = _convert(raw["scenario"], _Header, f"{where}:{number}")
            continue
        line = _convert(raw, _Line, f"{where}:{number}")
        conversation = _conversation(line, f"{where}:{number}", default_id=f"{name}-{number}")
        if conversation.conversation_id in seen:
            raise ScenarioError(
                f"{where}:{number}: id {conversation.conversation_id!r} was used on line "
                f"{seen[conversation.conversation_id]}",
                "conversations are the unit of statistics: each needs its own id",
            )
        seen[conversation.conversation_id] = number
        conversations.append(conversation)
    if not conversations:
        raise ScenarioError(
            f"{where}: no conversations in it",
            'a line is {"id": ..., "turns": ["..."]} or {"messages": [...]}',
        )
    return Scenario(
        name=name,
        category=header.category,
        language=header.language,
        licence=header.licence,
        sampling=header.sampling,
        conversations=tuple(conversations),
    )


def apply_ref(scenario: Scenario, ref: ScenarioRef) -> Scenario:
    """The scenario as a plan asks for it: fewer conversations, other sampling."""
    overrides = {
        key: value
        for key in ("max_tokens", "temperature", "top_p", "enable_thinking")
        if (value := getattr(ref, key)) is not None
    }
    wanted = ref.num_conversations or len(scenario.conversations)
    if wanted > len(scenario.conversations):
        raise ScenarioError(
            f"scenario {ref.name}: num_conversations {wanted} asked, "
            f"it has {len(scenario.conversations)}",
            "ask for fewer, add conversations to the file, or raise repeats",
        )
    conversations = scenario.conversations[:wanted]
    return msgspec.structs.replace(
        scenario,
        name=ref.name,
        sampling=msgspec.structs.replace(scenario.sampling, **overrides),
        conversations=limit_requests(conversations, ref.num_requests)
        if ref.num_requests
        else conversations,
    )


def limit_requests(
    conversations: Sequence[Conversation], num_requests: int
) -> tuple[Conversation, ...]:
    """Keep `num_requests` turns: first turns before second ones, so that most conversations stay.

    Conversations are the unit of statistics: more of them tell more than more turns of one.
    """
    kept = [0] * len(conversations)
    left = num_requests
    for turn in range(max((len(c.turns) for c in conversations), default=0)):
        for index, conversation in enumerate(conversations):
            if left and len(conversation.turns) > turn:
                kept[index] += 1
                left -= 1
    return tuple(
        msgspec.structs.replace(conversation, turns=conversation.turns[:count])
        for conversation, count in zip(conversations, kept, strict=True)
        if count
    )


def _numbered_objects(lines: Iterable[str], where: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            raw = msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise ScenarioError(
                f"{where}:{number}: not JSON: {error}", "one JSON object a line, in UTF-8"
            ) from error
        if not isinstance(raw, dict):
            raise ScenarioError(
                f"{where}:{number}: {type(raw).__name__} instead of an object",
                "one JSON object a line; `sakiyomi scenarios import` reads JSON arrays",
            )
        yield number, raw


def _convert(raw: Any, kind: type[Any], where: str) -> Any:
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise ScenarioError(f"{where}: {error}", "see docs/scenarios.md") from error


def _conversation(line: _Line, where: str, default_id: str) -> Conversation:
    system, turns = line.system, line.turns
    if turns is None and line.messages is not None:
        turns = [m.content for m in line.messages if m.role == "user" and m.content]
        systems = [m.content for m in line.messages if m.role in ("system", "developer")]
        system = system or next((text for text in systems if text), None)
    if not turns or not all(turn.strip() for turn in turns):
        raise ScenarioError(
            f"{where}: no user text in it", 'give "turns": ["..."] or messages of role user'
        )
    return Conversation(
        conversation_id=str(line.id) if line.id is not None else default_id,
        system=system,
        turns=tuple(turns),
        language=line.language,
        category=line.category,
    )
