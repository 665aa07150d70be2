"""What a fake engine is told to be: dialect, times, acceptance, answers and faults."""

import re
from itertools import pairwise
from typing import Annotated, Literal

import msgspec

from sakiyomi.errors import PlanError
from sakiyomi.fake_engine.faults import FAULTS

DialectName = Literal[
    "vllm",
    "llama.cpp",
    "sglang",
    "tensorrt-llm",
    "lmdeploy",
    "tgi",
    "mlx-lm",
    "ollama",
    "tabbyapi",
    "ovms",
    "lmstudio",
    "openai",
]
Language = Literal["ja", "en", "code"]
Duration = Annotated[float, msgspec.Meta(ge=0)]
Rate = Annotated[float, msgspec.Meta(ge=0, le=1)]
Chance = Annotated[float, msgspec.Meta(gt=0, lt=1)]
FaultValue = int | float | str | bool

DEFAULT_POSITION_RATE = 0.7
"""Acceptance without a choice: position i is accepted with 0.7^(i+1), a plain round number."""


class FakeEngine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fake server. Times are seconds, rates are shares.

    - `k`: configured draft length; None speculates not at all.
    - `acceptance_rates[i]`: share of drafts with at least i+1 accepted tokens (unconditional,
      never increasing, length k). `acceptance_rates_by_language` replaces it for a language.
      `acceptance_spread`: standard deviation of log g, where the rates of a prompt are P_i^g.
    - `script`: accepted tokens of each decode step in turn, repeated; -1 is a step without a draft.
      It replaces the random draw.
    - `draft_coverage`: share of decode steps that have a draft.
    - `step_s`: time of a plain step; a drafted one takes `step_s * step_cost`. With r requests
      running, both are multiplied by 1 + `batch_cost` * (r - 1).
    - `num_tokens`: natural length of an answer; None answers until the cap of the request.
      `num_tokens_spread`: it varies between prompts by this share up and down. `eos_token`: its
      last token is an end token without text.
    - `certain`, `uncertain`: probabilities of a token and its rivals, the token's own first, where
      the model is certain and where it is not (logprobs tell them). `uncertain_share`: share of
      uncertain tokens, `uncertain_share_by_language` replaces it for a language.
      `acceptance_by_certainty`: chance that a draft of a certain and of an uncertain token is
      accepted when all before it were; replaces the rates.
    - `prefix_cache`: known prompt prefixes (blocks of 16 tokens) are not computed again.
    """

    dialect: DialectName = "vllm"
    model: str = "fake-model"
    version: str | None = None
    k: Annotated[int, msgspec.Meta(ge=0, le=64)] | None = None
    method: str = "mtp"
    rejection_sample_method: str = "standard"
    acceptance_rates: tuple[Rate, ...] = ()
    acceptance_rates_by_language: dict[Language, tuple[Rate, ...]] = {}
    acceptance_spread: Duration = 0.0
    script: tuple[Annotated[int, msgspec.Meta(ge=-1)], ...] = ()
    draft_coverage: Rate = 1.0
    certain: tuple[Chance, ...] = (0.94, 0.03, 0.01)
    uncertain: tuple[Chance, ...] = (0.4, 0.25, 0.15, 0.05)
    uncertain_share: Rate = 0.3
    uncertain_share_by_language: dict[Language, Rate] = {}
    acceptance_by_certainty: tuple[Rate, Rate] | None = None
    ttft_s: Duration = 0.02
    step_s: Duration = 0.005
    step_cost: Duration = 1.0
    batch_cost: Duration = 0.0
    jitter_s: Duration = 0.0
    max_concurrency: Annotated[int, msgspec.Meta(ge=1)] | None = None
    seed: int = 1
    language: Language | None = None
    text: str | None = None
    reasoning_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    num_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    num_tokens_spread: Rate = 0.0
    eos_token: bool = False
    prefix_cache: bool = False
    num_engines: Annotated[int, msgspec.Meta(ge=1)] = 1
    per_request: Literal["none", "summary", "detailed"] = "none"
    metrics: bool = True
    metrics_path: str | None = None
    server_info: bool = True
    base_path: str = ""
    api_key: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    reject_unknown: bool = False
    health_delay_s: Duration = 0.0
    start_delay_s: Duration = 0.0
    faults: tuple[str, ...] = ()
    log_path: str | None = None
    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be meant, before a socket is open."""
        for rates in (self.acceptance_rates, *self.acceptance_rates_by_language.values()):
            self._check_rates(rates)
        if any(accepted > (self.k or 0) for accepted in self.script):
            raise PlanError(
                f"fake engine: script {list(self.script)} accepts more than k={self.k} tokens",
                "an entry is -1 (no draft) to k",
            )
        for shares in (self.certain, self.uncertain):
            if not shares or sum(shares) > 1:
                raise PlanError(
                    f"fake engine: probabilities {list(shares)}",
                    "give a token's own and its rivals', together at most 1",
                )
        if self.per_request != "none" and not self.k:
            raise PlanError(
                f"fake engine: per_request={self.per_request!r} without speculation",
                "vLLM refuses to start so too: give k, or leave per_request out",
            )
        for fault in self.faults:
            parse_fault(fault)

    def _check_rates(self, rates: tuple[float, ...]) -> None:
        if rates and len(rates) != (self.k or 0):
            raise PlanError(
                f"fake engine: {len(rates)} acceptance rates for k={self.k}",
                "give one unconditional rate per draft position",
            )
        if any(late > early for early, late in pairwise(rates)):
            raise PlanError(
                f"fake engine: acceptance rates {list(rates)} increase",
                "position i+1 counts only where position i was accepted: rates never increase",
            )

    def position_rates(self, language: str) -> tuple[float, ...]:
        """P_i of an answer in this language, length k."""
        num_draft_tokens = self.k or 0
        rates = self.acceptance_rates_by_language.get(language)  # type: ignore[call-overload]
        if rates is None:
            rates = self.acceptance_rates
        if not rates:
            return tuple(DEFAULT_POSITION_RATE ** (i + 1) for i in range(num_draft_tokens))
        return tuple(rates)


class Fault(msgspec.Struct, frozen=True):
    """A fault and the requests (counted from 1) that it hits; `last` None: all later ones too."""

    name: str
    value: FaultValue
    first: int = 1
    last: int | None = None

    def hits(self, ordinal: int) -> bool:
        """Tell whether request number `ordinal` has this fault."""
        return self.first <= ordinal and (self.last is None or ordinal <= self.last)


def parse_fault(text: str) -> Fault:
    """`name[=value][@N | @N-M | @N-]` -> Fault."""
    found = re.fullmatch(r"(\w+)(?:=([^@]*))?(?:@(\d+)(-(\d*))?)?", text)
    if not found or found[1] not in FAULTS:
        raise PlanError(
            f"fake engine: unknown fault {text!r}",
            "write NAME, NAME=VALUE or NAME=VALUE@N: one of " + ", ".join(sorted(FAULTS)),
        )
    name, raw = found[1], found[2]
    default = FAULTS[name].default
    value = default if raw is None else _fault_value(text, raw, default)
    first = int(found[3] or 1)
    last = None if not found[3] else first if not found[4] else int(found[5]) if found[5] else None
    return Fault(name, value, first, last)


def _fault_value(text: str, raw: str, default: FaultValue) -> FaultValue:
    """Read a value of the default's type."""
    if isinstance(default, bool):
        raise PlanError(f"fake engine: fault {text!r} takes no value", "leave the value out")
    try:
        return type(default)(raw)
    except ValueError as error:
        kind = type(default).__name__
        raise PlanError(f"fake engine: fault {text!r}: {raw!r} is no {kind}", "mend it") from error


def faults_of(config: FakeEngine, ordinal: int) -> dict[str, FaultValue]:
    """Name -> value of the faults that hit request number `ordinal`."""
    found = (parse_fault(text) for text in config.faults)
    return {fault.name: fault.value for fault in found if fault.hits(ordinal)}
