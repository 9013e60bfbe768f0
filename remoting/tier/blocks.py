"""Message bytes of a segment as compressed blocks, with an index at the end: the form of an archive (pure).

    zstd frames, each with a checksum, of `BLOCK_BYTES` message bytes each, the last one of the rest
    4 bytes for each block   its length as stored
    8 bytes                  magic, the version of the layout in the last one
    4 bytes                  CRC-32 of the lengths and of the 12 bytes that follow here
    8 bytes                  message bytes, all together
    4 bytes                  BLOCK_BYTES

Blocks do not know where messages begin and end; who wants a range of the message bytes reads the blocks that it is in. How many
there are follows from the number of message bytes, so the index is one read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

import zstandard

from remoting.checksum import crc32

BLOCK_BYTES: Final = 256 << 10

_MAGIC: Final = b"LBBLKS\x00\x01"
_END: Final = struct.Struct(">QI")
_HEAD: Final = struct.Struct(">8sI")
_LENGTH: Final = struct.Struct(">I")
_LEVEL: Final = 3


class BlockWriter:
    """Makes blocks of message bytes as they come; `finish` gives what is left, and the index."""

    def __init__(self) -> None:
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
        self._rest = bytearray()
        self._lengths: list[int] = []
        self._total = 0

    def add(self, content: bytes) -> Iterator[bytes]:
        """The blocks that are full with it, one by one; take them all before the next."""
        self._rest += content
        self._total += len(content)
        while len(self._rest) >= BLOCK_BYTES:
            block = self._compressor.compress(memoryview(self._rest)[:BLOCK_BYTES])
            del self._rest[:BLOCK_BYTES]
            self._lengths.append(len(block))
            yield block

    def finish(self) -> bytes:
        """The end of the object."""
        last = b""
        if self._rest:
            last = self._compressor.compress(bytes(self._rest))
            self._lengths.append(len(last))
        lengths = struct.pack(f">{len(self._lengths)}I", *self._lengths)
        end = _END.pack(self._total, BLOCK_BYTES)
        return last + lengths + _HEAD.pack(_MAGIC, crc32(lengths + end)) + end


def index_bytes(message_bytes: int) -> int:
    """How long the index at the end is."""
    return -(-message_bytes // BLOCK_BYTES) * _LENGTH.size + _HEAD.size + _END.size


class BlockIndex:
    """Where the blocks of one object are."""

    __slots__ = ("_message_bytes", "_places")

    def __init__(self, content: bytes, message_bytes: int, stored_bytes: int) -> None:
        """Of the end of an object that has so many bytes. Raises ValueError when that is no index, or not of these bytes."""
        if len(content) != index_bytes(message_bytes):
            raise ValueError("the index of its blocks is cut off")
        lengths, end = content[: -_HEAD.size - _END.size], content[-_END.size :]
        magic, crc = _HEAD.unpack_from(content, len(lengths))
        if magic != _MAGIC:
            known = "a newer version wrote it" if magic[:7] == _MAGIC[:7] else "there is none where it should be"
            raise ValueError(f"the index of its blocks cannot be read: {known}")
        if crc != crc32(lengths + end):
            raise ValueError("the index of its blocks is damaged: its checksum is another one")
        places = list(accumulate((length for (length,) in _LENGTH.iter_unpack(lengths)), initial=0))
        if _END.unpack(end) != (message_bytes, BLOCK_BYTES) or places[-1] + len(content) != stored_bytes:
            raise ValueError("the index of its blocks is that of another object")
        self._places = places
        self._message_bytes = message_bytes

    @property
    def size(self) -> int:
        """Bytes of memory, about."""
        return 40 * len(self._places)

    def blocks_of(self, start: int, length: int) -> range:
        """The numbers of the blocks that have these message bytes, of which there is at least one."""
        return range(start // BLOCK_BYTES, (start + length - 1) // BLOCK_BYTES + 1)

    def place_of(self, blocks: range) -> tuple[int, int]:
        """Where adjacent blocks begin in the object, and how long they are together."""
        begin = self._places[blocks.start]
        return begin, self._places[blocks.stop] - begin

    def unpacked(self, content: bytes, blocks: range, number: int) -> bytes:
        """The message bytes of one of the blocks, which were read together. Raises ValueError when it is damaged."""
        begin = self._places[number] - self._places[blocks.start]
        packed = content[begin : begin + self._places[number + 1] - self._places[number]]
        length = min(BLOCK_BYTES, self._message_bytes - number * BLOCK_BYTES)
        try:
            if zstandard.frame_content_size(packed) != length:
                raise ValueError("a block has another length")
            return zstandard.ZstdDecompressor().decompress(packed, max_output_size=length)
        except zstandard.ZstdError as error:
            raise ValueError(f"a block is damaged: {error}") from error
