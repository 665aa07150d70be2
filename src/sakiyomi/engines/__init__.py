"""The engines that sakiyomi knows, by name."""

import difflib
import re
from collections.abc import Mapping

from sakiyomi.engines import (
    dynamo,
    llamacpp,
    lmdeploy,
    lmstudio,
    mlx_lm,
    ollama,
    openai,
    ovms,
    sglang,
    tabbyapi,
    tgi,
    trtllm,
    vllm,
)
from sakiyomi.engines.engine import Engine
from sakiyomi.errors import PlanError

ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        vllm.ENGINE,
        llamacpp.ENGINE,
        openai.ENGINE,
        sglang.ENGINE,
        trtllm.ENGINE,
        lmdeploy.ENGINE,
        tgi.ENGINE,
        mlx_lm.ENGINE,
        ollama.ENGINE,
        lmstudio.ENGINE,
        tabbyapi.ENGINE,
        ovms.ENGINE,
        dynamo.ENGINE,
    )
}

ALIASES = {
    "llamacpp": "llama.cpp",
    "llama-server": "llama.cpp",
    "trtllm": "tensorrt-llm",
    "trt-llm": "tensorrt-llm",
    "mlx": "mlx-lm",
    "mlx_lm": "mlx-lm",
    "lmstudio": "lm-studio",
    "exllamav3": "tabbyapi",
    "ovms": "openvino",
    "ktransformers": "sglang",
}
"""Other spellings; KTransformers 0.7 is an SGLang back end."""


def find_engine(name: str) -> Engine:
    """The engine of this name. Raises PlanError with the nearest names."""
    key = name.strip().lower()
    key = ALIASES.get(key, key)
    if key in ENGINES:
        return ENGINES[key]
    near = difflib.get_close_matches(key, [*ENGINES, *ALIASES], n=3, cutoff=0.5)
    meant = list(dict.fromkeys(ALIASES.get(found, found) for found in near))
    raise PlanError(
        f"unknown engine {name!r}",
        (f"did you mean {' or '.join(meant)}? " if meant else "")
        + f"known: {', '.join(ENGINES)}; openai is any other server",
    )


def recognise(pages: Mapping[str, str]) -> str:
    """The name of the engine whose signs these pages (text by path) show most; else `openai`."""
    shown = {
        name: sum(bool(re.search(sign, pages.get(path, ""))) for path, sign in engine.signs)
        for name, engine in ENGINES.items()
    }
    best = max(shown, key=lambda name: shown[name])
    return best if shown[best] else "openai"


def engines_on(text: str) -> list[Engine]:
    """The engines whose families a metrics page has; a federated one has several's."""
    return [
        engine
        for engine in ENGINES.values()
        if any(
            path.endswith("/metrics") and re.search(rf"^(?:# \w+ )?(?:{sign})", text, re.MULTILINE)
            for path, sign in engine.signs
        )
    ]


def recognise_fingerprint(fingerprint: str | None) -> str | None:
    """The name of the engine that signs its answers so, or None."""
    return next(
        (
            name
            for name, engine in ENGINES.items()
            if fingerprint and engine.fingerprint and re.search(engine.fingerprint, fingerprint)
        ),
        None,
    )
