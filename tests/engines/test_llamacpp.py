"""llama.cpp against pages and a stream recorded from b11549 with forced rates .7 .5 .3, k = 3.

SmolLM2-135M-Instruct Q4_1 drafted for itself; 40 tokens, 14 drafts, 41 proposed, 24 accepted.
"""

import json
from pathlib import Path

import msgspec
import pytest

from sakiyomi.acceptance import agree, check
from sakiyomi.counter_growth import delta
from sakiyomi.engines import llamacpp, recognise
from sakiyomi.errors import PlanError
from sakiyomi.plan import Arm, Speculation
from sakiyomi.record import RequestKey, RequestRecord, SpecDecodeCounters, Step
from sakiyomi.steps import count

GOLDEN = Path(__file__).parent / "golden" / "llama.cpp-b11549"
KEY = RequestKey(
    request_id="r", scenario="s", conversation_id="c", turn=0, arm="a", load="closed-1", repeat=0,
    scheduled_at_s=0.0,
)  # fmt: skip


def text(name):
    return (GOLDEN / name).read_text(encoding="utf-8")


def recorded(name="stream.txt", completion_tokens=40):
    """The recorded stream as a record, read with the standard library alone."""
    events = []
    evidence = {}
    for line in text(name).splitlines():
        if not line.startswith("data: {"):
            continue
        chunk = json.loads(line[6:])
        if "timings" in chunk:
            evidence["timings"] = chunk["timings"]
            if chunk["choices"]:
                events.append(chunk["timings"])
    return RequestRecord(
        key=KEY,
        sent_at_s=0.0,
        closed_at_s=100.0,
        event_at_s=[float(i) for i in range(len(events))],
        event_tokens=[
            t["predicted_n"] - before
            for before, t in zip([0, *(t["predicted_n"] for t in events)], events, strict=False)
        ],
        event_step_mark=[t["predicted_ms"] for t in events],
        event_num_draft_tokens=[t.get("draft_n") for t in events],
        event_num_accepted_tokens=[t.get("draft_n_accepted") for t in events],
        completion_tokens=completion_tokens,
        evidence=evidence,
    )


def counted(name="metrics"):
    before = llamacpp.read_metrics(text(f"{name}-before.txt"))
    after = llamacpp.read_metrics(text(f"{name}-after.txt"))
    return delta(before, after)


def test_the_page_of_one_request():
    window = counted()
    assert not window.lower_bound
    assert window.counters.num_generated_tokens == 40
    assert window.counters.speculation == SpecDecodeCounters(
        num_drafts=14,
        num_draft_tokens=41,
        num_accepted_tokens=24,
        accepted_per_position=(12.0, 8.0, 4.0),
    )
    assert check(window.counters.speculation, 3) == []
    after = llamacpp.read_metrics(text("metrics-after.txt"))
    assert (after.num_requests_running, after.num_requests_waiting) == (0, 0)
    assert after.notes == ()


def test_events_grouped_by_their_times_are_the_servers_steps():
    steps = llamacpp.group_steps(recorded())
    assert len(steps) == 15
    assert sum(step.num_tokens for step in steps) == 39
    assert all(1 <= step.num_tokens <= 4 for step in steps)
    for step in steps:
        assert step.num_tokens == step.num_accepted_tokens + 1
    by_steps = count(steps)
    by_counters = counted().counters.speculation
    assert by_steps.num_drafts == by_counters.num_drafts
    assert by_steps.num_draft_tokens == by_counters.num_draft_tokens
    assert by_steps.accepted_per_position == by_counters.accepted_per_position
    assert agree(by_steps, by_counters, num_requests=1, num_speculative_tokens=3) is None


def japanese():
    """48 tokens in 22 events: a kanji of several tokens is one event, some steps have none."""
    return recorded("stream-ja.txt", completion_tokens=48)


def test_steps_without_an_event_are_counted_too():
    by_counters = counted("metrics-ja").counters.speculation
    assert (by_counters.num_drafts, by_counters.num_draft_tokens) == (22, 65)
    record = japanese()
    assert len(record.event_at_s) == 22
    assert sum(record.event_tokens) == 48
    assert len(set(record.event_step_mark)) == 17
    steps = llamacpp.group_steps(record)
    assert sum(step.num_tokens for step in steps) == 47
    assert len(steps) == 22
    counts = llamacpp.read_response(record)
    assert counts == SpecDecodeCounters(
        num_drafts=22, num_draft_tokens=65, num_accepted_tokens=25, num_steps=22
    )
    assert agree(counts, by_counters, num_requests=1, num_speculative_tokens=3) is None


def test_held_back_text_without_token_counts_tells_no_steps():
    record = japanese()
    bare = msgspec.structs.replace(record, event_tokens=[1] * 22)
    assert llamacpp.group_steps(bare) is None
    assert llamacpp.read_response(bare) == SpecDecodeCounters(
        num_draft_tokens=65, num_accepted_tokens=25
    )


@pytest.mark.parametrize("num_events", [40, 39, 38, 37, 36])
def test_text_held_back_to_the_very_end(num_events):
    # an answer cut inside a character: its last tokens have no event, the final timings know them
    record = recorded()
    parallel = (
        "event_at_s",
        "event_tokens",
        "event_step_mark",
        "event_num_draft_tokens",
        "event_num_accepted_tokens",
    )
    cut = msgspec.structs.replace(
        record, **{name: getattr(record, name)[:num_events] for name in parallel}
    )
    counts = llamacpp.read_response(cut)
    assert counts.num_steps == 15
    assert (counts.num_draft_tokens, counts.num_accepted_tokens) == (41, 24)


def test_the_answers_own_counts():
    counts = llamacpp.read_response(recorded())
    assert (counts.num_drafts, counts.num_draft_tokens, counts.num_accepted_tokens) == (14, 41, 24)
    assert counts.num_steps == 15


def test_the_answers_counts_without_timings_in_the_events():
    bare = RequestRecord(
        key=KEY, sent_at_s=0.0, closed_at_s=1.0, evidence=recorded().evidence, event_tokens=[1] * 40
    )
    assert llamacpp.group_steps(bare) is None
    assert llamacpp.read_response(bare) == SpecDecodeCounters(
        num_draft_tokens=41, num_accepted_tokens=24
    )


def test_counts_that_contradict_the_events_keep_only_what_the_answer_says():
    whole = recorded()
    lost = RequestRecord(
        key=KEY,
        sent_at_s=0.0,
        closed_at_s=1.0,
        evidence=whole.evidence,
        event_tokens=whole.event_tokens[:20],
        event_step_mark=whole.event_step_mark[:20],
        event_num_draft_tokens=whole.event_num_draft_tokens[:20],
        event_num_accepted_tokens=whole.event_num_accepted_tokens[:20],
    )
    assert llamacpp.read_response(lost) == SpecDecodeCounters(
        num_draft_tokens=41, num_accepted_tokens=24
    )


def test_a_plain_request_has_steps_without_drafts_and_no_counts():
    plain = RequestRecord(
        key=KEY,
        sent_at_s=0.0,
        closed_at_s=1.0,
        event_tokens=[1, 1, 1],
        event_step_mark=[0.1, 5.0, 9.0],
        event_num_draft_tokens=[None] * 3,
        event_num_accepted_tokens=[None] * 3,
        evidence={"timings": {"predicted_n": 3, "predicted_ms": 9.0}},
    )
    expected = Step(num_tokens=1, num_draft_tokens=0, num_accepted_tokens=0)
    assert llamacpp.group_steps(plain) == [expected, expected]
    assert llamacpp.read_response(plain) is None


def test_steps_of_several_tokens_without_counts_stay_unknown():
    old = RequestRecord(
        key=KEY,
        sent_at_s=0.0,
        closed_at_s=1.0,
        event_tokens=[1, 1, 1],
        event_step_mark=[0.1, 5.0, 5.0],
    )
    assert llamacpp.group_steps(old) == [Step(num_tokens=2)]


def test_a_page_as_one_json_string():
    # F47a, about b7010 - b7100
    metrics = llamacpp.read_metrics(json.dumps(text("metrics-after.txt")))
    assert metrics.series[""].speculation.num_drafts == 14
    assert any("unquoted" in note for note in metrics.notes)


def test_an_old_build_is_named():
    metrics = llamacpp.read_metrics("llamacpp:tokens_predicted_total 5\n")
    assert metrics.series[""].speculation is None
    assert "#26389" in metrics.notes[0]


def test_what_the_server_says_of_itself():
    pages = {
        "/props": text("props.json"),
        "/v1/models": text("models.json"),
        "/slots": text("slots.json"),
        "/metrics": text("metrics-after.txt"),
    }
    assert recognise(pages) == "llama.cpp"
    facts = llamacpp.read_server(pages)
    assert facts.models == ("smollm2",)
    assert facts.model_path == "models/m.gguf"
    assert facts.settings["n_ctx"] == 4096
    assert facts.settings["speculative"] is True
    assert facts.settings["meta"]["n_params"] == 134515008
    assert facts.speculative_method is None  # /props says none although it drafts
    named = '{"default_generation_settings":{"params":{"speculative.types":["draft-mtp"]}}}'
    assert llamacpp.read_server({"/props": named}).speculative_method == "draft-mtp"


def arm(**fields):
    return Arm(name="a", engine="llama.cpp", model="m.gguf", **fields)


def test_argv():
    assert llamacpp.command(arm(args=("-c", "8192")), 8080) == [
        "llama-server", "-m", "m.gguf", "--host", "127.0.0.1", "--port", "8080", "--metrics",
        "-c", "8192",
    ]  # fmt: skip
    spec = Speculation(
        method="draft_model",
        num_speculative_tokens=4,
        draft_model="d.gguf",
        options={"spec_draft_p_min": 0.5, "spec_default": True, "no": False},
    )
    assert llamacpp.command(arm(speculation=spec), 1)[8:] == [
        "--spec-type", "draft-simple", "--spec-draft-n-max", "4", "-md", "d.gguf",
        "--spec-draft-p-min", "0.5", "--spec-default",
    ]  # fmt: skip
    mtp = llamacpp.command(arm(speculation=Speculation(method="mtp")), 1)
    assert mtp[8:] == ["--spec-type", "draft-mtp"]
    ngram = llamacpp.command(arm(speculation=Speculation(method="ngram-simple")), 1)
    assert ngram[8:] == ["--spec-type", "ngram-simple"]
    with pytest.raises(PlanError):
        llamacpp.command(arm(speculation=Speculation(method="mtp"), args=("-md", "x")), 1)


def test_forced_acceptance():
    forced = llamacpp.force_acceptance(
        arm(speculation=Speculation(method="draft-simple", draft_model="d.gguf")), (0.7, 0.5, 0.3)
    )
    argv = llamacpp.command(forced, 1)
    assert argv[argv.index("--spec-synth-rates") + 1] == "0.7,0.5,0.3"
    assert argv[argv.index("--spec-draft-n-max") + 1] == "3"
    facts = llamacpp.read_arm(forced)
    assert facts.forced_acceptance
    assert facts.num_speculative_tokens == 3
    assert llamacpp.force_acceptance(arm(), (1.0,)) is None
    assert llamacpp.read_arm(arm(args=("--spec-synth-len", "2"))).forced_acceptance


def test_the_default_draft_length_is_llama_cpps():
    assert llamacpp.read_arm(arm(speculation=Speculation(method="mtp"))).num_speculative_tokens == 3
    ngram = arm(speculation=Speculation(method="ngram-mod"))
    assert llamacpp.read_arm(ngram).num_speculative_tokens is None
    assert llamacpp.read_arm(arm()).num_speculative_tokens is None


def test_held_back_tokens_of_a_plain_answer_are_steps_of_one_token():
    """Japanese without speculation: an event of two tokens is two steps, not a draft accepted."""
    record = RequestRecord(
        key=RequestKey("r", "s", "c", 0, "plain", "closed-1", 0, 0.0),
        sent_at_s=0.0,
        closed_at_s=1.0,
        event_at_s=[0.1, 0.2, 0.3],
        event_tokens=[2, 2, 3],
        event_kind=["answer"] * 3,
        event_text=["日", "本", "語"],
        event_step_mark=[10.0, 20.0, 30.0],
        event_num_draft_tokens=[None] * 3,
        event_num_accepted_tokens=[None] * 3,
        completion_tokens=7,
        evidence={"timings": {"predicted_n": 7, "predicted_ms": 30.0}},
    )
    found = llamacpp.group_steps(record)
    assert [step.num_tokens for step in found] == [1] * 6
    assert {step.num_draft_tokens for step in found} == {0}


def held_back(events, **fields):
    """A record of events (tokens, tokens drafted so far, accepted so far), each of its own step."""
    tokens, drafted, accepted = map(list, zip(*events, strict=True))
    marks = [float(i) for i in range(len(events))]
    return RequestRecord(
        key=KEY,
        sent_at_s=0.0,
        closed_at_s=100.0,
        event_at_s=marks,
        event_tokens=tokens,
        event_step_mark=marks,
        event_num_draft_tokens=drafted,
        event_num_accepted_tokens=accepted,
        completion_tokens=sum(tokens),
        evidence={
            "timings": {
                "predicted_n": sum(tokens),
                "draft_n": drafted[-1],
                "draft_n_accepted": accepted[-1],
            }
        },
        **fields,
    )


@pytest.mark.parametrize("first", [5, 2])  # a step that stands alone with a draft, or none does
def test_lookup_drafts_are_not_counted_for_every_held_back_step(first):
    """Japanese with n-gram drafts: an event ends two steps, one of which had a draft of four."""
    alone = (first, 4, 4) if first == 5 else (first, 0, 0)
    drafts, accepted = alone[1:]
    events = [(2, 0, 0), (2, 0, 0), (1, 0, 0), alone]
    events += [(2, drafts + 4, accepted), (2, drafts + 4, accepted), (2, drafts + 8, accepted)]
    counts = llamacpp.read_response(held_back(events))
    assert counts.num_drafts == (drafts + 8) / 4
    assert counts.num_draft_tokens == drafts + 8
    assert counts.num_steps == sum(tokens for tokens, *_ in events) - 1 - accepted


def test_a_draft_model_drafts_for_every_held_back_step():
    events = [(1, 0, 0), (2, 3, 1), (1, 6, 1), (2, 12, 1), (2, 15, 2)]
    counts = llamacpp.read_response(held_back(events))
    assert counts.num_drafts == 5
    assert counts.num_steps == 5


def test_a_last_step_without_room_for_a_draft_is_no_sign_of_lookup():
    """MTP with one event for two steps: the cap leaves one token, for which nothing is drafted."""
    events = [(1, 0, 0), (2, 3, 1), (2, 9, 1), (1, 9, 1)]
    counts = llamacpp.read_response(held_back(events))
    assert counts.num_drafts == 3
    assert counts.num_steps == 4
