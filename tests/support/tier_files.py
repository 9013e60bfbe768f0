"""A tier in memory, made by the real formats: segments of given records, and a manifest."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import obstore
from obstore.store import MemoryStore

from remoting.checksum import crc32
from remoting.record.fields import store_timestamp_of
from remoting.tier.blocks import BlockWriter
from remoting.tier.contents import Change, Queue, TierContents, begun, committed, grown
from remoting.tier.manifest import ManifestPart, Position, encode_part
from remoting.tier.names import ENTRY_BYTES, manifest_name
from remoting.tier.segments import Form, Segment

CLUSTER, GROUP = "c", "broker-a"


class TierFiles:
    """Below `directory` of `store`; each change is a part of the manifest."""

    def __init__(self, epoch: int = 3, directory: str = "tier") -> None:
        self.store: Any = MemoryStore()
        self.directory = directory
        self.contents = TierContents()
        self.epoch = epoch
        self.part = -1
        self.number = 0
        self.write(begun("a log"), is_checkpoint=True)

    def put(self, name: str, content: bytes) -> None:
        obstore.put(self.store, f"{self.directory}/{name}", content)

    def read(self, name: str) -> bytes:
        return bytes(obstore.get(self.store, f"{self.directory}/{name}").bytes())

    def remove(self, name: str) -> None:
        obstore.delete(self.store, f"{self.directory}/{name}")

    def names(self, directory: str = "") -> list[str]:
        below = f"{self.directory}/"
        listed = [each["path"] for chunk in obstore.list(self.store, below + directory) for each in chunk]
        return sorted(each.removeprefix(below) for each in listed)

    def write(self, *changes: Change, is_checkpoint: bool = False) -> None:
        """The next part of the manifest."""
        self.part += 1
        for change in changes:
            self.contents.apply(change)
        written = list(self.contents.rows()) if is_checkpoint else list(changes)
        position = Position(self.epoch, self.part)
        self.put(manifest_name(*position), encode_part(ManifestPart(position, is_checkpoint, [(1, 0)], written)))

    def segment(
        self, queue: Queue, first: int, records: Sequence[bytes], base: int | None = None, is_packed: bool = False
    ) -> Segment:
        """Both objects of a segment of these records; nobody names them yet."""
        present = self.contents.queues.get(queue)
        begin = base if base is not None else present.message_end if present is not None else 0
        entries, place = b"", begin
        for record in records:
            entries += struct.pack(">qiq", place, len(record), 0)
            place += len(record)
        content = b"".join(records)
        stored, form = content, Form.RAW
        if is_packed:
            blocks, form = BlockWriter(), Form.BLOCKS
            stored = b"".join([*blocks.add(content), blocks.finish()])
        self.number += 1
        made = Segment(
            first,
            first + len(records),
            begin,
            len(content),
            len(stored),
            store_timestamp_of(records[0]),
            store_timestamp_of(records[-1]),
            0,
            self.epoch,
            self.number,
            crc32(stored),
            crc32(entries),
            form,
        )
        self.put(made.messages_name(*queue), stored)
        self.put(made.entries_name(*queue), entries)
        return made

    def grow(self, queue: Queue, records: Sequence[bytes]) -> Segment:
        """Put these into the objects of the queue's last segment, and the part of the manifest that says so."""
        last = self.contents.queues[queue].last
        entries, place = b"", last.message_end
        for record in records:
            entries += struct.pack(">qiq", place, len(record), 0)
            place += len(record)
        content, size = b"".join(records), place - last.base
        messages_name, entries_name = last.names(*queue)
        self.put(messages_name, self.read(messages_name)[: last.stored_bytes] + content)
        self.put(entries_name, self.read(entries_name)[: last.messages * ENTRY_BYTES] + entries)
        made = last._replace(
            end=last.end + len(records),
            message_bytes=size,
            stored_bytes=size,
            last_ms=store_timestamp_of(records[-1]),
            log_end=last.log_end + len(content),
            crc=crc32(content, last.crc),
            entries_crc=crc32(entries, last.entries_crc),
        )
        self.write(grown(queue, made))
        return made

    def commit(self, queue: Queue, first: int, records: Sequence[bytes]) -> Segment:
        """A segment, and the part of the manifest that names it."""
        made = self.segment(queue, first, records)
        self.write(committed(queue, made))
        return made
