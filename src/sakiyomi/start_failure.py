"""Why an engine did not start: its log and exit status -> what it means and what to try."""

import re
import signal
from collections.abc import Sequence

from sakiyomi.engines.engine import LogRemedy
from sakiyomi.errors import EngineError

EXCERPT_LINES = 6
LOG_REMEDIES = (
    LogRemedy(
        r"(?:CUDA|HIP|XPU|device|GPU)[^\n]{0,40}out of memory|OutOfMemoryError|"
        r"cudaErrorMemoryAllocation|[Nn]o available memory for the cache blocks|"
        r"[Cc]annot allocate memory|std::bad_alloc|MemoryError|"
        r"[Ff]ree memory on device[^\n]* is less than",
        "memory ran out",
        "use a smaller context or fewer slots, a lower memory share, or end what else uses it",
    ),
    LogRemedy(
        r"[Aa]ddress already in use|EADDRINUSE|couldn't bind|could not bind|[Ff]ailed to bind",
        "the port is taken",
        "start again: each start takes a free port, unless the command fixes its own",
    ),
    LogRemedy(
        r"unrecognized arguments?:? .*|error: (?:invalid|unknown) argument.*|"
        r"[Uu]nknown (?:option|flag|argument).*|no such option.*|unexpected argument.*",
        "the engine does not know a flag",
        "compare the arm's args and speculation with the engine's --help",
    ),
    LogRemedy(
        r"unknown --spec-type|[Ss]peculative[^\n]*not supported|does not support speculative|"
        r"[Uu]nknown speculative|failed to (?:load|create|init\w*)[^\n]*(?:draft|spec)|"
        r"draft[^\n]*(?:incompatible|not compatible|mismatch)",
        "the engine refuses this speculation",
        "check the arm's speculation: method, draft model and this engine's version",
    ),
    LogRemedy(
        r"GatedRepoError|gated repo|401 Client Error|403 Client Error",
        "the model needs an accepted licence or a token",
        "accept the model's terms on its page and set HF_TOKEN",
    ),
    LogRemedy(
        r"model file not found|does not appear to have a file named|RepositoryNotFoundError|"
        r"is not a local folder and is not a valid model identifier|404 Client Error|"
        r"failed to (?:open|load)[^\n]*(?:GGUF|model)|"
        r"(?:No such file or directory|FileNotFoundError)[^\n]*(?:gguf|safetensors|config\.json)|"
        r"[Cc]annot find any model weights",
        "the model's weights are missing",
        "check the arm's model: an existing folder, file or hub id",
    ),
    LogRemedy(
        r"[Nn]o space left on device",
        "the disk is full",
        "free some space, or point the engine's cache elsewhere",
    ),
    LogRemedy(
        r"[Cc][Uu][Dd][Aa] driver version is insufficient|[Nn]o CUDA-capable device|"
        r"[Ff]ailed to infer device type|no kernel image is available",
        "the engine and this machine's device or driver do not fit",
        "install a build of the engine for this device, or update the driver",
    ),
    LogRemedy(
        r"the embedded engine is missing",
        "the embedded engine is not installed",
        "pip install 'sakiyomi[local]', or attach to a server: sakiyomi run --url URL",
    ),
    LogRemedy(
        r"ModuleNotFoundError: .*|ImportError: .*",
        "a package that the engine needs is missing",
        "install it into the environment that starts the engine",
    ),
)
"""Messages of the frameworks that engines share; an engine's own remedies come first."""

SIGNALS = {
    "SIGKILL": "killed by the system, most often because the host's memory ran out",
    "SIGILL": "its build uses instructions that this CPU does not have",
    "SIGSEGV": "it crashed (segmentation fault)",
    "SIGABRT": "it aborted",
    "SIGBUS": "it crashed (bus error): a cut-off model file, or a full /dev/shm",
}


def explain_failure(
    what: str, log: str, log_path: str, remedies: Sequence[LogRemedy], ended: int | None
) -> EngineError:
    """`what` happened, with the lines of the log that say why, their meaning and a remedy.

    `ended`: the exit status, negative for a signal as in `subprocess`; None if it did not end.
    """
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", log) if line.strip()]
    found = _find(lines, (*remedies, *LOG_REMEDIES))
    if found:
        remedy, index = found
        meaning, hint = remedy.meaning, remedy.remedy
        shown = lines[index : index + 1]
        if index + 1 < len(lines):
            shown += [line for line in lines[-2:] if line not in shown]
    else:
        meaning = _signal_meaning(ended)
        hint = "read the log; run the command by hand to see more"
        shown = lines[-EXCERPT_LINES:]
    text = what + (f": {meaning}" if meaning else "")
    excerpt = "".join(f"\n  {line[:300]}" for line in shown) or "\n  (it wrote nothing)"
    return EngineError(f"{text}{excerpt}\n  log: {log_path}", hint)


def exit_words(ended: int) -> str:
    """`ended with status 1`, `ended by SIGKILL`."""
    if ended >= 0:
        return f"ended with status {ended}"
    return f"ended by {_signal_name(ended)}"


def _find(lines: Sequence[str], remedies: Sequence[LogRemedy]) -> tuple[LogRemedy, int] | None:
    """The first remedy, in their order, whose pattern is in the log, with its first line."""
    for remedy in remedies:
        pattern = re.compile(remedy.pattern)
        for index, line in enumerate(lines):
            if pattern.search(line):
                return remedy, index
    return None


def _signal_name(ended: int) -> str:
    try:
        return signal.Signals(-ended).name
    except ValueError:
        return f"signal {-ended}"


def _signal_meaning(ended: int | None) -> str:
    return SIGNALS.get(_signal_name(ended), "") if ended is not None and ended < 0 else ""
