"""The bytes of one answer with their instants -> its token-bearing events and counts. Pure."""

from typing import Any

from sakiyomi.chunk import (
    Choice,
    Chunk,
    Timings,
    Usage,
    decode_chunk,
    decode_object,
    error_text,
    logprob_entries,
    payload,
    token_logprob,
)
from sakiyomi.errors import StreamError
from sakiyomi.record import EventKind, RequestError
from sakiyomi.sse import SseParser

_FAILED_REASONS = frozenset({"error", "abort"})
"""Reasons that say the engine gave up: `error` (vLLM), `abort` (SGLang, vLLM)."""


class TokenStream:
    """The bytes of one answer, with their instants -> the fields of a record, as they come.

    `tokens_per_event`: 1 for engines whose every event is one token; None where nobody knows.
    """

    def __init__(self, tokens_per_event: int | None = None) -> None:
        self.event_at_s: list[float] = []
        self.event_tokens: list[int | None] = []
        self.event_kind: list[EventKind] = []
        self.event_text: list[str] = []
        self.event_step_mark: list[float | None] = []
        self.event_num_draft_tokens: list[int | None] = []
        self.event_num_accepted_tokens: list[int | None] = []
        self.finish_reason: str | None = None
        self.done = False
        self.model: str | None = None
        self.system_fingerprint: str | None = None
        self.num_malformed = 0
        self.last_chunk_at_s: float | None = None
        self.error: RequestError | None = None
        self._parser = SseParser()
        self._tokens_per_event = tokens_per_event
        self._counted: int | None = None  # completion_tokens up to the last event; None: unknown
        self._usage: Usage | None = None
        self._usage_data = b""
        self._timings_data = b""
        self._evidence: dict[str, Any] = {}
        self._logprobs: list[bytes] = []
        self._at_s = 0.0
        self._is_broken = False  # where events begin is not known any more

    @property
    def is_empty(self) -> bool:
        """Not one thing came that belongs to a stream of events."""
        return self.last_chunk_at_s is None and not self._parser.num_keep_alives and not self.done

    @property
    def is_over(self) -> bool:
        """Nothing worth waiting for will follow."""
        return self.done or self.error is not None

    @property
    def is_complete(self) -> bool:
        """The server said that the answer ended."""
        return self.done or self.finish_reason is not None

    def feed(self, data: bytes, at_s: float) -> None:
        """Take what one read brought at `at_s`."""
        if self._is_broken:
            return
        self._at_s = at_s
        try:
            events = self._parser.feed(data)
        except StreamError as error:
            self.error = self.error or RequestError(kind="malformed", message=str(error))
            self._is_broken = True
            return
        for event in events:
            self._take(event.data, event.name, at_s)

    def close(self) -> None:
        """The body ended."""
        for event in self._parser.close():
            num_malformed = self.num_malformed
            self._take(event.data, event.name, self._at_s)
            self.num_malformed = num_malformed  # a cut event is no malformed one

    def take_document(self, data: bytes) -> bool:
        """A whole answer instead of a stream: its counts. False when it is no JSON object."""
        chunk = decode_chunk(data)
        if chunk is None:
            return False
        self._take_head(chunk, data, b"")
        for choice in chunk.choices or ():
            if choice.finish_reason is not None:
                self._finish(choice.finish_reason)
        return True

    def fields(self) -> dict[str, Any]:
        """What was seen, as keyword arguments of `RequestRecord`."""
        usage = self._usage or Usage()
        if self.event_at_s and not usage.completion_tokens:
            usage = Usage()  # zeros beside an answer are no count
        completion, prompt = usage.completion_tokens_details, usage.prompt_tokens_details
        reasoning = completion and completion.reasoning_tokens
        return {
            "event_at_s": self.event_at_s,
            "event_tokens": self.event_tokens,
            "event_kind": self.event_kind,
            "event_text": self.event_text,
            "event_step_mark": self.event_step_mark,
            "event_num_draft_tokens": self.event_num_draft_tokens,
            "event_num_accepted_tokens": self.event_num_accepted_tokens,
            "prompt_tokens": usage.prompt_tokens,
            "cached_prompt_tokens": prompt.cached_tokens if prompt else None,
            "completion_tokens": usage.completion_tokens,
            "reasoning_tokens": usage.reasoning_tokens if reasoning is None else reasoning,
            "finish_reason": self.finish_reason,
            "done": self.done,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
            "evidence": self._read_evidence(),
            "num_keep_alives": self._parser.num_keep_alives,
            "num_malformed": self.num_malformed,
            "error": self.error,
        }

    def _read_evidence(self) -> dict[str, Any]:
        """The engine's own objects as received, read once, at the end."""
        evidence = dict(self._evidence)
        for key, data in (("usage", self._usage_data), ("timings", self._timings_data)):
            if data:
                evidence[key] = decode_object(data).get(key)
        if self._logprobs:
            evidence["logprobs"] = [token_logprob(decode_object(data)) for data in self._logprobs]
        return evidence

    def _take(self, data: bytes, name: bytes, at_s: float) -> None:
        """One event."""
        if name == b"ping":
            self._parser.num_keep_alives += 1
            return
        chunk = decode_chunk(data)
        if chunk is None:
            self._take_text(data, name)
            return
        self.last_chunk_at_s = at_s
        self._take_head(chunk, data, name)
        if chunk.choices:  # after the usage: the chunk that brings it may have none
            self._take_choices(chunk, chunk.choices, at_s)
            self._logprobs += logprob_entries(chunk.choices)

    def _take_head(self, chunk: Chunk, data: bytes, name: bytes) -> None:
        """What a chunk says beside its tokens."""
        if chunk.error or name == b"error" or chunk.object == "error":
            self._fail(data, chunk.error)
        self.model = self.model or chunk.model
        self.system_fingerprint = self.system_fingerprint or chunk.system_fingerprint  # vLLM: last
        if chunk.timings is not None:
            self._timings_data = data
        if chunk.metrics or chunk.sglext or chunk.stats:
            self._keep_evidence(chunk)
        usage = chunk.usage
        if usage is not None and (usage.completion_tokens or self._usage is None):
            self._usage, self._usage_data = usage, data

    def _take_text(self, data: bytes, name: bytes) -> None:
        """An event that is no JSON object: the end mark, an error in words, or a broken line."""
        if data.strip() == b"[DONE]":
            self.done = True
        elif name == b"error":
            self._fail(data, data.decode("utf-8", "replace"))
        else:
            self.num_malformed += 1

    def _take_choices(self, chunk: Chunk, choices: list[Choice], at_s: float) -> None:
        kind: EventKind | None = None
        text = ""
        ids: int | None = None
        for choice in choices:
            delta = choice.delta
            if delta is not None and delta.content:  # what nearly every chunk is
                kind, text = "answer", text + delta.content
            else:
                kind, text = payload(choice, kind, text)
            if choice.token_ids is not None:
                ids = (ids or 0) + len(choice.token_ids)
            elif choice.output_ids is not None:
                ids = (ids or 0) + len(choice.output_ids)
            if choice.finish_reason is not None:
                self._finish(choice.finish_reason)
            if choice.avg_decoded_tokens_per_iter is not None:
                self._evidence["avg_decoded_tokens_per_iter"] = choice.avg_decoded_tokens_per_iter
        tokens: int | None
        if ids is None or chunk.usage is not None:
            tokens, grew = self._count(chunk, choices, kind is not None)
        if ids is not None:
            tokens, grew = ids, ids > 0
        if kind is None:
            if not grew:
                return
            kind = "other"
        self.event_at_s.append(at_s)
        self.event_tokens.append(tokens)
        self.event_kind.append(kind)
        self.event_text.append(text)
        if chunk.timings is not None or self.event_step_mark:
            self._mark_step(chunk)

    def _count(
        self, chunk: Chunk, choices: list[Choice], has_text: bool
    ) -> tuple[int | None, bool]:
        """Tokens of this event where no ids tell, and whether the server's count grew.

        A count in the one chunk that finishes the answer is its total, not this event's: growth
        means something only when an earlier chunk was counted too, or this is the first event.
        """
        count = chunk.usage.completion_tokens if chunk.usage is not None else None
        if count is None and chunk.timings is not None:
            count = chunk.timings.predicted_n  # llama.cpp holds parts of characters back
        if not count:
            if not has_text:
                return None, False
            self._counted = None
            return self._uncounted(choices), False
        is_first = not self.event_at_s
        before = 0 if is_first and self._counted is None else self._counted
        self._counted = count
        finishes = choices[0].finish_reason is not None
        if before is None or (is_first and before == 0 and finishes and not has_text):
            return self._uncounted(choices), False
        if count < before:
            return self._uncounted(choices), False
        return count - before, count > before

    def _uncounted(self, choices: list[Choice]) -> int | None:
        """Tokens of an event without a count: what is known of the engine, or its logprobs."""
        if self._tokens_per_event is not None:
            return self._tokens_per_event
        logprobs = choices[0].logprobs
        entries = logprobs and (logprobs.content or logprobs.tokens)
        return len(entries) if entries else None

    def _mark_step(self, chunk: Chunk) -> None:
        """llama.cpp: events with the same `predicted_ms` came from one decode step."""
        missing = [None] * (len(self.event_at_s) - 1 - len(self.event_step_mark))
        timings = chunk.timings or Timings()
        self.event_step_mark += [*missing, timings.predicted_ms]
        self.event_num_draft_tokens += [*missing, timings.draft_n]
        self.event_num_accepted_tokens += [*missing, timings.draft_n_accepted]

    def _keep_evidence(self, chunk: Chunk) -> None:
        for key, value in (
            ("metrics", chunk.metrics),
            ("sglext", chunk.sglext),
            ("stats", chunk.stats),
        ):
            known = self._evidence.get(key)
            if isinstance(value, dict) and isinstance(known, dict):
                known.update(value)  # SGLang sends parts of sglext in several chunks
            elif value:
                self._evidence[key] = value

    def _finish(self, reason: str) -> None:
        self.finish_reason = reason
        if reason in _FAILED_REASONS and self.error is None:
            self.error = RequestError(
                kind="error_in_stream", message=f"the server ended the answer with {reason!r}"
            )

    def _fail(self, data: bytes, error: Any) -> None:
        if self.error is None:
            self.error = RequestError(
                kind="error_in_stream", message=error_text(error or decode_object(data))
            )
