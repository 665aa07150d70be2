"""The engine that comes with the extra `local`: two arms that run on any machine."""

import importlib.util
import os
import sys
from pathlib import Path

import msgspec

from sakiyomi.errors import EngineError, PlanError
from sakiyomi.model_file import Say, fetch_model
from sakiyomi.plan import Arm, Speculation

COMMAND = (sys.executable, "-m", "sakiyomi.embedded_server", "{args}")
NGRAM_METHOD = "ngram-simple"
"""Looks only at the text of its own request: a conversation drafts the same in every repeat.
`ngram-mod` and `ngram-map-k` remember what earlier requests said, so repeats would differ."""

NGRAM_SIZE = 4
NGRAM_NUM_SPECULATIVE_TOKENS = 4
"""Of lookups of 3 to 12 tokens with drafts of 3 to 48, this pair accepts much (0.68 to 0.90 of the
drafts of SmolLM2 on the built-in scenarios) while it still drafts often. On a processor a long
draft costs almost a step for every token: verification is bound by arithmetic, not by memory."""


def embedded_arms(model: str | None, *, say: Say, max_concurrency: int = 1) -> tuple[Arm, Arm]:
    """The plain arm and the speculating one, of `model` (a GGUF file) or of the model that comes.

    Fetches the model the first time. Raises EngineError where the extra is not installed.
    """
    if importlib.util.find_spec("xllamacpp") is None:
        raise EngineError(
            "the embedded engine is not installed",
            "pip install 'sakiyomi[local]', or attach to a server: sakiyomi run --url URL",
        )
    if model is None:
        path = fetch_model(say)
    else:
        path = Path(model)
        if not path.is_file():
            raise PlanError(
                f"--model {model}: no such file", "the embedded engine takes a GGUF file"
            )
    return (
        plain_arm(path, max_concurrency=max_concurrency),
        ngram_arm(path, max_concurrency=max_concurrency),
    )


def plain_arm(model: Path, *, max_concurrency: int = 1, name: str = "plain") -> Arm:
    """The embedded engine without speculation."""
    return Arm(
        name=name,
        engine="llama.cpp",
        model=str(model.absolute()),
        command=COMMAND,
        args=("--threads", str(num_threads()), "--parallel", str(max_concurrency)),
        start_timeout_s=300.0,
    )


def ngram_arm(model: Path, *, max_concurrency: int = 1) -> Arm:
    """The embedded engine with drafts looked up in the text so far: no draft model needed."""
    return _speculating(
        plain_arm(model, max_concurrency=max_concurrency, name="ngram"),
        Speculation(
            method=NGRAM_METHOD,
            num_speculative_tokens=NGRAM_NUM_SPECULATIVE_TOKENS,
            options={"spec_ngram_simple_size_n": NGRAM_SIZE},
        ),
    )


def self_draft_arm(model: Path, *, num_speculative_tokens: int = 3) -> Arm:
    """The model as its own draft: every step drafts. No gain, but forced acceptance is exact."""
    return _speculating(
        plain_arm(model, name=f"self-draft-k{num_speculative_tokens}"),
        Speculation(
            method="draft-simple",
            num_speculative_tokens=num_speculative_tokens,
            draft_model=str(model.absolute()),
        ),
    )


def num_threads() -> int:
    """All processors that this process may use, less one for the client; at least one.

    llama.cpp's threads wait for each other by spinning: one thread too many on two busy cores made
    decoding seven times slower.
    """
    try:
        usable = len(os.sched_getaffinity(0))
    except AttributeError:
        usable = os.cpu_count() or 1
    return max(1, usable - 1)


def _speculating(arm: Arm, speculation: Speculation) -> Arm:

    return msgspec.structs.replace(arm, speculation=speculation)
