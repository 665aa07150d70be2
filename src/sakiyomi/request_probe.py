"""Which request a server takes: optional fields are tried, and left out where they are refused."""

from collections.abc import Callable
from typing import Any

import msgspec

from sakiyomi.client import Client
from sakiyomi.engines.engine import Engine
from sakiyomi.errors import EngineError, RequestRefused
from sakiyomi.plan import Arm
from sakiyomi.record import Caution, RequestKey, RequestRecord
from sakiyomi.scenario import Sampling
from sakiyomi.urls import api_url
from sakiyomi.workload import request_body

INCLUDE_USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}


class AcceptedRequest(msgspec.Struct, frozen=True):
    """The body fields that a server took, and its answer to them.

    `takes_thinking`: it took the field that turns thinking on and off.
    """

    fields: tuple[dict[str, Any], ...]
    takes_thinking: bool
    max_tokens_field: str
    answer: RequestRecord


async def probe_request(
    client: Client,
    arm: Arm,
    engine: Engine,
    root: str,
    model: str | None,
    say: Callable[[Caution], None],
) -> AcceptedRequest:
    """Find the best request that the server takes: all optional fields, or those not refused."""
    cap = "max_tokens"
    url = generation_url(root, arm)
    # only a chat template can think
    thinking = {} if arm.asks_completions else engine.thinking_field(False)

    async def attempt(*fields: dict[str, Any]) -> RequestRecord:
        body = request_body(
            [{"role": "user", "content": "Say hello."}],
            Sampling(max_tokens=8),
            model=model,
            fields=[*fields, arm.request],
            max_tokens_field=cap,
            as_text=arm.asks_completions,
        )
        key = RequestKey("probe", "", "", 0, arm.name, "", 0, 0.0, warmup=True)
        return await client.stream(url, body, key, tokens_per_event=engine.tokens_per_event)

    wanted = (INCLUDE_USAGE, *engine.request_fields)
    record = await attempt(*wanted, thinking)
    if not _refused(record):
        _check_answer(record, url)
        return AcceptedRequest(
            wanted, takes_thinking=bool(thinking), max_tokens_field=cap, answer=record
        )
    record = await attempt()
    if _refused(record):
        cap = "max_completion_tokens"
        other = await attempt()
        cap, record = ("max_tokens", record) if _refused(other) else (cap, other)
    _check_answer(record, url)
    taken: tuple[dict[str, Any], ...] = ()
    refused: list[str] = []
    for field in wanted:
        trial = await attempt(*taken, field)
        if trial.error is None:
            taken, record = (*taken, field), trial
        else:
            refused.extend(field)
    accepts_thinking = bool(thinking) and (await attempt(*taken, thinking)).error is None
    if thinking and not accepts_thinking:
        refused.extend(thinking)
    say(_fields_refused(arm, list(dict.fromkeys(refused))))
    return AcceptedRequest(
        taken, takes_thinking=accepts_thinking, max_tokens_field=cap, answer=record
    )


def _fields_refused(arm: Arm, fields: list[str]) -> Caution:
    return Caution(
        kind="fields_refused",
        message=f"{arm.name}: the server refuses {', '.join(fields)}; "
        "the measured requests go without",
        detail={"arm": arm.name, "fields": fields},
    )


def _refused(record: RequestRecord) -> bool:
    return record.error is not None and record.error.status in (400, 422)


def generation_url(root: str, arm: Arm) -> str:
    """Where an arm's requests go."""
    return api_url(root, "/v1/completions" if arm.asks_completions else "/v1/chat/completions")


def _check_answer(record: RequestRecord, url: str) -> None:
    """Raise EngineError when even the plainest request fails."""
    error = record.error
    if error is None:
        return
    hint = {
        401: "name the environment variable that holds the key: --api-key-env NAME",
        403: "name the environment variable that holds the key: --api-key-env NAME",
        404: "give the base URL, with or without /v1, and a model that is served",
    }.get(error.status or 0, "send it a request by hand; the server's own log says more")
    if 300 <= (error.status or 0) < 400:
        hint = "requests are not sent on: give --url the address that it redirects to"
    kind = RequestRefused if _refused(record) else EngineError
    raise kind(f"{url}: a first request failed: {error.message}", hint)
