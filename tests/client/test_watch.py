"""Running servers watched over sockets: the counts are the servers' own, faults are said."""

import asyncio
import contextlib
from pathlib import Path

import pytest
from bare_client import post

from sakiyomi.client import Client
from sakiyomi.engines import ENGINES
from sakiyomi.fake_engine import FakeEngine, serve
from sakiyomi.live_rows import rows
from sakiyomi.plan import Arm
from sakiyomi.readings import advance
from sakiyomi.watch import WatchedServer, read_servers, read_subjects

QUICK = {"ttft_s": 0.0, "step_s": 0.0, "k": 3, "script": (3, 0, 2, 1)}
LIMIT_S = 5.0


class Watching:
    """One server's watch, a reading at a time."""

    def __init__(self, url, engine="openai", **arm):
        self.server = WatchedServer(Arm(name="a", engine=engine, url=url, **arm), Client())
        self.tracks = {}

    async def read(self):
        pages = await self.server.read(LIMIT_S)
        self.tracks = advance(self.tracks, pages)
        return rows(self.tracks, pages)


async def ask(url, *numbers, max_tokens=40):
    for number in numbers:
        await post(url, f"tell me of {number}", max_tokens=max_tokens)


def watched(config, *rounds, **arm):
    """Rows of a reading before and after each round of requests; the server's log."""

    async def main():
        async with serve(config) as server:
            watching = Watching(server.url, **arm)
            found = [await watching.read()]
            for numbers in rounds:
                await ask(server.url, *numbers)
                found.append(await watching.read())
            watching.server.close()
            return found, server

    return asyncio.run(main())


@pytest.mark.parametrize(
    "dialect", ["vllm", "llama.cpp", "sglang", "tensorrt-llm", "lmdeploy", "tgi"]
)
def test_acceptance_is_the_servers_own_count(dialect):
    found, server = watched(FakeEngine(dialect=dialect, **QUICK), (1, 2), (3, 4, 5), ())
    (first,), (second,), (third,), (idle,) = found
    assert first.interval is first.since_start is None
    for row, log in ((second, server.log[:2]), (third, server.log[2:])):
        drafts = sum(len(r.drafted) for r in log)
        delivered = sum(r.completion_tokens - len(r.steps) for r in log)
        accepted = sum(r.num_accepted_tokens for r in log)
        rates = row.interval
        assert rates.num_accepted_tokens == (
            delivered if dialect in ("sglang", "tgi") else accepted
        )
        tokens = sum(r.completion_tokens for r in log)
        assert rates.generated_tokens_per_s * rates.seconds == pytest.approx(tokens)
        if dialect == "tgi":
            assert rates.draft_acceptance_rate is None
            assert rates.tokens_per_step == pytest.approx(1 + delivered / drafts)
            continue
        assert rates.num_drafts == drafts
        assert rates.drafts_per_s * rates.seconds == pytest.approx(drafts)
        assert rates.mean_acceptance_length.point == pytest.approx(
            1 + rates.num_accepted_tokens / drafts
        )
        if dialect == "sglang":
            assert rates.draft_acceptance_rate is None
            assert any("no acceptance rate" in note for note in row.notes)
            continue
        assert rates.draft_acceptance_rate.point == accepted / sum(r.num_draft_tokens for r in log)
        assert rates.per_position == tuple(
            sum(step.num_accepted_tokens > i for r in log for step in r.drafted) / drafts
            for i in range(3)
        )
    assert third.since_start.num_accepted_tokens == (
        second.interval.num_accepted_tokens + third.interval.num_accepted_tokens
    )
    assert idle.interval.draft_acceptance_rate is None
    assert idle.interval.mean_acceptance_length is None
    assert idle.interval.generated_tokens_per_s == 0
    assert len([r for r in server.log if r.body]) == 5  # the watch asked the model nothing


def test_a_server_without_speculation_says_so():
    found, _ = watched(FakeEngine(step_s=0.0, ttft_s=0.0), (1,))
    (row,) = found[-1]
    assert row.interval.draft_acceptance_rate is None
    assert row.interval.generated_tokens_per_s > 0
    assert any(note.startswith("no draft counters") for note in row.notes)


def test_data_parallel_engines_are_one_row_and_two_models_are_two():
    found, server = watched(FakeEngine(num_engines=3, **QUICK), (1, 2, 3))
    (row,) = found[-1]
    assert row.interval.num_drafts == sum(len(r.drafted) for r in server.log)
    found, server = watched(FakeEngine(faults=("extra_model",), **QUICK), (1, 2))
    by_model = {row.model: row for row in found[-1]}
    assert len(by_model) == 2
    assert by_model["fake-model"].interval.num_drafts == sum(len(r.drafted) for r in server.log)
    other = next(row for model, row in by_model.items() if model != "fake-model")
    assert not other.interval.num_drafts


def test_families_of_two_engines_on_one_page():
    async def main():
        llama = FakeEngine(dialect="llama.cpp", **QUICK)
        async with serve(FakeEngine(**QUICK)) as one, serve(llama) as other:
            return one.metrics_text() + other.metrics_text()

    text = asyncio.run(main())
    found = read_subjects("a", "http://a/metrics", ENGINES["openai"], text)
    assert {subject.engine for subject in found} == {"vllm", "llama.cpp"}


def test_dynamos_workers_are_dynamos():
    golden = Path(__file__).parents[1] / "engines" / "golden" / "dynamo-1.6.1"
    text = (golden / "worker.txt").read_text()
    found = read_subjects("a", "http://a/metrics", ENGINES["dynamo"], text)
    assert [(s.engine, s.model) for s in found] == [("dynamo", "m")]


def test_a_counter_reset_is_in_no_sum():
    config = FakeEngine(faults=("counter_reset=2",), **QUICK)
    found, server = watched(config, (1,), (2,), (3,))
    _, (before,), (reset,), (after,) = found
    assert reset.interval is None
    assert "the server restarted" in reset.note
    assert reset.since_start.num_drafts == before.since_start.num_drafts
    assert after.interval.num_drafts == len(server.log[2].drafted)
    assert after.since_start.num_drafts == sum(len(server.log[i].drafted) for i in (0, 2))
    assert after.num_void == 1


def test_answers_of_several_processes_in_turn_give_no_rates():
    found, _ = watched(FakeEngine(faults=("bounce",), **QUICK), (1,), (), (), (), ())
    assert all(row.interval is None for (row,) in found[2:])
    assert found[-1][0].num_void >= 3


def test_death_and_return_on_the_same_port():
    async def main():
        async with serve(FakeEngine(**QUICK)) as server:
            watching = Watching(server.url)
            await watching.read()
            await ask(server.url, 1)
            up = await watching.read()
            port = int(server.url.rsplit(":", 1)[1])
            log = list(server.log)
        gone = [await watching.read(), await watching.read()]
        async with serve(FakeEngine(port=port, **QUICK)) as server:
            back = await watching.read()
            await ask(server.url, 2, 3)
            after = await watching.read()
            return up, gone, back, after, (log, server.log)

    (up,), gone, (back,), (after,), (old, new) = asyncio.run(main())
    for (row,) in gone:
        assert "connection refused" in row.problem
        assert row.interval is None
        assert row.since_start == up.since_start
        assert row.num_requests_running is None
    assert back.interval is None
    assert "the server restarted" in back.note
    assert after.problem is None
    assert after.num_missed == 2
    drafts = [sum(len(r.drafted) for r in log) for log in (old, new)]
    assert after.interval.num_drafts == drafts[1]
    assert after.since_start.num_drafts == sum(drafts)


def test_a_server_that_comes_up_later_is_found():
    async def main():
        async with serve(FakeEngine(**QUICK)) as server:
            port = int(server.url.rsplit(":", 1)[1])
        watching = Watching(server.url)
        down = await watching.read()
        async with serve(FakeEngine(port=port, **QUICK)):
            return down, await watching.read(), await watching.read()

    (down,), (first,), (second,) = asyncio.run(main())
    assert "connection refused" in down.problem
    assert first.engine == "vLLM"
    assert second.interval is not None


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("metrics_404", "HTTP 404: remove --disable-log-stats"),
        ("metrics_401", "--api-key-env"),
        ("metrics_500", "HTTP 500"),
        ("metrics_html", "not a Prometheus metrics page; it starts with '<!DOCTYPE"),
        ("metrics_json", "left alone"),
        ("metrics_hang", "did not answer within"),
    ],
)
def test_a_page_that_cannot_be_read_says_why(fault, said):
    async def main():
        async with serve(FakeEngine(faults=(fault,), **QUICK)) as server:
            watching = Watching(server.url, metrics_urls=(server.url + "/metrics",))
            pages = await watching.server.read(0.5)
            return rows(watching.tracks, pages)

    (row,) = asyncio.run(main())
    assert said in row.problem
    assert row.engine is None


@pytest.mark.parametrize(
    "fault",
    [
        *("metrics_307", "metrics_json_string", "metrics_bom", "metrics_nan", "metrics_crlf"),
        *("metrics_no_newline", "late_position", "created_gauges", "no_created"),
    ],
)
@pytest.mark.parametrize("dialect", ["vllm", "llama.cpp"])
def test_an_odd_page_is_read_all_the_same(dialect, fault):
    found, server = watched(FakeEngine(dialect=dialect, faults=(fault,), **QUICK), (1,), (2,))
    (row,) = found[-1]
    assert row.problem is None
    assert row.since_start.num_draft_tokens == sum(r.num_draft_tokens for r in server.log)
    assert row.since_start.num_accepted_tokens == sum(r.num_accepted_tokens for r in server.log)


def test_a_page_that_fails_once_is_made_up_for_by_the_next():
    config = FakeEngine(faults=("metrics_html@4",), **QUICK)  # finding the page reads it, too
    found, server = watched(config, (1,), (2,), (3,))
    failed = [row for (row,) in found if row.problem]
    assert len(failed) == 1
    assert failed[0].problem.startswith("not a Prometheus")
    last = found[-1][0]
    assert last.since_start.num_drafts == sum(len(r.drafted) for r in server.log)


@pytest.mark.parametrize(
    ("dialect", "named"),
    [("ollama", "openai"), ("mlx-lm", "mlx-lm"), ("tabbyapi", "openai"), ("lmstudio", "openai")],
)
def test_engines_without_a_page_say_what_is_impossible(dialect, named):
    """mlx-lm signs its answers only, so it has to be named: the watch asks no model."""

    async def main():
        async with serve(FakeEngine(dialect=dialect, **QUICK)) as server:
            watching = Watching(server.url, engine=named)
            return await watching.read(), watching.server.is_hopeless

    (row,), hopeless = asyncio.run(main())
    assert hopeless
    assert "has no metrics page: acceptance cannot be watched" in row.problem


@pytest.mark.parametrize("url", ["", "/metrics", "/metrics/"])
def test_tensorrt_llms_statistics_are_not_emptied(url):
    async def main():
        async with serve(FakeEngine(dialect="tensorrt-llm", **QUICK)) as server:
            arm = {"metrics_urls": (server.url + url,)} if url else {}
            watching = Watching(server.url, **arm)
            await ask(server.url, 1)
            kept = len(server.state.iterations)
            found = [await watching.read() for _ in range(3)]
            return kept, len(server.state.iterations), found[-1][0]

    before, after, row = asyncio.run(main())
    assert before == after > 0
    if url:
        assert "left alone" in row.problem
    else:
        assert row.engine == "TensorRT-LLM"
        assert row.problem is None


def test_readings_keep_their_rate_whatever_a_server_does():
    """A page that hangs costs its own reading, and no instant of the others."""

    async def main():
        async with contextlib.AsyncExitStack() as stack:
            configs = {
                "good": FakeEngine(**QUICK),
                "hangs": FakeEngine(faults=("metrics_hang",), **QUICK),
            }
            servers = []
            for name, config in configs.items():
                server = await stack.enter_async_context(serve(config))
                arm = Arm(
                    name=name,
                    engine="vllm",
                    url=server.url,
                    metrics_urls=(server.url + "/metrics",),
                )
                servers.append(WatchedServer(arm, Client()))
            found = []
            async with contextlib.aclosing(read_servers(servers, 0.5)) as readings:
                async for due_s, pages in readings:
                    found.append((due_s, {page.server: page.problem for page in pages}))
                    if len(found) == 4:
                        break
            return found

    found = asyncio.run(main())
    assert [due_s / 0.5 for due_s, _ in found] == [round(due_s / 0.5) for due_s, _ in found]
    for _, problems in found:
        assert problems["good"] is None
        assert problems["hangs"]
