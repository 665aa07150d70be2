"""From a request's body to what it asks, and the refusals of each dialect. Pure."""

from collections.abc import Mapping
from typing import Any

import msgspec

from sakiyomi.fake_engine.answer import Wish
from sakiyomi.fake_engine.config import FakeEngine, FaultValue
from sakiyomi.fake_engine.dialects import OPENAI_KEYS, Dialect
from sakiyomi.fake_engine.frames import Ask
from sakiyomi.fake_engine.logprobs import read_logprobs

STREAM_OPTION_KEYS = {"include_usage", "continuous_usage_stats"}


class Refusal(Exception):  # noqa: N818 - the answer to a bad request, no fault of the server
    """A status with the dialect's error body."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: Any = None,
        param: str | None = None,
        kind: str = "BadRequestError",
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.kind = kind

    def body(self, dialect: Dialect, *, as_string: bool = False) -> bytes:
        """The error body as the dialect words it."""
        error: dict[str, Any] = {"message": self.message, "type": self.kind}
        error["code"] = self.status if self.code is None else self.code
        if self.param is not None:
            error["param"] = self.param
        if dialect.name in {"tensorrt-llm", "sglang", "lmdeploy"}:
            return msgspec.json.encode({"object": "error", "param": self.param} | error)
        if dialect.name == "tgi":
            return msgspec.json.encode({"error": self.message, "error_type": "validation"})
        return msgspec.json.encode({"error": self.message if as_string else error})


def read_body(body: bytes) -> dict[str, Any]:
    """Decode a JSON object."""
    try:
        decoded = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise Refusal(400, f"body is no JSON: {error}") from error
    if not isinstance(decoded, dict):
        raise Refusal(400, "body is no JSON object")
    return decoded


def check_body(
    body: dict[str, Any], config: FakeEngine, dialect: Dialect, faults: Mapping[str, FaultValue]
) -> None:
    """Refuse what this server refuses."""
    allowed = OPENAI_KEYS if config.reject_unknown else dialect.allowed_keys
    options = body.get("stream_options") or {}
    known_options = STREAM_OPTION_KEYS if dialect.continuous else {"include_usage"}
    unknown = [key for key in body if allowed is not None and key not in allowed]
    if allowed is not None:
        unknown += [f"stream_options.{key}" for key in options if key not in known_options]
    if unknown:
        if dialect.name == "tensorrt-llm":
            detail = [
                {
                    "type": "extra_forbidden",
                    "loc": ("body", key),
                    "msg": "Extra inputs are not permitted",
                    "input": body.get(key),
                }
                for key in unknown
            ]
            raise Refusal(400, str(detail))
        message = f"Unrecognized request argument supplied: {unknown[0]}"
        raise Refusal(400, message, param=unknown[0], kind="invalid_request_error")
    if body.get("top_logprobs") and not body.get("logprobs"):
        raise Refusal(
            400, "when using `top_logprobs`, `logprobs` must be set to true.", param="top_logprobs"
        )
    for fault, key in _REFUSED_KEYS.items():
        if fault in faults and key in body:
            raise Refusal(
                400,
                f"Unsupported parameter: '{key}' is not supported with this model.",
                code="unsupported_parameter",
                param=key,
                kind="invalid_request_error",
            )
    model = body.get("model")
    strict = dialect.checks_model or "wrong_model_404" in faults
    names = {config.model, "other-model"} if "extra_model" in faults else {config.model}
    if strict and model not in (None, "", *names):
        raise Refusal(404, f"The model `{model}` does not exist.", kind="NotFoundError")


_REFUSED_KEYS = {
    "stream_options_400": "stream_options",
    "ignore_eos_400": "ignore_eos",
    "logprobs_400": "logprobs",
    "max_completion_tokens_only": "max_tokens",
    "max_tokens_only": "max_completion_tokens",
}


def prompt_text(body: dict[str, Any]) -> str:
    """Flatten the whole prompt: messages with their roles, or the prompt itself."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        prompt = body.get("prompt", body.get("text", ""))
        return prompt if isinstance(prompt, str) else str(prompt)
    parts = []
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else message
        if isinstance(content, list):
            content = "".join(part.get("text", "") for part in content)
        role = message.get("role", "user") if isinstance(message, dict) else "user"
        parts.append(f"<|{role}|>{content or ''}\n")
    return "".join(parts)


def count_prompt_tokens(text: str) -> int:
    """Count one token per four bytes of UTF-8, at least one."""
    return max(1, -(-len(text.encode()) // 4))


def read_wish(body: dict[str, Any], dialect: Dialect, repeat: int) -> Wish:
    """Read what the request asks of the answer."""
    sampling = body.get("sampling_params")
    if isinstance(sampling, dict):  # SGLang's native route
        body = body | sampling | {"max_tokens": sampling.get("max_new_tokens", 128)}
    cap = body.get("max_completion_tokens", body.get("max_tokens"))
    stop = body.get("stop") or ()
    kwargs = body.get("chat_template_kwargs") or {}
    return Wish(
        prompt=prompt_text(body),
        max_tokens=int(cap) if cap is not None else dialect.default_max_tokens,
        ignore_eos=bool(body.get("ignore_eos")),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        thinking=kwargs.get("enable_thinking") is not False,
        num_draft_tokens=dialect.own_k(body),
        repeat=repeat,
    )


def read_ask(
    body: dict[str, Any], config: FakeEngine, dialect: Dialect, *, chat: bool
) -> dict[str, Any]:
    """Read what the request asks of the form: fields of `Ask` that the body decides."""
    options = body.get("stream_options") or {}
    include = bool(options.get("include_usage", bool(options) and dialect.usage_by_default))
    asked_ids = bool(body.get("return_token_ids")) and dialect.ids_key is not None
    return {
        "model": body.get("model") or config.model,
        "chat": chat,
        "stream": bool(body.get("stream")),
        "include_usage": include,
        "continuous_usage": dialect.continuous and bool(options.get("continuous_usage_stats")),
        "token_ids": asked_ids,
        "timings_per_token": dialect.name == "llama.cpp" and bool(body.get("timings_per_token")),
        "spec_details": dialect.name == "sglang" and bool(body.get("return_spec_tokens_details")),
        "per_request": config.per_request if dialect.name == "vllm" else "none",
        "num_draft_tokens": config.k or 0,
        "logprobs": read_logprobs(body, dialect.name, chat=chat),
    }


def make_ask(fields: dict[str, Any], **facts: Any) -> Ask:
    """Complete an `Ask` with what the server knows."""
    return Ask(**fields, **facts)
