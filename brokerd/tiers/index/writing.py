"""Objects of the index of keys, put under names that nobody had before (shell over an object store)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from operator import attrgetter
from typing import Final

from brokerd.tiers.index.keys import Keys
from brokerd.tiers.objects.interface import ObjectStore, ObjectStoreError
from brokerd.tiers.upload.uploader import Loop
from remoting.tier.index import ITEM, IndexObject, decode_index, describe, encode_index

log = logging.getLogger(__name__)

_MANY: Final = 16
_PORTION_ITEMS: Final = 1 << 15  # what a turn of the loop may encode


class IndexWriter:
    """What the master of one epoch writes."""

    def __init__(
        self, objects: ObjectStore, keys: Keys, epoch: int, next_number: Callable[[], int], loop: Loop
    ) -> None:
        self._objects = objects
        self._keys = keys
        self._epoch = epoch
        self._next_number = next_number
        self._loop = loop

    async def put_with(
        self, items: bytes, present: Collection[IndexObject]
    ) -> tuple[list[IndexObject], list[IndexObject]]:
        """Store them, together with what the small ones of the present objects hold when these are many: the new objects, and
        those that they stand for. Raises ObjectStoreError."""
        small = [entry for entry in present if entry.items <= _PORTION_ITEMS // 2]
        if len(small) < _MANY:
            return await self.put(items), []
        small.sort(key=attrgetter("items"))
        merged = [items]
        count = len(items) // ITEM.size
        taken: list[IndexObject] = []
        for entry in small:
            if count + entry.items > _PORTION_ITEMS:
                break
            try:
                merged.append(decode_index(bytes(await self._objects.get(entry.name, 0, entry.size)), entry))
            except (ObjectStoreError, ValueError) as error:  # nothing waits for it: it stays as it is
                log.warning("an object of the tier's index is not merged: %s", error)
            else:
                taken.append(entry)
                count += entry.items
        return await self.put(b"".join(merged)), taken

    async def put(self, items: bytes) -> list[IndexObject]:
        """Store them, in as many objects as they need. Raises ObjectStoreError; then nobody names what may be there."""
        entries: list[IndexObject] = []
        portion = _PORTION_ITEMS * ITEM.size
        for start in range(0, len(items), portion):
            content = encode_index(*self._keys.sorted(items[start : start + portion]))
            entry = describe(content, self._epoch, self._next_number())
            await self._objects.put(entry.name, content)
            entries.append(entry)
            await self._loop.pause(0)
        return entries
