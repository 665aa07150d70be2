"""The embedded engine as a process of its own: `python -m sakiyomi.embedded_server --help`.

It is llama.cpp's own HTTP server from the package `xllamacpp` (the extra `local`), listening on
loopback. Flags have llama-server's names, so that an arm's extra flags mean the same in both.
"""

import argparse
import os
import signal
import sys
import threading
from typing import Any

SLOT_TOKENS = 8192
"""Context of one slot, what SmolLM2 was trained for; the total is this times `--parallel`."""

_NGRAM_KINDS = ("simple", "map-k", "map-k4v")


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit status."""
    options = _parser().parse_args(argv)
    if not os.path.isfile(options.model):  # noqa: PTH113 - llama.cpp would only say "failed to load"
        _say(f"error: model file not found: {options.model}")
        return 2
    try:
        import xllamacpp
    except ImportError as error:
        _say(f"error: the embedded engine is missing: {error}")
        return 2
    try:
        params = _params(xllamacpp, options)
    except ValueError as error:
        _say(f"error: {error}")
        return 2
    _say(f"loading {options.model}")
    server = xllamacpp.Server(params)
    _say(f"ready on {server.listening_address}")
    # Handlers only from here on: while the model loads, a signal ends the process at once.
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    ended.wait()
    del server
    return 0


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sakiyomi.embedded_server", description=__doc__)
    parser.add_argument("--model", "-m", required=True, metavar="FILE.gguf")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--alias", "-a")
    parser.add_argument("--threads", "-t", type=int, default=None)
    parser.add_argument("--ctx", "--ctx-size", "-c", type=int, default=None, help="of all slots")
    parser.add_argument("--parallel", "-np", type=int, default=1, help="slots")
    parser.add_argument("--metrics", action="store_true")
    parser.add_argument("--cache-ram", type=int, default=None, metavar="MiB")
    parser.add_argument("--spec-type", default="none", help="one type, or several with commas")
    parser.add_argument("--spec-draft-model", "-md", metavar="FILE.gguf")
    parser.add_argument("--spec-draft-n-max", type=int)
    parser.add_argument("--spec-draft-n-min", type=int)
    parser.add_argument("--spec-draft-p-min", type=float)
    parser.add_argument("--spec-synth-rates", metavar="P0,P1,...", help="forced acceptance")
    parser.add_argument("--spec-synth-len", type=float, help="forced acceptance")
    for name in ("match", "min", "max"):
        parser.add_argument(f"--spec-ngram-mod-n-{name}", type=int)
    for kind in _NGRAM_KINDS:
        for name in ("size-n", "size-m", "min-hits"):
            parser.add_argument(f"--spec-ngram-{kind}-{name}", type=int)
    return parser


def _params(xllamacpp: Any, options: argparse.Namespace) -> Any:
    """llama.cpp's parameters from our flags. Raises ValueError on what cannot be meant."""
    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.hostnames = [options.host]
    params.port = options.port
    params.n_parallel = options.parallel
    params.n_ctx = options.ctx or SLOT_TOKENS * options.parallel
    params.endpoint_metrics = options.metrics
    params.endpoint_props = True
    params.endpoint_slots = True
    params.ui = False
    params.use_jinja = True
    params.cache_ram_mib = 0 if options.cache_ram is None else options.cache_ram
    if options.alias:
        params.model_alias = {options.alias}
    if options.threads:
        params.cpuparams.n_threads = options.threads
        params.cpuparams_batch.n_threads = options.threads
    _speculate(xllamacpp, params.speculative, options)
    return params


def _speculate(xllamacpp: Any, speculative: Any, options: argparse.Namespace) -> None:
    """Set the speculation: types, lengths, draft model, forced rates."""
    known = {
        kind.name.removeprefix("COMMON_SPECULATIVE_TYPE_").lower().replace("_", "-"): kind
        for kind in xllamacpp.common_speculative_type
        if not kind.name.endswith("_COUNT")
    }
    names = options.spec_type.split(",")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"unknown --spec-type {unknown[0]}: one of {', '.join(known)}")
    speculative.types = [known[name] for name in names]
    draft = speculative.draft
    if options.spec_draft_model:
        draft.mparams.path = options.spec_draft_model
    elif "draft-simple" in names:
        raise ValueError("--spec-type draft-simple needs --spec-draft-model")
    if options.threads:
        draft.cpuparams.n_threads = options.threads
        draft.cpuparams_batch.n_threads = options.threads
    for name in ("n_max", "n_min", "p_min"):
        _set(draft, name, getattr(options, f"spec_draft_{name}"))
    for name in ("match", "min", "max"):
        _set(speculative.ngram_mod, f"n_{name}", getattr(options, f"spec_ngram_mod_n_{name}"))
    for kind in _NGRAM_KINDS:
        room = "ngram_" + kind.replace("-", "_")
        lookup = getattr(speculative, room)
        # llama-server has a draft length of its own for lookups; here one flag means k everywhere.
        _set(lookup, "size_m", options.spec_draft_n_max)
        for name in ("size_n", "size_m", "min_hits"):
            _set(lookup, name, getattr(options, f"spec_{room}_{name}"))
        # A draft shorter than its lookup is dropped by llama.cpp: k = 1 would never draft.
        lookup.size_n = min(lookup.size_n, lookup.size_m)
    if options.spec_synth_rates:
        speculative.synth_rates = [float(rate) for rate in options.spec_synth_rates.split(",")]
    _set(speculative, "synth_len", options.spec_synth_len)


def _set(target: Any, name: str, value: float | None) -> None:
    if value is not None:
        setattr(target, name, value)


if __name__ == "__main__":
    raise SystemExit(main())
