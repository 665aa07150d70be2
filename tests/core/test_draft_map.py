"""How an answer's tokens came, from both kinds of evidence."""

import pytest

from sakiyomi.draft_map import map_answer
from sakiyomi.engines import find_engine
from sakiyomi.map_text import as_text
from sakiyomi.record import ArmFacts, RequestKey, RequestRecord

KEY = RequestKey(
    request_id="r",
    scenario="s",
    conversation_id="c",
    turn=0,
    arm="a",
    load="closed-1",
    repeat=0,
    scheduled_at_s=0.0,
)


def arm(engine, method="mtp", k=3):
    return ArmFacts(
        name="a", engine=engine, url="", speculative_method=method, num_speculative_tokens=k
    )


def record(texts, **fields):
    return RequestRecord(
        key=KEY,
        sent_at_s=10.0,
        closed_at_s=20.0,
        event_at_s=[10.0 + 0.1 * i for i in range(len(texts))],
        event_kind=["answer"] * len(texts),
        event_text=list(texts),
        **fields,
    )


def marks(found):
    return [(piece.text, piece.mark, piece.step, piece.position) for piece in found]


def llama(texts, groups, tokens=None):
    """`groups`: (number of events, drafted so far, accepted so far) of each step."""
    step_mark = [float(i) for i, (n, _, _) in enumerate(groups) for _ in range(n)]
    return record(
        texts,
        event_tokens=tokens or [1] * len(texts),
        event_step_mark=step_mark,
        event_num_draft_tokens=[d for n, d, _ in groups for _ in range(n)],
        event_num_accepted_tokens=[a for n, _, a in groups for _ in range(n)],
    )


def test_an_event_a_token():
    one = llama("abcdefghi", [(1, None, None), (3, 3, 2), (4, 6, 5), (1, 6, 5)])
    found = map_answer(one, find_engine("llama.cpp"), arm("llama.cpp"))
    assert marks(found) == [
        ("a", "first", 0, None),
        ("b", "accepted", 1, 1),
        ("c", "accepted", 1, 2),
        ("d", "corrected", 1, None),
        ("e", "accepted", 2, 1),
        ("f", "accepted", 2, 2),
        ("g", "accepted", 2, 3),
        ("h", "bonus", 2, None),
        ("i", "plain", 3, None),
    ]
    assert as_text(found) == "a|{bc}d|{efg}h|i"
    assert found[1].after_ms == pytest.approx(100.0)


def test_counts_that_grow_once_a_step():
    """llama.cpp books all of a step's tokens before it sends the first of them."""
    one = llama("abcd", [(1, None, None), (3, 3, 2)], tokens=[1, 3, 0, 0])
    found = map_answer(one, find_engine("llama.cpp"), arm("llama.cpp"))
    assert [piece.mark for piece in found] == ["first", "accepted", "accepted", "corrected"]
    assert sum(piece.num_tokens for piece in found) == 4


def test_text_that_was_held_back_is_not_guessed():
    one = llama("ab", [(1, None, None), (1, 3, 2)], tokens=[1, 3])
    found = map_answer(one, find_engine("llama.cpp"), arm("llama.cpp"))
    assert (found[1].mark, found[1].num_tokens, found[1].num_accepted_tokens) == ("step", 3, 2)
    merged = llama("ab", [(1, None, None), (1, 6, 2)], tokens=[1, 4])  # two steps in one event
    assert map_answer(merged, find_engine("llama.cpp"), arm("llama.cpp"))[1].mark == "unknown"


def test_a_chunk_a_step():
    one = record(["a", "bcd", "e", "fg"], event_tokens=[1, 3, 1, 2], completion_tokens=7)
    found = map_answer(one, find_engine("vllm"), arm("vllm"))
    assert [(p.mark, p.num_accepted_tokens) for p in found] == [
        ("first", None),
        ("step", 2),
        ("corrected", 0),
        ("step", 1),
    ]
    assert as_text(found) == "a|2:bcd|e|1:fg"


def test_merged_chunks_are_unknown():
    one = record(["a", "bcdefg"], event_tokens=[1, 6], completion_tokens=7)
    assert map_answer(one, find_engine("vllm"), arm("vllm"))[1].mark == "unknown"


def test_no_map_without_drafts_or_evidence():
    one = record(["a", "b"], event_tokens=[1, 1])
    plain = ArmFacts(name="a", engine="vllm", url="")
    assert map_answer(one, find_engine("vllm"), plain) is None
    untold = record(["a", "b"], event_tokens=[1, None])
    assert map_answer(untold, find_engine("vllm"), arm("vllm")) is None


def test_an_engine_that_does_not_always_draft():
    """n-gram: a step of one token may have had no draft at all."""
    one = record(["a", "b", "cd"], event_tokens=[1, 1, 2])
    found = map_answer(one, find_engine("vllm"), arm("vllm", method="ngram"))
    assert [p.mark for p in found] == ["first", "step", "step"]
