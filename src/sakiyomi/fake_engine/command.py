"""`sakiyomi fake-engine`: the fake engine as a process."""

import argparse
import asyncio
import contextlib
import signal
import sys
from typing import Any, get_args

import msgspec

from sakiyomi import terminal
from sakiyomi.errors import PlanError, SakiyomiError
from sakiyomi.fake_engine.config import DialectName, FakeEngine
from sakiyomi.fake_engine.faults import FAULTS
from sakiyomi.fake_engine.server import Server

_HELP = {
    "dialect": "whose stream, pages and counters to imitate",
    "model": "served model name",
    "version": "engine version that it claims",
    "k": "configured draft length; without it no speculation",
    "method": "speculative method that it claims",
    "rejection_sample_method": "vLLM's rejection_sample_method in /server_info",
    "acceptance_rates": "unconditional rate per position, comma separated: 0.8,0.6,0.4",
    "acceptance_spread": "spread of the rates between prompts (sigma of their exponent's log)",
    "script": "accepted tokens per step in turn, comma separated; -1: no draft",
    "draft_coverage": "share of decode steps that have a draft",
    "certain": "probabilities of a token and its rivals where the model is certain: 0.94,0.03",
    "uncertain": "the same where it is not; logprobs tell them",
    "uncertain_share": "share of tokens where it is not",
    "acceptance_by_certainty": "acceptance of a draft of a certain and an uncertain token: 0.9,0.2",
    "ttft_s": "seconds to the first token",
    "step_s": "seconds of a plain decode step",
    "step_cost": "time of a drafted step / time of a plain step",
    "batch_cost": "share by which each further running request slows a step",
    "jitter_s": "uniform jitter of each step, up and down",
    "max_concurrency": "slots; more requests wait",
    "seed": "seed of texts and acceptance",
    "language": "language of the answers; default: the prompt's",
    "text": "a fixed answer, repeated as needed",
    "reasoning_tokens": "reasoning tokens before the answer",
    "num_tokens": "natural length of an answer; default: until the cap",
    "num_tokens_spread": "share by which the length varies between prompts",
    "num_engines": "data parallel engines on the metrics page",
    "per_request": "vLLM's --per-request-spec-decode-metrics",
    "metrics_path": "another path of the metrics page",
    "base_path": "serve below this path: /proxy",
    "api_key": "refuse requests without this bearer key",
    "tls_certificate": "serve TLS with this PEM file",
    "tls_key": "its key, if not in the same file",
    "health_delay_s": "seconds that /health takes",
    "start_delay_s": "seconds before the port opens",
    "log_path": "append the truth of each request to this JSON lines file",
    "host": "address to listen on",
    "port": "port; 0 takes a free one",
    "eos_token": "answers end in a token without text",
    "prefix_cache": "known prompt prefixes are not computed again",
    "reject_unknown": "400 to body keys that are not OpenAI's",
}
_FLAGS = ("eos_token", "prefix_cache", "reject_unknown")
_LISTS = ("acceptance_rates", "script", "certain", "uncertain", "acceptance_by_certainty")
_RENAMED = {"acceptance_rates": "--acceptance", "log_path": "--log"}
_CHOICES: dict[str, Any] = {
    "dialect": get_args(DialectName),
    "language": ("ja", "en", "code"),
    "per_request": ("none", "summary", "detailed"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `fake-engine`; each is a field of `FakeEngine`."""
    for name, text in _HELP.items():
        flag = _RENAMED.get(name, "--" + name.removesuffix("_s").replace("_", "-"))
        if name in _FLAGS:
            parser.add_argument(flag, dest=name, action="store_true", default=None, help=text)
        else:
            choices = _CHOICES.get(name)
            parser.add_argument(flag, dest=name, default=None, help=text, choices=choices)
    parser.add_argument(
        "--acceptance-for",
        action="append",
        default=[],
        metavar="LANGUAGE=RATES",
        help="other rates for prompts in ja, en or code, repeatable: ja=0.5,0.3,0.2",
    )
    parser.add_argument(
        "--uncertain-for",
        action="append",
        default=[],
        metavar="LANGUAGE=SHARE",
        help="another share of uncertain tokens for ja, en or code, repeatable: ja=0.6",
    )
    parser.add_argument("--no-metrics", action="store_true", help="serve no metrics page")
    parser.add_argument("--no-server-info", action="store_true", help="serve no /server_info")
    parser.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="NAME[=VALUE][@N[-M]]",
        help="a fault, repeatable; @N: only the N-th request (--list-faults)",
    )
    parser.add_argument("--list-faults", action="store_true", help="list the faults and end")


def config_of(args: argparse.Namespace) -> FakeEngine:
    """Turn parsed arguments into a config. Raises PlanError."""
    fields: dict[str, Any] = {"faults": tuple(args.fault)}
    for name in _HELP:
        value = getattr(args, name)
        if value is None:
            continue
        if name in _LISTS:
            value = tuple(part.strip() for part in value.split(","))
        fields[name] = value
    by_language = [text.partition("=") for text in args.acceptance_for]
    fields["acceptance_rates_by_language"] = {
        language: tuple(rates.split(",")) for language, _, rates in by_language
    }
    shares = [text.partition("=") for text in args.uncertain_for]
    fields["uncertain_share_by_language"] = {language: share for language, _, share in shares}
    if args.no_metrics:
        fields["metrics"] = False
    if args.no_server_info:
        fields["server_info"] = False
    try:
        return msgspec.convert(fields, FakeEngine, strict=False)
    except msgspec.ValidationError as error:
        raise PlanError(f"fake engine: {error}", "see sakiyomi fake-engine --help") from error


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM (0), or until a fault ends the server (1)."""
    if args.list_faults:
        for name, fault in FAULTS.items():
            value = "" if isinstance(fault.default, bool) else f"={fault.default}"
            terminal.write(f"{name + value:28} {fault.meaning}")
        return 0
    try:
        return asyncio.run(_run(config_of(args)))
    except KeyboardInterrupt:
        return 0


async def _run(config: FakeEngine) -> int:
    """Print the URL on a line of its own, then serve."""
    server = Server(config)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # Windows
            loop.add_signal_handler(name, stop.set)
    await server.start()
    sys.stdout.write(server.url + "\n")
    sys.stdout.flush()
    waits = [asyncio.ensure_future(stop.wait()), asyncio.ensure_future(server.closed.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    died = server.closed.is_set()
    await server.close()
    return 1 if died else 0


def main(argv: list[str] | None = None) -> int:
    """Run from a command line."""
    parser = argparse.ArgumentParser(prog="sakiyomi fake-engine", description=__doc__)
    add_arguments(parser)
    try:
        return run(parser.parse_args(argv))
    except SakiyomiError as error:
        sys.stderr.write(f"error: {error.message}\nhint: {error.hint}\n")
        return error.exit_status
