"""Hub ids over a server that speaks the hub's protocol, counts bytes and can misbehave."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import huggingface_hub
import huggingface_hub.constants
import huggingface_hub.utils
import pytest
from model_families import dense
from model_makers import write_folder, write_gguf
from test_checkpoint import LLAMA_KEYS, llama_spec

from sakiyomi.errors import CheckpointError
from sakiyomi.models.hub import open_hub, split_id


class Hub:
    """A hub with one repository, served out of a folder."""

    def __init__(self, folder) -> None:
        self.folder, self.num_sent, self.num_requests = folder, 0, 0
        self.obeys_ranges, self.status = True, 200
        self.tokens: set[str] = set()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub.num_requests += 1
                hub.tokens.add(self.headers.get("Authorization", ""))
                hub.answer(self)

            def log_message(self, *_arguments) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        if self.status != 200:
            return self.send(request, self.status, b"{}")
        path = request.path.partition("?")[0]
        if path.startswith("/api/models/org/model/tree/"):
            entries = [
                {"type": "file", "path": name, "size": size, "oid": "0"}
                for name, size in sorted(self.files().items())
            ]
            return self.send(request, 200, json.dumps(entries).encode())
        name = path.partition("/resolve/main/")[2]
        if name not in self.files():
            return self.send(request, 404, b"")
        data = (self.folder / name).read_bytes()
        header = request.headers.get("Range", "")
        if not header or not self.obeys_ranges:
            return self.send(request, 200, data)
        first, last = map(int, header.removeprefix("bytes=").split("-"))
        return self.send(request, 206, data[first : last + 1])

    def files(self) -> dict[str, int]:
        paths = [path for path in self.folder.rglob("*") if path.is_file()]
        return {str(path.relative_to(self.folder)): path.stat().st_size for path in paths}

    def send(self, request: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
        request.send_response(status)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        try:
            request.wfile.write(body)
            self.num_sent += len(body)
        except ConnectionError:
            request.close_connection = True


@pytest.fixture
def hub(tmp_path, monkeypatch):
    # The library reads its settings once, at import: its constants are its interface then.
    cache = tmp_path / "cache"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    server = Hub(tmp_path / "repo")
    (tmp_path / "repo").mkdir()
    yield server
    server.close()
    huggingface_hub.utils.close_session()


def test_headers_come_by_ranges(hub):
    spec = [*dense.spec, ("model.layers.0.mlp.big.weight", "BF16", (4096, 512))]
    data_bytes = write_folder(hub.folder, dense.config, spec, shards=2)
    found = open_hub("org/model", endpoint=hub.url)
    assert found.resident_bytes == data_bytes
    assert found.missing == ()
    assert hub.num_sent < data_bytes / 5


def test_a_server_that_ignores_ranges_is_cut_off(hub):
    hub.obeys_ranges = False
    data_bytes = write_folder(hub.folder, dense.config, dense.spec)
    assert open_hub("org/model", endpoint=hub.url).resident_bytes == data_bytes


def test_a_gguf_is_chosen_by_its_quantization_or_its_name(hub):
    for name in ("tiny-Q4_K_M.gguf", "tiny-Q8_0.gguf"):
        write_gguf(hub.folder / name, "llama", llama_spec(), LLAMA_KEYS, vocab=64)
    for model in ("org/model:Q8_0", "org/model:q4_k_m", "org/model/tiny-Q8_0.gguf"):
        assert open_hub(model, endpoint=hub.url).kv[0].num_layers == 2
    with pytest.raises(CheckpointError, match="2 GGUF models") as caught:
        open_hub("org/model", endpoint=hub.url)
    assert "tiny-Q8_0.gguf" in caught.value.hint
    with pytest.raises(CheckpointError, match="Q2_K") as caught:
        open_hub("org/model:Q2_K", endpoint=hub.url)
    assert "tiny-Q4_K_M.gguf" in caught.value.hint


@pytest.mark.parametrize(("status", "says"), [(401, "refuses"), (403, "refuses"), (404, "know")])
def test_refusals_are_told_apart(hub, status, says):
    hub.status = status
    with pytest.raises(CheckpointError, match=says) as caught:
        open_hub("org/model", endpoint=hub.url)
    assert caught.value.hint


def test_without_a_network_and_a_cache_it_says_so(hub):
    hub.close()
    with pytest.raises(CheckpointError, match="cache does not have it"):
        open_hub("org/model", endpoint=hub.url)


def test_offline_the_cache_serves(hub, tmp_path, monkeypatch):
    commit = "0" * 40
    repo = tmp_path / "cache" / "models--org--model"
    data_bytes = write_folder(repo / "snapshots" / commit, dense.config, dense.spec)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert open_hub("org/model").resident_bytes == data_bytes
    assert hub.num_requests == 0


@pytest.mark.parametrize(
    ("model", "parts"),
    [
        ("org/name", ("org/name", None, None)),
        ("org/name@v2", ("org/name", None, "v2")),
        ("org/name:Q4_K_M", ("org/name", "Q4_K_M", None)),
        ("org/name@v2:Q4_K_M", ("org/name", "Q4_K_M", "v2")),
        ("org/name/sub/x.gguf", ("org/name", "sub/x.gguf", None)),
    ],
)
def test_ids_are_split(model, parts):
    assert split_id(model) == parts
