"""Segments made into one: read in parts, checked, written under a name that nobody used (shell over an object store).

Nothing is in memory but the parts on their way. What comes to nothing leaves objects that nobody names; they are swept.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Final

from brokerd.tiers.objects.interface import ObjectStore, ObjectStoreError
from brokerd.tiers.reading.message_bytes import MessageBytes
from brokerd.tiers.upload.uploader import Loop
from remoting.checksum import crc32
from remoting.tier.blocks import BlockWriter
from remoting.tier.contents import Queue
from remoting.tier.names import ENTRY_BYTES
from remoting.tier.segments import Form, Segment

_PART_BYTES: Final = 1 << 20


class Merger:
    """Makes one segment of some of a queue."""

    def __init__(self, objects: ObjectStore, loop: Loop) -> None:
        self._objects = objects
        self._loop = loop
        self._messages = MessageBytes(objects, loop.aside)

    async def merge(self, queue: Queue, old: Sequence[Segment], form: Form, name: tuple[int, int]) -> Segment:
        """`old` are adjacent, `name` is the epoch and the number of the new one. Raises ObjectStoreError."""
        first, last = old[0], old[-1]
        epoch, number = name
        merged = first._replace(
            end=last.end,
            message_bytes=sum(each.message_bytes for each in old),
            last_ms=max(each.last_ms for each in old),
            log_end=max(each.log_end for each in old),
            epoch=epoch,
            number=number,
            form=form,
        )
        messages, entries = _Measured(), _Measured()
        parts = self._message_parts(queue, old)
        packed = parts if form is Form.RAW else self._packed(parts)
        await self._objects.put_stream(merged.messages_name(*queue), messages.of(packed))
        await self._objects.put_stream(merged.entries_name(*queue), entries.of(self._entry_parts(queue, old)))
        return merged._replace(stored_bytes=messages.size, crc=messages.crc, entries_crc=entries.crc)

    async def _message_parts(self, queue: Queue, old: Sequence[Segment]) -> AsyncIterator[bytes]:
        for segment in old:
            crc = 0
            for start in range(0, segment.message_bytes, _PART_BYTES):
                length = min(_PART_BYTES, segment.message_bytes - start)
                part = bytes(await self._messages.read(queue, segment, start, length))
                crc = crc32(part, crc)
                yield part
            if segment.form is Form.RAW and crc != segment.crc:  # blocks have checksums of their own
                raise ObjectStoreError(
                    f"{segment.messages_name(*queue)} is not what was stored: its checksum is another one"
                )

    async def _entry_parts(self, queue: Queue, old: Sequence[Segment]) -> AsyncIterator[bytes]:
        for segment in old:
            crc, size = 0, segment.messages * ENTRY_BYTES
            for start in range(0, size, _PART_BYTES):
                part = bytes(
                    await self._objects.get(segment.entries_name(*queue), start, min(_PART_BYTES, size - start))
                )
                crc = crc32(part, crc)
                yield part
            if crc != segment.entries_crc:
                raise ObjectStoreError(
                    f"{segment.entries_name(*queue)} is not what was stored: its checksum is another one"
                )

    async def _packed(self, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The same as blocks, which helper threads compress."""
        writer = BlockWriter()
        async for part in parts:
            for block in await self._loop.aside(partial(_blocks, writer, part)):
                yield block
        yield writer.finish()


def _blocks(writer: BlockWriter, part: bytes) -> list[bytes]:
    return list(writer.add(part))


class _Measured:
    """Length and checksum of what goes through."""

    def __init__(self) -> None:
        self.size = self.crc = 0

    async def of(self, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for part in parts:
            self.size += len(part)
            self.crc = crc32(part, self.crc)
            yield part
