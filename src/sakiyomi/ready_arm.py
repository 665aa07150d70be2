"""An arm brought up for its passes: launched where it has no URL, and discovered."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

import msgspec

from sakiyomi.client import Client
from sakiyomi.discover import Endpoint, discover
from sakiyomi.engines import find_engine
from sakiyomi.errors import EngineError
from sakiyomi.job import Job
from sakiyomi.launch import Launched, check_alive, explain, free_port, launch, read_log
from sakiyomi.plan import Arm
from sakiyomi.record import Caution
from sakiyomi.redaction import redact
from sakiyomi.start_command import start_command

DEATH_GRACE_S = 5.0
"""How long an engine that lost a request may take to end: vLLM's shutdown takes seconds."""


class ReadyArm(msgspec.Struct, frozen=True, kw_only=True):
    """An arm that answers. `start`: which start of a launched engine, from 1; 0 when attached."""

    client: Client
    endpoint: Endpoint
    start: int = 0
    launched: Launched | None = None

    def check_alive(self) -> None:
        """Raise EngineError, with what its log says, if a launched engine has ended."""
        if self.launched:
            check_alive(self.launched)

    async def await_death(self) -> None:
        """Give a launched engine that lost a request time to end. Raises EngineError then."""
        if self.launched:
            await _await_death(self.launched)


@contextlib.asynccontextmanager
async def ready_arm(job: Job, arm: Arm, say: Callable[[Caution], None]) -> AsyncIterator[ReadyArm]:
    """The arm for as long as the context lasts; an engine that was launched for it ends then."""
    async with job.access.client(arm.name) as client:
        if arm.url is not None:
            endpoint = await discover(client, arm, arm.url, argv=(), say=say)
            yield ReadyArm(client=client, endpoint=endpoint)
            return
        start = 1 + next(
            (facts.num_starts for facts in job.facts.arms if facts.name == arm.name), 0
        )
        async with _launch(job, arm, start, client) as launched:
            endpoint = await _discover_launched(client, arm, launched, say)
            facts = msgspec.structs.replace(
                endpoint.facts,
                start_s=launched.start_s,
                num_starts=start,
                device=None if _is_remote(arm) else job.facts.environment.device,
            )
            endpoint = msgspec.structs.replace(endpoint, facts=facts)
            yield ReadyArm(client=client, endpoint=endpoint, start=start, launched=launched)


def _launch(
    job: Job, arm: Arm, number: int, client: Client
) -> contextlib.AbstractAsyncContextManager[Launched]:
    engine = find_engine(arm.engine)
    port = free_port()
    start = start_command(arm, port)
    if start.config_text is not None:
        path = job.writer.write_config(arm.name, number, start.config_text)
        start = start_command(arm, port, str(path))

    async def healthy(url: str) -> bool:
        try:
            response = await client.fetch(url + engine.health_path, timeout_s=5)
        except EngineError:
            return False
        return response.status == 200

    job.progress.say(f"starting {arm.name}: {' '.join(redact(start.command))[:200]}")
    return launch(
        msgspec.structs.replace(arm, env=start.env),
        command=start.command,
        log_path=job.writer.log_path(arm.name, number),
        port=port,
        probe=healthy,
        on_progress=lambda line, elapsed_s: job.progress.starting(arm.name, line, elapsed_s),
        remedies=engine.log_remedies,
        program=engine.program if not arm.command else "",
    )


async def _discover_launched(
    client: Client, arm: Arm, launched: Launched, say: Callable[[Caution], None]
) -> Endpoint:
    """Discover an engine of ours; if it dies of the first request, say what its log says."""
    try:
        log = read_log(launched)
        return await discover(client, arm, launched.url, argv=launched.argv, log=log, say=say)
    except EngineError as error:
        await _await_death(launched)
        raise explain(launched, error.message) from error


async def _await_death(launched: Launched) -> None:
    until = time.monotonic() + DEATH_GRACE_S
    while time.monotonic() < until:
        check_alive(launched)
        await asyncio.sleep(0.1)


def _is_remote(arm: Arm) -> bool:
    """Launched through ssh: its device is not this machine's."""
    return bool(arm.command) and arm.command[0].rsplit("/", 1)[-1] == "ssh"
