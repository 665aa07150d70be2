"""The embedded engine watched while it answers: the watch's counts are the answers' own."""

import asyncio

import pytest
from test_embedded import PROMPTS, ask, told_by, up

from sakiyomi.client import Client
from sakiyomi.embedded import embedded_arms
from sakiyomi.live_rows import rows
from sakiyomi.plan import Arm
from sakiyomi.readings import advance
from sakiyomi.watch import WatchedServer

pytestmark = pytest.mark.live


@pytest.fixture(autouse=True)
def _own_ledger(tmp_path, monkeypatch):
    monkeypatch.setenv("SAKIYOMI_STATE", str(tmp_path / "state"))


def test_the_embedded_engine_watched_until_it_is_gone(tmp_path):
    _, ngram = embedded_arms(None, say=print)

    async def main():
        tracks, found, records = {}, [], []

        async def read():
            nonlocal tracks
            pages = await server.read(30)
            tracks = advance(tracks, pages)
            found.extend(rows(tracks, pages))

        async with up(ngram, tmp_path) as (launched, client):
            server = WatchedServer(Arm(name="a", engine="openai", url=launched.url), Client())
            await read()
            for number, prompt in enumerate(PROMPTS):
                records.append(await ask(client, launched.url, prompt, 80, number))
                await read()
        await read()
        return found, records

    found, records = asyncio.run(main())
    assert found[0].engine == "llama.cpp"
    for row, record in zip(found[1:], records, strict=False):
        assert row.interval.generated_tokens_per_s * row.interval.seconds == pytest.approx(
            record.completion_tokens, abs=1
        )
    told, since = told_by(records), found[-2].since_start
    assert since.num_draft_tokens == told.num_draft_tokens > 0
    assert since.num_accepted_tokens == told.num_accepted_tokens
    assert since.num_drafts == told.num_drafts
    assert any("when it ends" in note for note in found[-2].notes)
    assert "no connection" in found[-1].problem
    assert found[-1].since_start == since
