"""llama.cpp `llama-server`: one event a token; counters that move when a request ends."""

from collections.abc import Mapping
from typing import Any

import msgspec

from sakiyomi import steps
from sakiyomi.engines.engine import (
    QUALITIES,
    Engine,
    LogRemedy,
    ServerFacts,
    json_object,
    model_entries,
    model_ids,
    model_of,
    number,
    option_flags,
    planned_facts,
    refuse_twice,
    whole,
    with_speculation,
)
from sakiyomi.engines.llamacpp_steps import find_groups, num_drafts, steps_of
from sakiyomi.engines.prometheus import Page, by_position, read_page
from sakiyomi.plan import Arm
from sakiyomi.record import (
    EngineMetrics,
    RequestRecord,
    SeriesCounters,
    SpecDecodeCounters,
    Step,
)

DEFAULT_NUM_SPECULATIVE_TOKENS = 3
"""`--spec-draft-n-max` when it is not given (common/arg.cpp of b11434)."""

SPEC = "llamacpp:spec_decode_num_"
METHODS = {"draft_model": "draft-simple", "mtp": "draft-mtp", "eagle3": "draft-eagle3"}
"""The field's names of methods -> `--spec-type`; every other name is passed on as it is."""


def command(arm: Arm, port: int) -> list[str]:
    """`llama-server` on loopback with its metrics page on."""
    refuse_twice(arm, "--spec-type", "-md", "--spec-draft-model", "--spec-draft-n-max")
    argv = ["llama-server", "-m", model_of(arm), "--host", "127.0.0.1", "--port", str(port)]
    argv.append("--metrics")
    if arm.speculation is not None:
        spec = arm.speculation
        argv += ["--spec-type", METHODS.get(spec.method, spec.method)]
        if spec.num_speculative_tokens is not None:
            argv += ["--spec-draft-n-max", str(spec.num_speculative_tokens)]
        if spec.draft_model is not None:
            argv += ["-md", spec.draft_model]
        argv += option_flags(spec.options)
    return [*argv, *arm.args]


def force_acceptance(arm: Arm, rates: tuple[float, ...]) -> Arm | None:
    """`--spec-synth-rates`: unconditional rates per position, never increasing; on CPU too."""
    if arm.speculation is None or not rates:
        return None
    return with_speculation(arm, len(rates), {"spec_synth_rates": list(rates)})


def read_metrics(text: str, model: str | None = None) -> EngineMetrics:
    """A `/metrics` page: no labels, so one series. `model` cannot be told apart here.

    The gauges of tokens per second are averages since the last scrape and are not read.
    """
    del model
    page = read_page(text)
    notes = page.notes
    if not page.has_prefix("llamacpp:"):
        notes += ("no llamacpp: families on this page",)
    elif not page.select(SPEC + "drafts_total"):
        notes += ("no spec_decode counters: llama.cpp before August 2026 (#26389) has none",)
    return EngineMetrics(
        num_requests_running=page.total("llamacpp:requests_processing"),
        num_requests_waiting=page.total("llamacpp:requests_deferred"),
        kv_cache_usage=page.total("llamacpp:kv_cache_usage_ratio"),
        series={"": _series(page)} if page.has_prefix("llamacpp:") else {},
        process_start_s=page.total("process_start_time_seconds"),
        notes=notes,
    )


def read_response(record: RequestRecord) -> SpecDecodeCounters | None:
    """`timings.draft_n` and `draft_n_accepted`, shown only if anything was drafted.

    Drafts, steps and positions come from the events when they carry timings; positions only
    where every step can be told apart.
    """
    timings = record.evidence.get("timings")
    if not isinstance(timings, dict):
        return None
    drafted = number(timings.get("draft_n"))
    accepted = number(timings.get("draft_n_accepted"))
    if drafted is None or accepted is None:
        return None
    told = SpecDecodeCounters(num_draft_tokens=drafted, num_accepted_tokens=accepted)
    groups = find_groups(record)
    if groups is None or (
        sum(group.num_draft_tokens for group in groups) != drafted
        or sum(group.num_accepted_tokens for group in groups) != accepted
    ):
        return told
    counted = steps.count(steps_of(groups))
    alone = counted.num_draft_tokens == drafted
    return msgspec.structs.replace(
        told,
        num_drafts=float(num_drafts(groups)),
        accepted_per_position=counted.accepted_per_position if alone else None,
        num_steps=counted.num_steps,
    )


def group_steps(record: RequestRecord) -> list[Step] | None:
    """Events with the same `timings.predicted_ms` are one step (body `timings_per_token`).

    Final timings without `draft_n` say that nothing was drafted: an event of several tokens then
    stands for as many steps, whose tokens were held back to complete a character.
    """
    timings = record.evidence.get("timings")
    undrafted = isinstance(timings, dict) and "draft_n" not in timings
    if not undrafted and all(total is None for total in record.event_num_draft_tokens):
        found = steps.from_step_marks(record)
        if found is None or any(step.num_tokens > 1 for step in found):
            return found
    groups = find_groups(record)
    return None if groups is None else steps_of(groups)


def read_server(pages: Mapping[str, str]) -> ServerFacts:
    """`/props` has the build, `/v1/models` the model's shape, `/slots` whether it speculates.

    `speculative.types` in `/props` is the default of a request and can say `none` while the
    server drafts (seen with b11549), so a method there is believed and its absence is not.
    """
    props = json_object(pages.get("/props"))
    default = props.get("default_generation_settings")
    default = default if isinstance(default, dict) else {}
    params = default.get("params", {})
    params = params if isinstance(params, dict) else {}
    entries = model_entries(pages)
    settings: dict[str, Any] = {
        "num_slots": props.get("total_slots"),
        "n_ctx": default.get("n_ctx"),
        "speculative": _slots_speculate(pages.get("/slots")),
        "meta": entries[0].get("meta") if entries else None,
    }
    method = params.get("speculative.types", params.get("speculative.type"))
    method = ",".join(method) if isinstance(method, list) else method
    method = None if method in ("", "none") else method
    k = whole(params.get("speculative.n_max"))
    return ServerFacts(
        engine="llama.cpp",
        engine_version=_build(props.get("build_info")),
        models=model_ids(pages),
        model_path=str(props["model_path"]) if props.get("model_path") else None,
        speculative_method=method,
        num_speculative_tokens=k if method else None,
        settings={key: value for key, value in settings.items() if value is not None},
    )


def _build(told: Any) -> str | None:
    """`b11549-1a2b3c4`; a build that does not know itself says `b0-unknown`."""
    return None if not told or str(told).startswith("b0-") else str(told)


def read_arm(arm: Arm) -> ServerFacts:
    """The plan's speculation; a draft length that is not given is llama.cpp's own default."""
    facts = planned_facts(arm)
    options = set(arm.speculation.options) if arm.speculation else set()
    forced = any(o.replace("-", "_").lstrip("_").startswith("spec_synth_") for o in options)
    forced = forced or any(a.startswith("--spec-synth-") for a in arm.args)
    k = facts.num_speculative_tokens
    if arm.speculation is not None and k is None and "ngram" not in arm.speculation.method:
        k = DEFAULT_NUM_SPECULATIVE_TOKENS
    return msgspec.structs.replace(facts, num_speculative_tokens=k, forced_acceptance=forced)


def _slots_speculate(text: str | None) -> bool | None:
    try:
        slots = msgspec.json.decode(text or "")
    except msgspec.DecodeError:
        return None
    if not isinstance(slots, list) or not slots or not isinstance(slots[0], dict):
        return None
    return bool(slots[0].get("speculative"))


def _series(page: Page) -> SeriesCounters:
    drafts = page.total(SPEC + "drafts_total")
    speculation = None
    if drafts is not None:
        speculation = SpecDecodeCounters(
            num_drafts=drafts,
            num_draft_tokens=page.total(SPEC + "draft_tokens_total"),
            num_accepted_tokens=page.total(SPEC + "accepted_tokens_total"),
            accepted_per_position=by_position(
                page.select(SPEC + "accepted_tokens_per_pos_total"), "position"
            ),
        )
    cached = page.total("llamacpp:prompt_tokens_cached_total")
    prompt = page.total("llamacpp:prompt_tokens_total")
    return SeriesCounters(
        speculation=speculation,
        num_generated_tokens=page.total("llamacpp:tokens_predicted_total"),
        prefix_cache_queries=None if cached is None or prompt is None else cached + prompt,
        prefix_cache_hits=cached,
    )


LOG_REMEDIES = (
    LogRemedy(
        r"unable to allocate|failed to allocate|out of memory",
        "memory ran out",
        "lower -c (context) or -np (slots) in the arm's args",
    ),
    LogRemedy(
        r"error: invalid argument: --?(?:draft|spec-ngram-size)\S*|"
        r"argument has been removed",
        "this build renamed the flags of speculation",
        "--spec-draft-n-max, --spec-draft-n-min and --spec-type replaced --draft-*",
    ),
    LogRemedy(
        r"error: invalid argument: .*",
        "this build does not know a flag",
        "drop it from the arm's args or use another build",
    ),
    LogRemedy(
        r"unknown speculative (?:decoding )?type|unknown model architecture",
        "this build knows neither this kind of drafts nor this model",
        "use a newer build: MTP needs one after 16 May 2026",
    ),
    LogRemedy(
        r"synthetic acceptance requires an initialized speculative decoding context",
        "forced acceptance needs a drafter",
        "give the arm a speculation that drafts",
    ),
    LogRemedy(
        r"error loading model|failed to load model",
        "the GGUF file could not be loaded",
        "check the arm's model: a path to a .gguf file, all parts present",
    ),
)

ENGINE = Engine(
    name="llama.cpp",
    title="llama.cpp",
    command=command,
    request_fields=({"timings_per_token": True},),
    read_metrics=read_metrics,
    read_response=read_response,
    group_steps=group_steps,
    read_server=read_server,
    force_acceptance=force_acceptance,
    read_arm=read_arm,
    qualities={**QUALITIES, "events": "exact"},
    fingerprint=r"^(?P<version>b\d+-[0-9a-f]{6,})$",
    signs=(
        ("/metrics", r"llamacpp:"),
        ("/v1/models", r'"owned_by"\s*:\s*"llamacpp"'),
        ("/props", r'"build_info"'),
    ),
    info_paths=("/props", "/v1/models", "/slots"),
    tokens_per_event=1,
    evidence=(
        "acceptance per request, exact, from timings; steps, drafts and positions exact by "
        "grouping the events of a step (timings_per_token)"
    ),
    counters_at_request_end=True,
    metrics_hint="start llama-server with --metrics",
    program="llama-server (https://github.com/ggml-org/llama.cpp/releases)",
    log_remedies=LOG_REMEDIES,
)
