"""Running servers read at a fixed rate: find their metrics pages, fetch, read. Asks no model."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Sequence

import msgspec

from sakiyomi.client import Client, Response
from sakiyomi.discover import recognise_server
from sakiyomi.engines import engines_on
from sakiyomi.engines.engine import Engine
from sakiyomi.errors import MetricsError
from sakiyomi.metrics_pages import fetch_metrics
from sakiyomi.plan import Arm
from sakiyomi.readings import PageReading, Subject
from sakiyomi.record import EngineMetrics
from sakiyomi.urls import api_root, page_candidates

LIMIT_SHARE = 0.8
"""Of the time between two readings, for one page: a server that hangs delays no other's reading."""
MAX_LIMIT_S = 30.0
LEFT_ALONE = (
    "JSON as TensorRT-LLM's, which each reading empties, is left alone: give the Prometheus page "
    "(/prometheus/metrics) with --metrics-url"
)


class Pages(msgspec.Struct, frozen=True):
    """Where a server's metrics are, and whose. `problem`: why there will never be any."""

    engine: Engine
    urls: tuple[str, ...] = ()
    problem: str | None = None


class WatchedServer:
    """One server: its own client, so that its key goes nowhere else, and what is known of it."""

    def __init__(self, arm: Arm, client: Client) -> None:
        self.name = arm.name
        self.client = client
        self._arm = arm
        self._root = api_root(arm.url or "")
        self._finding: asyncio.Task[Pages] | None = None
        self._left_alone: set[str] = set()

    @property
    def _pages(self) -> Pages | None:
        """What was found out; None while that goes on or when nobody answers."""
        found = self._finding
        return found.result() if found and found.done() and not found.exception() else None

    @property
    def is_hopeless(self) -> bool:
        """There is nothing to read, and waiting will not change it."""
        return self._pages is not None and self._pages.problem is not None

    async def read(self, limit_s: float) -> list[PageReading]:
        """A reading of each of its pages; a page that fails is a reading with a problem."""
        problem = None if self._pages else await self._find(limit_s)
        pages = self._pages
        if pages is None or pages.problem:
            problem = pages.problem if pages else problem
            return [PageReading(server=self.name, page="", problem=problem)]
        return list(
            await asyncio.gather(*(self._read_page(pages.engine, u, limit_s) for u in pages.urls))
        )

    def close(self) -> None:
        """Stop looking for its pages."""
        if self._finding is not None:
            self._finding.cancel()

    async def _find(self, limit_s: float) -> str | None:
        """Go on finding its pages for so long; why they are not found yet."""
        if self._finding is None or self._finding.done():
            self._finding = asyncio.ensure_future(self._find_pages())
        await asyncio.wait({self._finding}, timeout=limit_s)
        if not self._finding.done():
            return f"{self._root}: no answer yet that tells what it is"
        error = self._finding.exception()
        if isinstance(error, MetricsError):
            return error.message
        if error is not None:
            raise error
        return None

    async def _find_pages(self) -> Pages:
        """Ask the server what it is. Raises MetricsError while it has no page that can be read."""
        engine, told = await recognise_server(self.client, self._arm, self._root)
        self._arm = msgspec.structs.replace(self._arm, engine=engine.name)
        drained = f"{self._root}/metrics"
        is_json = _is_json(told.get("/metrics", ""))
        if engine.name == "tensorrt-llm" or is_json:
            self._left_alone |= {drained, drained + "/"}
        if self._arm.metrics_urls:
            return Pages(engine, self._arm.metrics_urls)
        if engine.name == "openai" and is_json:
            return Pages(engine, (), f"{drained}: {LEFT_ALONE}")
        if not engine.metrics_paths:
            return Pages(
                engine,
                (),
                f"{engine.metrics_hint}: acceptance cannot be watched, only measured with "
                f"sakiyomi run ({engine.evidence})",
            )
        problems = []
        for url in page_candidates(self._root, engine.metrics_paths):
            reading = await self._read_page(engine, url, MAX_LIMIT_S)
            if reading.problem is None:
                return Pages(engine, (url,))
            problems.append(reading.problem)
        raise MetricsError(problems[0])

    async def _read_page(self, engine: Engine, url: str, limit_s: float) -> PageReading:
        try:
            page = await self._fetch(engine, url, limit_s)
            found = read_subjects(self.name, url, engine, page.text)
        except MetricsError as error:
            problem = f"{error.message}: {error.hint}" if error.hint else error.message
            return PageReading(server=self.name, page=url, problem=problem)
        return PageReading(server=self.name, page=url, at_s=page.at_s, found=found)

    async def _fetch(self, engine: Engine, url: str, limit_s: float) -> Response:
        """A page. Raises MetricsError, without asking where an answer was JSON before."""
        if url not in self._left_alone:
            page = await fetch_metrics(self.client, engine, url, timeout_s=limit_s)
            if not _is_json(page.text):
                return page
            self._left_alone.add(url)
        raise MetricsError(f"{url}: {LEFT_ALONE}")


def read_subjects(server: str, url: str, engine: Engine, text: str) -> dict[Subject, EngineMetrics]:
    """What each engine and each model on a page says. Raises MetricsError when none says anything.

    A page may carry families of several engines (a federated one); Dynamo's are its workers', with
    labels of its own.
    """
    found: dict[Subject, EngineMetrics] = {}
    notes: list[str] = []
    shown = [] if engine.name == "dynamo" else engines_on(text)
    for one in shown or [engine]:
        whole = one.read_metrics(text, None)
        if not (whole.series or whole.gauge or whole.num_requests_running is not None):
            notes += whole.notes
            continue
        for model in whole.models or (None,):
            metrics = one.read_metrics(text, model) if len(whole.models) > 1 else whole
            found[Subject(server, url, one.name, model)] = metrics
    if not found:
        raise MetricsError(f"{url}: {'; '.join(notes)}")
    return found


async def read_servers(
    servers: Sequence[WatchedServer], every_s: float
) -> AsyncGenerator[tuple[float, list[PageReading]], None]:
    """Seconds since the start and a reading of all pages, at start + n x `every_s`: no drift.

    An instant that has passed is left out.
    """
    limit_s = min(LIMIT_SHARE * every_s, MAX_LIMIT_S)
    started_at_s = time.perf_counter()
    due_s = 0.0
    try:
        while True:
            await asyncio.sleep(started_at_s + due_s - time.perf_counter())
            read = await asyncio.gather(*(server.read(limit_s) for server in servers))
            yield due_s, [page for pages in read for page in pages]
            passed_s = time.perf_counter() - started_at_s
            due_s = every_s * max(round(due_s / every_s) + 1, -(-passed_s // every_s))
    finally:
        for server in servers:
            server.close()
            with contextlib.suppress(asyncio.CancelledError):
                await server.client.close()


def _is_json(text: str) -> bool:
    return text.lstrip()[:1] in ("{", "[")
