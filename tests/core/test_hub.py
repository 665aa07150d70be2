"""Hub ids over a server that speaks the hub's protocol, counts bytes and can misbehave."""

import huggingface_hub
import huggingface_hub.constants
import huggingface_hub.utils
import pytest
from hub_server import Hub
from model_families import dense
from model_makers import write_folder, write_gguf
from test_checkpoint import LLAMA_KEYS, llama_spec

from sakiyomi.errors import CheckpointError
from sakiyomi.models.hub import open_hub, split_id


@pytest.fixture
def hub(tmp_path, monkeypatch):
    # The library reads its settings once, at import: its constants are its interface then.
    cache = tmp_path / "cache"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    server = Hub(tmp_path / "repo")
    yield server
    server.close()
    huggingface_hub.utils.close_session()


def test_headers_come_by_ranges(hub):
    spec = [*dense.spec, ("model.layers.0.mlp.big.weight", "BF16", (4096, 512))]
    data_bytes = write_folder(hub.folder, dense.config, spec, shards=2)
    seen = []
    found = open_hub(
        "org/model", endpoint=hub.url, on_header=lambda number, of: seen.append((number, of))
    )
    assert seen == [(1, 2), (2, 2)]
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


@pytest.mark.parametrize(("status", "says"), [(401, "private"), (403, "private"), (404, "know")])
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
