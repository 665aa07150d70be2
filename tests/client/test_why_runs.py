"""`run --why` against fake engines over sockets: what it prints is the server's own truth."""

import json
import math

import pytest

from sakiyomi.commands.why_command import open_why, read_texts, read_why
from sakiyomi.correlations import rank_correlation
from sakiyomi.stats import median
from sakiyomi.store import open_run

CERTAIN, UNCERTAIN = (0.94, 0.03, 0.02), (0.4, 0.25, 0.2, 0.1)
QUICK = ("--ttft", "0.002", "--step", "0.0005")
MODEL = (
    *("--certain", "0.94,0.03,0.02", "--uncertain", "0.4,0.25,0.2,0.1"),
    *("--uncertain-for", "ja=0.6", "--uncertain-for", "en=0.1"),
)
DRAFTS = ("--k", "3", "--acceptance-by-certainty", "0.9,0.2")
DETAILED = ("--per-request", "detailed")
LLAMA = ("--dialect", "llama.cpp")
ASKED = ("--repeats", "1", "--requests", "6", "--max-tokens", "80")


@pytest.fixture
def ask_why(sakiyomi, fake_engine, tmp_path):
    """Runs two arms with --why; (what was printed, the saved pass, the logs of the arms' truth)."""

    def run(plain, mtp, *more, scenarios=("ja_chat", "en_chat")):
        logs = {name: tmp_path / f"{name}.jsonl" for name in ("plain", "mtp")}
        words = [word for name in scenarios for word in ("--scenario", name)]
        for name, options in (("plain", plain), ("mtp", mtp)):
            url = fake_engine(*QUICK, *MODEL, "--log", str(logs[name]), *options)
            words += ["--url", f"{name}={url}"]
        folder = tmp_path / "run"
        done = sakiyomi("run", *words, *ASKED, "--why", "--out", str(folder), *more)
        assert done.returncode == 0, done.stderr
        truth = {name: read_log(path) for name, path in logs.items()}
        return done, open_why(folder), truth

    return run


def read_log(path):
    """The pass's own requests: those that asked for logprobs, without probes and warm-up."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    asked = [one for one in found if one["shares"] and one["body"]["max_tokens"] == 80]
    return asked[1:]  # the first is the warm-up


def entropy_of(shares):
    """With what is not listed as tokens no likelier than the last listed one."""
    rest = 1 - sum(shares)
    least = -rest * min(math.log(rest), math.log(shares[-1])) if rest > 1e-9 else 0.0
    return least - sum(p * math.log(p) for p in shares)


def reached_tokens(request):
    """(entropy, accepted) of the tokens that drafts reached, from the engine's own steps."""
    facts, at = [], 1
    for step in request["steps"][1:]:
        accepted, tokens = step["num_accepted_tokens"], step["num_tokens"]
        for place in range(tokens):
            if place < accepted or (place == accepted < step["num_draft_tokens"]):
                shares = request["shares"][at + place]
                facts.append((entropy_of(shares), place < accepted))
        at += tokens
    return facts


def by_scenario(requests):
    """Facts of the conversations of each language."""
    found = {"ja_chat": [], "en_chat": []}
    for request in requests:
        text = json.dumps(request["body"]["messages"], ensure_ascii=False)
        is_japanese = any("ぁ" <= character <= "ん" for character in text)
        found["ja_chat" if is_japanese else "en_chat"].append(reached_tokens(request))
    return found


def test_what_is_printed_is_the_truth(ask_why):
    done, reader, logs = ask_why((), (*DRAFTS, *DETAILED))
    why = read_why(reader)
    truth = by_scenario(logs["mtp"])
    assert why.silent == {}
    rates = {}
    for found in why.scenarios:
        units = truth[found.scenario]
        assert len(units) == 6
        tokens = [token for unit in units for token in unit]
        assert found.num_tokens == found.num_reached == len(tokens) > 150
        assert found.mean_entropy.point == pytest.approx(sum(e for e, _ in tokens) / len(tokens))
        rates[found.scenario] = sum(ok for _, ok in tokens) / len(tokens)
        assert found.acceptance.point == pytest.approx(rates[found.scenario])
        for told, side in ((found.entropy_of_accepted, True), (found.entropy_of_rejected, False)):
            mine = [entropy for entropy, accepted in tokens if accepted is side]
            assert told.point == pytest.approx(sum(mine) / len(mine))
        correlations = [rank_correlation([(e, float(ok)) for e, ok in unit]) for unit in units]
        assert found.within.point == pytest.approx(median(correlations))
        assert found.within.high < 0
        # 0.01 and 0.05 are not listed
        assert 0.01 < found.unlisted < 0.05
    (gap,) = why.gaps
    assert (gap.higher, gap.lower) == ("en_chat", "ja_chat")
    assert gap.gap.point == pytest.approx(rates["en_chat"] - rates["ja_chat"])
    assert gap.gap.low > 0
    assert gap.explained.point == pytest.approx(explained_by_hand(truth), rel=1e-6)
    assert gap.share == pytest.approx(gap.explained.point / gap.gap.point)
    # nothing else decides here; prompts are marked anew in each run, so that the draw differs
    assert gap.share == pytest.approx(1, abs=0.5)
    assert "uncertain tokens are drafted worse" in " ".join(done.stdout.split())
    assert f"{gap.share:.0%}." in done.stdout
    assert f"{gap.gap.point * 100:.0f} points" in done.stdout


def explained_by_hand(truth):
    """Two kinds of token: their mean acceptance, weighted by how differently both texts use them."""
    explained = 0.0
    for kind in (entropy_of(CERTAIN), entropy_of(UNCERTAIN)):
        rates, shares = [], []
        for scenario in ("en_chat", "ja_chat"):
            tokens = [token for unit in truth[scenario] for token in unit]
            mine = [ok for entropy, ok in tokens if entropy == pytest.approx(kind)]
            rates.append(sum(mine) / len(mine))
            shares.append(len(mine) / len(tokens))
        explained += (shares[0] - shares[1]) * sum(rates) / 2
    return explained


def test_without_per_step_counts_the_draft_length_tells_the_rejections(ask_why):
    _, reader, logs = ask_why((), (*DRAFTS, "--per-request", "summary"))
    truth = by_scenario(logs["mtp"])
    for found in read_why(reader).scenarios:
        tokens = [token for unit in truth[found.scenario] for token in unit]
        # only the last step of each answer, which its end may have cut, is left out
        assert len(tokens) - 6 * 4 <= found.num_tokens <= len(tokens)
        rate = sum(ok for _, ok in tokens) / len(tokens)
        assert found.acceptance.point == pytest.approx(rate, abs=0.03)


def test_llamacpp_borrows_from_the_plain_arm(ask_why):
    _, reader, logs = ask_why(LLAMA, (*LLAMA, *DRAFTS))
    truth = by_scenario(logs["mtp"])
    for found in read_why(reader).scenarios:
        tokens = [token for unit in truth[found.scenario] for token in unit]
        assert found.num_tokens == found.num_reached == len(tokens)
        assert found.mean_entropy.point == pytest.approx(sum(e for e, _ in tokens) / len(tokens))
        assert found.acceptance.point == pytest.approx(sum(ok for _, ok in tokens) / len(tokens))


def test_llamacpp_where_characters_are_held_back(ask_why):
    held = ("--fault", "empty_tokens=5")
    done, reader, _ = ask_why((*LLAMA, *held), (*LLAMA, *DRAFTS, *held))
    for found in read_why(reader).scenarios:
        assert 0.3 * found.num_reached < found.num_tokens < found.num_reached
        assert {round(found.mean_entropy.point, 1)} < {round(x / 10, 1) for x in range(2, 15)}
    assert "alternatives are not known" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("logprobs_null", "no logprobs came with its tokens, and no plain arm has any to lend"),
        ("logprobs_every=2", "without telling which, and no plain arm has any to lend"),
        ("top_logprobs_cap=0", "no alternatives came with its tokens (top_logprobs)"),
    ],
)
def test_a_server_with_too_little_says_so(ask_why, fault, says):
    done, reader, _ = ask_why(
        ("--fault", "logprobs_null"), (*DRAFTS, *DETAILED, "--fault", fault), scenarios=("en_chat",)
    )
    why = read_why(reader)
    assert why.scenarios == why.gaps == ()
    assert says in why.silent["en_chat x mtp"]
    assert "en_chat x mtp: entropy is not known: " in " ".join(done.stdout.split())


def test_fewer_alternatives_than_asked_bound_the_entropy_from_below(ask_why):
    fault = ("--fault", "top_logprobs_cap=2")
    _, reader, logs = ask_why(fault, (*DRAFTS, *DETAILED, *fault), scenarios=("ja_chat",))
    (found,) = read_why(reader).scenarios
    entropies = [
        [(entropy_of(shares[:2]), entropy_of(shares)) for shares in request["shares"]]
        for request in logs["mtp"]
    ]
    assert all(least <= full + 1e-12 for one in entropies for least, full in one)
    assert found.unlisted > 0.15
    tokens = [token for unit in by_scenario(logs["mtp"])["ja_chat"] for token in unit]
    assert found.mean_entropy.point < sum(e for e, _ in tokens) / len(tokens)


def test_a_server_that_refuses_logprobs_leaves_the_run_alone(sakiyomi, fake_engine, tmp_path):
    url = fake_engine(*QUICK, *MODEL, *DRAFTS, "--fault", "logprobs_400")
    folder = tmp_path / "run"
    done = sakiyomi(
        "run", "--url", url, "--scenario", "en_chat", *ASKED, "--why", "--out", str(folder)
    )
    assert done.returncode == 0, done.stderr
    assert "en_chat" in done.stdout
    assert "the server gives no logprobs" in done.stderr
    assert "'logprobs' is not supported" in done.stderr
    assert open_run(str(folder)).facts.finished


def test_timed_requests_ask_for_no_logprobs_and_the_pass_goes_on(ask_why, sakiyomi, tmp_path):
    ask_why((), (*DRAFTS, *DETAILED), scenarios=("en_chat",))
    asked = [json.loads(line)["body"] for line in (tmp_path / "mtp.jsonl").read_text().splitlines()]
    with_logprobs = ["logprobs" in body for body in asked]
    assert with_logprobs == sorted(with_logprobs)  # first the timed pass, then the other
    again = sakiyomi("run", "--resume", str(tmp_path / "run"), "--why")
    assert again.returncode == 0, again.stderr
    assert "uncertain tokens" in " ".join(again.stdout.split())
    now = (tmp_path / "mtp.jsonl").read_text().splitlines()
    assert sum("top_logprobs" in line for line in now) == sum(with_logprobs)  # not asked again


def test_a_scenario_smaller_than_the_pass(sakiyomi, fake_engine, tmp_path):
    own = tmp_path / "own.jsonl"
    own.write_text("".join(f'{{"turns": ["Tell me of {n}."]}}\n' for n in range(3)))
    url = fake_engine(*QUICK, *MODEL, *DRAFTS, *DETAILED)
    words = ("--url", url, "--scenario", str(own), "--repeats", "1", "--max-tokens", "60")
    done = sakiyomi("run", *words, "--why", "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert read_why(open_why(tmp_path / "run")).scenarios[0].num_conversations == 3


def test_a_divergence_at_a_near_tie(ask_why, sakiyomi, tmp_path):
    tie = ("--fault", "near_tie=30")
    done, reader, _ = ask_why(
        tie, (*tie, *DRAFTS, *DETAILED, "--fault", "diverges=30"), scenarios=("en_chat",)
    )
    (check,) = read_texts(reader)
    assert (check.verdict, check.num_diverged, check.num_near_ties) == ("near_ties", 6, 6)
    assert check.first.gap_nats == pytest.approx(math.log(0.40 / 0.39))
    assert check.share_equal.point == 0
    assert "near ties" in " ".join(done.stdout.split())
    decided = json.loads(sakiyomi("decide", str(tmp_path / "run"), "--json").stdout)
    (mtp,) = [one for one in candidates(decided) if one["arm"] == "mtp"]
    assert mtp["excluded"] is None


def test_a_gross_divergence_is_not_recommended(ask_why, sakiyomi, tmp_path):
    done, reader, logs = ask_why(
        (),
        (*DRAFTS, *DETAILED, "--fault", "diverges=30"),
        scenarios=("en_chat",),
    )
    (check,) = read_texts(reader)
    shares = [request["shares"][30] for request in logs["plain"]]
    gaps = [math.log(one[0] / one[1]) for one in shares]
    assert check.verdict == "differs"
    assert any(check.first.gap_nats == pytest.approx(gap) for gap in gaps)
    assert min(gaps) > 0.25
    assert check.num_diverged == 6
    assert "the output is not the model's own" in " ".join(done.stdout.split())
    decided = sakiyomi("decide", str(tmp_path / "run"), "--json")
    (mtp,) = [one for one in candidates(json.loads(decided.stdout)) if one["arm"] == "mtp"]
    assert mtp["excluded"] == "text_differs"


def candidates(report):
    return [one for choice in report["decision"]["choices"] for one in choice["candidates"]]
