"""How many parts a large request to send has, counted before protobuf makes an object of each (pure).

Two bytes are an empty message, or an empty key, and an object of a hundred: a request that is as long as its messages' bodies may
be could stop the broker for seconds. Here is looked only as far as what is allowed goes.
"""

from __future__ import annotations

from typing import Final

from brokerd.proxy.status import Code, Refusal

SMALL_BYTES: Final = 64 * 1024  # requests up to here are not looked at
MAX_BESIDE_BODIES_BYTES: Final = 1024 * 1024
MAX_PARTS: Final = 32 * 1024  # messages, and their topics, properties and bodies

_MESSAGES: Final = 0x0A  # field 1 of the request
_BODY: Final = 0x22  # field 4 of a message
_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5


def check_outline(encoded: bytes) -> None:
    """Raises Refusal for a SendMessageRequest of too many parts, or of too much that is no body, or that cannot be read."""
    if len(encoded) > SMALL_BYTES:
        beside = len(encoded) - _Walk(encoded).bodies_bytes()
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
        tag, start = self._varint(position, end)
        kind = tag & 7
        if kind == _LENGTH:
            length, start = self._varint(start, end)
            stop = start + length
        elif kind == _VARINT:
            stop = self._varint(start, end)[1]
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            stop = start + (8 if kind == _EIGHT_BYTES else 4)
        else:
            raise _unreadable()
        if stop > end:
            raise _unreadable()
        return tag, start, stop

    def _varint(self, position: int, end: int) -> tuple[int, int]:
        """(the number, where it ends)."""
        if position < end and (first := self._encoded[position]) < 0x80:  # nearly all of them
            return first, position + 1
        value = shift = 0
        for place in range(position, min(end, position + 10)):
            byte = self._encoded[place]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, place + 1
            shift += 7
        raise _unreadable()


def _unreadable() -> Refusal:
    return Refusal(Code.BAD_REQUEST, "undecodable request: its fields do not add up")
