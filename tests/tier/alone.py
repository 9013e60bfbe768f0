"""What is in a tier, read by who has nothing else: neither the brokers that made it, nor their disks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from brokerd.store.unit import UNIT
from brokerd.tiers.manifests import Manifests
from brokerd.tiers.objects.interface import ObjectStore
from remoting.checksum import crc32
from remoting.record.codec import Record, body_is_intact, decode_records
from remoting.tier.contents import Queue, TierContents
from remoting.tier.manifest import Followed
from remoting.tier.segments import Segment

_LARGEST: Final = 1 << 30


async def contents_by_manifest(objects: ObjectStore) -> TierContents:
    """Raises ObjectStoreError, and ValueError when the manifest contradicts itself."""
    followed = Followed(TierContents())
    for part in await Manifests(objects).newest(-1):
        followed.take(part)
    return followed.contents


async def read_segment(objects: ObjectStore, queue: Queue, segment: Segment) -> list[Record]:
    """Its messages. Raises AssertionError when one of its two objects is not what the manifest says of it."""
    content = await objects.get_all(segment.messages_name(*queue), _LARGEST)
    entries = await objects.get_all(segment.entries_name(*queue), _LARGEST)
    place = f"{queue.topic}/{queue.queue_id} [{segment.first}, {segment.end})"
    assert (len(content), crc32(content)) == (segment.stored_bytes, segment.crc), f"{place}: messages"
    assert crc32(entries) == segment.entries_crc, f"{place}: entries"
    records = list(decode_records(content))
    assert [record.queue_offset for record in records] == list(range(segment.first, segment.end)), f"{place}: offsets"
    assert all(map(body_is_intact, records)), f"{place}: a body is damaged"
    assert [begin - segment.base for begin, _, _ in UNIT.iter_unpack(entries)] == list(_begins(entries)), (
        f"{place}: positions"
    )
    return records


def _begins(entries: bytes) -> Iterator[int]:
    at = 0
    for _, size, _ in UNIT.iter_unpack(entries):
        yield at
        at += size
