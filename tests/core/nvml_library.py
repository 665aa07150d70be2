# ruff: noqa: N802 - the names are those of the library
"""A stand-in for `libnvidia-ml.so.1` under the real `pynvml`: its calls, structs and error codes.

A card is a dict of what it tells, by the names below; what it does not hold is "Not Supported".
`install` puts the library where `pynvml` keeps the one that it loaded.
"""

import pynvml

SUCCESS = 0


class Library:
    """C functions over `cards`; each writes through its pointers and returns an error code."""

    def __init__(self, cards, init=SUCCESS, driver=b"590.48.01") -> None:
        self.cards, self.init, self.driver = cards, init, driver
        self.num_open = 0

    def nvmlInitWithFlags(self, _flags):
        self.num_open += self.init == SUCCESS
        return self.init

    def nvmlShutdown(self):
        self.num_open -= 1
        return SUCCESS

    def nvmlErrorString(self, _code):
        return b"a new error"

    def nvmlSystemGetDriverVersion(self, buffer, _length):
        buffer.value = self.driver
        return SUCCESS

    def nvmlDeviceGetCount_v2(self, count):
        count._obj.value = len(self.cards)
        return SUCCESS

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle):
        if self.cards[index.value].get("lost"):
            return pynvml.NVML_ERROR_GPU_IS_LOST
        handle._obj.card = self.cards[index.value]
        return SUCCESS

    def nvmlDeviceGetHandleByUUID(self, uuid, handle):
        slices = [part for card in self.cards for part in card.get("slices", [])]
        for card in (*self.cards, *slices):
            if card["uuid"].encode() == uuid.value:
                handle._obj.card = card
                return SUCCESS
        return pynvml.NVML_ERROR_NOT_FOUND

    def nvmlDeviceGetName(self, handle, buffer, _length):
        return self._text(handle, "name", buffer)

    def nvmlDeviceGetUUID(self, handle, buffer, _length):
        return self._text(handle, "uuid", buffer)

    def nvmlDeviceGetMemoryInfo(self, handle, memory):
        card = handle.card
        if "used" not in card:
            return pynvml.NVML_ERROR_NOT_SUPPORTED
        memory._obj.total, memory._obj.used = card["total"], card["used"]
        memory._obj.free = card["total"] - card["used"]
        return SUCCESS

    def nvmlDeviceGetPowerUsage(self, handle, milliwatts):
        return self._number(handle, "power_mw", milliwatts)

    def nvmlDeviceGetClockInfo(self, handle, kind, clock):
        return self._number(handle, f"clock{kind.value}", clock)

    def nvmlDeviceGetMaxClockInfo(self, handle, kind, clock):
        return self._number(handle, f"max_clock{kind.value}", clock)

    def nvmlDeviceGetMemoryBusWidth(self, handle, bits):
        return self._number(handle, "bus_bits", bits)

    def nvmlDeviceGetMigMode(self, handle, current, pending):
        card = handle.card
        if "slices" not in card:
            return pynvml.NVML_ERROR_NOT_SUPPORTED
        current._obj.value = pending._obj.value = 1
        return SUCCESS

    def nvmlDeviceIsMigDeviceHandle(self, handle, answer):
        answer._obj.value = handle.card["uuid"].startswith("MIG-")
        return SUCCESS

    def _text(self, handle, key, buffer):
        if key not in handle.card:
            return pynvml.NVML_ERROR_NOT_SUPPORTED
        buffer.value = handle.card[key].encode()
        return SUCCESS

    def _number(self, handle, key, pointer):
        if key not in handle.card:
            return pynvml.NVML_ERROR_NOT_SUPPORTED
        pointer._obj.value = handle.card[key]
        return SUCCESS


def install(cards, **more):
    """Let `pynvml` find a driver with these cards."""
    pynvml.nvmlLib = Library(cards, **more)
    pynvml._nvmlGetFunctionPointer_cache.clear()
    return pynvml.nvmlLib


def remove():
    pynvml.nvmlLib = None
    pynvml._nvmlGetFunctionPointer_cache.clear()
