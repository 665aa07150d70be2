"""The family of errors. Each says what failed, where, with which value, and what to try.

SakiyomiError
├── PlanError        a plan, a flag or an SLO file that cannot be meant
├── ScenarioError    a scenario file that cannot be read
├── EngineError      an engine that does not start, answer or know the model
│   └── RequestRefused   a server that takes no such request
├── StreamError      bytes that are no answer
├── MetricsError     a metrics page that cannot be read
├── CheckpointError  a model file that lies or is unknown
├── NotComparable    runs or arms that differ in a field that matters
└── StoreError       a run folder that cannot be read
    └── WriteError   a run folder or a report that cannot be written
"""


class SakiyomiError(Exception):
    """A failure with a remedy.

    `message` says what failed, where and with which value; `hint` what to try.
    `exit_status` is the contract's: 1 failed, 2 wrong usage or a bad input.
    """

    exit_status = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class PlanError(SakiyomiError):
    """A plan, a flag or an SLO file that cannot be meant."""

    exit_status = 2


class ScenarioError(SakiyomiError):
    """A scenario file that cannot be read."""

    exit_status = 2


class EngineError(SakiyomiError):
    """An engine that does not start, does not answer or does not know the model."""


class RequestRefused(EngineError):  # noqa: N818 - an answer of the server, no fault of it
    """A server that takes no such request, however plain: a key that the plan asks for."""


class StreamError(SakiyomiError):
    """Bytes that are no answer."""


class MetricsError(SakiyomiError):
    """A metrics page that cannot be read."""


class CheckpointError(SakiyomiError):
    """A model file that lies, is broken or of an unknown kind."""

    exit_status = 2


class NotComparable(SakiyomiError):  # noqa: N818 - reads as the verdict it is
    """Runs or arms that differ in a field that matters; the message names the field."""

    exit_status = 2


class StoreError(SakiyomiError):
    """A run folder that cannot be read."""

    exit_status = 2


class WriteError(StoreError):
    """A run folder, a report or an output that cannot be written: no room, no permission."""

    exit_status = 1
