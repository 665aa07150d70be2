"""NVIDIA's management library: the cards that a process here would use. Read only.

NVML lists every card of the machine; CUDA sees those that CUDA_VISIBLE_DEVICES names, by index or
by the start of a UUID, up to the first name that is none (CUDA programming guide, "Environment
variables"). A card that MIG has split is seen as its slices.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def open_nvml() -> Iterator[Any]:
    """NVML, initialised; None without the extra `gpu`, without a driver or with a broken one."""
    try:
        import pynvml
    except ImportError:
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def ask(nvml: Any, function: str, *arguments: Any) -> Any:
    """What a card tells; None where it, its driver or the installed module does not."""
    try:
        return getattr(nvml, function)(*arguments)
    except (nvml.NVMLError, AttributeError):
        return None


def visible_cards(nvml: Any) -> list[Any]:
    """Handles of the cards that CUDA would use here, in its order; a lost card is left out."""
    count = ask(nvml, "nvmlDeviceGetCount") or 0
    cards = [ask(nvml, "nvmlDeviceGetHandleByIndex", index) for index in range(count)]
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    if names is None:
        return [card for card in cards if card is not None]
    found = []
    for name in names.split(","):
        card = _find(nvml, cards, name.strip())
        if card is None:
            break
        found.append(card)
    return found


def is_slice(nvml: Any, card: Any) -> bool:
    """Whether it is a MIG slice, or a card that is split into slices."""
    mode = ask(nvml, "nvmlDeviceGetMigMode", card)
    return bool(ask(nvml, "nvmlDeviceIsMigDeviceHandle", card)) or bool(mode and mode[0])


def text(value: Any) -> str | None:
    """A name as text: old modules give bytes."""
    return value.decode() if isinstance(value, bytes) else value


def _find(nvml: Any, cards: list[Any], name: str) -> Any:
    if name.isdecimal():
        return cards[int(name)] if int(name) < len(cards) else None
    if name.startswith("MIG-"):
        return ask(nvml, "nvmlDeviceGetHandleByUUID", name)
    known = [card for card in cards if card is not None]
    uuids = [text(ask(nvml, "nvmlDeviceGetUUID", card)) or "" for card in known]
    alike = [
        card
        for card, uuid in zip(known, uuids, strict=True)
        if name.startswith("GPU-") and uuid.startswith(name)
    ]
    return alike[0] if len(alike) == 1 else None
