"""Header parsers against the writers' own readers, and headers that lie."""

import json

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_families import FAMILIES, dense
from model_makers import write_folder, write_gguf
from safetensors import safe_open

from sakiyomi.errors import CheckpointError
from sakiyomi.models.ggml_types import GGML_TYPES
from sakiyomi.models.gguf_header import read_gguf_header
from sakiyomi.models.packing import split_module
from sakiyomi.models.safetensors_header import read_safetensors_header
from sakiyomi.models.tensor_roles import role_of, scan_names


class Source:
    """Bytes with a ledger of what was read."""

    def __init__(self, data: bytes, size_bytes: int | None = None) -> None:
        self.data, self.size_bytes, self.num_read = data, size_bytes or len(data), 0

    def read(self, offset: int, length: int) -> bytes:
        piece = self.data[offset : offset + length]
        self.num_read += len(piece)
        return piece


def header(entries: object, data: bytes = b"", *, claimed: int | None = None) -> Source:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    length = len(text) if claimed is None else claimed
    return Source(length.to_bytes(8, "little") + text + data)


def parse(source: Source):
    return read_safetensors_header(source.read, size_bytes=source.size_bytes, where="file")


@pytest.mark.parametrize("name", FAMILIES)
def test_tensors_are_those_of_the_safetensors_library(tmp_path, name):
    family = FAMILIES[name]
    write_folder(tmp_path, family.config, family.spec)
    path = tmp_path / "model.safetensors"
    found = {tensor.name: tensor for tensor in parse(Source(path.read_bytes()))}
    with safe_open(path, framework="numpy") as file:
        assert {*file.keys()} == {*found}
        for key in file.keys():  # noqa: SIM118
            piece = file.get_slice(key)
            assert tuple(piece.get_shape()) == found[key].shape
            assert piece.get_dtype() == found[key].dtype


ONE = {"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (Source(b"abc"), "3 bytes"),
        (header(ONE, b"1234", claimed=200_000_000), "limit"),
        (header(ONE, b"1234", claimed=90_000_000), "the file has"),
        (header(b"{not json", b""), "JSON"),
        (header([1, 2], b""), "JSON"),
        (header(ONE, b"123"), "ends at byte 4"),
        (header({"a": {"dtype": "U8", "shape": [5], "data_offsets": [0, 4]}}, b"1234"), "span 4"),
        (header({"a": {"dtype": "U8", "shape": [4], "data_offsets": [4, 0]}}, b"1234"), "4 to 0"),
        (header({"a": {"dtype": "U8", "shape": [4]}}, b"1234"), "tensor a"),
        (header({"a": {"shape": [4], "data_offsets": [0, 4]}}, b"1234"), "tensor a"),
        (header({"a": {"dtype": "U8", "shape": "x", "data_offsets": [0, 4]}}, b"12"), "tensor a"),
        (
            header(ONE | {"b": {"dtype": "U8", "shape": [4], "data_offsets": [2, 6]}}, b"x" * 6),
            "ov",
        ),
    ],
)
def test_a_header_that_lies_is_refused(source, says):
    with pytest.raises(CheckpointError, match=says) as caught:
        parse(source)
    assert caught.value.hint
    assert source.num_read <= len(source.data)


def test_a_header_cut_short_is_refused():
    source = header(ONE)
    source.size_bytes += 1_000_000
    source.data = source.data[:-5]
    with pytest.raises(CheckpointError, match="ends after"):
        parse(source)


@pytest.mark.parametrize(
    ("dtype", "shape", "num_bytes", "num_parameters"),
    [  # F57
        ("F8_E8M0", [4, 4], 16, 16),
        ("F4", [4, 4], 8, 16),  # the shape counts elements of half a byte
        ("F6_E3M2", [4, 4], 12, 16),
        ("XYZ", [4, 4], 24, 16),
    ],
)
def test_new_dtypes_keep_their_bytes(tmp_path, dtype, shape, num_bytes, num_parameters):
    from sakiyomi.models.checkpoint import open_checkpoint

    write_folder(tmp_path, dense.config, dense.spec)
    entry = {"dtype": dtype, "shape": shape, "data_offsets": [0, num_bytes]}
    source = header({"model.layers.0.mlp.extra.weight": entry}, bytes(num_bytes))
    (tmp_path / "extra.safetensors").write_bytes(source.data)
    before = dense.parameters
    found = open_checkpoint(str(tmp_path))
    assert found.num_parameters - before == num_parameters
    is_unknown = dtype == "XYZ"
    assert any("XYZ" in caution for caution in found.cautions) == is_unknown
    if is_unknown:
        assumed = open_checkpoint(str(tmp_path), assume_bits=4)
        assert assumed.num_parameters - before == num_bytes * 8 / 4
        assert not any("XYZ" in caution for caution in assumed.cautions)


SPEC = [
    ("token_embd.weight", "Q6_K", (64, 256)),
    ("blk.0.attn_q.weight", "Q4_K", (256, 256)),
    ("blk.0.attn_norm.weight", "F32", (256,)),
    ("blk.0.ffn_gate_exps.weight", "MXFP4", (4, 64, 256)),
    ("output.weight", "F16", (64, 256)),
]
KEYS = {"block_count": 1, "embedding_length": 256, "attention.head_count_kv": [4, 0, 2]}


def read_file(path, **kwargs):
    data = path.read_bytes()
    return read_gguf_header(Source(data).read, size_bytes=len(data), where="file", **kwargs)


def test_gguf_tensors_are_those_of_the_gguf_library(tmp_path):
    path = tmp_path / "model.gguf"
    write_gguf(path, "llama", SPEC, KEYS, vocab=3000)
    found = read_file(path)
    reader = gguf.GGUFReader(path)
    expected = {tensor.name: tensor for tensor in reader.tensors}
    assert [tensor.name for tensor in found.tensors] == [*expected]
    for tensor in found.tensors:
        oracle = expected[tensor.name]
        assert tensor.num_bytes == oracle.n_bytes
        assert tensor.dtype == oracle.tensor_type.name
        assert tensor.shape == tuple(reversed(oracle.shape.tolist()))
    assert found.array_lengths["tokenizer.ggml.tokens"] == 3000
    assert found.metadata["llama.attention.head_count_kv"] == [4, 0, 2]
    assert found.metadata["general.architecture"] == "llama"
    padded = sum(-(-tensor.num_bytes // 32) * 32 for tensor in found.tensors)
    assert padded == found.data_bytes


def test_block_sizes_are_those_of_ggml():
    theirs = {int(kind): (kind.name, *sizes) for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    assert {kind: GGML_TYPES[kind] for kind in theirs} == theirs


def patched(tmp_path, position_of, value: bytes) -> Source:
    path = tmp_path / "model.gguf"
    write_gguf(path, "llama", SPEC, KEYS, vocab=50)
    data = bytearray(path.read_bytes())
    at = position_of(data)
    data[at : at + len(value)] = value
    return Source(bytes(data))


def parse_gguf(source: Source, **kwargs):
    return read_gguf_header(source.read, size_bytes=source.size_bytes, where="file", **kwargs)


def type_position(data: bytearray) -> int:
    """Where the type number of blk.0.attn_q.weight stands: after its name, count and 2 dims."""
    name = b"blk.0.attn_q.weight"
    return data.index(name) + len(name) + 4 + 16


def test_an_unknown_type_names_tensor_and_type(tmp_path):
    source = patched(tmp_path, type_position, (99).to_bytes(4, "little"))
    with pytest.raises(CheckpointError, match=r"blk\.0\.attn_q\.weight has the unknown type 99"):
        parse_gguf(source)
    found = parse_gguf(source, assume_bits=4.5)
    tensor = next(tensor for tensor in found.tensors if tensor.dtype == "type 99")
    assert tensor.num_bytes == 256 * 256 * 4.5 / 8


@pytest.mark.parametrize(
    ("position_of", "value", "says"),
    [
        (lambda _data: 0, b"GGML", "GGUF"),
        (lambda _data: 4, (9).to_bytes(4, "little"), "version 9"),
        (lambda _data: 8, (1 << 60).to_bytes(8, "little"), "claims"),
        (lambda _data: 16, (1 << 60).to_bytes(8, "little"), "claims"),
        (lambda data: data.index(b"tokenizer.ggml.tokens") + 29, b"\xff" * 7, "goes on past"),
        (
            lambda data: data.index(b"output.weight") + 13 + 4 + 16 + 4,
            (1 << 40).to_bytes(8, "little"),
            "ends at byte",
        ),
        (lambda data: data.index(b"blk.0.attn_q") + 19, (9).to_bytes(4, "little"), "dimensions"),
        (lambda data: type_position(data) - 16, (255).to_bytes(8, "little"), "no multiple"),
        (lambda data: type_position(data) + 4, bytes(8), "overlap"),
    ],
)
def test_a_gguf_header_that_lies_is_refused(tmp_path, position_of, value, says):
    source = patched(tmp_path, position_of, value)
    with pytest.raises(CheckpointError, match=says):
        parse_gguf(source)
    assert source.num_read <= 4 * len(source.data)


def test_a_huge_file_is_judged_by_its_first_bytes(tmp_path):
    path = tmp_path / "model.gguf"
    write_gguf(path, "llama", SPEC, KEYS, vocab=5000)
    header_bytes = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(300_000_000_000)  # sparse
    num_read = 0

    def read(offset: int, length: int) -> bytes:
        nonlocal num_read
        with path.open("rb") as file:
            file.seek(offset)
            piece = file.read(length)
        num_read += len(piece)
        return piece

    read_gguf_header(read, size_bytes=300_000_000_000, where="file")
    assert num_read < 2 * header_bytes + (1 << 20)


def test_a_vocabulary_is_stepped_over_in_one_pass(tmp_path):
    path = tmp_path / "model.gguf"
    write_gguf(path, "llama", SPEC, KEYS, vocab=100_000)
    source = Source(path.read_bytes())
    found = parse_gguf(source)
    assert found.array_lengths["tokenizer.ggml.tokens"] == 100_000
    assert "tokenizer.ggml.tokens" not in found.metadata
    assert found.metadata["llama.block_count"] == 1
    assert source.num_read < 1.5 * len(source.data)


def test_big_endian_files_are_read(tmp_path):
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama", endianess=gguf.GGUFEndian.BIG)
    writer.add_uint32("llama.block_count", 7)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert read_file(path).metadata["llama.block_count"] == 7


@given(cut=st.integers(0, 3000))
def test_every_cut_header_is_refused_and_none_crashes(tmp_path_factory, cut):
    path = tmp_path_factory.getbasetemp() / "whole.gguf"
    if not path.exists():
        write_gguf(path, "llama", SPEC, KEYS, vocab=50)
    data = path.read_bytes()
    source = Source(data[: min(cut, len(data) - 40_000)])
    with pytest.raises(CheckpointError):
        parse_gguf(source)


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("model.embed_tokens.weight", "embedding"),
        ("transformer.wte.weight", "embedding"),
        ("backbone.embeddings.weight", "embedding"),
        ("model.language_model.embed_tokens_per_layer.weight", "embedding"),
        ("lm_head.weight", "head"),
        ("language_model.lm_head.weight", "head"),
        ("model.norm.weight", "norm"),
        ("model.layers.0.mlp.gate.weight", "router"),
        ("model.layers.0.mlp.gate_proj.weight", "mlp"),
        ("model.layers.0.mlp.shared_expert_gate.weight", "shared"),
        ("model.layers.0.mlp.experts.17.up_proj.weight", "experts"),
        ("model.layers.0.block_sparse_moe.experts.3.w1.weight", "experts"),
        ("model.layers.0.block_sparse_moe.gate.weight", "router"),
        ("model.layers.4.moe.gate_proj.weight", "experts"),
        ("model.layers.4.moe.gate.weight", "router"),
        ("model.layers.4.share_expert.up_proj.weight", "shared"),
        ("model.layers.0.feed_forward.experts.gate_up_proj", "experts"),
        ("model.layers.0.feed_forward.router.weight", "router"),
        ("model.language_model.layers.0.experts.gate_up_proj", "experts"),
        ("model.language_model.layers.0.router.proj.weight", "router"),
        ("model.language_model.layers.0.mlp.up_proj.weight", "mlp"),
        ("model.layers.0.linear_attn.in_proj_qkvz.weight", "linear"),
        ("backbone.layers.0.mixer.in_proj.weight", "linear"),
        ("backbone.layers.0.mixer.A_log", "linear"),
        ("backbone.layers.1.mixer.up_proj.weight", "mlp"),
        ("backbone.layers.2.mixer.q_proj.weight", "attention"),
        ("backbone.layers.3.mixer.experts.0.up_proj.weight", "experts"),
        ("backbone.layers.3.mixer.gate.weight", "router"),
        ("backbone.layers.3.mixer.shared_experts.up_proj.weight", "shared"),
        ("model.visual.blocks.0.attn.qkv.weight", "vision"),
        ("vision_tower.encoder.layers.0.self_attn.q_proj.weight", "vision"),
        ("multi_modal_projector.linear_1.weight", "vision"),
        ("model.embed_vision.embedding_projection.weight", "vision"),
        ("thinker.audio_tower.layers.0.fc1.weight", "audio"),
        ("mtp.fc.weight", "draft"),
        ("mtp.layers.0.mlp.experts.3.up_proj.weight", "draft_experts"),
        ("mtp.layers.0.mlp.shared_expert.up_proj.weight", "draft"),
        ("model.mtp_layers.0.input_proj.weight", "draft"),
        ("model.mtp_block.0.self_attn.q_proj.weight", "draft"),
        ("mtp.embed_tokens.weight", "draft_embedding"),
        ("mtp.lm_head.weight", "draft_head"),
        ("token_embd.weight", "embedding"),
        ("per_layer_token_embd.weight", "embedding"),
        ("token_embd_norm.weight", "norm"),
        ("output.weight", "head"),
        ("output_norm.weight", "norm"),
        ("rope_freqs.weight", "norm"),
        ("blk.0.attn_output.weight", "attention"),
        ("blk.0.attn_q_norm.weight", "norm"),
        ("blk.0.ffn_gate.weight", "mlp"),
        ("blk.0.ffn_gate_inp.weight", "router"),
        ("blk.0.exp_probs_b.bias", "router"),
        ("blk.0.ffn_down_exps.weight", "experts"),
        ("blk.0.ffn_gate_shexp.weight", "shared"),
        ("blk.0.ffn_gate_inp_shexp.weight", "shared"),
        ("blk.0.ssm_out.weight", "linear"),
        ("blk.0.post_attention_norm.weight", "norm"),
        ("v.blk.0.attn_q.weight", "vision"),
        ("mm.0.weight", "vision"),
        ("something.else", "other"),
    ],
)
def test_roles_by_name(name, role):
    assert role_of(name, scan_names([name])) == role


def test_layers_with_a_fusion_are_draft_layers_whatever_their_number():
    names = [
        "blk.3.attn_q.weight",
        "blk.4.attn_q.weight",
        "blk.4.ffn_up_exps.weight",
        "blk.4.nextn.eh_proj.weight",
        "blk.4.nextn.embed_tokens.weight",
        "blk.4.nextn.shared_head_head.weight",
    ]
    scan = scan_names(names)
    assert [role_of(name, scan) for name in names] == [
        "attention",
        "draft",
        "draft_experts",
        "draft",
        "draft_embedding",
        "draft_head",
    ]


def test_an_eagle_checkpoint_is_a_drafter_as_a_whole():
    names = [
        "fc.weight",
        "midlayer.self_attn.q_proj.weight",
        "norm.weight",
        "lm_head.weight",
        "d2t",
    ]
    scan = scan_names(names)
    roles = [role_of(name, scan) for name in names]
    assert roles == ["draft", "draft", "draft", "draft_head", "draft"]


def test_attention_names_of_recurrent_gguf_layers_are_linear():
    names = [
        "blk.0.ssm_conv1d.weight",
        "blk.0.attn_qkv.weight",
        "blk.0.attn_gate.weight",
        "blk.1.ssm_conv1d.weight",  # Falcon-H1: both in one layer
        "blk.1.attn_k.weight",
        "blk.2.attn_k.weight",
    ]
    scan = scan_names(names)
    roles = [role_of(name, scan) for name in names]
    assert roles == ["linear", "linear", "linear", "linear", "attention", "attention"]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("a.q_proj.weight", ("a.q_proj", "weight")),
        ("a.q_proj.weight_scale_inv", ("a.q_proj", "weight_scale_inv")),
        ("a.experts.gate_up_proj_blocks", ("a.experts.gate_up_proj", "blocks")),
        ("a.experts.gate_up_proj", ("a.experts.gate_up_proj", "")),
        (
            "a.q.weight.quant_state.bitsandbytes__nf4",
            ("a.q", "weight.quant_state.bitsandbytes__nf4"),
        ),
        ("a.norm.weight", ("a.norm", "weight")),
    ],
)
def test_modules_and_parts(name, parts):
    assert split_module(name) == parts
