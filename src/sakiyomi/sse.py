"""Bytes cut anywhere -> server-sent events. Pure.

The format is the WHATWG's (https://html.spec.whatwg.org/multipage/server-sent-events.html). Bytes
are split at LF, CR and CRLF alone and decoded afterwards, so no cut can break a character.
"""

import msgspec

from sakiyomi.errors import StreamError

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""Bundled reasoning traces and logprobs reach megabytes; beyond this it is no answer."""

_BOM = b"\xef\xbb\xbf"


class SseEvent(msgspec.Struct, frozen=True, gc=False):
    """An event: its data, lines joined by LF, and its name (`event:`), usually none."""

    data: bytes
    name: bytes = b""


class SseParser:
    """Bytes cut anywhere -> events. `num_keep_alives` counts comments and events without data."""

    __slots__ = (
        "_data_lines",
        "_is_fresh",
        "_name",
        "_num_data_bytes",
        "_num_pending_bytes",
        "_pending",
        "_skip_lf",
        "_start",
        "num_keep_alives",
    )

    def __init__(self) -> None:
        self.num_keep_alives = 0
        self._start: bytes | None = b""  # the first bytes, until it is clear whether they are a BOM
        self._pending: list[bytes] = []  # pieces of the line that has not ended
        self._num_pending_bytes = 0
        self._data_lines: list[bytes] = []  # of the event that has not ended
        self._num_data_bytes = 0
        self._name = b""
        self._skip_lf = False  # the last read ended in CR: an LF that follows belongs to it
        self._is_fresh = False  # nothing is pending: the next byte begins an event

    def feed(self, data: bytes) -> list[SseEvent]:
        """Take what one read brought. Raises StreamError when one event exceeds the limit."""
        if (  # the usual case: one event, whole
            self._is_fresh
            and data.find(b"\n") == len(data) - 2
            and data[:6] == b"data: "
            and data[-1:] == b"\n"
            and b"\r" not in data
        ):
            return [SseEvent(data[6:-2])]
        return self._feed_lines(data)

    def close(self) -> list[SseEvent]:
        """The event that the end of the stream left without its blank line, if any.

        The standard drops it. Here it arrived and is worth a look: servers forget the last LF.
        """
        pending = [self._start] if self._start else self._pending
        if pending:
            self._start = None
            self._take_line(b"".join(pending))
        event = self._dispatch()
        self._pending = []
        return [event] if event else []

    def _feed_lines(self, data: bytes) -> list[SseEvent]:
        if self._start is not None:
            data = self._start + data
            if len(data) < len(_BOM) and _BOM.startswith(data):
                self._start = data
                return []
            self._start = None
            data = data.removeprefix(_BOM)
        if self._skip_lf and data:
            self._skip_lf = False
            data = data.removeprefix(b"\n")
        if b"\r" in data:
            self._skip_lf = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = data.split(b"\n")
        rest = lines.pop()
        events = []
        if lines and self._pending:
            self._pending.append(lines[0])
            lines[0] = b"".join(self._pending)
            self._pending, self._num_pending_bytes = [], 0
        for line in lines:
            if line:
                self._take_line(line)
            elif event := self._dispatch():
                events.append(event)
        if rest:
            self._pending.append(rest)
            self._num_pending_bytes += len(rest)
        if self._num_pending_bytes + self._num_data_bytes > MAX_EVENT_BYTES:
            raise StreamError(
                f"one event of the stream is larger than {MAX_EVENT_BYTES // 2**20} MB",
                "turn off echo and logprobs; this is no answer that can be measured",
            )
        self._is_fresh = not (self._pending or self._data_lines or self._name or self._skip_lf)
        return events

    def _take_line(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        if not field:
            self.num_keep_alives += 1
            return
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data_lines.append(value)
            self._num_data_bytes += len(value)
        elif field == b"event":
            self._name = value

    def _dispatch(self) -> SseEvent | None:
        """The blank line: end of an event."""
        data, name = b"\n".join(self._data_lines), self._name
        if not data:
            self.num_keep_alives += bool(self._data_lines or name)
        self._data_lines, self._name, self._num_data_bytes = [], b"", 0
        return SseEvent(data, name) if data else None
