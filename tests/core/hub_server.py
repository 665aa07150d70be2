"""A hub of models as `huggingface_hub` asks it, and the storage that it redirects large files to.

Real HTTP over two ports: listings in pages, model info, HEAD, redirects, ranges, ETags, commits,
gated and private repositories, renamed ones, and refusals with the hub's own error codes.
"""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "hf_aSecretThatNobodyMaySee"
COMMIT = "8f5ae33b" * 5
LARGE = (".safetensors", ".gguf")


class Hub:
    """One repository, `org/model`, served out of a folder. Fields are the faults it can have."""

    def __init__(self, folder) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.revisions = {"main": COMMIT, COMMIT: COMMIT, "v2": COMMIT}
        self.renamed: dict[str, str] = {}
        self.is_gated = self.is_private = False
        self.token_has_access = True
        self.obeys_ranges, self.page_size, self.is_silent = True, 1000, False
        self.failures: list[tuple[int, dict]] = []  # one a request, first come
        self.status = 200  # of every answer, when not 200
        self.num_sent = self.num_requests = 0
        self.hub_tokens: set[str] = set()
        self.storage_tokens: set[str] = set()
        self.closing = threading.Event()
        self.storage = _serve(self, _answer_storage)
        self.server = _serve(self, _answer_hub)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        self.closing.set()
        for server in (self.server, self.storage):
            server.shutdown()
            server.server_close()

    def files(self) -> dict[str, int]:
        paths = [path for path in self.folder.rglob("*") if path.is_file()]
        return {path.relative_to(self.folder).as_posix(): path.stat().st_size for path in paths}

    def etag(self, name: str) -> str:
        data = (self.folder / name).read_bytes()
        if name.endswith(LARGE):
            return hashlib.sha256(data).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_arguments) -> None:
        pass

    def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command == "HEAD":
            return
        try:
            self.wfile.write(body)
            self.hub.num_sent += len(body)
        except ConnectionError:
            self.close_connection = True

    def refuse(self, status: int, code: str = "", message: str = "") -> None:
        self.reply(
            status,
            json.dumps({"error": message}).encode(),
            Content_Type="application/json",
            **({"X_Error_Code": code} if code else {}),
            **({"X_Error_Message": message} if message else {}),
        )

    def send_file(self, name: str, **headers: str) -> None:
        path, size = self.hub.folder / name, (self.hub.folder / name).stat().st_size
        headers |= {"ETag": f'"{self.hub.etag(name)}"', "Accept_Ranges": "bytes"}
        asked = self.headers.get("Range", "")
        if not asked or not self.hub.obeys_ranges:
            return self.reply(200, path.read_bytes(), **headers)
        first, last = asked.removeprefix("bytes=").split("-")
        start, end = int(first), min(int(last), size - 1)
        headers["Content_Range"] = f"bytes {start}-{end}/{size}"
        with path.open("rb") as file:
            file.seek(start)
            return self.reply(206, file.read(end + 1 - start), **headers)


def _serve(hub: Hub, answer) -> ThreadingHTTPServer:
    handler = type("Handler", (_Handler,), {"hub": hub, "do_GET": answer, "do_HEAD": answer})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def _answer_storage(request: _Handler) -> None:
    """Storage: an address with a signature, no token."""
    request.hub.storage_tokens.add(request.headers.get("Authorization", ""))
    request.send_file(unquote(urlsplit(request.path).path).removeprefix("/blobs/"))


def _answer_hub(request: _Handler) -> None:
    hub = request.hub
    hub.num_requests += 1
    token = request.headers.get("Authorization", "").removeprefix("Bearer ")
    hub.hub_tokens.add(token)
    if hub.is_silent:
        hub.closing.wait(60)
        return None
    if hub.failures:
        status, headers = hub.failures.pop(0)
        return request.reply(status, b"busy", **headers)
    if hub.status != 200:
        return request.refuse(hub.status)
    if token and token != TOKEN:
        return request.refuse(401, message="Invalid credentials in Authorization header")
    path = urlsplit(request.path).path
    for old, new in hub.renamed.items():
        if old in path:
            return request.reply(307, Location=request.path.replace(old, new))
    if "org/model" not in path or (hub.is_private and token != TOKEN):
        # what it says of an unknown repository depends on who asks
        return request.refuse(404 if token else 401, "RepoNotFound", "Repository not found")
    if path.startswith("/api/models/org/model"):
        return _answer_api(request, path.removeprefix("/api/models/org/model"))
    return _answer_file(request, token, path.removeprefix("/org/model/resolve/"))


def _answer_api(request: _Handler, rest: str) -> None:
    hub = request.hub
    _, _, revision = rest.removeprefix("/").partition("/")
    commit = hub.revisions.get(unquote(revision or "main"))
    if commit is None:
        return request.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
    files = sorted(hub.files().items())
    if not rest.startswith("/tree/"):
        siblings = [{"rfilename": name} for name, _ in files]
        info = {"id": "org/model", "sha": commit, "siblings": siblings, "tags": []}
        return request.reply(200, json.dumps(info).encode(), Content_Type="application/json")
    folders = {name.rpartition("/")[0] for name, _ in files if "/" in name}
    entries = [{"type": "directory", "path": path, "size": 0, "oid": "0"} for path in folders]
    entries += [_entry(hub, name, size) for name, size in files]
    query = parse_qs(urlsplit(request.path).query)
    start = int(query.get("cursor", ["0"])[0])
    page, more = entries[start : start + hub.page_size], start + hub.page_size < len(entries)
    address = f"{hub.url}/api/models/org/model/tree/{revision}?recursive=true"
    link = {"Link": f'<{address}&cursor={start + hub.page_size}>; rel="next"'} if more else {}
    return request.reply(200, json.dumps(page).encode(), Content_Type="application/json", **link)


def _entry(hub: Hub, name: str, size: int) -> dict:
    entry = {"type": "file", "path": name, "size": size, "oid": hub.etag(name)}
    if name.endswith(LARGE):  # the pointer's own oid, and the content's
        lfs = {"oid": hub.etag(name), "size": size, "pointerSize": 134}
        entry |= {"oid": "1" * 40, "lfs": lfs}
    return entry


def _answer_file(request: _Handler, token: str, rest: str) -> None:
    hub = request.hub
    revision, _, name = rest.partition("/")
    commit, name = hub.revisions.get(unquote(revision)), unquote(name)
    if hub.is_gated and not token:
        return request.refuse(401, "GatedRepo", "Access to model org/model is restricted.")
    if hub.is_gated and not hub.token_has_access:
        return request.refuse(403, "GatedRepo", "You are not in the authorized list.")
    if commit is None:
        return request.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
    if name not in hub.files():
        return request.refuse(404, "EntryNotFound", "Entry not found")
    if not name.endswith(LARGE):
        return request.send_file(name, X_Repo_Commit=commit)
    storage = f"http://127.0.0.1:{hub.storage.server_port}/blobs/{name}?X-Signature=secret"
    return request.reply(
        302,
        Location=storage,
        X_Repo_Commit=commit,
        X_Linked_ETag=f'"{hub.etag(name)}"',
        X_Linked_Size=str(hub.files()[name]),
    )
