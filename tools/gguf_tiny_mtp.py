"""Write tests/live/models/tiny-qwen3.5-mtp as GGUF, MTP layer included, for llama.cpp.

    python tools/gguf_tiny_mtp.py tests/live/models/tiny-qwen3.5-mtp OUT.gguf

Needs the packages gguf and numpy. Only for that model: one key head per linear layer (with more,
llama.cpp wants the value heads in another order) and byte-level BPE with GPT-2's splitting.

What llama.cpp expects of a Qwen3.5 file, read in its converter (ggml-org/llama.cpp,
conversion/qwen.py at 03173d5e): norms hold 1 + weight, except the one inside linear attention;
`ssm_a` holds -exp(A_log); the MTP layer is one more block, counted in block_count, named in
nextn_predict_layers, its own parts under `nextn.`; rope.dimension_sections is required.
"""

import argparse
import json
import struct
from pathlib import Path

import gguf
import numpy as np

LAYER_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
MTP_NAMES = {
    "mtp.fc.weight": "nextn.eh_proj.weight",
    "mtp.pre_fc_norm_embedding.weight": "nextn.enorm.weight",
    "mtp.pre_fc_norm_hidden.weight": "nextn.hnorm.weight",
    "mtp.norm.weight": "nextn.shared_head_norm.weight",
}
TOP_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
}


def read_bf16(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a safetensors file in float32."""
    raw = path.read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        bits = np.frombuffer(raw[begin:end], dtype=np.uint16).astype(np.uint32) << 16
        tensors[name] = bits.view(np.float32).reshape(entry["shape"])
    return tensors


def gguf_name(name: str, num_layers: int) -> str:
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    if name in MTP_NAMES:
        return f"blk.{num_layers}.{MTP_NAMES[name]}"
    if name.startswith("mtp.layers."):
        _, _, index, rest = name.split(".", 3)
        return f"blk.{num_layers + int(index)}.{LAYER_NAMES[rest]}"
    _, _, index, rest = name.split(".", 3)
    return f"blk.{index}.{LAYER_NAMES[rest]}"


def gguf_values(name: str, values: np.ndarray) -> np.ndarray:
    if name.endswith(".A_log"):
        return -np.exp(values)
    if name.endswith(".conv1d.weight"):
        return values.squeeze(1)
    is_norm = "norm" in name and not name.endswith("linear_attn.norm.weight")
    if is_norm:
        return values + 1
    return values


def write_parameters(writer: gguf.GGUFWriter, config: dict) -> None:
    layers, extra = config["num_hidden_layers"], config["mtp_num_hidden_layers"]
    rope = config["rope_parameters"]
    writer.add_name("tiny-qwen3.5-mtp")
    writer.add_block_count(layers + extra)
    writer.add_nextn_predict_layers(extra)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(config["head_dim"] * rope["partial_rotary_factor"]))
    writer.add_rope_dimension_sections([11, 11, 10, 0])
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
    inner = config["linear_value_head_dim"] * config["linear_num_value_heads"]
    writer.add_ssm_inner_size(inner)
    writer.add_full_attention_interval(config["layer_types"].index("full_attention") + 1)


def write_tokenizer(writer: gguf.GGUFWriter, folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    special = {entry["id"] for entry in tokenizer["added_tokens"]}
    vocabulary = tokenizer["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    kinds = [
        gguf.TokenType.CONTROL if index in special else gguf.TokenType.NORMAL
        for index in range(len(tokens))
    ]
    merges = [
        " ".join(pair) if isinstance(pair, list) else pair for pair in tokenizer["model"]["merges"]
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(vocabulary[settings["eos_token"]])
    writer.add_add_bos_token(False)
    writer.add_chat_template(settings["chat_template"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    config = json.loads((arguments.folder / "config.json").read_text(encoding="utf-8"))
    if config["linear_num_key_heads"] != 1:
        parser.error("only a model with one key head per linear layer can be written")
    writer = gguf.GGUFWriter(arguments.out, "qwen35")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    write_parameters(writer, config)
    write_tokenizer(writer, arguments.folder)
    for path in sorted(arguments.folder.glob("*.safetensors")):
        for name, values in read_bf16(path).items():
            target = gguf_name(name, config["num_hidden_layers"])
            changed = np.ascontiguousarray(gguf_values(name, values), dtype=np.float32)
            matrix = changed.ndim == 2 and "conv1d" not in target
            kind = gguf.GGMLQuantizationType.BF16 if matrix else gguf.GGMLQuantizationType.F32
            writer.add_tensor(target, gguf.quantize(changed, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
