"""A server with scripted times, tokens, acceptance and faults, and a log of the truth.

For tests of this and other clients, and for trying sakiyomi without an engine.
"""

from sakiyomi.fake_engine.command import add_arguments, main, run
from sakiyomi.fake_engine.config import FakeEngine
from sakiyomi.fake_engine.faults import FAULTS
from sakiyomi.fake_engine.log import LoggedEvent, LoggedRequest, LoggedStep
from sakiyomi.fake_engine.server import Server, serve

__all__ = [
    "FAULTS",
    "FakeEngine",
    "LoggedEvent",
    "LoggedRequest",
    "LoggedStep",
    "Server",
    "add_arguments",
    "main",
    "run",
    "serve",
]
