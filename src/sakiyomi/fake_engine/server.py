"""The fake server: connections in, answers, pages and faults out."""

import asyncio
import contextlib
import gzip
import hmac
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import httptools
import msgspec

from sakiyomi.fake_engine.asking import Refusal
from sakiyomi.fake_engine.config import FakeEngine, FaultValue, faults_of
from sakiyomi.fake_engine.dialects import DIALECTS
from sakiyomi.fake_engine.information import health, information
from sakiyomi.fake_engine.log import LoggedRequest
from sakiyomi.fake_engine.page_text import total_of
from sakiyomi.fake_engine.pages import metrics_page
from sakiyomi.fake_engine.state import State
from sakiyomi.fake_engine.streaming import Completion, refusal_faults
from sakiyomi.fake_engine.wire import ClientGone, Request, read_request, whole

PLAIN_TEXT = "text/plain; version=0.0.4; charset=utf-8"
HTML = b"<!DOCTYPE html><html><body><h1>Welcome</h1></body></html>"


class Server:
    """A running fake engine: its `url` (with the base path), its `log` of the truth, its state."""

    def __init__(self, config: FakeEngine) -> None:
        self.config = config
        self.dialect = DIALECTS[config.dialect]
        self.state = State(config)
        self.url = ""
        self.closed = asyncio.Event()
        """Set when the server died by a fault."""
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    @property
    def log(self) -> list[LoggedRequest]:
        """Completion requests in order of arrival, refused ones too."""
        return self.state.log

    def request(self, body_hash: str) -> LoggedRequest:
        """The newest logged request with this body hash."""
        return next(found for found in reversed(self.log) if found.body_hash == body_hash)

    def metrics_text(self) -> str:
        """The metrics page as a scrape would get it, without counting as one."""
        page = metrics_page(self.state.page_state())
        self.state.num_scrapes -= 1
        return page or ""

    async def start(self) -> None:
        """Listen. `config.port` 0 takes a free port."""
        config = self.config
        if config.start_delay_s:
            await asyncio.sleep(config.start_delay_s)
        context = None
        if config.tls_certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(config.tls_certificate, config.tls_key)
        self._server = await asyncio.start_server(
            self._connected, config.host, config.port, ssl=context, backlog=1024
        )
        port = self._server.sockets[0].getsockname()[1]
        host = f"[{config.host}]" if ":" in config.host else config.host
        self.url = f"{'https' if context else 'http'}://{host}:{port}{config.base_path}"

    async def close(self) -> None:
        """Stop listening and end every connection."""
        if self._server:
            self._server.close()
        tasks = list(self._connections)
        for task, writer in self._connections.items():
            task.cancel()
            writer.transport.abort()  # a TLS client that says no goodbye is not waited for
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._server:
            await self._server.wait_closed()
            self._server = None

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        try:
            await self._serve(reader, writer)
        except (ConnectionError, httptools.HttpParserError, ClientGone, asyncio.CancelledError):
            pass  # the client left, talks no HTTP, or the server closes
        finally:
            self._connections.pop(task, None)
            writer.close()
            with contextlib.suppress(ConnectionError, ssl.SSLError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection in turn."""
        while (request := await read_request(reader, writer)) is not None:
            path = self._local_path(request.path)
            if request.method == "POST" and path in self.dialect.paths:
                keep = await self._complete(request, path, reader, writer)
            else:
                writer.write(await self._page(request, path))
                await writer.drain()
                keep = request.keep_alive
            if not keep or writer.is_closing():
                return

    def _local_path(self, path: str) -> str:
        """The path below the base path; "" when it lies outside."""
        base = self.config.base_path
        if path.startswith(f"{base}/"):
            return path[len(base) :]
        return path if path == self.config.metrics_path else ""

    def _authorized(self, request: Request) -> bool:
        key = self.config.api_key
        given = request.headers.get("authorization", "")
        return key is None or hmac.compare_digest(given.encode(), f"Bearer {key}".encode())

    async def _complete(
        self,
        request: Request,
        path: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        """Answer a completion request; returns whether the connection may be kept."""
        completion = Completion(self.state, request, path)
        status, headers = refusal_faults(completion.ordinal, completion.faults)
        try:
            self._admit(request, status)
            completion.prepare()
        except Refusal as refusal:
            completion.logged.end, completion.logged.status = "refused", refusal.status
            body = refusal.body(self.dialect, as_string="error_as_string" in completion.faults)
            writer.write(whole(refusal.status, "application/json", body, headers))
            await writer.drain()
            return request.keep_alive
        if "html_instead" in completion.faults:
            completion.logged.end = "refused"
            writer.write(whole(200, "text/html", HTML))
            return request.keep_alive
        keep = await completion.run(reader, writer)
        self.state.answered()
        self._append_log(completion.logged)
        last = faults_of(self.config, 1).get("die_after_requests")
        if last is not None and self.state.num_answered >= int(last):
            await self._die(writer)
            return False
        return keep

    def _admit(self, request: Request, status: int) -> None:
        """Refuse a request before its body is read."""
        if not self._authorized(request):
            raise Refusal(401, "Unauthorized", kind="invalid_api_key")
        if status:
            raise Refusal(status, f"scripted status {status}", kind="ServerError")

    async def _die(self, writer: asyncio.StreamWriter) -> None:
        """Go away: no new connections, every open one reset but the one just answered."""
        await writer.drain()
        if self._server:
            self._server.close()
        for other in self._connections.values():
            if other is not writer:
                other.transport.abort()
        self.closed.set()

    def _append_log(self, logged: LoggedRequest) -> None:
        if self.config.log_path:
            with Path(self.config.log_path).open("ab") as file:
                file.write(msgspec.json.encode(logged) + b"\n")

    async def _page(self, request: Request, path: str) -> bytes:
        """Answer anything but a completion request."""
        if not path or request.method not in {"GET", "HEAD"}:
            return _error(404, "Not Found")
        metrics_path = self.config.metrics_path or self._metrics_path()
        if path and path in {metrics_path, f"{metrics_path}/"}:
            return await self._metrics(request)
        self.state.num_checks += 1
        faults = faults_of(self.config, self.state.num_checks)
        if "hang_health" in faults:
            await asyncio.Event().wait()
        if path in self.dialect.health_paths:
            if self.config.health_delay_s:
                await asyncio.sleep(self.config.health_delay_s)
            status = int(faults.get("health_status", 200))
            return whole(status, *health(self.config, path))
        return self._information(request, path)

    def _information(self, request: Request, path: str) -> bytes:
        """Answer an information endpoint; all of them ask for the key."""
        if not self._authorized(request):
            return _error(401, "Unauthorized")
        if self.config.dialect == "tensorrt-llm" and path in {"/metrics", "/perf_metrics"}:
            return whole(200, "application/json", msgspec.json.encode(self._drain(path)))
        total = total_of(self.state.finished)
        found = information(self.config, path, total, faults_of(self.config, 1))
        if found is None:
            return _error(404, "Not Found")
        return whole(200, "application/json", msgspec.json.encode(found))

    def _drain(self, path: str) -> list[dict[str, Any]]:
        """Read TensorRT-LLM's statistics: whoever reads them takes them away."""
        state = self.state
        if path == "/metrics":
            drained = list(state.iterations)
            state.iterations.clear()
            return drained
        records = list(state.perf_metrics)
        state.perf_metrics.clear()
        return records

    def _metrics_path(self) -> str:
        return "/prometheus/metrics" if self.config.dialect == "tensorrt-llm" else "/metrics"

    async def _metrics(self, request: Request) -> bytes:
        """Answer a scrape, with the faults of the page."""
        state = self.state.page_state()
        faults = state.faults
        if "metrics_hang" in faults:
            await asyncio.Event().wait()
        if "metrics_307" in faults and not request.path.endswith("/"):
            return whole(307, "text/plain", b"", {"Location": request.path + "/"})
        if "metrics_401" in faults and not (self.config.api_key and self._authorized(request)):
            return _error(401, "Unauthorized")
        if "metrics_501" in faults or (
            not self.config.metrics and self.config.dialect == "llama.cpp"
        ):
            return _error(
                501, "This server does not support metrics endpoint. Start it with `--metrics`"
            )
        for fault, status in (("metrics_404", 404), ("metrics_500", 500)):
            if fault in faults:
                return _error(status, "scripted")
        text = metrics_page(state) if self.config.metrics else None
        if text is None:
            return _error(404, "Not Found")
        return _spoiled(text, faults)


_SPOIL: dict[str, Callable[[str], tuple[str, bytes]]] = {
    "metrics_html": lambda _: ("text/html", HTML),
    "metrics_json": lambda _: ("application/json", b'{"iterations":[]}'),
    "metrics_json_string": lambda text: ("application/json", msgspec.json.encode(text)),
    "metrics_bom": lambda text: (PLAIN_TEXT, b"\xef\xbb\xbf" + text.encode()),
    "metrics_nan": lambda text: (PLAIN_TEXT, f"{text}fake:busy_slots -nan\n".encode()),
    "metrics_gzip": lambda text: (PLAIN_TEXT, gzip.compress(text.encode())),
    "metrics_crlf": lambda text: (PLAIN_TEXT, text.replace("\n", "\r\n").encode()),
    "metrics_no_newline": lambda text: (PLAIN_TEXT, text.rstrip("\n").encode()),
}


def _spoiled(text: str, faults: Mapping[str, FaultValue]) -> bytes:
    """Serve the page, in the form that a fault gives it."""
    for fault, spoil in _SPOIL.items():
        if fault in faults:
            return whole(200, *spoil(text))
    return whole(200, PLAIN_TEXT, text.encode())


def _error(status: int, message: str) -> bytes:
    body = msgspec.json.encode({"error": {"message": message, "code": status, "type": "error"}})
    return whole(status, "application/json", body)


@contextlib.asynccontextmanager
async def serve(config: FakeEngine) -> AsyncIterator[Server]:
    """Run a fake engine inside this event loop."""
    server = Server(config)
    await server.start()
    try:
        yield server
    finally:
        await server.close()
