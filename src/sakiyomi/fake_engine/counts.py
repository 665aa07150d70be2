"""The true counts of a fake server, per engine: what its metrics page is drawn from."""

from bisect import bisect_left
from collections import Counter

import msgspec

from sakiyomi.fake_engine.answer import ScriptedStep

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Histogram(msgspec.Struct):
    """Observations in `bounds`; `counts` has one more entry, for what lies above."""

    bounds: tuple[float, ...] = BUCKETS
    counts: list[int] = msgspec.field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    total: float = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value `times` times."""
        index = bisect_left(self.bounds, value)
        self.counts[index] += times
        self.total += value * times

    def add(self, other: "Histogram") -> None:
        """Add another histogram of the same bounds."""
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.total += other.total


class Counts(msgspec.Struct, kw_only=True):
    """Monotone counts. `accepted_per_position[i]`: drafts with at least i+1 accepted tokens.

    `drafted_per_position[i]`: drafts that had a position i. `num_steps`: decode steps with and
    without a draft, `step_s`: their times. `skipped`: tokens - 1 of each step (TGI, prefill too).
    """

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_per_position: Counter[int] = msgspec.field(default_factory=Counter)
    drafted_per_position: Counter[int] = msgspec.field(default_factory=Counter)
    num_generated_tokens: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_prefills: int = 0
    num_steps: int = 0
    decode_s: float = 0.0
    prompt_s: float = 0.0
    finished: Counter[str] = msgspec.field(default_factory=Counter)
    step_s: Histogram = msgspec.field(default_factory=Histogram)
    token_s: Histogram = msgspec.field(default_factory=Histogram)
    ttft_s: Histogram = msgspec.field(default_factory=Histogram)
    last_draft_tokens: int = 0
    last_accepted_tokens: int = 0
    skipped: Counter[int] = msgspec.field(default_factory=Counter)

    @property
    def num_requests(self) -> int:
        """Requests that ended."""
        return sum(self.finished.values())

    def add_prefill(self, prompt_tokens: int, cached_tokens: int, prefill_s: float) -> None:
        """Count the first step of a request; its token is counted by `add_tokens`."""
        self.num_prefills += 1
        self.num_prompt_tokens += prompt_tokens
        self.num_cached_tokens += cached_tokens
        self.prompt_s += prefill_s
        self.skipped[0] += 1
        self.ttft_s.observe(prefill_s)

    def add_step(self, step: ScriptedStep, duration_s: float) -> None:
        """Count a decode step as the engine does: accepted before the end cuts it."""
        self.num_steps += 1
        self.decode_s += duration_s
        self.step_s.observe(duration_s)
        self.token_s.observe(duration_s / step.num_tokens, step.num_tokens)
        self.skipped[step.num_tokens - 1] += 1
        if step.num_draft_tokens:
            self.num_drafts += 1
            self.num_draft_tokens += step.num_draft_tokens
            self.num_accepted_tokens += step.num_accepted_tokens
            self.accepted_per_position.update(range(step.num_accepted_tokens))
            self.drafted_per_position.update(range(step.num_draft_tokens))

    def add(self, other: "Counts") -> None:
        """Add another count to this one."""
        for name in self.__struct_fields__:
            mine, others = getattr(self, name), getattr(other, name)
            if isinstance(mine, Histogram):
                mine.add(others)
            elif isinstance(mine, Counter):
                mine.update(others)
            else:
                setattr(self, name, mine + others)


def scaled(counts: Counts, share: float) -> Counts:
    """Another worker's view: a share of every count, rounded down."""
    shown = Counts()
    shown.add(counts)
    for name in shown.__struct_fields__:
        value = getattr(shown, name)
        if isinstance(value, int):
            setattr(shown, name, int(value * share))
        elif isinstance(value, float):
            setattr(shown, name, value * share)
        elif isinstance(value, Counter):
            setattr(shown, name, Counter({k: int(v * share) for k, v in value.items()}))
        else:
            value.counts = [int(count * share) for count in value.counts]
            value.total *= share
    return shown


def others(num_tokens: int, k: int) -> Counts:
    """Traffic of others: half the tokens are accepted drafts, 100 tokens a request."""
    counts = Counts()
    counts.num_generated_tokens = num_tokens
    counts.num_prompt_tokens = num_tokens
    counts.finished["stop"] = num_tokens // 100
    counts.num_steps = num_tokens // 2 if k else num_tokens
    if k:
        counts.num_drafts = num_tokens // 2
        counts.num_draft_tokens = counts.num_drafts * k
        counts.num_accepted_tokens = counts.num_drafts
        counts.accepted_per_position[0] = counts.num_drafts
        counts.drafted_per_position.update(dict.fromkeys(range(k), counts.num_drafts))
    counts.skipped[1 if k else 0] = counts.num_steps
    counts.step_s.observe(0.01, counts.num_steps)
    counts.decode_s = 0.01 * counts.num_steps
    return counts


WINDOW_STEPS = 40
"""SGLang's default `--decode-log-interval`: its gauges move when so many steps are done."""


class Window(msgspec.Struct, kw_only=True):
    """A running average over the last full window of decode steps; 0 before the first."""

    length: float = 0.0
    rate: float = 0.0
    num_steps: int = 0
    num_drafts: int = 0
    num_accepted_tokens: int = 0

    def add(self, step: ScriptedStep, k: int) -> None:
        """Count a decode step; the rate's denominator is the static k."""
        self.num_steps += 1
        self.num_drafts += step.num_draft_tokens > 0
        self.num_accepted_tokens += step.num_accepted_tokens
        if self.num_steps == WINDOW_STEPS:
            if self.num_drafts:
                self.length = 1 + self.num_accepted_tokens / self.num_drafts
                self.rate = self.num_accepted_tokens / (self.num_drafts * k)
            self.num_steps = self.num_drafts = self.num_accepted_tokens = 0
