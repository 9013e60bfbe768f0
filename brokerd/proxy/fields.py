"""The fields of an encoded protobuf message, one at a time, without making an object of anything (pure).

For requests of which no more is decoded than is wanted: two bytes can be an empty message, and that an object of a hundred.
"""

from __future__ import annotations

_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5


class UnreadableError(ValueError):
    """The bytes are no message."""

    def __init__(self) -> None:
        super().__init__("undecodable request: its fields do not add up")


def read_field(encoded: bytes, position: int, end: int) -> tuple[int, int, int]:
    """(tag, where its content begins, where it ends) of the field at the position. Raises UnreadableError."""
    tag, start = read_varint(encoded, position, end)
    kind = tag & 7
    if kind == _LENGTH:
        length, start = read_varint(encoded, start, end)
        stop = start + length
    elif kind == _VARINT:
        stop = read_varint(encoded, start, end)[1]
    elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
        stop = start + (8 if kind == _EIGHT_BYTES else 4)
    else:
        raise UnreadableError
    if stop > end:
        raise UnreadableError
    return tag, start, stop


def read_varint(encoded: bytes, position: int, end: int) -> tuple[int, int]:
    """(the number, where it ends). Raises UnreadableError."""
    if position < end and (first := encoded[position]) < 0x80:  # nearly all of them
        return first, position + 1
    value = shift = 0
    for place in range(position, min(end, position + 10)):
        byte = encoded[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place + 1
        shift += 7
    raise UnreadableError
