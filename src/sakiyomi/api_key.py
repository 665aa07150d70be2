"""An API key: what a header can carry, and how it stays out of what is kept. Pure."""

import msgspec

from sakiyomi.errors import EngineError
from sakiyomi.record import RequestRecord

MIN_SECRET_CHARS = 8
"""A shorter key (`EMPTY`, `x`) is a word that stands for none: hiding it would spoil answers."""


class ApiKey:
    """The key of a server, without the line end of the file it came from; `text` may be empty."""

    def __init__(self, text: str | None) -> None:
        self.text = (text or "").strip()
        if not (self.text.isascii() and self.text.isprintable()):
            raise EngineError(
                "the API key has characters that no header can carry", "check its variable"
            )
        self._secret = self.text.encode() if len(self.text) >= MIN_SECRET_CHARS else b""

    def hide(self, data: bytes) -> bytes:
        """What a server sent, without the key where it gave it back."""
        return data.replace(self._secret, b"***") if self._secret else data

    def without(self, record: RequestRecord) -> RequestRecord:
        """The record, without the key where a server gave it back."""
        if not self._secret:
            return record
        said = [*record.event_text, record.error.message if record.error else "", record.model]
        if not (
            any(self.text in text for text in said if text)
            or self._secret in msgspec.json.encode(record.evidence)
        ):
            return record
        return msgspec.json.decode(self.hide(msgspec.json.encode(record)), type=RequestRecord)
