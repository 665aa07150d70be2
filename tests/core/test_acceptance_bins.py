"""Acceptance by uncertainty: counted by hand."""

from sakiyomi.acceptance_bins import EDGES_NATS, acceptance_bins
from sakiyomi.explained_gap import TokenFact


def tokens(entropy, accepted, rejected):
    return [TokenFact(entropy, 0.0, True)] * accepted + [TokenFact(entropy, 0.0, False)] * rejected


def test_tokens_are_counted_in_their_bin():
    units = [tokens(0.005, 9, 1) + tokens(1.0, 2, 8), tokens(0.005, 6, 4) + tokens(5.0, 0, 3)] * 2
    found = acceptance_bins(units, "entropy", 1)
    assert [(b.low, b.high, b.num_tokens, b.rate.point) for b in found] == [
        (0.0, 0.01, 40, 0.75),
        (1.0, 2.0, 20, 0.2),
        (2.0, None, 6, 0.0),
    ]
    sure, split, few = (b.rate for b in found)
    assert sure.low < 0.75 < sure.high
    assert (sure.n, split.n, few.n) == (4, 2, 2)
    assert (few.low, few.high) == (None, None)


def test_all_with_the_same_luck_have_no_interval():
    (only,) = acceptance_bins([tokens(0.2, 30, 0)] * 5, "entropy", 1)
    assert (only.rate.point, only.rate.low, only.rate.high) == (1.0, None, None)


def test_surprisal_has_bins_of_its_own():
    (only,) = acceptance_bins([[TokenFact(0.0, 3.0, True)] * 25] * 3, "surprisal", 1)
    assert (only.low, only.high) == (EDGES_NATS[-1], None)


def test_no_tokens_no_bins():
    assert acceptance_bins([], "entropy", 1) == ()
