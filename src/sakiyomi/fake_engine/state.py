"""What a fake server remembers between requests: counts, queue, known prompts, log."""

import asyncio
import time
from collections import Counter, deque
from typing import Any

from sakiyomi.fake_engine.answer import ScriptedStep
from sakiyomi.fake_engine.config import FakeEngine, FaultValue, faults_of
from sakiyomi.fake_engine.counts import Counts, Window, others, scaled
from sakiyomi.fake_engine.log import LoggedRequest  # noqa: TC001 - an attribute's type
from sakiyomi.fake_engine.page_text import PageState

PREFIX_BLOCK_TOKENS = 16
MAX_KNOWN_PROMPTS = 512
MAX_ITERATIONS = 1000


class State:
    """One server's memory. `num_completions` counts requests that came in, 1 is the first."""

    def __init__(self, config: FakeEngine) -> None:
        self.config = config
        self.log: list[LoggedRequest] = []
        self.num_completions = 0
        self.num_answered = 0
        self.num_running = 0
        self.num_waiting = 0
        self.num_scrapes = 0
        self.num_checks = 0
        self.started_at_s = time.time()
        self.reset_at_s: float | None = None
        self._opened_at_s = time.perf_counter()
        self.live = [Counts() for _ in range(config.num_engines)]
        self.finished = [Counts() for _ in range(config.num_engines)]
        self.windows = [Window() for _ in range(config.num_engines)]
        self.iterations: deque[dict[str, Any]] = deque(maxlen=MAX_ITERATIONS)
        """TensorRT-LLM's iteration statistics, emptied by each read."""
        self.perf_metrics: deque[dict[str, Any]] = deque(maxlen=MAX_ITERATIONS)
        self.repeats: Counter[str] = Counter()
        self._prompts: list[bytes] = []
        slots = config.max_concurrency
        self.slots = asyncio.Semaphore(slots) if slots else None

    def admit(self) -> tuple[int, dict[str, FaultValue]]:
        """Number the next completion request and tell its faults."""
        self.num_completions += 1
        faults = faults_of(self.config, self.num_completions)
        if self.num_completions <= int(faults.get("cold_start", 0)):
            faults["cold"] = True
        return self.num_completions, faults

    def cached_tokens(self, prompt: str) -> int:
        """Tokens of this prompt that the prefix cache holds, in whole blocks; remembers it."""
        if not self.config.prefix_cache:
            return 0
        text = prompt.encode()
        known = max((_common(text, prompt) for prompt in self._prompts), default=0)
        self._prompts = [*self._prompts[-MAX_KNOWN_PROMPTS:], text]
        # the last token is always computed: its logits are needed
        tokens = min(known // 4, (len(text) - 1) // 4)
        return tokens // PREFIX_BLOCK_TOKENS * PREFIX_BLOCK_TOKENS

    def stepped(self, engine: int, step: ScriptedStep, num_tokens: int, duration_s: float) -> None:
        """Move what is no plain count: running averages and iteration statistics."""
        self.windows[engine].add(step, self.config.k or 0)
        drafted = step.num_draft_tokens > 0
        statistics = {
            "numDraftTokens": step.num_draft_tokens,
            "numAcceptedTokens": step.num_accepted_tokens,
            "numRequestsWithDraftTokens": int(drafted),
            "acceptanceLength": 1.0 + step.num_accepted_tokens if drafted else 0.0,
            "draftOverhead": 0.0,
            "iterLatencyMS": duration_s * 1e3,
        }
        self.iterations.append(
            {
                "iter": len(self.iterations),
                "iterLatencyMS": duration_s * 1e3,
                "numActiveRequests": self.num_running,
                "inflightBatchingStats": {"avgNumDecodedTokensPerIter": float(num_tokens)},
                "specDecodingStats": statistics if self.config.k else None,
            }
        )

    def answered(self) -> None:
        """Count an answer that ended, and restart engine 0 where the fault wants it."""
        self.num_answered += 1
        faults = faults_of(self.config, self.num_answered)
        if self.num_answered == faults.get("counter_reset"):
            self.restart()

    def restart(self) -> None:
        """Begin anew as a restarted engine 0 does: from 0, as another process."""
        self.live[0], self.finished[0] = Counts(), Counts()
        self.reset_at_s = time.time()

    def page_state(self) -> PageState:
        """What the metrics page is drawn from at this moment."""
        self.num_scrapes += 1
        faults = faults_of(self.config, self.num_scrapes)
        live, finished = list(self.live), list(self.finished)
        if "other_traffic" in faults:
            elapsed_s = time.perf_counter() - self._opened_at_s
            traffic = others(int(elapsed_s * float(faults["other_traffic"])), self.config.k or 0)
            for counts in (live, finished):
                total = Counts()
                total.add(counts[0])
                total.add(traffic)
                counts[0] = total
        if "bounce" in faults and self.num_scrapes % 2 == 0:
            live, finished = [scaled(c, 0.5) for c in live], [scaled(c, 0.5) for c in finished]
        single = self.config.num_engines == 1
        restarted = self.reset_at_s if single and self.reset_at_s else self.started_at_s
        return PageState(
            config=self.config,
            live=tuple(live),
            finished=tuple(finished),
            num_running=self.num_running + int(faults.get("other_running", 0)),
            num_waiting=self.num_waiting,
            started_at_s=restarted,
            windows=tuple((window.length, window.rate) for window in self.windows),
            faults=faults,
        )


def _common(one: bytes, other: bytes) -> int:
    """Length of the common prefix."""
    size = min(len(one), len(other))
    if one[:size] == other[:size]:
        return size
    return next(i for i in range(size) if one[i] != other[i])
