"""The faults that a fake engine can have: name, default value, meaning.

A flag's default is True. Values are read with the type of the default. Which reports they come
from: the cases in `tests/client/test_fake_faults.py`.
"""

from typing import NamedTuple


class FaultMeaning(NamedTuple):
    """What a fault does; `default` is its value when none is given."""

    default: int | float | str | bool
    meaning: str


ANSWER_FAULTS = {
    "error_before_token": FaultMeaning(True, "an error object in the 200 stream, then [DONE]"),
    "error_after_tokens": FaultMeaning(7, "the same after N tokens"),
    "error_as_string": FaultMeaning(True, "errors are strings, not objects"),
    "error_event": FaultMeaning(True, "errors have a line `event: error`"),
    "error_null": FaultMeaning(True, 'every chunk says "error": null (no failure)'),
    "finish_error": FaultMeaning(True, 'finish_reason is "error"'),
    "cut_after_tokens": FaultMeaning(5, "end of stream after N tokens"),
    "cut_in_character": FaultMeaning(5, "end of stream inside a character, after N tokens"),
    "reset_after_tokens": FaultMeaning(5, "connection reset after N tokens"),
    "silence_after_tokens": FaultMeaning(5, "nothing more after N tokens, connection open"),
    "no_done": FaultMeaning(True, "no [DONE]"),
    "no_finish_reason": FaultMeaning(True, "finish_reason stays null"),
    "done_only": FaultMeaning(True, "no finish_reason and no usage, only [DONE]"),
    "eof_only": FaultMeaning(True, "no finish_reason, no usage, no [DONE]: just the end"),
    "no_usage": FaultMeaning(True, "usage is never sent"),
    "usage_null_chunks": FaultMeaning(True, 'every other chunk says "usage": null'),
    "usage_zero_chunks": FaultMeaning(True, "every other chunk has a usage of zeros"),
    "usage_with_finish": FaultMeaning(True, "usage comes with finish_reason"),
    "empty_choices_first": FaultMeaning(True, 'a first chunk with "choices": []'),
    "choices_null": FaultMeaning(True, 'the usage chunk has "choices": null'),
    "role_only_delay": FaultMeaning(0.0, "the role chunk comes S seconds after the request"),
    "role_null": FaultMeaning(True, 'the role chunk has "content": null'),
    "role_no_content": FaultMeaning(True, "the role chunk has no content key"),
    "role_with_text": FaultMeaning(True, "role and first text share a chunk"),
    "empty_tokens": FaultMeaning(3, "every N-th token has no text yet; the next one brings it"),
    "held_text": FaultMeaning(True, "deltas are empty until the end, usage grows"),
    "tool_call": FaultMeaning(True, "the whole answer is one tool call at the end"),
    "trailing_tokens": FaultMeaning(3, "N tokens more in usage than in the chunks"),
    "first_chunk_tokens": FaultMeaning(8, "the first chunk waits for N tokens"),
    "merge_steps": FaultMeaning(2, "a chunk holds the tokens of N steps"),
    "late_usage_s": FaultMeaning(0.05, "the usage chunk comes S seconds late"),
    "late_done_s": FaultMeaning(0.05, "[DONE] comes S seconds late"),
    "slow_first_token_s": FaultMeaning(1.0, "S seconds more before the first token"),
    "cold_start": FaultMeaning(4, "the first N requests are 1.6 times slower"),
    "loop_text": FaultMeaning(32, "the text repeats itself after N tokens"),
    "near_tie": FaultMeaning(20, "at token N two tokens are nearly equally likely"),
    "diverges": FaultMeaning(20, "from token N on another text: what a lossy drafter does"),
    "logprobs_null": FaultMeaning(True, "logprobs are null although asked for"),
    "logprobs_every": FaultMeaning(2, "logprobs for every N-th token of a chunk only"),
    "top_logprobs_cap": FaultMeaning(2, "at most N alternatives a token, whatever was asked"),
    "timings_zero": FaultMeaning(True, "server timings say 0 ms and 0 tokens per second"),
    "no_draft_details": FaultMeaning(True, "TabbyAPI before #452: no draft counts in usage"),
    "draft_counts_times": FaultMeaning(3, "LM Studio's draft counts are N times too large"),
    "ignore_max_tokens": FaultMeaning(True, "the cap is not honoured"),
    "stop_early": FaultMeaning(43, "stops at N tokens, ignore_eos or not"),
    "overrun_steps": FaultMeaning(2, "N more steps are counted after the end"),
    "slow_release_s": FaultMeaning(0.05, "the request counts as running S seconds too long"),
}

WIRE_FAULTS = {
    "gzip": FaultMeaning(True, "Content-Encoding: gzip, flushed at the end"),
    "buffer_all": FaultMeaning(True, "everything in one write at the end"),
    "buffer_every_s": FaultMeaning(0.1, "writes are held and released every S seconds"),
    "split_bytes": FaultMeaning(True, "one byte per write"),
    "crlf": FaultMeaning(True, "lines end in CRLF"),
    "cr": FaultMeaning(True, "lines end in CR"),
    "mixed_line_ends": FaultMeaning(True, "LF, then a CRLF blank line"),
    "no_space": FaultMeaning(True, "data:{...}"),
    "two_spaces": FaultMeaning(True, "data:  {...}"),
    "keepalive_comments": FaultMeaning(0.01, "a comment every S seconds before the first token"),
    "empty_comments": FaultMeaning(True, "a line `:` between events"),
    "data_comments": FaultMeaning(True, "`data: : PROCESSING` between events"),
    "bare_data": FaultMeaning(True, "an empty `data:` between events"),
    "ping_events": FaultMeaning(True, "`event: ping` between events"),
    "id_lines": FaultMeaning(True, "events have ids"),
    "bom": FaultMeaning(True, "the stream starts with a byte order mark"),
    "huge_event": FaultMeaning(140_000, "the second event is N bytes long"),
    "raw_separators": FaultMeaning(True, "U+2028 and U+0085 raw in the text"),
    "http10": FaultMeaning(True, "no chunks: the body ends with the connection"),
    "no_charset": FaultMeaning(True, "Content-Type without a charset (else it names UTF-8)"),
}

RESPONSE_FAULTS = {
    "json_instead": FaultMeaning(True, "a JSON answer although a stream was asked"),
    "html_instead": FaultMeaning(True, "an HTML page with status 200"),
    "http_status": FaultMeaning(503, "status N with an error body"),
    "retry_429_once": FaultMeaning(True, "the first request gets 429 with Retry-After: 1"),
    "stream_options_400": FaultMeaning(True, "400 to stream_options"),
    "ignore_eos_400": FaultMeaning(True, "400 to ignore_eos"),
    "logprobs_400": FaultMeaning(True, "400 to logprobs"),
    "max_completion_tokens_only": FaultMeaning(True, "400 to max_tokens"),
    "max_tokens_only": FaultMeaning(True, "400 to max_completion_tokens"),
    "wrong_model_404": FaultMeaning(True, "404 to another model name (vLLM: always)"),
    "other_replica": FaultMeaning(2, "every N-th answer is another replica's: it is signed so"),
    "die_after_requests": FaultMeaning(3, "the server goes away after N answers"),
    "hang_health": FaultMeaning(True, "health, models and info pages never answer"),
    "health_status": FaultMeaning(503, "health answers N"),
    "extra_model": FaultMeaning(True, "a second model in the list and on the metrics page"),
}

METRICS_FAULTS = {
    "metrics_404": FaultMeaning(True, "no metrics page"),
    "metrics_401": FaultMeaning(True, "401 without the API key"),
    "metrics_500": FaultMeaning(True, "500"),
    "metrics_501": FaultMeaning(True, "501 JSON: start with --metrics"),
    "metrics_307": FaultMeaning(True, "307 to /metrics/ with an empty body"),
    "metrics_html": FaultMeaning(True, "200 with HTML"),
    "metrics_json": FaultMeaning(True, "a JSON object"),
    "metrics_json_string": FaultMeaning(True, "the page as one JSON string"),
    "metrics_bom": FaultMeaning(True, "a byte order mark first"),
    "metrics_nan": FaultMeaning(True, "a gauge is -nan"),
    "metrics_gzip": FaultMeaning(True, "gzip bytes without the header"),
    "metrics_crlf": FaultMeaning(True, "lines end in CRLF"),
    "metrics_no_newline": FaultMeaning(True, "no final newline"),
    "metrics_hang": FaultMeaning(True, "the metrics page never answers"),
    "counter_reset": FaultMeaning(1, "engine 0 restarts from 0 after N answers"),
    "created_gauges": FaultMeaning(True, "*_created gauges (vLLM: always)"),
    "no_created": FaultMeaning(True, "no *_created gauges"),
    "no_spec_series": FaultMeaning(True, "no series of speculation"),
    "late_position": FaultMeaning(True, "a position's series appears with its first count"),
    "tp_ranks": FaultMeaning(4, "SGLang's scheduler series repeated for N tensor parallel ranks"),
    "bounce": FaultMeaning(True, "every second scrape shows another worker's half of the counts"),
    "other_traffic": FaultMeaning(100.0, "counters grow by N tokens per second of others"),
    "other_running": FaultMeaning(1, "N requests of others always run"),
}

FAULTS: dict[str, FaultMeaning] = ANSWER_FAULTS | WIRE_FAULTS | RESPONSE_FAULTS | METRICS_FAULTS
