"""What stands behind a URL: engine, model, metrics pages, and the body fields it accepts."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from sakiyomi.client import Client
from sakiyomi.engines import ENGINES, find_engine, recognise, recognise_fingerprint
from sakiyomi.engines.engine import Engine, ServerFacts, merge_settings
from sakiyomi.errors import EngineError
from sakiyomi.metrics_pages import find_metrics
from sakiyomi.plan import Arm
from sakiyomi.record import ArmFacts, Caution, EngineMetrics
from sakiyomi.request_probe import AcceptedRequest, generation_url, probe_request
from sakiyomi.scenario import Sampling
from sakiyomi.urls import api_root
from sakiyomi.workload import request_body


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A server that is ready to be measured: the request that is sent is the one probed."""

    arm: Arm
    engine: Engine
    facts: ArmFacts
    generation_url: str
    request: AcceptedRequest

    def body(self, messages: list[dict[str, str]], sampling: Sampling) -> dict[str, Any]:
        """The body of a measured request."""
        fields = list(self.request.fields)
        if self.request.takes_thinking and sampling.enable_thinking is not None:
            fields.append(self.engine.thinking_field(sampling.enable_thinking))
        return request_body(
            messages,
            sampling,
            model=self.facts.model,
            fields=[*fields, self.arm.request],
            max_tokens_field=self.request.max_tokens_field,
            as_text=self.arm.asks_completions,
        )


async def discover(
    client: Client,
    arm: Arm,
    url: str,
    *,
    argv: tuple[str, ...],
    say: Callable[[Caution], None],
    log: str = "",
) -> Endpoint:
    """Ask the server what it is and which request it takes.

    `argv` and `log` of a launched engine: its command, and what it has written so far.
    Raises EngineError when it does not answer, asks for a key, or does not serve the model.
    """
    root = api_root(url)
    models = await _models(client, root)
    engine, pages = await recognise_server(client, arm, root)
    api = _api(root, engine)
    if api != root and not models:
        models = await _models(client, api)
    model = _choose_model(arm, models or engine.read_server(pages).models, root)
    request = await probe_request(client, arm, engine, api, model, say)
    signed = recognise_fingerprint(request.answer.system_fingerprint)
    if engine.name == arm.engine == "openai" and signed:
        engine = find_engine(signed)
        request = await probe_request(client, arm, engine, api, model, say)
    fingerprint = request.answer.system_fingerprint
    told = engine.read_server(pages)
    metrics_urls, metrics = await find_metrics(client, engine, arm, root, model, say)
    version = told.engine_version or _version_from(engine, fingerprint)
    if argv:
        _advise_args(engine, arm, version, say)
    facts = msgspec.structs.replace(
        _told_facts(engine, arm, told, metrics),
        url=root,
        model=model,
        argv=argv,
        engine_version=version,
        request_fields=tuple(key for field in request.fields for key in field),
        metrics_urls=metrics_urls,
        model_path=told.model_path or (arm.model if argv else None),
        settings=_settings(told, metrics, engine.read_log(log), fingerprint),
    )
    return Endpoint(
        arm=arm,
        engine=engine,
        facts=facts,
        generation_url=generation_url(api, arm),
        request=request,
    )


async def recognise_server(client: Client, arm: Arm, root: str) -> tuple[Engine, Mapping[str, str]]:
    """The arm's engine, found out where it is not named, and the pages that told. No completion.

    A server that answers nothing is `openai` without pages.
    """
    pages = await _pages(client, _server_root(root), _info_paths(arm))
    if arm.engine != "openai":
        return find_engine(arm.engine), pages
    if recognise(pages) == "openai":  # reading /metrics empties TensorRT-LLM's: last of all
        pages = {**pages, **await _pages(client, _server_root(root), ("/metrics",))}
    return find_engine(recognise(pages)), pages


def _told_facts(
    engine: Engine, arm: Arm, told: ServerFacts, metrics: EngineMetrics | None
) -> ArmFacts:
    """What drafts in this arm: the server's word first, then the plan's, then its metrics page."""
    planned = engine.read_arm(arm)
    return ArmFacts(
        name=arm.name,
        engine=engine.name,
        url="",
        speculative_method=told.speculative_method or planned.speculative_method,
        num_speculative_tokens=told.num_speculative_tokens
        or planned.num_speculative_tokens
        or (metrics.num_speculative_tokens if metrics else None),
        forced_acceptance=told.forced_acceptance or planned.forced_acceptance,
        lossy_acceptance=told.lossy_acceptance or planned.lossy_acceptance,
    )


def _settings(
    told: ServerFacts,
    metrics: EngineMetrics | None,
    logged: dict[str, Any],
    fingerprint: str | None,
) -> dict[str, Any]:
    """What is known of the server's configuration; its log has the last word."""
    settings = merge_settings(metrics.settings if metrics else {}, told.settings, logged)
    settings["system_fingerprint"] = fingerprint
    if metrics and metrics.notes:
        settings["metrics_notes"] = list(metrics.notes)
    return settings


def _info_paths(arm: Arm) -> tuple[str, ...]:
    """Information pages to ask for; all engines' when the engine is not known yet."""
    if arm.engine != "openai":
        return find_engine(arm.engine).info_paths
    return tuple(dict.fromkeys(path for engine in ENGINES.values() for path in engine.info_paths))


def _server_root(root: str) -> str:
    """Where health and information pages are: above an engine's own folder of the API."""
    for engine in ENGINES.values():
        if engine.api_prefix and root.endswith(engine.api_prefix):
            return root.removesuffix(engine.api_prefix)
    return root


def _api(root: str, engine: Engine) -> str:
    """Where `/v1/...` is: in the engine's own folder, unless the URL named it."""
    return root if root.endswith(engine.api_prefix) else root + engine.api_prefix


def _advise_args(
    engine: Engine, arm: Arm, version: str | None, say: Callable[[Caution], None]
) -> None:
    """Say which arguments this version knows that would give better evidence.

    They are not added by themselves: the version is known once the engine is up, and a restart
    would make its arms differ in more than the plan says.
    """
    wanted = engine.optional_args(arm, version) if engine.optional_args and version else []
    if wanted:
        say(
            Caution(
                kind="better_evidence",
                message=f"{arm.name}: {engine.title} {version} can count the drafts of each "
                f"request; its counters are used. For more, add {' '.join(wanted)} to the "
                "arm's args",
                detail={"arm": arm.name, "args": wanted, "engine_version": version},
            )
        )


async def _models(client: Client, root: str) -> tuple[str, ...]:
    response = await client.fetch(f"{root}/v1/models")
    if response.status in (401, 403):
        raise EngineError(
            f"{response.url}: HTTP {response.status}, the server asks for an API key",
            "put the key in an environment variable and name it: --api-key-env NAME",
        )
    if response.status != 200:
        return ()
    try:
        raw = msgspec.json.decode(response.body)
        return tuple(str(entry["id"]) for entry in raw["data"])
    except (msgspec.DecodeError, KeyError, TypeError):
        raise EngineError(
            f"{response.url}: no list of models: {response.text[:60]!r}",
            "is this an OpenAI-compatible server? give its base URL, with or without /v1",
        ) from None


async def _pages(client: Client, root: str, paths: tuple[str, ...]) -> Mapping[str, str]:
    pages = {}
    for path in paths:
        try:
            response = await client.fetch(root + path, timeout_s=10)
        except EngineError:
            continue
        if response.status == 200:
            pages[path] = response.text
    return pages


def _choose_model(arm: Arm, served: tuple[str, ...], root: str) -> str | None:
    launched = arm.url is None
    if not served:
        return arm.model
    if arm.model in served:
        return arm.model
    if launched or (arm.model is None and len(served) == 1):
        return served[0]
    if arm.model is None:
        raise EngineError(
            f"{root} serves {len(served)} models", "choose one: --model " + " | ".join(served[:8])
        )
    raise EngineError(f"{root} does not serve {arm.model!r}", "it serves: " + ", ".join(served[:8]))


def _version_from(engine: Engine, fingerprint: str | None) -> str | None:
    """The version in the fingerprint, for engines that sign their answers with it."""
    found = re.search(engine.fingerprint, fingerprint or "")
    return found.groupdict().get("version") if engine.fingerprint and found else None
