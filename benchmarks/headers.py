"""Headers of a large model: 1,000 shards, 80,000 tensors, 400 GB by their offsets, read by `bytes`.

    python benchmarks/headers.py [--gguf FILE]

The files are sparse: the headers are real, the weights take no disk. Read once from the folder and
once through a hub (the tests' own, in this process) that redirects, with ranges.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "core"))
from hub_server import Hub

NUM_SHARDS, LAYERS_A_SHARD, HIDDEN, INTERMEDIATE, VOCABULARY = 1000, 4, 4096, 4096, 128_256
SHAPES = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (256, HIDDEN),
    "self_attn.v_proj": (256, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    **{f"mlp.part{index}": (INTERMEDIATE // 16, HIDDEN) for index in range(16)},
}
CONFIG = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": NUM_SHARDS * LAYERS_A_SHARD,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": True,
}


class LargeHub(Hub):
    """A hub that hashes and lists no 400 GB at each request."""

    def files(self) -> dict[str, int]:
        if not hasattr(self, "listed"):
            self.listed = super().files()
        return self.listed

    def etag(self, name: str) -> str:
        return name


def write(folder: Path) -> float:
    folder.mkdir()
    weight_map: dict[str, str] = {}
    total = 0
    for shard in range(NUM_SHARDS):
        name = f"model-{shard + 1:05d}-of-{NUM_SHARDS:05d}.safetensors"
        layers = range(shard * LAYERS_A_SHARD, (shard + 1) * LAYERS_A_SHARD)
        shapes = {
            f"model.layers.{layer}.{part}.weight": shape
            for layer in layers
            for part, shape in SHAPES.items()
        }
        if not shard:
            shapes["model.embed_tokens.weight"] = (VOCABULARY, HIDDEN)
        entries, end = {}, 0
        for tensor, (rows, columns) in shapes.items():
            begin, end = end, end + 2 * rows * columns
            entries[tensor] = {
                "dtype": "BF16",
                "shape": [rows, columns],
                "data_offsets": [begin, end],
            }
            weight_map[tensor] = name
        header = json.dumps(entries).encode()
        with (folder / name).open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(8 + len(header) + end)
        total += end
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return total


def measure(what: str, model: str, **environment: str) -> None:
    command = [sys.executable, "-m", "sakiyomi.cli", "bytes", model, "--json"]
    started = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, env={**os.environ, **environment}
    )
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, model
    print(f"{what:<28}{seconds:6.2f} s{usage.ru_maxrss / 1024:8.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gguf", help="a GGUF file to read as well")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "repo"
        print(f"{write(folder) / 1e9:.0f} GB in {NUM_SHARDS} shards")
        measure("folder", str(folder))
        hub = LargeHub(folder)
        measure("hub", "org/model", HF_ENDPOINT=hub.url, HF_HOME=scratch, HF_TOKEN="")
        print(f"{'sent by the hub':<28}{hub.num_sent / 1e6:6.0f} MB of {hub.num_requests} requests")
        hub.close()
    if arguments.gguf:
        measure("a local GGUF", arguments.gguf)


if __name__ == "__main__":
    main()
