"""A model on the Hugging Face hub: ranges of its headers, through `huggingface_hub`.

Its settings hold: HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_OFFLINE. What lies in its cache is read
there; without a network the cache is all there is.
"""

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sakiyomi.errors import CheckpointError
from sakiyomi.models.model_files import folder_files, gguf_sets, read_files
from sakiyomi.models.read_model import read_gguf_model
from sakiyomi.models.tensors import HeaderFile, Read
from sakiyomi.models.weights import ReadBytes

PREFETCH_BYTES = 1 << 17
"""Fetched with the first read of a file: most safetensors headers are shorter (one request)."""

NUM_THREADS = 16


def open_hub(
    model: str, *, assume_bits: float | None = None, endpoint: str | None = None
) -> ReadBytes:
    """Read `ORG/NAME[@REVISION]`, alone or with a GGUF file: `:Q4_K_M` or `/FILE.gguf`."""
    hub = _import_hub()
    repo_id, choice, revision = split_id(model)
    files = _files(hub, repo_id, revision, endpoint)
    if choice is not None:
        sets = gguf_sets(files)
        found = [name for name in sets if _is_chosen(name, choice)]
        if len(found) != 1:
            raise CheckpointError(
                f"{repo_id}: {len(found)} GGUF models go by {choice!r}",
                "it has " + (", ".join(sorted(sets)[:12]) or "none"),
            )
        shards = [files[name] for name in sets[found[0]]]
        return read_gguf_model(shards, name=f"{repo_id}/{found[0]}", assume_bits=assume_bits)
    _prefetch([file for name, file in files.items() if name.endswith(".safetensors")])
    return read_files(files, name=repo_id, assume_bits=assume_bits)


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
        import huggingface_hub.utils
    except ImportError:
        raise CheckpointError(
            "a hub id needs huggingface_hub", "pip install 'sakiyomi[hub]', or give a folder"
        ) from None
    return huggingface_hub


def _files(
    hub: Any, repo_id: str, revision: str | None, endpoint: str | None
) -> Mapping[str, HeaderFile]:
    if hub.constants.HF_HUB_OFFLINE:
        return _cached_files(hub, repo_id, revision, "HF_HUB_OFFLINE is set")
    try:
        entries = _list(hub, repo_id, revision, endpoint)
    except CheckpointError:
        raise
    except Exception as error:  # noqa: BLE001  # any failure of the network: the cache may have it
        return _cached_files(hub, repo_id, revision, f"{type(error).__name__}: {error}")
    return {
        path: HeaderFile(
            where=f"{repo_id}/{path}",
            size_bytes=size_bytes,
            read=_cached_or_remote(hub, (repo_id, path, revision), endpoint, size_bytes),
        )
        for path, size_bytes in entries
        if "/" not in path or path.endswith(".gguf")
    }


def _list(
    hub: Any, repo_id: str, revision: str | None, endpoint: str | None
) -> list[tuple[str, int]]:
    """Paths and sizes of a repository's files. The library's own call retries for 25 s."""
    root = endpoint or hub.constants.ENDPOINT
    url = f"{root}/api/models/{repo_id}/tree/{quote(revision or 'main', safe='')}?recursive=true"
    entries: list[tuple[str, int]] = []
    while url:
        answer = hub.get_session().get(
            url, headers=hub.utils.build_hf_headers(), follow_redirects=True
        )
        _check_listing(answer.status_code, repo_id)
        entries += [(item["path"], item["size"]) for item in answer.json() if "size" in item]
        url = answer.links.get("next", {}).get("url", "")
    return entries


def _check_listing(status: int, repo_id: str) -> None:
    """Refuse what a cache cannot mend."""
    if status in (401, 403):
        raise CheckpointError(
            f"{repo_id}: the hub refuses ({status})",
            "check the name; a gated model needs its licence accepted and HF_TOKEN set",
        )
    if status == 404:
        raise CheckpointError(f"{repo_id}: the hub does not know it", "check the name")
    if status != 200:
        raise ConnectionError(f"the hub answers {status}")


def _cached_files(
    hub: Any, repo_id: str, revision: str | None, reason: str
) -> Mapping[str, HeaderFile]:
    try:
        folder = hub.snapshot_download(repo_id, revision=revision, local_files_only=True)
    except Exception as error:
        first = reason.splitlines()[0][:200]
        raise CheckpointError(
            f"{repo_id}: the hub cannot be asked ({first}) and the cache does not have it",
            "check the network and HF_ENDPOINT, or give a local folder",
        ) from error
    return folder_files(Path(folder))


def _cached_or_remote(
    hub: Any, file: tuple[str, str, str | None], endpoint: str | None, size_bytes: int
) -> Read:
    """Read of the cache where the file is in it, else ask for ranges; the start is kept."""
    repo_id, name, revision = file
    lock = threading.Lock()
    kept: list[bytes] = []
    cached = hub.try_to_load_from_cache(repo_id, name, revision=revision)
    if isinstance(cached, str):
        return folder_files(Path(cached).parent)[Path(cached).name].read
    url = hub.hf_hub_url(repo_id, name, revision=revision, endpoint=endpoint)
    fetch = partial(_fetch, hub, url, f"{repo_id}/{name}")

    def read(offset: int, length: int) -> bytes:
        with lock:
            if not kept:
                kept.append(fetch(0, min(PREFETCH_BYTES, size_bytes)))
        if offset + length <= len(kept[0]):
            return kept[0][offset : offset + length]
        return fetch(offset, min(length, max(0, size_bytes - offset)))

    return read


def _fetch(hub: Any, url: str, where: str, offset: int, length: int) -> bytes:
    """A range, and never more: a server that ignores ranges is cut off at the length."""
    if length <= 0:
        return b""
    headers = hub.utils.build_hf_headers() | {
        "Range": f"bytes={offset}-{offset + length - 1}",
        "Accept-Encoding": "identity",
    }
    try:
        with hub.get_session().stream("GET", url, headers=headers, follow_redirects=True) as answer:
            skip = _check_answer(answer.status_code, offset, where)
            body = b""
            for piece in answer.iter_bytes():
                body += piece
                if len(body) >= skip + length:
                    break
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(f"{where}: {type(error).__name__}: {error}", "try again") from error
    return body[skip : skip + length]


def _check_answer(status: int, offset: int, where: str) -> int:
    """How many bytes of the body come before the range: none, or all where ranges are ignored."""
    if status not in (200, 206):
        raise CheckpointError(
            f"{where}: the hub answers {status}",
            "a gated model needs its licence accepted and HF_TOKEN set",
        )
    if status == 200 and offset > PREFETCH_BYTES:
        raise CheckpointError(
            f"{where}: the server ignores ranges", "download the model, give its folder"
        )
    return offset if status == 200 else 0


def _prefetch(files: list[HeaderFile]) -> None:
    """Fetch the starts of all files at once: a thousand shards one by one take minutes."""
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        for _ in pool.map(lambda file: file.read(0, 8), files):
            pass
