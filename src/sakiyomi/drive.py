"""A plan carried out: arms up, warmed up, passes in order, interruptions. Facts are saved."""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

import msgspec

from sakiyomi.asking import Asking, run_pass
from sakiyomi.client import Client, Timeouts
from sakiyomi.differences import find_differences
from sakiyomi.discover import Endpoint, discover
from sakiyomi.engines import find_engine
from sakiyomi.errors import EngineError, NotComparable, SakiyomiError
from sakiyomi.launch import Launched, check_alive, explain, free_port, launch, read_log
from sakiyomi.plan import Arm, Plan
from sakiyomi.record import ArmFacts, Caution, RequestKey, RequestRecord, RunFacts
from sakiyomi.redaction import redact
from sakiyomi.scenario import Scenario
from sakiyomi.start_command import start_command
from sakiyomi.store import RunWriter
from sakiyomi.terminal import Progress
from sakiyomi.workload import Pass, make_nonce, opening, passes, shared_urls

DEATH_GRACE_S = 5.0
"""How long an engine that lost a request may take to end: vLLM's shutdown takes seconds."""


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """How servers are reached."""

    timeouts: Timeouts = Timeouts()
    ca_file: str | None = None
    insecure: bool = False
    api_keys: dict[str, str | None] = {}
    """Key by arm; lives in memory only."""


class Job(msgspec.Struct, kw_only=True):
    """One run that is under way. `finished` holds what a resumed run need not repeat."""

    plan: Plan
    scenarios: dict[str, Scenario]
    schedule: str
    facts: RunFacts
    writer: RunWriter
    progress: Progress
    connection: Connection = Connection()
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
        self.num_starts = {facts.name: facts.num_starts for facts in job.facts.arms}
        self.launched: dict[str, Launched] = {}
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
                arm.name: await stack.enter_async_context(self._arm(arm))
                for arm in self.job.plan.arms
            }
            loaded: dict[str, str] = {}
            for arm in self.job.plan.arms:
                await self._warm_up(*up[arm.name])
                loaded[up[arm.name][1].facts.url] = arm.name
            for index, this in enumerate(order):
                if self.stopping.is_set():
                    return
                endpoint = up[this.arm][1]
                if endpoint.engine.reloads and loaded[endpoint.facts.url] != this.arm:
                    await self._warm_up(*up[this.arm])
                loaded[endpoint.facts.url] = this.arm
                await self._run_pass(this, *up[this.arm])
                if self._repeat_ended(order, index) and self._enough(this.repeat):
                    return

    async def _run_blocks(self, order: list[Pass]) -> None:
        """One launched arm at a time; it stays up while the next pass is its own."""
        arms = {arm.name: arm for arm in self.job.plan.arms}
        index = 0
        while index < len(order) and not self.stopping.is_set():
            name = order[index].arm
            async with self._arm(arms[name]) as up:
                await self._warm_up(*up)
                while index < len(order) and order[index].arm == name:
                    if self.stopping.is_set():
                        return
                    await self._run_pass(order[index], *up)
                    index += 1
                    if self._repeat_ended(order, index - 1) and self._enough(
                        order[index - 1].repeat
                    ):
                        return

    def _repeat_ended(self, order: list[Pass], index: int) -> bool:
        return index + 1 == len(order) or order[index + 1].repeat != order[index].repeat

    def _enough(self, repeat: int) -> bool:
        return self.job.after_repeat is not None and self.job.after_repeat(repeat)

    @contextlib.asynccontextmanager
    async def _arm(self, arm: Arm) -> AsyncIterator[tuple[Client, Endpoint]]:
        """An arm that is ready: launched when it has no URL, then discovered."""
        connection = self.job.connection
        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(
                Client(
                    timeouts=connection.timeouts,
                    ca_file=connection.ca_file,
                    insecure=connection.insecure,
                    api_key=connection.api_keys.get(arm.name),
                )
            )
            if arm.url is None:
                launched = await stack.enter_async_context(self._launched(arm, client))
                self.launched[arm.name] = launched
                endpoint = await self._discover_launched(client, arm, launched)
                facts = msgspec.structs.replace(
                    endpoint.facts,
                    start_s=launched.start_s,
                    num_starts=self.num_starts[arm.name],
                    device=None if _is_remote(arm) else self.job.facts.environment.device,
                )
            else:
                endpoint = await discover(client, arm, arm.url, argv=(), say=self.say)
                facts = endpoint.facts
            self._check_comparable(facts)
            if self.num_starts.get(arm.name, 0) < 2:
                self.job.progress.say(f"{arm.name}: {_evidence(endpoint)}")
            others = tuple(f for f in self.job.facts.arms if f.name != arm.name)
            self.note(arms=_in_plan_order((*others, facts), self.job.plan))
            self.job.writer.write_facts(self.job.facts)
            yield client, msgspec.structs.replace(endpoint, facts=facts)

    async def _discover_launched(self, client: Client, arm: Arm, launched: Launched) -> Endpoint:
        """Discover an engine of ours; if it dies of the first request, say what its log says."""
        try:
            log = read_log(launched)
            return await discover(
                client, arm, launched.url, argv=launched.argv, log=log, say=self.say
            )
        except EngineError as error:
            await _await_death(launched)
            raise explain(launched, error.message) from error

    def _check_comparable(self, facts: ArmFacts) -> None:
        """Refuse another version or device than the baseline's, or than the arm's own before."""
        if self.job.facts.forced:
            return
        known = {arm.name: arm for arm in self.job.facts.arms}
        for name in dict.fromkeys((facts.name, self.job.plan.arms[0].name)):
            other = known.get(name)
            forbidding = [d for d in find_differences(other, facts) if d.forbids] if other else []
            if forbidding:
                before = "before" if name == facts.name else name
                raise NotComparable(
                    f"{facts.name} against {before}: different "
                    + ", ".join(one.words for one in forbidding),
                    "use the same version and device for both, or measure all the same: --force",
                )

    async def _await_death(self, arm: str) -> None:
        """Give a launched engine that lost a request time to end. Raises EngineError then."""
        if arm in self.launched:
            await _await_death(self.launched[arm])

    def _launched(self, arm: Arm, client: Client) -> Any:
        engine = find_engine(arm.engine)
        number = self.num_starts[arm.name] = self.num_starts.get(arm.name, 0) + 1
        port = free_port()
        start = start_command(arm, port)
        if start.config_text is not None:
            path = self.job.writer.write_config(arm.name, number, start.config_text)
            start = start_command(arm, port, str(path))
        command = start.command

        async def healthy(url: str) -> bool:
            try:
                response = await client.fetch(url + engine.health_path, timeout_s=5)
            except EngineError:
                return False
            return response.status == 200

        self.job.progress.say(f"starting {arm.name}: {' '.join(redact(command))[:200]}")
        return launch(
            msgspec.structs.replace(arm, env=start.env),
            command=command,
            log_path=self.job.writer.log_path(arm.name, number),
            port=port,
            probe=healthy,
            on_progress=lambda line, elapsed_s: self.job.progress.starting(
                arm.name, line, elapsed_s
            ),
            start_timeout_s=arm.start_timeout_s,
            remedies=engine.log_remedies,
            program=engine.program if not arm.command else "",
        )

    async def _warm_up(self, client: Client, endpoint: Endpoint) -> None:
        """Requests outside every number, before the first snapshot."""
        scenario = next(iter(self.job.scenarios.values()))
        for number in range(self.job.plan.warmup_requests):
            conversation = scenario.conversations[number % len(scenario.conversations)]
            key = RequestKey(
                f"warmup/{endpoint.arm.name}/{self.num_starts.get(endpoint.arm.name, 0)}/{number}",
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
            record = await client.stream(
                endpoint.chat_url, body, key, tokens_per_event=endpoint.engine.tokens_per_event
            )
            self.job.writer.append(record)

    async def _run_pass(self, this: Pass, client: Client, endpoint: Endpoint) -> None:
        """The conversations of a pass that are still to do, between two snapshots."""
        mark = (this.arm, this.load.label, this.scenario, this.repeat)
        scenario = self.job.scenarios[this.scenario]
        todo = []
        for conversation in scenario.conversations:
            if (*mark, conversation.conversation_id) in self.job.finished:
                self.job.progress.advance("done before", len(conversation.turns))
            else:
                todo.append(conversation)
        if todo:
            self.window += 1
            asking = Asking(
                this=this,
                window=self.window,
                client=client,
                endpoint=endpoint,
                sampling=scenario.sampling,
                run_id=self.job.facts.run_id,
                salt=this.arm if self.salt_arms else "",
                start=self.num_starts.get(this.arm, 0),
                await_death=lambda: self._await_death(this.arm),
                writer=self.job.writer,
                progress=self.job.progress,
                stopping=self.stopping,
                say=self.say,
                busy_servers=self.busy_servers,
            )
            try:
                await run_pass(asking, todo, self.job.plan.seed)
            except EngineError:
                await self._await_death(this.arm)
                raise
            if this.arm in self.launched:
                check_alive(self.launched[this.arm])


def _evidence(endpoint: Endpoint) -> str:
    """Which server this is and what it can tell, in a line."""
    engine, facts = endpoint.engine, endpoint.facts
    version = f" {facts.engine_version}" if facts.engine_version else ""
    return f"{engine.title}{version}, {facts.model or 'its only model'}; {engine.evidence}"


async def _await_death(launched: Launched) -> None:
    """Give an engine that failed a request time to end. Raises EngineError when it does."""
    until = time.monotonic() + DEATH_GRACE_S
    while time.monotonic() < until:
        check_alive(launched)
        await asyncio.sleep(0.1)


def _is_remote(arm: Arm) -> bool:
    """Launched through ssh: its device is not this machine's."""
    return bool(arm.command) and arm.command[0].rsplit("/", 1)[-1] == "ssh"


def _in_plan_order(arms: tuple[ArmFacts, ...], plan: Plan) -> tuple[ArmFacts, ...]:
    names = [arm.name for arm in plan.arms]
    return tuple(sorted(arms, key=lambda facts: names.index(facts.name)))
