"""Header blocks read in C (`native/hpack.c`); what is right is `blocks.PlainBlockReader`."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable
from typing import Any, Final

from brokerd.native.library import Library
from brokerd.proxy.http2.blocks import OWN_FIELDS, Block, BlockReader, PlainBlockReader
from brokerd.proxy.http2.hpack import (
    BAD_INDEX,
    CUT_BLOCK,
    CUT_STRING,
    LARGE_TABLE,
    LATE_SIZE,
    LONG_INTEGER,
    HeaderListTooLarge,
    HpackError,
)
from brokerd.proxy.http2.huffman import BAD_PADDING, EARLY_END

# By the number that the C gives a fault; the last is that of a list that is too large
_FAULTS: Final = ("", CUT_BLOCK, BAD_INDEX, LATE_SIZE, LARGE_TABLE, LONG_INTEGER, CUT_STRING, EARLY_END, BAD_PADDING)
_FIELDS_LENGTH, _KEY_LENGTH, _IS_ODD, _OWN_PLACES = range(4)
_ROOM_BYTES: Final = 512 * 1024  # more than a block of the largest size can become, twice

NewBlockReader = Callable[[int], BlockReader]  # of the largest list of fields, in bytes


class _Orders(ctypes.Structure):
    """The struct `orders` of the C."""

    _fields_ = (
        ("own", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("said", ctypes.c_void_p),
        ("capacity", ctypes.c_int64),
        ("max_list_bytes", ctypes.c_int64),
        ("count", ctypes.c_int32),
    )


class _Room:
    """What all connections use, one after the other: where the C writes what it found."""

    def __init__(self, max_list_bytes: int) -> None:
        self.max_list_bytes = max_list_bytes
        self._own = ctypes.create_string_buffer(b"".join(bytes((len(name),)) + name for name in OWN_FIELDS))
        self._out = bytearray(_ROOM_BYTES)
        self._pinned = ctypes.c_char.from_buffer(self._out)
        self.out = memoryview(self._out)
        self.said = array("i", [0] * (_OWN_PLACES + 2 * len(OWN_FIELDS)))
        self._orders = _Orders(
            ctypes.addressof(self._own),
            ctypes.addressof(self._pinned),
            self.said.buffer_info()[0],
            _ROOM_BYTES,
            max_list_bytes,
            len(OWN_FIELDS),
        )
        self.orders = ctypes.addressof(self._orders)


def native_block_readers(library: Library) -> NewBlockReader:
    """`PlainBlockReader` by the library."""
    decode = library.function(
        "native_decode_headers", ctypes.c_int32, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_void_p
    )
    table_bytes = library.function("native_header_table_bytes", ctypes.c_int64)()
    rooms: dict[int, _Room] = {}

    def new(max_list_bytes: int) -> BlockReader:
        room = rooms.get(max_list_bytes)
        if room is None:
            room = rooms[max_list_bytes] = _Room(max_list_bytes)
        return _NativeBlockReader(decode, room, array("I", bytes(table_bytes)))

    return new


class _NativeBlockReader:
    __slots__ = ("_decode", "_room", "_table", "_table_at")

    def __init__(self, decode: Callable[..., Any], room: _Room, table: array[int]) -> None:
        self._decode = decode
        self._room = room
        self._table = table  # whose first number are the changes
        self._table_at = table.buffer_info()[0]

    @property
    def changes(self) -> int:
        return self._table[0]

    def read(self, block: bytes) -> Block:
        room = self._room
        fault = self._decode(self._table_at, block, len(block), room.orders)
        if fault:
            if fault < len(_FAULTS):
                raise HpackError(_FAULTS[fault])
            raise HeaderListTooLarge(room.max_list_bytes)
        fields_length, key_length, is_odd, *places = room.said
        found = room.out[: fields_length + key_length].tobytes()
        if is_odd:
            return Block(found[:fields_length], None)
        begins = iter(places)
        own = [None if begin < 0 else found[begin:end] for begin, end in zip(begins, begins, strict=True)]
        return Block(found[fields_length:], own)


def block_readers_agree(library: Library) -> bool:
    """Whether the library reads blocks as Python does."""
    readers = native_block_readers(library)(1000), PlainBlockReader(1000)
    return all(_said_by(readers[0], block) == _said_by(readers[1], block) for block in _EXAMPLES)


def _said_by(reader: BlockReader, block: bytes) -> tuple[object, int]:
    try:
        found: object = reader.read(block)
    except HpackError as error:
        found = type(error), str(error)
    return found, reader.changes


_EXAMPLES: Final = (
    b"\x82\x86\x84\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff",  # RFC 7541, C.4
    b"\x82\x86\x84\xbe\x58\x86\xa8\xeb\x10\x64\x9c\xbf",
    b"\x40\x0ex-mq-client-id\x03a@b\x0f\x0d\x0212\x00\x0cgrpc-timeout\x0225",
    b"\xbe\xbf\xc0\xbe",
    b"\x20\x3f\xe1\x1f\xbe",
    b"\x40\x01a\x01b" * 20,
    b"\xd0\x82\x00\x01a\x81\xff",
    b"\x00\x01a\x7f\xff\xff\xff\xff\x0f",
    b"\x00\x01a\x84\xff\xff\xff\xff",
)
