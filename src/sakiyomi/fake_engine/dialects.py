"""How each engine's stream looks: values, one per dialect, as of the versions that they name."""

import hashlib
from typing import Any

import msgspec

from sakiyomi.fake_engine.config import FakeEngine

_OPENAI_WORDS = """
    model messages prompt temperature top_p n stream stop max_tokens max_completion_tokens
    presence_penalty frequency_penalty logit_bias user seed tools tool_choice response_format
    logprobs top_logprobs stream_options reasoning_effort echo suffix best_of
"""
_TRT_WORDS = """
    top_k min_p min_tokens ignore_eos stop_token_ids skip_special_tokens add_generation_prompt
    chat_template chat_template_kwargs repetition_penalty lora_request cache_salt
"""
OPENAI_KEYS = frozenset(_OPENAI_WORDS.split())
TRT_KEYS = OPENAI_KEYS | frozenset(_TRT_WORDS.split())


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """One engine's way to speak.

    - `per_token`: a chunk per token (else a chunk per step); a token without text is held back.
    - `skips_empty`: a chunk without text is not sent; its tokens come with the next one.
    - `finish_apart`: finish_reason comes in a chunk of its own, with an empty delta.
    - `ids_key`: where `return_token_ids` puts the ids of a chunk; None: the key is unknown.
    - `continuous`: honours stream_options.continuous_usage_stats.
    - `usage_by_default`: any stream_options asks for usage.
    - `usage_has_choices`: the usage chunk has a non-empty `choices`.
    - `allowed_keys`: other body keys are refused; None ignores them silently.
    - `signs_at_end`: only chunks that bring the usage have a system_fingerprint.
    - `own_k(body)`: the body's own draft length, None if it says nothing.
    """

    name: str
    version: str
    fingerprint: str | None = None
    signs_at_end: bool = False
    id_prefix: str = "chatcmpl-"
    per_token: bool = False
    skips_empty: bool = False
    reasoning_field: str = "reasoning_content"
    role_content: str | None = ""
    extra_delta: dict[str, Any] = {}
    extra_choice: dict[str, Any] = {}
    finish_apart: bool = False
    ids_key: str | None = None
    continuous: bool = False
    usage_by_default: bool = False
    usage_has_choices: bool = False
    usage_null: bool = False
    reasoning_details: bool = False
    allowed_keys: frozenset[str] | None = None
    checks_model: bool = False
    default_max_tokens: int | None = None
    own_k_path: tuple[str, ...] = ()
    keep_alive: bool = False
    paths: tuple[str, ...] = ("/v1/chat/completions", "/v1/completions")
    health_paths: tuple[str, ...] = ("/health",)

    def own_k(self, body: dict[str, Any]) -> int | None:
        """The draft length that this request asks for, where the engine lets it."""
        value: Any = body
        for key in self.own_k_path:
            value = value.get(key) if isinstance(value, dict) else None
        return value if self.own_k_path and isinstance(value, int) else None


DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        Dialect(
            name="vllm",
            version="0.33.0",
            signs_at_end=True,
            reasoning_field="reasoning",
            extra_choice={"logprobs": None},
            ids_key="token_ids",
            continuous=True,
            checks_model=True,
        ),
        Dialect(
            name="llama.cpp",
            version="b11549-3f5a9c1e",
            fingerprint="b11549-3f5a9c1e",
            per_token=True,
            role_content=None,
            finish_apart=True,
        ),
        Dialect(
            name="sglang",
            version="0.5.23",
            id_prefix="",
            skips_empty=True,
            extra_delta={"reasoning_content": None, "tool_calls": None},
            extra_choice={"logprobs": None, "matched_stop": None},
            finish_apart=True,
            continuous=True,
            usage_null=True,
            paths=("/v1/chat/completions", "/v1/completions", "/generate"),
        ),
        Dialect(
            name="tensorrt-llm",
            version="1.3.0",
            extra_delta={"reasoning_content": None},
            extra_choice={"logprobs": None, "stop_reason": None},
            continuous=True,
            usage_by_default=True,
            allowed_keys=TRT_KEYS,
        ),
        Dialect(
            name="lmdeploy",
            version="0.18.0",
            id_prefix="",
            extra_delta={"reasoning_content": None, "tool_calls": None},
            extra_choice={"logprobs": None},
            ids_key="output_ids",
        ),
        Dialect(
            name="tgi",
            version="3.3.7-native",
            fingerprint="3.3.7-native",
            id_prefix="",
            per_token=True,
            extra_choice={"logprobs": None},
            health_paths=("/health", "/ping"),
            default_max_tokens=100,
        ),
        Dialect(
            name="mlx-lm",
            version="0.31.3",
            fingerprint="0.31.3-0.32.0-macOS-26.0-arm64",
            per_token=True,
            reasoning_field="reasoning",
            finish_apart=False,
            own_k_path=("num_draft_tokens",),
            keep_alive=True,
            default_max_tokens=512,
        ),
        Dialect(
            name="ollama",
            version="0.33.0",
            fingerprint="fp_ollama",
            per_token=True,
            reasoning_field="reasoning",
            finish_apart=True,
            own_k_path=("options", "draft_num_predict"),
            health_paths=("/", "/api/version"),
        ),
        Dialect(
            name="tabbyapi",
            version="0.0.9",
            id_prefix="chatcmpl-",
            usage_has_choices=True,
            finish_apart=True,
        ),
        Dialect(
            name="ovms",
            version="2026.3",
            own_k_path=("num_assistant_tokens",),
            paths=(
                "/v3/chat/completions",
                "/v3/completions",
                "/v3/v1/chat/completions",
                "/v3/v1/completions",
                "/v1/chat/completions",
                "/v1/completions",
            ),
            health_paths=("/v2/health/ready", "/v2/health/live"),
        ),
        Dialect(
            name="lmstudio",
            version="0.4.24",
            reasoning_details=True,
            finish_apart=True,
            health_paths=(),
        ),
        Dialect(
            name="openai",
            version="",
            fingerprint="fp_44709d6fcb",
            finish_apart=True,
            reasoning_details=True,
        ),
    )
}


def dialect_of(config: FakeEngine, *, other: bool = False) -> Dialect:
    """Give the dialect of a server with its fingerprint.

    vLLM's covers its version and configuration, LM Studio signs with the model's name.
    `other`: of a replica with another configuration, so with another fingerprint.
    """
    dialect = DIALECTS[config.dialect]
    fingerprint = dialect.fingerprint
    if config.dialect == "vllm":
        what = f"{config.model} {config.k} {config.method} {config.prefix_cache}"
        digest = hashlib.sha256(what.encode()).hexdigest()[:8]
        fingerprint = f"vllm-{config.version or dialect.version}-{digest}"
    if config.dialect == "lmstudio":
        fingerprint = config.model
    if other and fingerprint:
        fingerprint = fingerprint[:-1] + ("0" if fingerprint[-1] != "0" else "1")
    return msgspec.structs.replace(dialect, fingerprint=fingerprint)
