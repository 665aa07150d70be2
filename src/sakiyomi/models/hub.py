"""A model on the Hugging Face hub: ranges of its headers, through `huggingface_hub`.

Its settings hold: HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_OFFLINE. What lies in its cache is read
there; without a network the cache is all there is.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from sakiyomi.errors import CheckpointError
from sakiyomi.models.model_files import folder_files, gguf_sets, header_file, read_files
from sakiyomi.models.read_model import read_gguf_model
from sakiyomi.models.tensors import HeaderFile, Read
from sakiyomi.models.weights import ReadBytes

PREFETCH_BYTES = 1 << 17
"""Fetched with the first read of a file: most safetensors headers are shorter (one request)."""

NUM_THREADS = 16
NUM_RETRIES = 2
BUSY = (429, 500, 502, 503, 504)
LOG_IN = "set HF_TOKEN, or: hf auth login"


class Repository(NamedTuple):
    """Where to ask: the library, the repository, its revision (None: main), another endpoint."""

    hub: Any
    repo_id: str
    revision: str | None
    endpoint: str | None

    @property
    def name(self) -> str:
        """The id with its revision, for messages."""
        return f"{self.repo_id}@{self.revision}" if self.revision else self.repo_id


def open_hub(
    model: str,
    *,
    assume_bits: float | None = None,
    endpoint: str | None = None,
    on_header: Callable[[int, int], None] | None = None,
) -> ReadBytes:
    """Read `ORG/NAME[@REVISION]`, alone or with a GGUF file: `:Q4_K_M` or `/FILE.gguf`.

    `on_header` is called with the number of headers that have come and of all.
    """
    repo_id, choice, revision = split_id(model)
    repository = Repository(_import_hub(), repo_id, revision, endpoint)
    files, caution = _files(repository)
    if choice is not None:
        sets = gguf_sets(files)
        found = [name for name in sets if _is_chosen(name, choice)]
        if len(found) != 1:
            raise CheckpointError(
                f"{repository.name}: {len(found)} GGUF models go by {choice!r}",
                "it has " + (", ".join(sorted(sets)[:12]) or "none"),
            )
        shards = [files[shard] for shard in sets[found[0]]]
        _prefetch(shards, on_header)
        name = f"{repository.name}/{found[0]}"
        read = read_gguf_model(shards, name=name, assume_bits=assume_bits)
    else:
        shards = [file for name, file in files.items() if name.endswith(".safetensors")]
        _prefetch(shards, on_header)
        read = read_files(files, name=repository.name, assume_bits=assume_bits)
    return msgspec.structs.replace(read, cautions=(*caution, *read.cautions))


def split_id(model: str) -> tuple[str, str | None, str | None]:
    """Split an id into repository, choice of a GGUF file, and revision."""
    owner, _, rest = model.partition("/")
    name, _, file = rest.partition("/")
    name, _, choice = name.partition(":")
    name, _, revision = name.partition("@")
    return f"{owner}/{name}", (file or choice or None), (revision or None)


def _is_chosen(name: str, choice: str) -> bool:
    if name == choice:
        return True
    stem = name.lower().removesuffix(".gguf").partition("-00001-of-")[0]
    return stem.endswith((f"-{choice.lower()}", f".{choice.lower()}", f"/{choice.lower()}"))


def _import_hub() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError:
        raise CheckpointError(
            "a hub id needs huggingface_hub", "pip install 'sakiyomi[hub]', or give a folder"
        ) from None
    return huggingface_hub


def _files(repository: Repository) -> tuple[Mapping[str, HeaderFile], tuple[str, ...]]:
    """The repository's files, and a caution where the cache stands in for the hub."""
    if repository.hub.constants.HF_HUB_OFFLINE:
        return _cached_files(repository, "HF_HUB_OFFLINE is set"), ()
    try:
        entries = _list(repository)
    except CheckpointError:
        raise
    except Exception as error:  # noqa: BLE001  # any failure of the network: the cache may have it
        reason = f"the hub cannot be asked ({_first_line(error)})"
        return _cached_files(repository, reason), (f"{reason}: read from the local cache",)
    files = {
        entry["path"]: HeaderFile(
            where=f"{repository.name}/{entry['path']}",
            size_bytes=entry["size"],
            read=_reader(repository, entry),
        )
        for entry in entries
        if entry["type"] == "file" and ("/" not in entry["path"] or entry["path"].endswith(".gguf"))
    }
    return files, ()


def _list(repository: Repository) -> list[dict[str, Any]]:
    """Entries of a repository: paths, sizes, hashes. The library's own call retries for 25 s."""
    hub = repository.hub
    root = repository.endpoint or hub.constants.ENDPOINT
    revision = quote(repository.revision or "main", safe="")
    url = f"{root}/api/models/{repository.repo_id}/tree/{revision}?recursive=true"
    entries: list[dict[str, Any]] = []
    while url:
        with _ask(repository, url, repository.name) as answer:
            entries += json.loads(answer.read())
            url = answer.links.get("next", {}).get("url", "")
    return entries


def _cached_files(repository: Repository, reason: str) -> Mapping[str, HeaderFile]:
    """The files of the cache: of all that was fetched of this revision."""
    hub, repo_id = repository.hub, repository.repo_id
    try:
        folder = Path(
            hub.snapshot_download(repo_id, revision=repository.revision, local_files_only=True)
        )
    except Exception as error:
        raise CheckpointError(
            f"{repository.name}: {reason} and the local cache does not have it",
            f"when online: hf download {repo_id}; or check the network, HF_ENDPOINT and "
            "HF_HUB_OFFLINE; or give a local folder",
        ) from error
    deeper = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.gguf")}
    return {
        **folder_files(folder),
        **{name: header_file(path) for name, path in deeper.items()},
    }


def _reader(repository: Repository, entry: Mapping[str, Any]) -> Read:
    """Read of the cache where it has this very content, else ask for ranges; the start is kept."""
    hub, path, size_bytes = repository.hub, entry["path"], entry["size"]
    cached = hub.try_to_load_from_cache(repository.repo_id, path, revision=repository.revision)
    content = (entry.get("lfs") or entry).get("oid")
    # the cache keeps content under its hash; where it holds copies instead, the hub is asked
    if isinstance(cached, str) and Path(cached).resolve().name == content:
        return header_file(Path(cached)).read
    lock = threading.Lock()
    kept: list[bytes] = []
    url = hub.hf_hub_url(
        repository.repo_id, path, revision=repository.revision, endpoint=repository.endpoint
    )
    fetch = partial(_fetch, repository, url, f"{repository.name}/{path}")

    def read(offset: int, length: int) -> bytes:
        with lock:
            if not kept:
                start = fetch(0, min(PREFETCH_BYTES, size_bytes))
                is_safetensors = path.endswith(".safetensors")  # its header's length comes first
                header_bytes = 8 + int.from_bytes(start[:8], "little")
                kept.append(start[:header_bytes] if is_safetensors else start)
        if offset + length <= len(kept[0]):
            return kept[0][offset : offset + length]
        return fetch(offset, min(length, max(0, size_bytes - offset)))

    return read


def _fetch(repository: Repository, url: str, where: str, offset: int, length: int) -> bytes:
    """A range, and never more: a server that ignores ranges is cut off at the length."""
    if length <= 0:
        return b""
    wanted = {"Range": f"bytes={offset}-{offset + length - 1}", "Accept-Encoding": "identity"}
    body = bytearray()
    try:
        with _ask(repository, url, where, wanted) as answer:
            skip = 0 if answer.status_code == 206 else _skipped(repository, where, offset)
            for piece in answer.iter_bytes():
                body += piece
                if len(body) >= skip + length:
                    break
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"{where}: {_first_line(error)}", "try again, or give a local folder"
        ) from error
    return bytes(body[skip : skip + length])


def _skipped(repository: Repository, where: str, offset: int) -> int:
    """Bytes to throw away where a server ignores ranges; refused when they are many."""
    if offset > PREFETCH_BYTES:
        raise CheckpointError(
            f"{where}: the server ignores ranges: it would send the whole file",
            f"hf download {repository.repo_id}, then give its folder",
        )
    return offset


@contextmanager
def _ask(
    repository: Repository, url: str, where: str, headers: Mapping[str, str] | None = None
) -> Iterator[Any]:
    """The hub's answer. A refusal that waiting cannot mend is an error that says what to try.

    The library's session waits without limit, so its own limit of a download is given.
    """
    hub = repository.hub
    with hub.utils.http_stream_backoff(
        "GET",
        url,
        max_retries=NUM_RETRIES,
        retry_on_exceptions=(),
        retry_on_status_codes=BUSY,
        headers={**hub.utils.build_hf_headers(), **(headers or {})},
        follow_redirects=True,
        timeout=hub.constants.HF_HUB_DOWNLOAD_TIMEOUT,
    ) as answer:
        try:
            hub.utils.hf_raise_for_status(answer)
        except hub.errors.HfHubHTTPError as error:
            raise _refusal(repository, error, where) from None
        yield answer


def _refusal(repository: Repository, error: Any, where: str) -> CheckpointError:
    """What the hub refuses, and what can be done about it."""
    hub, status = repository.hub, error.response.status_code
    has_token = hub.get_token() is not None
    if isinstance(error, hub.errors.GatedRepoError):
        page = f"accept its terms on {hub.constants.ENDPOINT}/{repository.repo_id}"
        return CheckpointError(
            f"{where}: gated: the hub does not let {'this token' if has_token else 'strangers'} in",
            page + (" with the account of this token" if has_token else f", then {LOG_IN}"),
        )
    if isinstance(error, hub.errors.RevisionNotFoundError):
        return CheckpointError(
            f"{where}: no such revision", "give a branch, a tag or a commit, or none: ORG/NAME"
        )
    if status == 401 and has_token and not isinstance(error, hub.errors.RepositoryNotFoundError):
        return CheckpointError(
            f"{where}: the hub refuses the token", f"{LOG_IN}; a public model needs none"
        )
    if status in (401, 403, 404):
        return CheckpointError(
            f"{where}: the hub does not know it, or it is private ({status})",
            "check the name" + ("" if has_token else f"; a private one: {LOG_IN}"),
        )
    return CheckpointError(f"{where}: {_first_line(error)}", "try again, or give a local folder")


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip().splitlines()[0][:200]


def _prefetch(files: list[HeaderFile], on_header: Callable[[int, int], None] | None) -> None:
    """Fetch the starts of all files at once: a thousand shards one by one take minutes."""
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        for number, _ in enumerate(pool.map(lambda file: file.read(0, 8), files), start=1):
            if on_header is not None:
                on_header(number, len(files))
