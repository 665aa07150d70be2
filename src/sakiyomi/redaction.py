"""Secrets are never written: which flags, variables and body keys hold one. Pure."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from sakiyomi.plan import Arm, Plan

HIDDEN = "***"
"""What stands in place of a secret."""

SECRET_FLAG = re.compile(
    r"^--?(?:[\w-]+[-_])?(?:api[-_]?key|token|secret|password)$", re.IGNORECASE
)
SECRET_VARIABLE = re.compile(r"(?:^|_)(?:KEY|TOKEN|SECRET|PASSWORD)$", re.IGNORECASE)
SECRET_BODY_KEY = re.compile(
    r"(?:api_?key|secret|password|authorization|(?:access|auth|bearer)_?token)$", re.IGNORECASE
)


def redact(argv: Iterable[str]) -> Iterator[str]:
    """The command line without its secrets: the values of `--api-key` and its kind."""
    hide = False
    for word in argv:
        flag, sign, _ = word.partition("=")
        if hide:
            yield HIDDEN
        elif sign and (SECRET_FLAG.match(flag) or SECRET_VARIABLE.search(flag)):
            yield f"{flag}={HIDDEN}"  # also HF_TOKEN=... of docker run --env
        else:
            yield word
        hide = not hide and bool(SECRET_FLAG.match(word))


def redact_env(env: dict[str, str]) -> dict[str, str]:
    """Environment variables without the values of keys, tokens and passwords."""
    return {name: HIDDEN if SECRET_VARIABLE.search(name) else value for name, value in env.items()}


def redact_arm(arm: Arm) -> Arm:
    """The arm as it may be written."""
    return msgspec.structs.replace(
        arm,
        args=tuple(redact(arm.args)),
        command=tuple(redact(arm.command)),
        env=redact_env(arm.env),
        request=_redact_body(arm.request),
    )


def redact_plan(plan: Plan) -> Plan:
    """The plan as it may be written."""
    return msgspec.structs.replace(plan, arms=tuple(redact_arm(arm) for arm in plan.arms))


def has_hidden(arm: Arm) -> bool:
    """Whether a secret of this arm was left out when it was written."""
    return HIDDEN.encode() in msgspec.json.encode([arm.args, arm.command, arm.env, arm.request])


def _redact_body(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: HIDDEN
            if isinstance(item, str) and SECRET_BODY_KEY.search(key)
            else _redact_body(item)
            for key, item in value.items()
        }
    return value
