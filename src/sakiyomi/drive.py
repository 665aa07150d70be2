"""A plan carried out: arms warmed up, passes in order, interruptions. Facts are saved."""

import asyncio
import contextlib
import itertools
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import msgspec

from sakiyomi.asking import Asking, run_pass
from sakiyomi.differences import find_differences
from sakiyomi.discover import Endpoint
from sakiyomi.errors import EngineError, NotComparable, SakiyomiError
from sakiyomi.job import Job
from sakiyomi.plan import Arm, Plan
from sakiyomi.ready_arm import ReadyArm, ready_arm
from sakiyomi.record import ArmFacts, Caution, RequestKey, RunFacts
from sakiyomi.workload import Pass, make_nonce, opening, passes, shared_urls


async def measure(job: Job) -> RunFacts:
    """Carry out the plan; facts go to the run folder as they happen.

    Ctrl-C once: what is in flight is finished and saved. Twice: stop now, saved too.
    """
    drive = _Drive(job)
    with _signals(drive.interrupt):
        try:
            await drive.run()
        except asyncio.CancelledError:
            drive.note(interrupted=True)
        except SakiyomiError as error:
            raise drive.with_folder(error) from error
        finally:
            job.progress.stop()
            job.writer.write_facts(job.facts)
    return job.facts


@contextlib.contextmanager
def _signals(interrupt: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    try:
        for number in numbers:
            loop.add_signal_handler(number, interrupt)
    except (NotImplementedError, RuntimeError):  # Windows, or not the main thread
        yield
        return
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


class _Drive:
    """The state of a run under way."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.stopping = asyncio.Event()
        self.window = job.first_window
        self.task = asyncio.current_task()
        self.said: set[tuple[str, str]] = set()
        self.busy_servers: set[str] = set()
        self.salt_arms = shared_urls(job.plan.arms)

    def interrupt(self) -> None:
        if self.stopping.is_set():
            if self.task:
                self.task.cancel()
            return
        self.stopping.set()
        self.job.progress.say("finishing what is in flight; Ctrl-C again stops now")

    def with_folder(self, error: SakiyomiError) -> SakiyomiError:
        """The error, and where what was measured before it is kept."""
        if self.window == self.job.first_window or "--resume" in error.hint:
            return error
        folder = self.job.writer.folder
        kept = f"what was measured is kept; go on with: sakiyomi run --resume {folder}"
        return type(error)(error.message, f"{error.hint}\n{kept}".strip())

    def note(self, **changes: Any) -> None:
        self.job.facts = msgspec.structs.replace(self.job.facts, **changes)

    def say(self, caution: Caution) -> None:
        """Keep a caution of the run; the same kind for the same arm once."""
        mark = (caution.kind, str(caution.detail.get("arm")))
        if mark not in self.said:
            self.said.add(mark)
            self.note(cautions=(*self.job.facts.cautions, caution))
            self.job.progress.say(f"! {caution.message}")

    async def run(self) -> None:
        plan = self.job.plan
        num_turns = {
            name: sum(len(c.turns) for c in scenario.conversations)
            for name, scenario in self.job.scenarios.items()
        }
        order = list(passes(plan, self.job.schedule))
        self.job.progress.start(sum(num_turns[p.scenario] for p in order))
        if self.job.schedule == "blocks":
            await self._run_blocks(order)
        else:
            await self._run_together(order)
        self.note(finished=not self.stopping.is_set(), interrupted=self.stopping.is_set())

    async def _run_together(self, order: list[Pass]) -> None:
        """All arms are up; passes alternate between them."""
        async with contextlib.AsyncExitStack() as stack:
            up = {
                arm.name: await stack.enter_async_context(self._ready(arm))
                for arm in self.job.plan.arms
            }
            loaded: dict[str, str] = {}
            for name, ready in up.items():
                await self._warm_up(ready)
                loaded[ready.endpoint.facts.url] = name
            for index, this in enumerate(order):
                if self.stopping.is_set():
                    return
                endpoint = up[this.arm].endpoint
                if endpoint.engine.reloads and loaded[endpoint.facts.url] != this.arm:
                    await self._warm_up(up[this.arm])
                loaded[endpoint.facts.url] = this.arm
                await self._run_pass(this, up[this.arm])
                if self._is_enough(order, index):
                    return

    async def _run_blocks(self, order: list[Pass]) -> None:
        """One launched arm at a time; it stays up while the next pass is its own."""
        arms = {arm.name: arm for arm in self.job.plan.arms}
        for name, own in itertools.groupby(enumerate(order), lambda entry: entry[1].arm):
            if self.stopping.is_set():
                return
            async with self._ready(arms[name]) as ready:
                await self._warm_up(ready)
                for index, this in own:
                    if self.stopping.is_set():
                        return
                    await self._run_pass(this, ready)
                    if self._is_enough(order, index):
                        return

    def _is_enough(self, order: list[Pass], index: int) -> bool:
        """Whether this pass ended a repeat after which nothing is left to learn."""
        repeat = order[index].repeat
        if index + 1 < len(order) and order[index + 1].repeat == repeat:
            return False
        return self.job.after_repeat is not None and self.job.after_repeat(repeat)

    @contextlib.asynccontextmanager
    async def _ready(self, arm: Arm) -> AsyncIterator[ReadyArm]:
        """The arm, up and comparable; what it is is in the run's facts."""
        async with ready_arm(self.job, arm, self.say) as ready:
            facts = ready.endpoint.facts
            _check_comparable(self.job, facts)
            if ready.start < 2:
                self.job.progress.say(f"{arm.name}: {_evidence(ready.endpoint)}")
            others = tuple(f for f in self.job.facts.arms if f.name != arm.name)
            self.note(arms=_in_plan_order((*others, facts), self.job.plan))
            self.job.writer.write_facts(self.job.facts)
            yield ready

    async def _warm_up(self, ready: ReadyArm) -> None:
        """Requests outside every number, before the first snapshot."""
        endpoint = ready.endpoint
        scenario = next(iter(self.job.scenarios.values()))
        for number in range(self.job.plan.warmup_requests):
            conversation = scenario.conversations[number % len(scenario.conversations)]
            key = RequestKey(
                f"warmup/{endpoint.arm.name}/{ready.start}/{number}",
                scenario.name,
                conversation.conversation_id,
                0,
                endpoint.arm.name,
                "warmup",
                0,
                time.perf_counter(),
                warmup=True,
            )
            nonce = make_nonce(self.job.facts.run_id, conversation.conversation_id, -1 - number)
            body = endpoint.body(opening(conversation, nonce), scenario.sampling)
            record = await ready.client.stream(
                endpoint.generation_url,
                body,
                key,
                tokens_per_event=endpoint.engine.tokens_per_event,
            )
            self.job.writer.append(record)

    async def _run_pass(self, this: Pass, ready: ReadyArm) -> None:
        """The conversations of a pass that are still to do, between two snapshots."""
        mark = (this.arm, this.load.label, this.scenario, this.repeat)
        todo = []
        for conversation in self.job.scenarios[this.scenario].conversations:
            if (*mark, conversation.conversation_id) in self.job.finished:
                self.job.progress.advance("done before", len(conversation.turns))
            else:
                todo.append(conversation)
        if not todo:
            return
        self.window += 1
        asking = Asking(
            this=this,
            window=self.window,
            job=self.job,
            ready=ready,
            salt=this.arm if self.salt_arms else "",
            stopping=self.stopping,
            say=self.say,
            busy_servers=self.busy_servers,
        )
        try:
            await run_pass(asking, todo)
        except EngineError:
            await ready.await_death()
            raise
        ready.check_alive()


def _check_comparable(job: Job, facts: ArmFacts) -> None:
    """Refuse another version or device than the baseline's, or than the arm's own before."""
    if job.facts.forced:
        return
    known = {arm.name: arm for arm in job.facts.arms}
    for name in dict.fromkeys((facts.name, job.plan.arms[0].name)):
        other = known.get(name)
        forbidding = [d for d in find_differences(other, facts) if d.forbids] if other else []
        if forbidding:
            before = "before" if name == facts.name else name
            raise NotComparable(
                f"{facts.name} against {before}: different "
                + ", ".join(one.words for one in forbidding),
                "use the same version and device for both, or measure all the same: --force",
            )


def _evidence(endpoint: Endpoint) -> str:
    """Which server this is and what it can tell, in a line."""
    engine, facts = endpoint.engine, endpoint.facts
    version = f" {facts.engine_version}" if facts.engine_version else ""
    return f"{engine.title}{version}, {facts.model or 'its only model'}; {engine.evidence}"


def _in_plan_order(arms: tuple[ArmFacts, ...], plan: Plan) -> tuple[ArmFacts, ...]:
    names = [arm.name for arm in plan.arms]
    return tuple(sorted(arms, key=lambda facts: names.index(facts.name)))
