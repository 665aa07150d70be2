"""`sakiyomi bytes ORG/NAME` as a user runs it: a process of its own, settings in its environment."""

import json
import os
import subprocess
import sys

import pytest
from hub_server import COMMIT, TOKEN, Hub
from model_families import dense
from model_makers import write_folder, write_gguf
from test_checkpoint import LLAMA_KEYS, llama_spec

BIG = [*dense.spec, ("model.layers.0.mlp.big.weight", "BF16", (4096, 1024))]


@pytest.fixture
def hub(tmp_path):
    server = Hub(tmp_path / "repo")
    yield server
    server.close()


@pytest.fixture
def ask(sakiyomi, hub, tmp_path):
    """Runs `bytes`; the token that it may know shows nowhere."""

    def run(*arguments, **environment):
        settings = {
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "hf"),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DOWNLOAD_TIMEOUT": "5",
            "HF_TOKEN": "",
            "HF_HUB_OFFLINE": "",
        }
        done = sakiyomi("bytes", *arguments, **{**settings, **environment})
        assert TOKEN not in done.stdout + done.stderr
        assert "X-Signature" not in done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    yield run
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in written if TOKEN.encode() in path.read_bytes()]


def resident(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["models"][0]["resident_bytes"]


def test_headers_alone_cross_the_network_and_the_token_stays_with_the_hub(ask, hub, tmp_path):
    data_bytes = write_folder(hub.folder, dense.config, BIG, shards=3)
    hub.is_private, hub.page_size = True, 2
    assert resident(ask("org/model", "--json", HF_TOKEN=TOKEN)) == data_bytes
    assert hub.num_sent < data_bytes / 5
    assert hub.hub_tokens == {TOKEN}
    assert hub.storage_tokens == {""}  # a redirect to another host takes no token along
    assert not list((tmp_path / "hf").rglob("*.safetensors"))
    text = ask("org/model", HF_TOKEN=TOKEN).stdout
    assert text.startswith("org/model · headers of 3 safetensors files")


def test_a_revision_and_a_repository_that_moved(ask, hub):
    data_bytes = write_folder(hub.folder, dense.config, dense.spec)
    hub.renamed = {"org/before": "org/model"}
    for model in ("org/model@v2", f"org/model@{COMMIT}", "org/before"):
        assert resident(ask(model, "--json")) == data_bytes
    done = ask("org/model@v3")
    assert done.returncode == 2
    assert "org/model@v3: no such revision" in done.stderr


def test_offline_afterwards_from_the_local_cache(ask, hub, tmp_path):
    data_bytes = write_folder(hub.folder, dense.config, dense.spec, shards=2)
    offline = ask("org/model", HF_HUB_OFFLINE="1")
    assert offline.returncode == 2
    assert "HF_HUB_OFFLINE is set and the local cache does not have it" in offline.stderr
    assert "hf download org/model" in offline.stderr
    fetch(hub, tmp_path)
    asked, sent = hub.num_requests, hub.num_sent
    assert resident(ask("org/model", "--json", HF_HUB_OFFLINE="1")) == data_bytes
    assert hub.num_requests == asked
    resident(ask("org/model", "--json"))  # online: the listing, and nothing that the cache has
    assert (hub.num_requests, hub.num_sent - sent < 2000) == (asked + 1, True)
    hub.close()
    done = ask("org/model")
    assert done.returncode == 0
    assert "read from the local cache" in " ".join(done.stdout.split())


def test_a_model_that_changed_since_it_was_cached_is_asked_for_again(ask, hub, tmp_path):
    write_folder(hub.folder, dense.config, dense.spec)
    fetch(hub, tmp_path)
    data_bytes = write_folder(hub.folder, dense.config, BIG)
    assert resident(ask("org/model", "--json")) == data_bytes


def test_gguf_files_in_folders_are_chosen_online_and_offline(ask, hub, tmp_path):
    for name in ("Q8_0/tiny-Q8_0.gguf", "tiny-Q4_K_M.gguf"):
        (hub.folder / name).parent.mkdir(exist_ok=True)
        write_gguf(hub.folder / name, "llama", llama_spec(), LLAMA_KEYS, vocab=64)
    for model in ("org/model:Q8_0", "org/model/Q8_0/tiny-Q8_0.gguf", "org/model:q4_k_m"):
        assert resident(ask(model, "--json")) > 0
    done = ask("org/model")
    assert done.returncode == 2
    assert "org/model: 2 GGUF models are here" in done.stderr
    assert "Q8_0/tiny-Q8_0.gguf, tiny-Q4_K_M.gguf" in done.stderr
    fetch(hub, tmp_path)
    assert resident(ask("org/model:Q8_0", "--json", HF_HUB_OFFLINE="1")) > 0


@pytest.mark.parametrize(
    ("fault", "token", "says", "hint"),
    [
        ({"is_gated": True}, "", "gated: the hub does not let strangers in", "hf auth login"),
        (
            {"is_gated": True, "token_has_access": False},
            TOKEN,
            "gated: the hub does not let this token in",
            "accept its terms on http",
        ),
        ({"is_private": True}, "", "does not know it, or it is private", "set HF_TOKEN"),
        ({}, "hf_expired", "the hub refuses the token", "HF_TOKEN"),
        ({"status": 403}, "", "does not know it, or it is private", "set HF_TOKEN"),
        ({"is_silent": True}, "", "ReadTimeout", "HF_ENDPOINT"),
    ],
    ids=["gated", "no-access", "private", "expired", "forbidden", "silent"],
)
def test_refusals_say_what_to_try(ask, hub, fault, token, says, hint):
    write_folder(hub.folder, dense.config, dense.spec)
    for name, value in fault.items():
        setattr(hub, name, value)
    done = ask("org/model", HF_TOKEN=token, HF_HUB_DOWNLOAD_TIMEOUT="1")
    assert done.returncode == 2
    assert done.stdout == ""
    words = " ".join(done.stderr.split())
    assert says in words
    assert hint in words
    assert "hf_expired" not in words


def test_an_unknown_name_with_a_token(ask):
    done = ask("org/modle", HF_TOKEN=TOKEN)
    assert done.returncode == 2
    assert "org/modle: the hub does not know it" in done.stderr
    assert "check the name" in done.stderr


def test_a_misspelt_folder_of_two_names_is_asked_for_but_its_like_is_named(
    ask, hub, tmp_path, monkeypatch
):
    write_folder(tmp_path / "models" / "llama-8b", dense.config, dense.spec)
    monkeypatch.chdir(tmp_path)
    done = ask("models/lama-8b")
    assert done.returncode == 2
    assert "did you mean models/llama-8b? Or check the name" in done.stderr


def test_a_busy_hub_is_asked_again(ask, hub):
    data_bytes = write_folder(hub.folder, dense.config, dense.spec)
    hub.failures = [(503, {}), (429, {"Retry_After": "0"})]
    assert resident(ask("org/model", "--json")) == data_bytes
    hub.failures = [(503, {})] * 9
    done = ask("org/model")
    assert done.returncode == 2
    assert "503" in done.stderr
    assert "the local cache does not have it" in done.stderr


def test_a_server_that_ignores_ranges_is_never_downloaded(ask, hub):
    spec = [("model.layers.0.mlp.big.weight", "BF16", (65536, 1024)), *dense.spec]  # 134 MB
    data_bytes = write_folder(hub.folder, dense.config, spec)
    hub.obeys_ranges = False
    assert resident(ask("org/model", "--json")) == data_bytes
    assert hub.num_sent < 10_000  # its one long answer broke off
    write_gguf(hub.folder / "x.gguf", "llama", llama_spec(), LLAMA_KEYS, vocab=200_000)
    done = ask("org/model/x.gguf")
    assert done.returncode == 2
    assert "ignores ranges" in done.stderr
    assert "hf download org/model" in done.stderr


def fetch(hub, tmp_path):
    """The library's own download into its cache, as `hf download` does it."""
    subprocess.run(
        [sys.executable, "-c", "import huggingface_hub as h; h.snapshot_download('org/model')"],
        check=True,
        capture_output=True,
        env={**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HF_TOKEN": ""},
    )
