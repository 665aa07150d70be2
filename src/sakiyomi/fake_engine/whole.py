"""An answer in one piece: the body of a request without `stream`. Pure."""

from typing import Any

from sakiyomi.fake_engine.chunks import Chunker
from sakiyomi.fake_engine.evidence import (
    accept_lengths,
    lmstudio_stats,
    spec_tokens_details,
    timings,
)
from sakiyomi.fake_engine.logprobs import logprobs_of


def whole_answer(chunker: Chunker) -> dict[str, Any]:
    """Build the response of a chunker that has seen every step."""
    ask, answer, dialect = chunker.ask, chunker.answer, chunker.dialect
    text = "".join(token.text for token in answer.tokens if not token.reasoning)
    reasoning = "".join(token.text for token in answer.tokens if token.reasoning)
    choice: dict[str, Any] = {"index": 0, "finish_reason": answer.finish_reason}
    if ask.chat:
        message: dict[str, Any] = {"role": "assistant", "content": text or None}
        if reasoning or dialect.name == "sglang":
            message[dialect.reasoning_field] = reasoning or None
        choice["message"] = message
    else:
        choice["text"] = reasoning + text
    if ask.token_ids and dialect.ids_key:
        choice[dialect.ids_key] = [token.token_id for token in answer.tokens]
    if ask.logprobs is not None:
        choice["logprobs"] = logprobs_of(answer.tokens, ask.logprobs, chunker.faults, whole=True)
    if dialect.name == "tensorrt-llm":
        choice["avg_decoded_tokens_per_iter"] = accept_lengths(chunker.progress)
    body: dict[str, Any] = {
        "id": ask.request_id,
        "object": "chat.completion" if ask.chat else "text_completion",
        "created": ask.created,
        "model": ask.model,
        "choices": [choice],
        "usage": chunker.final_usage(),
    }
    if dialect.fingerprint:
        body["system_fingerprint"] = dialect.fingerprint
    if dialect.name == "llama.cpp":
        body["timings"] = timings(chunker.progress, chunker.faults)
    metrics = chunker.metrics()
    if metrics:
        body["metrics"] = metrics
    if dialect.name == "lmstudio":
        body["stats"] = lmstudio_stats(chunker.progress, chunker.faults)
    if ask.spec_details:
        details = spec_tokens_details(answer, ask.num_draft_tokens)
        body["sglext"] = {"spec_tokens_details": details} if details else None
    return body


def generate_answer(chunker: Chunker) -> dict[str, Any]:
    """Build the response of SGLang's native `/generate`, with its `meta_info`."""
    ask, answer = chunker.ask, chunker.answer
    usage = chunker.final_usage()
    meta = {
        "id": ask.request_id,
        "finish_reason": {"type": answer.finish_reason},
        "prompt_tokens": usage["prompt_tokens"],
        "completion_tokens": usage["completion_tokens"],
        "cached_tokens": ask.cached_tokens or 0,
    }
    details = spec_tokens_details(answer, ask.num_draft_tokens) or {}
    text = "".join(token.text for token in answer.tokens)
    return {"text": text, "meta_info": meta | details}
