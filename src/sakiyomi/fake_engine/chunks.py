"""An answer told in a dialect: which chunks, in which order, with which tokens. Pure.

`Chunker` is asked step by step because some chunks carry times that are known only then.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from sakiyomi.fake_engine.answer import Answer
from sakiyomi.fake_engine.config import FaultValue
from sakiyomi.fake_engine.dialects import Dialect
from sakiyomi.fake_engine.evidence import (
    Progress,
    accept_lengths,
    lmstudio_stats,
    spec_tokens_details,
    speculative_decoding,
    tabby_usage,
    timings,
)
from sakiyomi.fake_engine.frames import Ask, Frame, FrameKind, error_frames
from sakiyomi.fake_engine.logprobs import logprobs_of
from sakiyomi.fake_engine.tokens import Token

_ENDINGS = {
    "error_after_tokens": "error",
    "cut_after_tokens": "cut",
    "cut_in_character": "cut_in_character",
    "reset_after_tokens": "reset",
    "silence_after_tokens": "silence",
}


class Chunker:
    """Tells one answer in one dialect, with the faults of the answer."""

    def __init__(
        self, dialect: Dialect, ask: Ask, answer: Answer, faults: Mapping[str, FaultValue]
    ) -> None:
        self.dialect, self.ask, self.answer, self.faults = dialect, ask, answer, faults
        self.progress = Progress(prompt_tokens=ask.prompt_tokens, cached_tokens=ask.cached_tokens)
        self._told = 0
        self._pending: list[Token] = []
        self._pending_steps = 0
        self._role_told = False
        self._held_text = ""
        self._num_characters = 0
        self.ending = next(
            ((name, int(faults[fault])) for fault, name in _ENDINGS.items() if fault in faults),
            None,
        )

    def opening(self) -> list[Frame]:
        """Frames before the first token is there."""
        frames = []
        if "empty_choices_first" in self.faults:
            filters = [{"prompt_index": 0, "content_filter_results": {}}]
            frames.append(
                Frame(payload=self._chunk([], prompt_filter_results=filters), kind="extra")
            )
        if "role_only_delay" in self.faults:
            frames.extend(self._role(float(self.faults["role_only_delay"])))
        if "error_before_token" in self.faults:
            frames.extend(error_frames(self.faults))
        return frames

    def step(self, tokens: Sequence[Token], decode_s: float, index: int) -> list[Frame]:
        """Frames of one decode step; `decode_s`: time since the first token; step 0: prefill."""
        step = self.answer.steps[index]
        self.progress = self.progress.after(step, len(tokens), decode_s)
        last = self.progress.num_tokens == len(self.answer.tokens)
        ends_here = False
        if self.ending:
            num_left = self.ending[1] - self._told - len(self._pending)
            ends_here = len(tokens) >= num_left
            tokens = tokens[: max(0, num_left)] if ends_here else tokens
        self._pending.extend(tokens)
        self._pending_steps += 1
        frames: list[Frame] = []
        if ends_here or last or self._released():
            pending, self._pending, self._pending_steps = self._pending, [], 0
            frames = list(self._tell(pending, last=last and not ends_here))
        if ends_here and self.ending:
            frames.extend(self._end_early(self.ending[0]))
        return frames

    def closing(self) -> list[Frame]:
        """Frames after the last token: finish, evidence, usage, [DONE]."""
        faults = self.faults
        frames: list[Frame] = []
        if not self._told and "tool_call" not in faults and not self.answer.tokens:
            frames.extend(self._role())
            frames.append(Frame(payload=self._finish_chunk(), kind="finish"))
        elif self.dialect.finish_apart and not faults.keys() & {"done_only", "eof_only"}:
            frames.append(Frame(payload=self._finish_chunk(), kind="finish"))
        if self.ask.spec_details:
            details = spec_tokens_details(self.answer, self.ask.num_draft_tokens)
            if details:
                chunk = self._chunk([], sglext={"spec_tokens_details": details})
                frames.append(Frame(payload=chunk, kind="extra"))
        if self.ask.include_usage and not faults.keys() & {
            "no_usage",
            "usage_with_finish",
            "done_only",
            "eof_only",
        }:
            delay_s = float(faults.get("late_usage_s", 0.0))
            frames.append(Frame(payload=self._usage_chunk(), kind="usage", delay_s=delay_s))
        if not faults.keys() & {"no_done", "eof_only"}:
            delay_s = float(faults.get("late_done_s", 0.0))
            frames.append(Frame(payload="[DONE]", kind="done", delay_s=delay_s))
        return frames

    def _released(self) -> bool:
        """Tell whether the pending tokens may go: no fault merges them."""
        if "held_text" in self.faults:
            return True
        if "tool_call" in self.faults:
            return False
        if not self._told and len(self._pending) < int(self.faults.get("first_chunk_tokens", 0)):
            return False
        if not self._told and self._pending_steps == self.progress.num_iterations == 1:
            return True
        return self._pending_steps >= int(self.faults.get("merge_steps", 1))

    def _tell(self, tokens: list[Token], *, last: bool) -> Iterator[Frame]:
        """Chunks of these tokens: one each, or one for all, as the dialect does."""
        if not self._role_told and "role_with_text" not in self.faults:
            yield from self._role()
        if "tool_call" in self.faults:
            yield self._tool_frame(tokens, last=last)
            return
        if not self.dialect.per_token:
            yield from self._tell_group(tokens, last=last)
            return
        group: list[Token] = []
        for index, token in enumerate(tokens):
            group.append(token)
            at_end = last and index + 1 == len(tokens)
            if token.text or at_end:
                yield from self._tell_group(group, last=at_end)
                group = []
        self._pending.extend(group)

    def _tell_group(self, tokens: list[Token], *, last: bool) -> Iterator[Frame]:
        """One chunk, unless the dialect does not send it because it shows nothing."""
        text = "".join(token.text for token in tokens)
        if not text and not last and (self.dialect.skips_empty or not tokens):
            self._pending.extend(tokens)
            return
        if not text and self.dialect.finish_apart:
            # an end token: it has no chunk of its own and shows in the final count only
            self._told += len(tokens)
            return
        self._told += len(tokens)
        delta = self._delta(tokens)
        kind: FrameKind = "other"
        if text:
            kind = "answer" if any(t.text and not t.reasoning for t in tokens) else "reasoning"
        if "held_text" in self.faults:
            kind, text, delta = self._hold(delta, text, last=last)
        finish = self._finish_reason() if last and not self.dialect.finish_apart else None
        choice = self._choice(delta, finish)
        if self.ask.token_ids and self.dialect.ids_key:
            choice[self.dialect.ids_key] = [token.token_id for token in tokens]
        self._put_logprobs(choice, tokens)
        chunk = self._chunk([choice])
        if self.ask.timings_per_token:
            # the tokens up to this one; the step's time and drafts
            progress = msgspec.structs.replace(self.progress, num_tokens=self._told)
            chunk["timings"] = timings(progress, self.faults)
        self._put_usage(chunk, self._told, with_finish=finish is not None)
        yield Frame(payload=chunk, kind=kind, num_tokens=len(tokens), text=text)

    def _put_logprobs(self, choice: dict[str, Any], tokens: Sequence[Token]) -> None:
        """Logprobs where they were asked for; llama.cpp's chat leaves the key out without any."""
        form = self.ask.logprobs
        if form is None:
            return
        at = self._num_characters
        found = logprobs_of(tokens, form, self.faults, whole=False, offset=at)
        self._num_characters += sum(len(token.text) for token in tokens)
        if found or self.dialect.name != "llama.cpp" or not self.ask.chat:
            choice["logprobs"] = found

    def _hold(
        self, delta: dict[str, Any], text: str, *, last: bool
    ) -> tuple[FrameKind, str, dict[str, Any]]:
        """Keep the text back until the last chunk: an empty delta with a growing count."""
        self._held_text += text
        if not last:
            return "other", "", {"content": ""} if self.ask.chat else delta | {"text": ""}
        return "answer", self._held_text, {"content": self._held_text}

    def _tool_frame(self, tokens: list[Token], *, last: bool) -> Frame:
        """Build the single delta that brings the whole answer as a tool call."""
        self._told += len(tokens)
        text = "".join(token.text for token in tokens)
        arguments = msgspec.json.encode({"text": text}).decode()
        call = {"index": 0, "id": "call_1", "type": "function"}
        call |= {"function": {"name": "answer", "arguments": arguments}}
        finish = self._finish_reason() if last and not self.dialect.finish_apart else None
        chunk = self._chunk([self._choice({"tool_calls": [call]}, finish)])
        self._put_usage(chunk, self._told, with_finish=finish is not None)
        return Frame(payload=chunk, kind="tool", num_tokens=len(tokens), text=arguments)

    def _delta(self, tokens: Sequence[Token]) -> dict[str, Any]:
        """What a chunk shows: reasoning and answer text in their fields."""
        reasoning = "".join(token.text for token in tokens if token.reasoning)
        text = "".join(token.text for token in tokens if not token.reasoning)
        delta: dict[str, Any] = {}
        if not self._role_told:
            delta["role"] = "assistant"
            self._role_told = True
        delta |= self.dialect.extra_delta
        if reasoning:
            delta[self.dialect.reasoning_field] = reasoning
        if text or not reasoning:
            delta["content"] = text
        return delta

    def _role(self, delay_s: float = 0.0) -> Iterator[Frame]:
        """Send the chunk that only names the role, once and only in chat."""
        if self._role_told or not self.ask.chat:
            return
        self._role_told = True
        content = None if "role_null" in self.faults else self.dialect.role_content
        delta = {"role": "assistant", "content": content} | self.dialect.extra_delta
        if "role_no_content" in self.faults:
            del delta["content"]
        chunk = self._chunk([self._choice(delta, None)])
        if self.ask.token_ids and self.dialect.ids_key == "token_ids":
            chunk["prompt_token_ids"] = list(range(1000, 1000 + self.ask.prompt_tokens))
        self._put_usage(chunk, 0, with_finish=False)
        yield Frame(payload=chunk, kind="role", delay_s=delay_s)

    def _choice(self, delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0}
        if self.ask.chat:
            choice["delta"] = delta
        else:
            field = self.dialect.reasoning_field
            choice["text"] = (delta.get(field) or "") + (delta.get("content") or "")
        choice |= self.dialect.extra_choice
        if "done_only" not in self.faults:
            choice["finish_reason"] = finish
        if self.dialect.name == "tensorrt-llm":
            choice["avg_decoded_tokens_per_iter"] = accept_lengths(self.progress)
        return choice

    def _finish_reason(self) -> str | None:
        if self.faults.keys() & {"no_finish_reason", "done_only", "eof_only"}:
            return None
        if "finish_error" in self.faults:
            return "error"
        return "tool_calls" if "tool_call" in self.faults else self.answer.finish_reason

    def _finish_chunk(self) -> dict[str, Any]:
        """Build the chunk that only brings finish_reason."""
        delta: dict[str, Any] = {}
        if self.dialect.name == "sglang":
            delta = {"role": None, "content": None} | self.dialect.extra_delta
        chunk = self._chunk([self._choice(delta, self._finish_reason())])
        if self.dialect.name == "llama.cpp" and not self.ask.include_usage:
            chunk["timings"] = timings(self.progress, self.faults)
        self._put_usage(chunk, self.progress.num_tokens, with_finish=True)
        return chunk

    def _usage_chunk(self) -> dict[str, Any]:
        """Build the chunk after the answer: the final count and the request's evidence."""
        choices: list[Any] | None = []
        if self.dialect.usage_has_choices:
            choices = [self._choice({}, self._finish_reason())]
        if "choices_null" in self.faults:
            choices = None
        chunk = self._chunk(choices)
        chunk["usage"] = self.final_usage()
        if self.dialect.name == "llama.cpp":
            chunk["timings"] = timings(self.progress, self.faults)
        if self.dialect.name == "lmstudio":
            chunk["stats"] = lmstudio_stats(self.progress, self.faults)
        metrics = self.metrics()
        if metrics:
            chunk["metrics"] = metrics
        return chunk

    def metrics(self) -> dict[str, Any] | None:
        """vLLM's per-request record; missing when a stop string ended the request."""
        if self.ask.per_request == "none" or self.answer.stopped_by_string:
            return None
        detailed = self.ask.per_request == "detailed"
        record = speculative_decoding(self.answer, self.ask.num_draft_tokens, detailed=detailed)
        return {"speculative_decoding": record}

    def final_usage(self) -> dict[str, Any]:
        """The count of the whole answer."""
        trailing = int(self.faults.get("trailing_tokens", 0))
        usage = self._usage(self.progress.num_tokens + trailing)
        if self.dialect.name == "tabbyapi":
            usage |= tabby_usage(self.progress, self.faults)
        return usage

    def _usage(self, completion_tokens: int) -> dict[str, Any]:
        usage: dict[str, Any] = {
            "prompt_tokens": self.ask.prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": self.ask.prompt_tokens + completion_tokens,
        }
        if self.ask.cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.ask.cached_tokens}
        if self.dialect.reasoning_details:
            num_reasoning = sum(token.reasoning for token in self.answer.tokens)
            usage["completion_tokens_details"] = {"reasoning_tokens": num_reasoning}
        return usage

    def _put_usage(self, chunk: dict[str, Any], told: int, *, with_finish: bool) -> None:
        """Put the usage of a chunk that is not the final usage chunk, if it has any."""
        if "usage_with_finish" in self.faults and with_finish and self.ask.include_usage:
            chunk["usage"] = self.final_usage()
        elif "usage_zero_chunks" in self.faults:
            chunk["usage"] = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        elif "usage_null_chunks" in self.faults:
            chunk["usage"] = None
        elif self.ask.continuous_usage and "no_usage" not in self.faults:
            chunk["usage"] = self._usage(told)
        elif self.dialect.usage_null:
            chunk["usage"] = None

    def _chunk(self, choices: list[Any] | None, **extra: Any) -> dict[str, Any]:
        chunk: dict[str, Any] = {
            "id": self.ask.request_id,
            "object": "chat.completion.chunk" if self.ask.chat else "text_completion",
            "created": self.ask.created,
            "model": self.ask.model,
            "choices": choices,
        }
        if self.dialect.fingerprint and self._signed(choices):
            chunk["system_fingerprint"] = self.dialect.fingerprint
        if "error_null" in self.faults:
            chunk["error"] = None
        return chunk | extra

    def _signed(self, choices: list[Any] | None) -> bool:
        """Whether this chunk has the fingerprint: each, or the last alone (vLLM)."""
        if not self.dialect.signs_at_end or not choices:
            return True
        return not self.ask.include_usage and choices[0].get("finish_reason") is not None

    def _end_early(self, how: str) -> list[Frame]:
        if how == "error":
            return error_frames(self.faults)
        return [Frame(action=how)]  # type: ignore[arg-type]
