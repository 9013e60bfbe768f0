"""How many parts a large request to send has, counted before protobuf makes an object of each (pure).

Two bytes are an empty message, or an empty key, and an object of a hundred: a request that is as long as its messages' bodies may
be could stop the broker for seconds. Here is looked only as far as what is allowed goes.
"""

from __future__ import annotations

from typing import Final

from brokerd.proxy.fields import UnreadableError, read_field
from brokerd.proxy.status import Code, Refusal

SMALL_BYTES: Final = 64 * 1024  # requests up to here are not looked at
MAX_BESIDE_BODIES_BYTES: Final = 1024 * 1024
MAX_PARTS: Final = 32 * 1024  # messages, and their topics, properties and bodies

_MESSAGES: Final = 0x0A  # field 1 of the request
_BODY: Final = 0x22  # field 4 of a message


def check_outline(encoded: bytes) -> None:
    """Raises Refusal for a SendMessageRequest of too many parts, or of too much that is no body, or that cannot be read."""
    if len(encoded) > SMALL_BYTES:
        try:
            beside = len(encoded) - _Walk(encoded).bodies_bytes()
        except UnreadableError as error:
            raise Refusal(Code.BAD_REQUEST, str(error)) from error
        if beside > MAX_BESIDE_BODIES_BYTES:
            text = f"the request has {beside} bytes beside its bodies; at most {MAX_BESIDE_BODIES_BYTES} are taken"
            raise Refusal(Code.MESSAGE_PROPERTIES_TOO_LARGE, text)


class _Walk:
    def __init__(self, encoded: bytes) -> None:
        self._encoded = encoded
        self._parts = 0

    def bodies_bytes(self) -> int:
        total = 0
        position, end = 0, len(self._encoded)
        while position < end:
            tag, start, position = self._field(position, end)
            if tag == _MESSAGES:
                total += self._body_bytes(start, position)
        return total

    def _body_bytes(self, position: int, end: int) -> int:
        total = 0
        while position < end:
            tag, start, position = self._field(position, end)
            if tag == _BODY:
                total += position - start
        return total

    def _field(self, position: int, end: int) -> tuple[int, int, int]:
        """(tag, where its content begins, where it ends) of the field at the position."""
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise Refusal(Code.BAD_REQUEST, f"the request has more than {MAX_PARTS} parts: send fewer messages at once")
        return read_field(self._encoded, position, end)
