"""Metrics pages of a server: which ones answer, fetched and read."""

from collections.abc import Callable

from sakiyomi.client import Client, Response
from sakiyomi.engines.engine import Engine
from sakiyomi.errors import EngineError, MetricsError
from sakiyomi.plan import Arm
from sakiyomi.record import Caution, EngineMetrics
from sakiyomi.urls import page_candidates


async def read_metrics(
    client: Client, engine: Engine, url: str, model: str | None
) -> tuple[Response, EngineMetrics]:
    """Fetch and read one metrics page. Raises MetricsError that says what to do."""
    response = await fetch_metrics(client, engine, url)
    return response, engine.read_metrics(response.text, model)


async def fetch_metrics(
    client: Client, engine: Engine, url: str, *, timeout_s: float = 20
) -> Response:
    """A metrics page that answered 200. Raises MetricsError that says what to do."""
    try:
        response = await client.fetch(url, timeout_s=timeout_s)
    except EngineError as error:
        raise MetricsError(error.message, error.hint) from error
    if response.status in (401, 403):
        raise MetricsError(
            f"{url}: HTTP {response.status}, the metrics page asks for an API key",
            "name the environment variable that holds it: --api-key-env NAME",
        )
    if response.status != 200:
        raise MetricsError(f"{url}: HTTP {response.status}", engine.metrics_hint)
    return response


async def find_metrics(
    client: Client,
    engine: Engine,
    arm: Arm,
    root: str,
    model: str | None,
    say: Callable[[Caution], None],
) -> tuple[tuple[str, ...], EngineMetrics | None]:
    """The metrics pages that answer, and what the first one says."""
    if not engine.metrics_paths and not arm.metrics_urls:
        return (), None
    asked = arm.metrics_urls or page_candidates(root, engine.metrics_paths)
    found: list[str] = []
    metrics, problems = None, []
    for url in asked:
        try:
            _, page = await read_metrics(client, engine, url, model)
        except MetricsError as error:
            problems.append(error)
            continue
        found.append(url)
        metrics = metrics or page
        if not arm.metrics_urls:
            break
    if (arm.metrics_urls and problems) or (not found and problems):
        worst = problems[0]
        say(
            Caution(
                kind="metrics_unavailable",
                message=f"{arm.name}: no metrics: {worst.message}. {worst.hint}".strip(),
                detail={"arm": arm.name, "asked": list(asked)},
            )
        )
    return tuple(found), metrics
