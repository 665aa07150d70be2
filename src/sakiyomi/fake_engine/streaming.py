"""One completion request, from its body to its last byte, on absolute deadlines."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from sakiyomi.fake_engine.answer import Answer, ScriptedStep, script_answer
from sakiyomi.fake_engine.asking import (
    check_body,
    count_prompt_tokens,
    make_ask,
    prompt_text,
    read_ask,
    read_body,
    read_wish,
)
from sakiyomi.fake_engine.chunks import Chunker
from sakiyomi.fake_engine.config import FaultValue
from sakiyomi.fake_engine.counts import Counts
from sakiyomi.fake_engine.dialects import dialect_of
from sakiyomi.fake_engine.evidence import perf_metrics
from sakiyomi.fake_engine.frames import Ask, Frame
from sakiyomi.fake_engine.log import LoggedEvent, LoggedRequest, body_hash, logged_step
from sakiyomi.fake_engine.state import State
from sakiyomi.fake_engine.tokens import Token
from sakiyomi.fake_engine.whole import generate_answer, whole_answer
from sakiyomi.fake_engine.wire import ClientGone, Request, Wire, sse, wait_until, whole

SEPARATORS = "\u2028\u0085"
"""Line ends to `str.splitlines`, legal and unescaped inside a JSON string."""


class Completion:
    """A completion request at work: its answer, its log entry, its counts."""

    def __init__(self, state: State, request: Request, path: str) -> None:
        self.state, self.request = state, request
        self.config = state.config
        self.ordinal, self.faults = state.admit()
        every = int(self.faults.get("other_replica", 0))
        self.dialect = dialect_of(state.config, other=bool(every) and self.ordinal % every == 0)
        self.logged = LoggedRequest(
            request_id=f"{self.dialect.id_prefix}fake-{state.config.seed}-{self.ordinal}",
            ordinal=self.ordinal,
            path=path,
            body_hash=body_hash(request.body),
            body={},
            received_at_s=request.received_at_s,
            engine=(self.ordinal - 1) % state.config.num_engines,
            faults=dict(self.faults),
        )
        state.log.append(self.logged)
        self.own = Counts()
        self.ask: Ask
        self.answer: Answer
        self._deadline_s = self._duration_s = 0.0
        self._first_at_s = 0.0
        self._num_frames = 0

    def prepare(self) -> None:
        """Read the body and decide the whole answer. Raises Refusal."""
        body = read_body(self.request.body)
        self.logged.body = body
        check_body(body, self.config, self.dialect, self.faults)
        prompt = prompt_text(body)
        wish = read_wish(body, self.dialect, self.state.repeats[prompt])
        self.state.repeats[prompt] += 1
        prompt_tokens = count_prompt_tokens(prompt)
        cached = self.state.cached_tokens(prompt)
        self.answer = script_answer(self.config, wish, self.faults, 1 - cached / prompt_tokens)
        chat = self.logged.path.endswith("chat/completions")
        shown = cached if self.config.prefix_cache or self.dialect.name == "llama.cpp" else None
        self.ask = make_ask(
            read_ask(body, self.config, self.dialect, chat=chat),
            request_id=self.logged.request_id,
            created=int(time.time()),
            prompt_tokens=prompt_tokens,
            cached_tokens=shown,
        )
        self.logged.prompt_tokens, self.logged.cached_tokens = prompt_tokens, cached
        self.logged.completion_tokens = len(self.answer.tokens)
        self.logged.finish_reason = self.answer.finish_reason
        if self.ask.logprobs is not None:
            self.logged.shares = [token.shares for token in self.answer.tokens]

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer; returns whether the connection may be kept. Waits for a slot first."""
        state = self.state
        if state.slots:
            state.num_waiting += 1
            try:
                await state.slots.acquire()
            finally:
                state.num_waiting -= 1
        state.num_running += 1
        try:
            self._deadline_s = time.perf_counter()
            self.logged.started_at_s = self._deadline_s
            if state.slots is None:
                self._deadline_s = self.request.received_at_s
            native = self.logged.path == "/generate"
            if self.ask.stream and not native and "json_instead" not in self.faults:
                return await self._stream(Wire(reader, writer, self.request, self.faults))
            return await self._whole(writer)
        except ClientGone:
            self.logged.end = "client_gone"
            return False
        finally:
            await self._end()

    async def _stream(self, wire: Wire) -> bool:
        """Stream the answer frame by frame."""
        chunker = Chunker(self.dialect, self.ask, self.answer, self.faults)
        await wire.start({"X-Request-Id": self.logged.request_id})
        for frame in chunker.opening():
            if not await self._send(wire, frame, None):
                return False
        if self.logged.end:
            await wire.finish()
            return wire.keep_alive
        told = 0
        for index, step in enumerate(self.answer.steps):
            tokens = self.answer.tokens[told : told + step.num_tokens]
            told += len(tokens)
            due_s = self._next_deadline(step, index)
            frames = chunker.step(tokens, due_s - self._first_at_s, index) if tokens else []
            await self._wait(wire, due_s, index)
            self._count(step, tokens, index)
            for frame in frames:
                if not await self._send(wire, frame, index):
                    return False
            if self.logged.end:
                await wire.finish()
                return wire.keep_alive
        for frame in chunker.closing():
            await self._send(wire, frame, None)
        await wire.finish()
        self.logged.end = "complete"
        return wire.keep_alive

    async def _send(self, wire: Wire, frame: Frame, step: int | None) -> bool:
        """Send one frame or do its action; False: the connection is gone."""
        if frame.delay_s:
            await asyncio.sleep(frame.delay_s)
        if frame.action != "send":
            await self._act(wire, frame)
            return False
        done = isinstance(frame.payload, str)
        data = frame.payload.encode() if done else msgspec.json.encode(frame.payload)
        text = frame.text
        if "raw_separators" in self.faults and frame.kind == "answer":
            data = data.replace(b'"content":"', b'"content":"' + SEPARATORS.encode())
            text = SEPARATORS + text
        event = LoggedEvent(
            kind=frame.kind,
            num_tokens=frame.num_tokens,
            text=text,
            step=step if frame.num_tokens else None,
            due_at_s=self._deadline_s,
        )
        self.logged.events.append(event)

        def stamp(at_s: float) -> None:
            event.written_at_s = at_s

        name = "error" if frame.kind == "error" and "error_event" in self.faults else ""
        await wire.send(sse(data, self.faults, self._num_frames, name), stamp)
        self._num_frames += 1
        if frame.kind == "error":
            self.logged.end = "error"
        return True

    async def _act(self, wire: Wire, frame: Frame) -> None:
        """End early: cut, reset, or silence until the client leaves."""
        if frame.action == "reset":
            await asyncio.sleep(0.01)  # let the bytes before it arrive
            wire.reset()
            self.logged.end = "reset"
            return
        if frame.action == "cut_in_character":
            start = b'data: {"choices":[{"index":0,"delta":{"content":"' + "日本".encode()[:4]
            await wire.send(start)
        if frame.action == "silence":
            while True:
                await asyncio.sleep(0.02)
                wire.check()
        await wire.cut()
        self.logged.end = self.logged.end or "cut"

    async def _whole(self, writer: asyncio.StreamWriter) -> bool:
        """Wait until the last token is there, then answer in one piece."""
        chunker = Chunker(self.dialect, self.ask, self.answer, self.faults)
        told = 0
        for index, step in enumerate(self.answer.steps):
            tokens = self.answer.tokens[told : told + step.num_tokens]
            told += len(tokens)
            due_s = self._next_deadline(step, index)
            if tokens:
                chunker.step(tokens, due_s - self._first_at_s, index)
            await wait_until(due_s)
            self._count(step, tokens, index)
        native = self.logged.path == "/generate"
        body = msgspec.json.encode((generate_answer if native else whole_answer)(chunker))
        event = LoggedEvent(kind="answer", num_tokens=told, step=0, due_at_s=self._deadline_s)
        event.written_at_s = time.perf_counter()
        self.logged.events.append(event)
        headers = {"X-Request-Id": self.logged.request_id}
        writer.write(whole(200, "application/json", body, headers))
        await writer.drain()
        self.logged.end = "complete"
        return self.request.keep_alive

    def _next_deadline(self, step: ScriptedStep, index: int) -> float:
        """Absolute time at which this step is done; no error adds up."""
        slowdown = 1.0
        if index:
            slowdown += self.config.batch_cost * max(0, self.state.num_running - 1)
        self._duration_s = step.duration_s * slowdown
        self._deadline_s += self._duration_s
        if not index:
            self._first_at_s = self._deadline_s
        return self._deadline_s

    async def _wait(self, wire: Wire, due_s: float, index: int) -> None:
        """Wait for a step; before the first token keep-alive comments may go out."""
        if index == 0 and self.dialect.keep_alive:
            num = self.ask.prompt_tokens
            await wire.send(f": keepalive {num}/{num}\n\n".encode())
        if index == 0 and "keepalive_comments" in self.faults:
            every_s = float(self.faults["keepalive_comments"])
            while due_s - time.perf_counter() > every_s:
                await asyncio.sleep(every_s)
                await wire.send(b": PROCESSING\n\n")
        await wait_until(due_s, wire.check)
        wire.check()

    def _count(self, step: ScriptedStep, tokens: tuple[Token, ...], index: int) -> None:
        """Move the live counters: they are current when the client sees the step's tokens."""
        for counts in (self.own, self.state.live[self.logged.engine]):
            counts.num_generated_tokens += len(tokens)
            if index:
                counts.add_step(step, self._duration_s)
            else:
                cached = self.logged.cached_tokens
                counts.add_prefill(self.ask.prompt_tokens, cached, self._duration_s)
        if index:
            self.state.stepped(self.logged.engine, step, len(tokens), self._duration_s)
        self.logged.steps.append(logged_step(step, len(tokens), self._deadline_s))

    async def _end(self) -> None:
        """Release the slot, move the counters that wait for the end, write the log."""
        state, faults = self.state, self.faults
        ended = Counts()
        if "overrun_steps" in faults and len(self.answer.steps) > 1:
            step = self.answer.steps[1]
            for _ in range(int(faults["overrun_steps"])):
                ended.add_step(step, step.duration_s)
        if self.logged.steps:
            ended.last_draft_tokens = self.logged.steps[-1].num_draft_tokens
            ended.last_accepted_tokens = self.logged.steps[-1].num_accepted_tokens
        reason = self.answer.finish_reason if self.logged.end == "complete" else "abort"
        ended.finished[reason] += 1
        state.live[self.logged.engine].add(ended)
        self.own.add(ended)
        state.finished[self.logged.engine].add(self.own)
        self.logged.closed_at_s = time.perf_counter()
        state.perf_metrics.append(perf_metrics(self.logged.request_id, self.answer))
        if "slow_release_s" in faults:
            asyncio.get_running_loop().call_later(float(faults["slow_release_s"]), self._release)
        else:
            self._release()

    def _release(self) -> None:
        self.state.num_running -= 1
        if self.state.slots:
            self.state.slots.release()


def refusal_faults(ordinal: int, faults: Mapping[str, FaultValue]) -> tuple[int, dict[str, Any]]:
    """Status and headers of a request that is turned away; status 0: it is not."""
    if "retry_429_once" in faults and ordinal == 1:
        return 429, {"Retry-After": "1"}
    if "http_status" in faults:
        return int(faults["http_status"]), {}
    return 0, {}
