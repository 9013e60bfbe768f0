"""Message bytes of segments, in whichever form they are stored (shell over an object store)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from brokerd.tiers.objects.interface import NotThere, ObjectStore
from remoting.disk import Bytes
from remoting.tier.blocks import BLOCK_BYTES, BlockIndex, index_bytes
from remoting.tier.contents import Queue
from remoting.tier.segments import Form, Segment

_INDEX_CACHE_BYTES: Final = 8 << 20


class MessageBytes:
    """Reads ranges of them, and remembers the indexes of blocks that it read last. Blocks are unpacked by helper threads."""

    def __init__(self, objects: ObjectStore, aside: Callable[[Callable[[], Any]], Awaitable[Any]]) -> None:
        self._objects = objects
        self._aside = aside
        self._indexes: OrderedDict[str, BlockIndex] = OrderedDict()
        self._bytes = 0

    async def read(self, queue: Queue, segment: Segment, start: int, length: int) -> Bytes:
        """`length` bytes, at least one, from `start` of the segment on. Raises ObjectStoreError."""
        name = segment.messages_name(*queue)
        if segment.form is Form.RAW:
            return await self._objects.get(name, start, length)
        try:
            return await self._unpacked(name, segment, start, length)
        except ValueError as error:
            self._forget(name)
            raise NotThere(f"{name} is not what was stored: {error}") from error

    async def _unpacked(self, name: str, segment: Segment, start: int, length: int) -> Bytes:
        index = await self._index(name, segment)
        blocks = index.blocks_of(start, length)
        content = bytes(await self._objects.get(name, *index.place_of(blocks)))
        skipped = start - blocks.start * BLOCK_BYTES
        unpacked: bytes = await self._aside(partial(_unpack, index, content, blocks, skipped, length))
        return unpacked

    async def _index(self, name: str, segment: Segment) -> BlockIndex:
        index = self._indexes.get(name)
        if index is not None:
            self._indexes.move_to_end(name)
            return index
        size = index_bytes(segment.message_bytes)
        if size > segment.stored_bytes:
            raise ValueError("it is shorter than the index of its blocks")
        content = bytes(await self._objects.get(name, segment.stored_bytes - size, size))
        index = BlockIndex(content, segment.message_bytes, segment.stored_bytes)
        self._forget(name)
        self._indexes[name] = index
        self._bytes += index.size
        while self._bytes > _INDEX_CACHE_BYTES and len(self._indexes) > 1:
            self._forget(next(iter(self._indexes)))
        return index

    def _forget(self, name: str) -> None:
        index = self._indexes.pop(name, None)
        if index is not None:
            self._bytes -= index.size


def _unpack(index: BlockIndex, content: bytes, blocks: range, skipped: int, length: int) -> bytes:
    """`length` of the blocks' message bytes, without the first ones. Raises ValueError."""
    return b"".join(index.unpacked(content, blocks, number) for number in blocks)[skipped : skipped + length]
