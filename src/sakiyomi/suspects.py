"""Known defects of engines that make speculation slow, wrong or unmeasurable. State: December 2026.

A suspect is a pointer, not a verdict: it names a report that fits what was seen. It fits by a
line of the engine's log, or by a symptom (a caution's kind) together with the model's name.
"""

import re
from collections.abc import Collection

import msgspec


class Suspect(msgspec.Struct, frozen=True, kw_only=True):
    """A reported defect. `since` and `until` (not included) are version numbers; empty: unknown."""

    engine: str
    issue: str
    what: str
    remedy: str
    pattern: str = ""
    symptoms: tuple[str, ...] = ()
    model: str = ""
    since: tuple[int, ...] = ()
    until: tuple[int, ...] = ()

    @property
    def url(self) -> str:
        """The report."""
        repository, _, number = self.issue.partition("#")
        return f"https://github.com/{repository}/issues/{number}"


ZERO, ALL, LOOPED = "acceptance_zero", "acceptance_one", "looped_output"
COLD, SLOWER, NO_START = "prefix_cache_lost", "slower", "start_failed"

SUSPECTS = (
    Suspect(
        engine="vllm",
        issue="vllm-project/vllm#55581",
        pattern=r"not supported with\s+spec-decode[^\n]*setting cudagraph_mode=NONE",
        what="speculation runs without any CUDA graph: every kernel of a step is launched singly",
        remedy="--attention-backend FLASH_ATTN keeps full graphs",
        since=(0, 23),
    ),
    Suspect(
        engine="vllm",
        issue="vllm-project/vllm#49547",
        pattern=r"FULL_AND_PIECEWISE is not supported\s+with\s+spec-decode",
        what="speculation lost the full CUDA graphs of the plain arm (-16 % on a GB10)",
        remedy="--attention-backend FLASH_ATTN keeps full graphs; give both arms the same back end",
        since=(0, 16),
    ),
    Suspect(
        engine="vllm",
        issue="vllm-project/vllm#52688",
        pattern=r"multiple times of forward on same MTP layer",
        what="k is larger than the number of MTP layers: one layer is run again for each draft",
        remedy="compare k = 1 with the larger k: the layer was trained for the first draft only",
    ),
    Suspect(
        engine="vllm",
        issue="vllm-project/vllm#40756",
        pattern=r"illegal memory access",
        what="MTP hits an illegal memory access at long sequences",
        remedy="use a shorter --max-model-len, or a version after the report",
    ),
    Suspect(
        engine="vllm",
        issue="vllm-project/vllm#40756",
        symptoms=(ALL,),
        what="an acceptance of 100 % with drafts of -1 is a defect, not a good drafter",
        remedy="read some answers; use another version",
    ),
    Suspect(
        engine="vllm",
        issue="vllm-project/vllm#38650",
        pattern=r"(?:KeyError|size mismatch|AssertionError|RuntimeError)[^\n]*\bmtp\b",
        what="MTP weights of an NVFP4 checkpoint do not load (also #38832, #44087, #49187, #49553)",
        remedy="use a checkpoint whose mtp tensors are bf16, or a newer version",
    ),
    Suspect(
        engine="vllm",
        issue="vllm-project/vllm#48848",
        symptoms=(NO_START,),
        model=r"gemma-?4",
        what="Gemma 4 with MTP does not start",
        remedy="use a version after 0.25.1",
        since=(0, 25, 1),
        until=(0, 26),
    ),
    Suspect(
        engine="vllm",
        issue="vllm-project/vllm#49559",
        symptoms=(ZERO,),
        model=r"dflash",
        what="DFlash accepts nothing on the V2 model runner",
        remedy="set VLLM_USE_V2_MODEL_RUNNER=0, or use a newer version",
        since=(0, 25, 1),
    ),
    Suspect(
        engine="vllm",
        issue="vllm-project/vllm#55605",
        symptoms=(ZERO,),
        model=r"glm-?5",
        what="the MTP head of GLM-5.3 accepts about 1 %: weights missing or mixed up",
        remedy="see that the checkpoint has its MTP tensors (sakiyomi bytes); use a newer version",
    ),
    Suspect(
        engine="vllm",
        issue="vllm-project/vllm#33497",
        symptoms=(ZERO,),
        model=r"deepseek-?v3\.2",
        what="low acceptance of DeepSeek V3.2's MTP head",
        remedy="use a newer version",
    ),
    Suspect(
        engine="vllm",
        issue="vllm-project/vllm#36872",
        symptoms=(LOOPED,),
        model=r"qwen3\.5-35b-a3b.*fp8",
        what="gibberish from Qwen3.5-35B-A3B-FP8 with MTP",
        remedy="use another quantization or a newer version; loops fake acceptance",
    ),
    Suspect(
        engine="vllm",
        issue="vllm-project/vllm#47087",
        symptoms=(LOOPED,),
        model=r"qwen3\.6-35b-a3b",
        what="MTP turns deep conversations into loops, which fake acceptance",
        remedy="use a version after 0.23, or shorter conversations",
        since=(0, 23),
        until=(0, 24),
    ),
    Suspect(
        engine="vllm",
        issue="vllm-project/vllm#38182",
        symptoms=(COLD,),
        what="a hybrid model with speculation gets no prefix-cache hits (also #54360, #53504)",
        remedy="compare time to first token with --no-enable-prefix-caching on both arms",
    ),
    Suspect(
        engine="vllm",
        issue="vllm-project/vllm#39680",
        symptoms=(SLOWER,),
        what="MTP slower than plain in spite of 96.6 % acceptance (see also #47277)",
        remedy="a step costs more than it delivers: sakiyomi explain names where",
    ),
    Suspect(
        engine="sglang",
        issue="sgl-project/sglang#35797",
        symptoms=(ZERO,),
        model=r"compressed|autoround|w\dA\d+|int4|nvfp4|qwen3\.5",
        what="MTP weights of compressed-tensors checkpoints are dropped silently (length 1.0)",
        remedy="serve a checkpoint whose mtp tensors are not quantized",
    ),
    Suspect(
        engine="sglang",
        issue="sgl-project/sglang#36158",
        symptoms=(ZERO,),
        model=r"quark|mxfp4",
        what="MTP weights of quark checkpoints are dropped silently (length 1.0)",
        remedy="serve a checkpoint whose mtp tensors are not quantized",
    ),
    Suspect(
        engine="sglang",
        issue="sgl-project/sglang#36537",
        symptoms=(ZERO,),
        model=r"qwen3\.8",
        what="Qwen3.8's MTP runs out of step with the mamba radix cache (extra_buffer_lazy)",
        remedy="use --mamba-radix-cache-strategy extra_buffer, or --disable-radix-cache",
    ),
    Suspect(
        engine="sglang",
        issue="sgl-project/sglang#22908",
        symptoms=(COLD,),
        model=r"qwen3\.[5-9]",
        what="Qwen3.5 MTP keeps the radix cache only with a fitting strategy (#19391, #14792)",
        remedy="add --mamba-radix-cache-strategy extra_buffer",
    ),
    Suspect(
        engine="sglang",
        issue="sgl-project/sglang#28431",
        symptoms=(NO_START,),
        model=r"qwen3\.6",
        what="Qwen3.6 with MTP crashes",
        remedy="use a version after 0.5.13",
        since=(0, 5, 13),
        until=(0, 5, 14),
    ),
    Suspect(
        engine="llama.cpp",
        issue="ggml-org/llama.cpp#23658",
        symptoms=(ZERO,),
        what="MTP acceptance collapses at some context sizes (also #23636)",
        remedy="change -c by 256, or use a newer build",
        since=(9295,),
        until=(10000,),
    ),
    Suspect(
        engine="llama.cpp",
        issue="ggml-org/llama.cpp#23903",
        pattern=r"failed to allocate[^\n]*(?:compute|buffer)|cudaMalloc failed: out of memory",
        what="with -np 2 the first speculative decode can run out of memory",
        remedy="use -np 1 or a smaller -c",
    ),
    Suspect(
        engine="llama.cpp",
        issue="ggml-org/llama.cpp#24309",
        pattern=r"GGML_ASSERT\([^\n]*(?:split|nextn)|nextn[^\n]*GGML_ASSERT",
        what="a tensor split with MTP (nextn) layers crashes",
        remedy="use one device, or --split-mode layer",
    ),
    Suspect(
        engine="llama.cpp",
        issue="ggml-org/llama.cpp#17384",
        pattern=r'^\s*"# HELP llamacpp:',
        what="the metrics page comes as one JSON string",
        remedy="nothing: it is read anyway; newer builds are fine",
        since=(7010,),
        until=(7101,),
    ),
)


def match(
    engine: str,
    version: str | None,
    log_text: str,
    *,
    symptoms: Collection[str] = (),
    model: str | None = None,
) -> list[Suspect]:
    """Suspects of this engine that fit the log, or a symptom; an unknown version fits all ranges.

    `symptoms`: kinds of cautions that stand in the run, `slower` for an arm below its baseline,
    `start_failed` for one that did not start.
    """
    numbers = version_numbers(version)
    return [
        suspect
        for suspect in SUSPECTS
        if suspect.engine == engine
        and _in_range(suspect, numbers)
        and _fits(suspect, log_text, symptoms, model or "")
    ]


def version_numbers(version: str | None) -> tuple[int, ...]:
    """`0.25.1rc2` -> (0, 25, 1); llama.cpp's `b9305-63248fc` -> (9305,); empty when unknown."""
    found = re.match(r"v?(\d+(?:\.\d+)*)|b(\d+)", version or "")
    if found is None:
        return ()
    return tuple(int(part) for part in (found.group(1) or found.group(2)).split("."))


def _in_range(suspect: Suspect, numbers: tuple[int, ...]) -> bool:
    if not numbers or numbers == (0,):
        return True
    return suspect.since <= numbers and (not suspect.until or numbers < suspect.until)


def _fits(suspect: Suspect, log_text: str, symptoms: Collection[str], model: str) -> bool:
    """All that the suspect names must hold: its log line, one of its symptoms, its model."""
    if suspect.pattern and not re.search(suspect.pattern, log_text, re.MULTILINE):
        return False
    if suspect.symptoms and not set(suspect.symptoms) & set(symptoms):
        return False
    return not suspect.model or re.search(suspect.model, model, re.IGNORECASE) is not None
