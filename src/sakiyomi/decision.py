"""What was decided: an arm for each path, what it rests on, and what the gate says. Types alone."""

from typing import Literal

import msgspec

from sakiyomi.calibration import Calibration
from sakiyomi.candidates import Candidate
from sakiyomi.lossless import TextCheck
from sakiyomi.next_experiment import Experiment
from sakiyomi.path_lengths import BatchLengths, PathLength
from sakiyomi.plan import Load
from sakiyomi.results import Comparison

PathVerdict = Literal["established", "not_established", "none"]
Answer = Literal["yes", "no", "cannot_tell"]
Reason = Literal[
    "wins",
    "only_one",
    "no_gain",
    "gain_open",
    "limit_open",
    "limit_decides",
    "none_holds",
    "none_left",
]


class SpeechHeadroom(msgspec.Struct, frozen=True, kw_only=True):
    """How much faster than speech the chosen arm writes, at least (one character a token)."""

    arm: str
    times: float


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The arm of one path under one load. `arm` is what to serve meanwhile when it is open.

    `verdict`: `none` when no arm holds the limits. `reference`: what the others had to beat.
    `advised_k`: the predicted draft length where another than the measured ones is better.
    """

    scenario: str
    load: Load
    arm: str | None
    verdict: PathVerdict
    reason: Reason
    reference: str | None
    candidates: tuple[Candidate, ...]
    limits_are_set: bool
    draft_lengths: tuple[PathLength, ...] = ()
    advised_k: int | None = None
    texts: tuple[TextCheck, ...] = ()
    speech: SpeechHeadroom | None = None
    next_experiment: Experiment | None = None

    @property
    def chosen(self) -> Candidate | None:
        """The candidate of `arm`."""
        return next((c for c in self.candidates if c.arm == self.arm), None)


class Regression(msgspec.Struct, frozen=True, kw_only=True):
    """The run against an earlier one: arms of the same name, paired by conversation."""

    run: str
    earlier: str
    comparisons: tuple[Comparison, ...]
    answer: Answer


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a run lets one decide. `answer` is what the gate says."""

    run: str
    min_gain: float
    answer: Answer
    choices: tuple[Choice, ...]
    batch_lengths: tuple[BatchLengths, ...] = ()
    calibrations: tuple[Calibration, ...] = ()
    texts: tuple[TextCheck, ...] = ()
    regression: Regression | None = None

    @property
    def chosen_arms(self) -> dict[str, str]:
        """Path -> arm; of several loads the first one with an arm."""
        chosen: dict[str, str] = {}
        for choice in self.choices:
            if choice.arm is not None:
                chosen.setdefault(choice.scenario, choice.arm)
        return chosen
