"""HPACK, the decoding half (RFC 7541): header blocks to fields (pure).

The library of this name does the same; this one takes a sixth of its time for the headers of a real client, whose every call
carries a new request id, date and signature, and it says whether a block changed the table. Tests hold the two against each
other.
"""

from __future__ import annotations

from typing import Final

from hpack.table import HeaderTable

from brokerd.proxy.http2.frames import DEFAULT_TABLE_BYTES
from brokerd.proxy.http2.huffman import HuffmanError, decode_huffman

Field = tuple[bytes, bytes]

_STATIC: Final[tuple[Field, ...]] = (
    (b"", b""),
    *((bytes(name), bytes(value)) for name, value in HeaderTable.STATIC_TABLE),
)
_FIRST_DYNAMIC: Final = len(_STATIC)
_ENTRY_OVERHEAD: Final = 32
_MAX_INTEGER_BYTES: Final = 5

# What is wrong with a block
CUT_BLOCK: Final = "the block is cut off"
CUT_STRING: Final = "a string that is cut off"
BAD_INDEX: Final = "an index that is not in the table"
LATE_SIZE: Final = "a table size update after a field"
LARGE_TABLE: Final = "a table size update beyond what we allow"
LONG_INTEGER: Final = "an integer that is too long"


class HpackError(ValueError):
    """The block does not decode; the table is no longer the peer's, so the connection is over."""


class HeaderListTooLarge(HpackError):
    """The fields take more than we are willing to hold."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__(f"more than {most_bytes} bytes of headers")


class HpackDecoder:
    """The decoder of one connection. `changes` counts what blocks did to the table."""

    def __init__(self, max_list_bytes: int) -> None:
        self._max_list_bytes = max_list_bytes
        self._max_table_bytes = DEFAULT_TABLE_BYTES
        self._table: list[Field] = []  # newest last, indexes count from there
        self._table_bytes = 0
        self.changes = 0

    def decode(self, block: bytes) -> list[Field]:
        """The fields in order. Raises HpackError."""
        fields: list[Field] = []
        position = 0
        end = len(block)
        list_bytes = 0
        try:
            while position < end:
                first = block[position]
                if first & 0x80:
                    index, position = _integer(block, position, 0x7F)
                    field = self._entry(index)
                elif first & 0x40:
                    field, position = self._literal(block, position, 0x3F)
                    self._add(field)
                elif first & 0x20:
                    if fields:
                        raise HpackError(LATE_SIZE)
                    size, position = _integer(block, position, 0x1F)
                    self._resize(size)
                    continue
                else:
                    field, position = self._literal(block, position, 0x0F)
                list_bytes += len(field[0]) + len(field[1]) + _ENTRY_OVERHEAD
                if list_bytes > self._max_list_bytes:
                    raise HeaderListTooLarge(self._max_list_bytes)
                fields.append(field)
        except IndexError as error:
            raise HpackError(CUT_BLOCK) from error
        except HuffmanError as error:
            raise HpackError(str(error)) from error
        return fields

    def _entry(self, index: int) -> Field:
        if 0 < index < _FIRST_DYNAMIC:
            return _STATIC[index]
        index -= _FIRST_DYNAMIC
        if not 0 <= index < len(self._table):
            raise HpackError(BAD_INDEX)
        return self._table[-1 - index]

    def _literal(self, block: bytes, position: int, mask: int) -> tuple[Field, int]:
        if block[position] & mask:
            index, position = _integer(block, position, mask)
            name = self._entry(index)[0]
        else:
            name, position = _string(block, position + 1)
        value, position = _string(block, position)
        return (name, value), position

    def _add(self, field: Field) -> None:
        self.changes += 1
        size = len(field[0]) + len(field[1]) + _ENTRY_OVERHEAD
        self._evict(self._max_table_bytes - size)
        if size <= self._max_table_bytes:
            self._table.append(field)
            self._table_bytes += size

    def _resize(self, size: int) -> None:
        if size > DEFAULT_TABLE_BYTES:
            raise HpackError(LARGE_TABLE)
        self.changes += 1
        self._max_table_bytes = size
        self._evict(size)

    def _evict(self, limit: int) -> None:
        """Drop the oldest entries until the table takes at most `limit` bytes (less than none: all of them)."""
        while self._table and self._table_bytes > limit:
            name, value = self._table.pop(0)
            self._table_bytes -= len(name) + len(value) + _ENTRY_OVERHEAD


def _integer(block: bytes, position: int, mask: int) -> tuple[int, int]:
    """An integer whose first bits share a byte with other things; and the position after it."""
    value = block[position] & mask
    position += 1
    if value < mask:
        return value, position
    shift = 0
    for _ in range(_MAX_INTEGER_BYTES):
        byte = block[position]
        position += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise HpackError(LONG_INTEGER)


def _string(block: bytes, position: int) -> tuple[bytes, int]:
    first = block[position]
    length = first & 0x7F
    if length == 0x7F:
        length, start = _integer(block, position, 0x7F)
    else:
        start = position + 1
    position = start + length
    if position > len(block):
        raise HpackError(CUT_STRING)
    text = block[start:position]
    return (decode_huffman(text) if first & 0x80 else text), position
