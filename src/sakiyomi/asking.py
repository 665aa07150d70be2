"""One pass: wait for idle, snapshot, send, snapshot. Real time lives here and in `drive`."""

import asyncio
import time
from collections.abc import Callable
from typing import Literal

import msgspec

from sakiyomi.discover import Endpoint
from sakiyomi.environment import read_gpu
from sakiyomi.errors import EngineError, MetricsError, SakiyomiError
from sakiyomi.job import Job
from sakiyomi.metrics_pages import read_metrics
from sakiyomi.plan import ClosedLoad
from sakiyomi.ready_arm import ReadyArm
from sakiyomi.record import Caution, ErrorKind, RequestError, RequestKey, RequestRecord, Snapshot
from sakiyomi.scenario import Conversation
from sakiyomi.workload import Pass, arrivals, make_nonce, opening

IDLE_TIMEOUT_S = 30.0
"""How long to wait for others to finish."""
IDLE_TIMEOUT_AGAIN_S = 1.0
"""How long where they did not before: waiting for it at every pass would take half an hour."""
IDLE_SILENT_S = 2.0
IDLE_POLL_S = 0.1
ENGINE_LOST: tuple[ErrorKind, ...] = ("connect", "reset", "truncated", "error_in_stream")
"""How a request fails when its engine dies: the process may end a little later."""
QUIET_S = 0.3
"""Without gauges: silence before a snapshot, long enough for an engine to book its last step."""


class Asking(msgspec.Struct, frozen=True, kw_only=True):
    """What a pass needs. `salt` makes prompts differ between arms that share one server."""

    this: Pass
    window: int
    job: Job
    ready: ReadyArm
    salt: str
    stopping: asyncio.Event
    say: Callable[[Caution], None]
    busy_servers: set[str]
    """URLs on which others did not finish before."""

    @property
    def endpoint(self) -> Endpoint:
        """The server that is asked."""
        return self.ready.endpoint


async def run_pass(asking: Asking, todo: list[Conversation]) -> None:
    """Ask the conversations under the pass's load, between two snapshots of the server."""
    load = asking.this.load
    num_workers = len(todo)
    if isinstance(load, ClosedLoad):
        num_workers = min(load.max_concurrency, len(todo))
        if load.max_concurrency > len(todo):
            asking.say(_too_few_for_load(asking, load.max_concurrency, len(todo)))
    await asking.ready.client.preopen(asking.endpoint.generation_url, num_workers)
    await _snapshot(asking, "before")
    starts = arrivals(load, len(todo), asking.job.plan.seed + asking.this.repeat)
    try:
        await _send(asking, list(zip(starts, todo, strict=True)), num_workers)
    except SakiyomiError:
        await _snapshot(asking, "after")
        raise
    # A pass that was cancelled has none: the server counted tokens that no record has.
    await _snapshot(asking, "after")


async def _send(
    asking: Asking, schedule: list[tuple[float, Conversation]], num_workers: int
) -> None:
    """Closed loop: the next one when a worker is free. Open loop: a worker for each arrival."""
    began_at_s = time.perf_counter()
    pending = schedule[::-1]
    closed = isinstance(asking.this.load, ClosedLoad)

    async def worker() -> None:
        while pending and not asking.stopping.is_set():
            start_s, conversation = pending.pop()
            scheduled_at_s = began_at_s + start_s
            await asyncio.sleep(scheduled_at_s - time.perf_counter())
            await _converse(asking, conversation, None if closed else scheduled_at_s)

    problem: SakiyomiError | None = None
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(num_workers):
                group.create_task(worker())
    except* SakiyomiError as several:
        problem = _first(several)
    if problem is not None:
        raise problem


def _first(group: BaseExceptionGroup[SakiyomiError]) -> SakiyomiError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, SakiyomiError)
    return error


async def _converse(
    asking: Asking, conversation: Conversation, scheduled_at_s: float | None
) -> None:
    """One conversation, turn by turn, with the model's own answers carried along.

    `scheduled_at_s`: when an open loop wanted the first turn; else a turn is due when it is sent.
    """
    this = asking.this
    nonce = make_nonce(
        asking.job.facts.run_id, conversation.conversation_id, this.repeat, asking.salt
    )
    messages = opening(conversation, nonce)
    for turn in range(len(conversation.turns)):
        if turn:
            messages.append({"role": "user", "content": conversation.turns[turn]})
        key = RequestKey(
            request_id=f"{this.scenario}/{this.load.label}/{this.arm}/{this.repeat}/"
            f"{conversation.conversation_id}/{turn}",
            scenario=this.scenario,
            conversation_id=conversation.conversation_id,
            turn=turn,
            arm=this.arm,
            load=this.load.label,
            repeat=this.repeat,
            scheduled_at_s=time.perf_counter()
            if turn or scheduled_at_s is None
            else scheduled_at_s,
            window=asking.window,
            start=asking.ready.start,
        )
        record = await _ask(asking, messages, key)
        asking.job.progress.advance(f"{this.scenario} {this.arm} repeat {this.repeat + 1}")
        if record.error or asking.stopping.is_set():
            return
        messages.append({"role": "assistant", "content": answer_text(record) or "..."})


async def _ask(asking: Asking, messages: list[dict[str, str]], key: RequestKey) -> RequestRecord:
    """Send one request; its record is on disk before anything else happens."""
    endpoint = asking.endpoint
    try:
        record = await asking.ready.client.stream(
            endpoint.generation_url,
            endpoint.body(messages, asking.job.scenarios[key.scenario].sampling),
            key,
            tokens_per_event=endpoint.engine.tokens_per_event,
        )
    except asyncio.CancelledError:
        now_s = time.perf_counter()
        gone = RequestError(kind="cancelled", message="stopped before its end")
        asking.job.writer.append(
            RequestRecord(key=key, sent_at_s=now_s, closed_at_s=now_s, error=gone)
        )
        raise
    asking.job.writer.append(record)
    if record.error and record.error.kind in ENGINE_LOST:
        await asking.ready.await_death()
    return record


def answer_text(record: RequestRecord) -> str:
    """The visible answer of a record: what the next turn carries along."""
    return "".join(
        text
        for text, kind in zip(record.event_text, record.event_kind, strict=True)
        if kind == "answer"
    )


async def _snapshot(asking: Asking, moment: Literal["before", "after"]) -> None:
    """Wait until the server is idle, then keep its metrics pages as they are."""
    await _wait_idle(asking)
    gpu = read_gpu()
    this = asking.this
    pages = asking.endpoint.facts.metrics_urls
    for url in pages or (("",) if gpu else ()):
        status, text, problem, at_s = None, "", None, time.perf_counter()
        try:
            if url:
                response = await asking.ready.client.fetch(url, timeout_s=20)
                status, text, at_s = response.status, response.text, response.at_s
        except EngineError as error:
            problem = error.message
        asking.job.writer.append(
            Snapshot(
                at_s=at_s,
                url=url,
                arm=this.arm,
                scenario=this.scenario,
                load=this.load.label,
                repeat=this.repeat,
                moment=moment,
                window=asking.window,
                status=status,
                text=text,
                error=problem,
                clock_mhz=gpu.clock_mhz if gpu else None,
                power_w=gpu.power_w if gpu else None,
            )
        )


async def _wait_idle(asking: Asking) -> None:
    endpoint = asking.endpoint
    if not endpoint.facts.metrics_urls:
        await asyncio.sleep(QUIET_S)
        return
    url, busy, is_said = endpoint.facts.url, 1.0, False
    began_at_s = time.perf_counter()
    limit_s = IDLE_TIMEOUT_AGAIN_S if url in asking.busy_servers else IDLE_TIMEOUT_S
    while busy and (waited_s := time.perf_counter() - began_at_s) < limit_s:
        if asking.stopping.is_set():
            return
        busy = await _num_busy(asking)
        if busy and waited_s > IDLE_SILENT_S and not is_said:
            asking.job.progress.say(f"{url}: {busy:.0f} requests of others; waiting for their end")
            is_said = True
        await asyncio.sleep(IDLE_POLL_S if busy else 0)
    if busy:
        asking.busy_servers.add(url)
        asking.say(
            Caution(
                kind="other_traffic",
                message=f"{endpoint.arm.name}: {busy:.0f} requests of others are running or "
                f"waiting on {endpoint.facts.url}; its counters and its speed are shared. "
                "Measure on an idle server",
                detail={"arm": endpoint.arm.name, "num_requests": busy},
            )
        )


async def _num_busy(asking: Asking) -> float:
    """Requests running or waiting, by the server's gauges."""
    busy = 0.0
    for url in asking.endpoint.facts.metrics_urls:
        try:
            _, page = await read_metrics(asking.ready.client, asking.endpoint.engine, url, None)
        except MetricsError:
            continue
        busy += (page.num_requests_running or 0) + (page.num_requests_waiting or 0)
    return busy


def _too_few_for_load(asking: Asking, wanted: int, found: int) -> Caution:
    this = asking.this
    return Caution(
        kind="concurrency_not_reached",
        message=f"{this.scenario}: {found} conversations cannot keep {wanted} in flight. Add "
        "conversations or lower the concurrency",
        detail={"arm": f"{this.scenario}/{wanted}", "max_concurrency": wanted},
    )
