"""The `bytes` command: models -> text or JSON."""

from pathlib import Path
from typing import Any

import msgspec

from sakiyomi import terminal
from sakiyomi.errors import PlanError
from sakiyomi.models.checkpoint import open_checkpoint
from sakiyomi.models.devices import find_device
from sakiyomi.models.published import published_model, published_names
from sakiyomi.models.ratio import ModelRatio, compare_reads
from sakiyomi.models.roofline import MAX_DEFAULT_K, Device, Prediction, predict
from sakiyomi.models.weights import ReadBytes, attach_draft
from sakiyomi.report.bytes_text import join_blocks, render_bytes, render_ratio

SCHEMA = "sakiyomi.bytes/1"


class BytesOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to look at the models. `k` None: plain and 1 to 8."""

    device: str | None = None
    context: int = 0
    batch: int = 1
    k: int | None = None
    assume_bits: float | None = None
    kv_bits: float | None = None
    draft: str | None = None
    tokens_per_s: tuple[float, ...] = ()
    measure: bool = False


def bytes_command(  # noqa: PLR0913  # the flags of a command
    models: list[str],
    *,
    device: str | None = None,
    context: int = 0,
    batch: int = 1,
    k: int | None = None,
    assume_bits: float | None = None,
    measure: bool = False,
    json: bool = False,
    kv_bits: float | None = None,
    draft: str | None = None,
    tokens_per_s: list[float] | None = None,
) -> str:
    """Read the models' headers and tell what a step reads, costs and can reach at best."""
    options = BytesOptions(
        device=device,
        context=context,
        batch=batch,
        k=k,
        assume_bits=assume_bits,
        kv_bits=kv_bits,
        draft=draft,
        tokens_per_s=tuple(tokens_per_s or ()),
        measure=measure,
    )
    _check(models, options)
    reads = [_open(model, options) for model in models]
    machine = _device(options)
    steps = [_predict(read, machine, options) for read in reads]
    ratios = _ratios(reads, steps, options)
    if json:
        return _encode(reads, steps, machine, ratios)
    blocks = [
        render_bytes(read, predictions, machine, kv_bits=8 * read.kv_element_bytes)
        for read, predictions in zip(reads, steps, strict=True)
    ]
    return join_blocks([*blocks, *map(render_ratio, ratios)])


def _check(models: list[str], options: BytesOptions) -> None:
    if not models:
        raise PlanError("bytes needs a model", "give a folder, a .gguf file or a hub id")
    limits = (
        ("--context", options.context, 0),
        ("--batch", options.batch, 1),
        ("--k", options.k if options.k is not None else 0, 0),
    )
    for flag, value, least in limits:
        if value < least:
            raise PlanError(f"{flag} {value}", f"give {least} or more")
    for flag, width in (("--assume-bits", options.assume_bits), ("--kv-bits", options.kv_bits)):
        if width is not None and not 0 < width <= 64:
            raise PlanError(f"{flag} {width:g}", "give the bits of one element, such as 4 or 8")
    if options.tokens_per_s and len(options.tokens_per_s) != len(models):
        raise PlanError(
            f"{len(options.tokens_per_s)} speeds for {len(models)} models", "give one per model"
        )
    if any(speed <= 0 for speed in options.tokens_per_s):
        raise PlanError("a speed is not above 0", "give plain decode tok/s")


def _open(model: str, options: BytesOptions) -> ReadBytes:
    read = _find(model, options.assume_bits)
    if options.draft is not None:
        drafter = _find(options.draft, options.assume_bits)
        read = attach_draft(read, drafter)
    if options.kv_bits is not None:
        read = msgspec.structs.replace(read, kv_element_bytes=options.kv_bits / 8)
    return read


def _find(model: str, assume_bits: float | None) -> ReadBytes:
    """A file, a folder or a hub id; else a model whose facts ship with the package."""
    is_published = "/" not in model and model.lower() in published_names()
    if is_published and not Path(model).exists():
        return published_model(model)
    progress = terminal.Progress(unit="headers")

    def on_header(number: int, num_headers: int) -> None:
        if number == 1:
            progress.start(num_headers)
        progress.advance(model)
        if number == num_headers:
            progress.stop()

    try:
        return open_checkpoint(model, assume_bits=assume_bits, on_header=on_header)
    finally:
        progress.stop()


def _device(options: BytesOptions) -> Device | None:
    if options.measure:
        from sakiyomi.models.bandwidth import measure

        if (options.device or "auto").strip().lower() != "auto":
            raise PlanError(
                f"--measure measures this machine, not {options.device!r}",
                "leave out --device, or give --device auto",
            )
        return measure(find_device("auto"))
    return find_device(options.device) if options.device is not None else None


def _predict(
    read: ReadBytes, device: Device | None, options: BytesOptions
) -> tuple[Prediction, ...]:
    """Plain and the wanted k; nothing where the model is not fully known or is a drafter."""
    if read.missing or not read.always_bytes:
        return ()
    wanted = range(1, MAX_DEFAULT_K + 1) if options.k is None else [options.k] if options.k else []
    return tuple(
        predict(read, device, context=options.context, batch=options.batch, k=k)
        for k in (0, *wanted)
    )


def _ratios(
    reads: list[ReadBytes], steps: list[tuple[Prediction, ...]], options: BytesOptions
) -> list[ModelRatio]:
    if len(reads) < 2 or not all(steps):
        return []
    speeds = options.tokens_per_s
    return [
        compare_reads(
            reads[0],
            read,
            context=options.context,
            batch=options.batch,
            tokens_per_s=(speeds[0], speeds[index]) if speeds else None,
        )
        for index, read in enumerate(reads)
        if index
    ]


def _encode(
    reads: list[ReadBytes],
    steps: list[tuple[Prediction, ...]],
    device: Device | None,
    ratios: list[ModelRatio],
) -> str:
    models: list[dict[str, Any]] = [
        {
            **msgspec.to_builtins(read),
            "active_parameters": read.active_parameters,
            "steps": [{**msgspec.to_builtins(step), "shares": step.shares} for step in predictions],
        }
        for read, predictions in zip(reads, steps, strict=True)
    ]
    document = {"schema": SCHEMA, "device": device, "models": models, "ratios": ratios}
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
