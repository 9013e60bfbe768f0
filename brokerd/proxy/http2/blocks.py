"""What a header block says, taken apart: a key, and the values of fields that are each call's or each client's own (pure).

Clients put a new request id, date and signature into the headers of each call, and all else stays as it is. The key of a block
has everything but those values: all names in their order, and the other values. So what the headers mean needs to be found out
once for all blocks of a key, and for all clients that are alike.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from brokerd.proxy.http2.hpack import Field, HpackDecoder

OWN_FIELDS: Final = (b"x-mq-request-id", b"x-mq-date-time", b"authorization", b"x-mq-client-id", b"grpc-timeout")
IS_OWN: Final = 0x8000  # in a key, beside the length of a name: no value follows
MAX_LENGTH: Final = 0x7FFF  # of a name or a value
LENGTHS: Final = struct.Struct(">HH")  # of name and value, before them

_NUMBERS: Final = {name: number for number, name in enumerate(OWN_FIELDS)}
_PLAIN: Final = re.compile(rb"(?:[^\0-\x20](?:[^\0-\x1f]*[^\0-\x20])?)?")

Fields = Sequence[Field]
Own = Sequence[bytes | None]  # by the order of OWN_FIELDS; None = the block has no such field


class Block(NamedTuple):
    """A block's key and the values that it has not. `own` is None where one of those fields is there twice, or its value needs to
    be looked at: then the key has all values."""

    key: bytes
    own: Own | None


class BlockReader(Protocol):
    """Reads the blocks of one connection, none left out."""

    @property
    def changes(self) -> int:
        """A number that is another one when a block has changed the table."""

    def read(self, block: bytes) -> Block:
        """Raises HpackError."""


class PlainBlockReader:
    """The one in Python, which says what is right."""

    def __init__(self, max_list_bytes: int) -> None:
        self._decoder = HpackDecoder(max_list_bytes)

    @property
    def changes(self) -> int:
        return self._decoder.changes

    def read(self, block: bytes) -> Block:
        return block_of(self._decoder.decode(block))


def block_of(fields: Fields) -> Block:
    """The fields as key and own values."""
    own: list[bytes | None] = [None] * len(OWN_FIELDS)
    parts: list[bytes] = []
    for name, value in fields:
        number = _NUMBERS.get(name)
        if number is None:
            parts += (LENGTHS.pack(len(name), len(value)), name, value)
        elif own[number] is None and _PLAIN.fullmatch(value):
            own[number] = value
            parts += (LENGTHS.pack(len(name) | IS_OWN, 0), name)
        else:
            whole = [part for name, value in fields for part in (LENGTHS.pack(len(name), len(value)), name, value)]
            return Block(b"".join(whole), None)
    return Block(b"".join(parts), own)


def fields_of(block: Block) -> list[Field]:
    """The fields again."""
    return list(_fields_of(*block))


def _fields_of(key: bytes, own: Own | None) -> Iterator[Field]:
    position = 0
    while position < len(key):
        name_length, value_length = LENGTHS.unpack_from(key, position)
        position += LENGTHS.size
        end = position + (name_length & ~IS_OWN)
        name = key[position:end]
        position = end + value_length
        if name_length & IS_OWN:
            value = None if own is None else own[_NUMBERS[name]]
            assert value is not None
            yield name, value
        else:
            yield name, key[end:position]
