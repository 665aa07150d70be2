"""argv in, exit status out. Verbs import what they use when they run: help is instant."""

import argparse
import sys
from collections.abc import Callable, Sequence

Arguments = argparse.Namespace

USAGE = """\
usage: sakiyomi [--version] COMMAND ...

Measure, explain and decide speculative decoding on your own workload.

commands:
{commands}

sakiyomi COMMAND --help tells the flags of a command. RUN is a run folder, its name, or
founding-case. --traceback after a command shows where an error arose.

exit status: 0 done, 1 failed, 2 wrong usage or a bad input, 3 decide --gate says no,
4 decide --gate cannot tell
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    verb = next((verb for verb in VERBS if words and verb[0] == words[0]), None)
    arguments = build_parser(verb).parse_args(words[1:]) if verb else Arguments(traceback=False)
    from sakiyomi.errors import SakiyomiError

    try:
        return verb[3](arguments) if verb else _top(words)
    except SakiyomiError as error:
        if arguments.traceback:
            raise
        from sakiyomi.terminal import warn

        warn(f"error: {error.message}")
        if error.hint:
            warn(f"hint: {error.hint}")
        return error.exit_status
    except KeyboardInterrupt:
        return 1


def build_parser(verb: "Verb") -> argparse.ArgumentParser:
    """One command's flags; the others' are not built, so that every start is fast."""
    name, summary, arguments, _ = verb
    parser = argparse.ArgumentParser(prog=f"sakiyomi {name}", description=summary)
    arguments(parser)
    parser.add_argument("--traceback", action="store_true", help="show where an error arose")
    return parser


def _top(words: list[str]) -> int:
    """Help, the version, or a word that is no command."""
    from sakiyomi.terminal import warn, write

    if words[:1] == ["--version"]:
        from sakiyomi import __version__

        write(f"sakiyomi {__version__}")
        return 0
    rows = [f"  {name:12} {summary}" for name, summary, _, _ in VERBS]
    usage = USAGE.format(commands="\n".join(rows))
    if words[:1] in (["-h"], ["--help"]):
        write(usage.rstrip("\n"))
        return 0
    said = f"error: no command {words[0]!r}" if words else ""
    warn((usage + said).rstrip("\n"))
    return 2


def _run_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("plan", nargs="?", metavar="PLAN.toml", help="without it and --url: the embedded engine")
    add("--url", action="append", default=[], metavar="[NAME=]URL", help="a running server: an arm")
    add("--model", metavar="NAME", help="the served model; without --url a GGUF file")
    add("--engine", help="vllm, sglang, llama.cpp, ... (found out by itself when left out)")
    add("--scenario", action="append", default=[], metavar="NAME", help="repeatable")
    add("--requests", type=int, metavar="N", help="per scenario, arm and repeat: first turns first")
    add("--conversations", type=int, metavar="N", help="the same, whole conversations")
    add("--max-tokens", type=int, metavar="N", help="the cap of an answer")
    add("--repeats", type=int, metavar="N")
    add("--concurrency", type=int, action="append", default=[], metavar="N", help="repeatable")
    add("--name", help="name of the run")
    add("--resume", metavar="RUN", help="finish an interrupted run, or add --repeats to one")
    add("--dry-run", action="store_true", help="print what would run, run nothing")
    add("--metrics-url", action="append", default=[], metavar="[NAME=]URL", help="repeatable")
    add("--api-key-env", metavar="NAME", help="environment variable that holds the API key")
    add("--ca-file", metavar="FILE", help="certificates of a private CA")
    add("--insecure", action="store_true", help="do not verify TLS certificates")
    add("--first-token-timeout", type=float, metavar="S", help="seconds (600)")
    add("--silence-timeout", type=float, metavar="S", help="seconds between events (120)")
    add("--calibrate", action="store_true", help="measure step costs with forced acceptance")
    add("--tune", action="store_true", help="confirm the best two draft lengths on the engine")
    add("--until-established", action="store_true", help="repeat until every verdict is clear")
    add("--budget", metavar="TIME", default="10m", help="limit of --until-established (10m)")
    add("--why", action="store_true", help="a second pass with logprobs: entropy and acceptance")
    add("--force", action="store_true", help="compare what differs in version or device")
    add("--end-strays", action="store_true", help="end engines that an earlier crash left behind")
    _out(parser)


def _out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="DIR", help="the run folder to write")
    _json(parser)


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the report as JSON, only that")


def _run(arguments: Arguments) -> int:
    from sakiyomi.commands.run_command import run_command

    return run_command(arguments)


def _report_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("-o", "--output", metavar="FILE", help=".html .md .json .csv .txt")
    parser.add_argument("--lang", choices=("ja", "en"), help="language of the page (by locale)")
    parser.add_argument("--map", metavar="CONVERSATION", help="how its tokens came, as text")
    _json(parser)


def _report(arguments: Arguments) -> int:
    from sakiyomi.commands.report_command import report_command

    return report_command(arguments)


def _export_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--parquet", metavar="FILE", required=True, help="one row a request")


def _export(arguments: Arguments) -> int:
    from sakiyomi.commands.export_command import export_command

    return export_command(arguments)


def _compare_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="the first is the baseline")
    parser.add_argument("-o", "--output", metavar="FILE", help=".html .md .json .csv .txt")
    parser.add_argument("--lang", choices=("ja", "en"))
    parser.add_argument("--force", action="store_true", help="compare what is not comparable")
    _json(parser)


def _compare(arguments: Arguments) -> int:
    from sakiyomi.commands.report_command import compare_command

    return compare_command(arguments)


def _bytes_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("models", nargs="+", metavar="MODEL", help="a folder, a GGUF file, config.json, a hub id")
    add("--device", metavar="NAME", help="such as 'rtx 4090'; auto: this machine")
    add("--context", type=int, default=1024, metavar="N", help="tokens of context (1024)")
    add("--batch", type=int, default=1, metavar="N", help="sequences in a step (1)")
    add("--k", type=int, metavar="N", help="draft length (plain and 1 to 8)")
    add("--assume-bits", type=float, metavar="B", help="bits per weight of unknown tensor types")
    add("--measure", action="store_true", help="measure this machine's read bandwidth")
    add("--kv-bits", type=float, metavar="B", help="bits of a KV cache element (the model's own)")
    add("--draft", metavar="MODEL", help="a draft model or EAGLE head beside the first model")
    _json(parser)


def _bytes(arguments: Arguments) -> int:
    from sakiyomi.commands.bytes_report import bytes_command
    from sakiyomi.terminal import write

    text = bytes_command(
        arguments.models,
        device=arguments.device,
        context=arguments.context,
        batch=arguments.batch,
        k=arguments.k,
        assume_bits=arguments.assume_bits,
        measure=arguments.measure,
        json=arguments.json,
        kv_bits=arguments.kv_bits,
        draft=arguments.draft,
    )
    write(text.rstrip("\n"))
    return 0


def _explain_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", metavar="RUN")
    add("--model-dir", metavar="[ARM=]PATH", action="append", default=[], help="where weights are")
    add("--device", metavar="NAME", help="such as 'rtx 4090'; auto: this machine")
    add("--measure", action="store_true", help="measure this machine's read bandwidth")
    add("--calibration", metavar="RUN", help="step costs measured with forced acceptance")
    _json(parser)


def _explain(arguments: Arguments) -> int:
    from sakiyomi.commands.explain_command import explain_command

    return explain_command(arguments)


def _decide_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", metavar="RUN")
    add("--slo", metavar="FILE", help="limits by path; without it the plan's own")
    add("--gate", action="store_true", help="exit 3 when a path has no good arm, 4 when unclear")
    add("--baseline", metavar="RUN", help="catch a regression against an earlier run")
    add("--calibration", metavar="RUN", help="step costs measured with forced acceptance")
    add("--export", metavar="DIR", help="write launch commands, router and alert rules there")
    add("--force", action="store_true", help="compare what is not comparable")
    _json(parser)


def _decide(arguments: Arguments) -> int:
    from sakiyomi.commands.decide_command import decide_command

    return decide_command(arguments)


def _watch_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("urls", nargs="+", metavar="[NAME=]URL", help="running servers, or their metrics pages")
    add("--every", metavar="TIME", default="5", help="between two readings, seconds or 1m (5)")
    add("--for", dest="watch_for", metavar="TIME|N", help="end after 10m, or N readings (Ctrl-C)")
    add("--against", metavar="RUN", help="draw the break-even that a run measured beside it")
    add("--metrics-url", action="append", default=[], metavar="[NAME=]URL", help="repeatable")
    add("--engine", help="vllm, sglang, ... (found out by itself when left out)")
    add("--api-key-env", metavar="NAME", help="environment variable that holds the API key")
    add("--ca-file", metavar="FILE", help="certificates of a private CA")
    add("--insecure", action="store_true", help="do not verify TLS certificates")
    add("--json", action="store_true", help="a JSON line a reading, only that")


def _watch(arguments: Arguments) -> int:
    from sakiyomi.commands.watch_command import watch_command

    return watch_command(arguments)


def _scenarios_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("action", nargs="?", choices=("list", "show", "import"), default="list")
    add("names", nargs="*", metavar="NAME|FILE", help="scenarios to show, or files to import")
    add("-o", "--output", metavar="FILE", help="the scenario file that import writes")
    add("--name", help="name of the imported scenario")
    add("--num-conversations", type=int, metavar="N", help="how many to sample (64)")
    add("--seed", type=int, default=1)
    add("--column", action="append", default=[], metavar="FIELD=NAME", help="columns of a CSV")
    add("--per-category", action="store_true", help="a scenario for each category of the log")
    add("--no-mask", action="store_true", help="keep keys, mail addresses and numbers as they are")
    _json(parser)


def _scenarios(arguments: Arguments) -> int:
    from sakiyomi.commands.scenarios_command import scenarios_command

    return scenarios_command(arguments)


def _history_arguments(parser: argparse.ArgumentParser) -> None:
    _json(parser)


def _history(arguments: Arguments) -> int:
    from sakiyomi.commands.report_command import history_command

    return history_command(arguments)


def _fake_engine_arguments(parser: argparse.ArgumentParser) -> None:
    from sakiyomi import fake_engine

    fake_engine.add_arguments(parser)


def _fake_engine(arguments: Arguments) -> int:
    from sakiyomi import fake_engine

    return fake_engine.run(arguments)


Verb = tuple[
    str, str, Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int]
]
VERBS: tuple[Verb, ...] = (
    ("run", "measure, per scenario and per arm", _run_arguments, _run),
    ("compare", "runs made at different times or servers", _compare_arguments, _compare),
    ("explain", "where the time goes: bytes, ceilings, step cost", _explain_arguments, _explain),
    ("decide", "which arm on which path, and why", _decide_arguments, _decide),
    ("report", "a run as .html, .md, .json, .csv or text", _report_arguments, _report),
    ("export", "the requests of a run as a table", _export_arguments, _export),
    ("bytes", "read bytes and ceilings of a model", _bytes_arguments, _bytes),
    ("watch", "live acceptance and speed of running servers", _watch_arguments, _watch),
    ("scenarios", "built-in scenarios; make one from own logs", _scenarios_arguments, _scenarios),
    ("history", "runs on this machine", _history_arguments, _history),
    ("fake-engine", "a server with scripted truth", _fake_engine_arguments, _fake_engine),
)
"""In the order in which a user meets them."""

if __name__ == "__main__":
    sys.exit(main())
