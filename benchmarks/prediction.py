"""Bytes predict speed: two quantizations of one model, predicted against measured ratio.

    python benchmarks/prediction.py [--conversations 6] [--max-tokens 64]

The embedded engine's Q4_1 model is written again as Q8_0 (requantised, so its answers may differ;
only its speed is looked at). Both are run plain, alternating, and the ratio of decode rates is
printed beside the ratio of read bytes, as it comes out. Needs sakiyomi[local], gguf and numpy.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np

from sakiyomi.embedded import plain_arm
from sakiyomi.model_file import fetch_model
from sakiyomi.models.checkpoint import open_checkpoint
from sakiyomi.models.roofline import predict

Q8_0 = gguf.GGMLQuantizationType.Q8_0


def requantise(source: Path, target: Path) -> None:
    """Write every matrix of a GGUF file as Q8_0; vectors stay as they are."""
    reader = gguf.GGUFReader(str(source))
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(str(target), architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=inner)
    for tensor in reader.tensors:
        if tensor.tensor_type in (gguf.GGMLQuantizationType.F32, Q8_0):
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
            continue
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        writer.add_tensor(tensor.name, gguf.quantize(values, Q8_0), raw_dtype=Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def arm(name: str, model: Path) -> str:
    found = plain_arm(model, name=name)
    words = {"command": list(found.command), "args": list(found.args)}
    lines = [f"{key} = {json.dumps(value)}" for key, value in words.items()]
    head = f'[[arms]]\nname = "{name}"\nengine = "llama.cpp"\nmodel = "{model}"\n'
    return head + "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=6)
    parser.add_argument("--max-tokens", type=int, default=64)
    options = parser.parse_args()
    small = fetch_model(print)
    with tempfile.TemporaryDirectory() as folder:
        large = Path(folder) / "SmolLM2-135M-Instruct.Q8_0.gguf"
        requantise(small, large)
        plan = Path(folder) / "plan.toml"
        plan.write_text(
            'name = "Q4_1 against Q8_0"\nrepeats = 2\nschedule = "alternate"\n'
            + arm("q8_0", large)
            + arm("q4_1", small)
            + f'[[scenarios]]\nname = "en_chat"\nnum_requests = {options.conversations}\n'
            + f"max_tokens = {options.max_tokens}\n"
        )
        run = [sys.executable, "-m", "sakiyomi.cli", "run", str(plan), "--out", f"{folder}/run"]
        done = subprocess.run([*run, "--json"], stdout=subprocess.PIPE, text=True, check=True)
        report = json.loads(done.stdout)
        cells = {cell["arm"]: cell for cell in report["cells"]}
        reads = {
            name: predict(
                open_checkpoint(str(path)),
                None,
                context=cells[name]["context_tokens"],
                batch=1,
                k=0,
            ).plain_bytes
            for name, path in (("q8_0", large), ("q4_1", small))
        }
    ratio = report["comparisons"][0]["ratio"]
    for name, size in reads.items():
        rate = cells[name]["decode_tokens_per_s"]["point"]
        print(f"{name}: {size / 1e6:.1f} MB a step, {rate:.1f} tok/s, {size * rate / 1e9:.2f} GB/s")
    print(f"predicted by bytes  x{reads['q8_0'] / reads['q4_1']:.2f}")
    print(f"measured            x{ratio['point']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})")


if __name__ == "__main__":
    main()
