"""Objects of the index of keys, put under names that nobody had before (shell over an object store).

What is kept equally long is together in an object, so that it goes with the messages: an object of all topics would stay for
those that are kept longest. Small ones are put together with what comes next, if all of it is of about the same time.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from functools import partial
from operator import attrgetter
from typing import Final, NamedTuple

from brokerd.tiers.index.keys import Keys
from brokerd.tiers.objects.interface import ObjectStore, ObjectStoreError
from brokerd.tiers.upload.merging import span_ms
from brokerd.tiers.upload.uploader import Loop
from remoting.tier.index import ITEM, IndexObject, decode_index, describe, encode_index, topics_of, topics_with

log = logging.getLogger(__name__)

_MANY: Final = 16
_PORTION_ITEMS: Final = 1 << 15  # of an object


class Portion(NamedTuple):
    """Items of messages that are kept so long, and their topics (`remoting.tier.index.topics_of`)."""

    items: bytes
    reserved_ms: int
    topics: tuple[int, ...]


class IndexWriter:
    """What the master of one epoch writes."""

    def __init__(
        self,
        objects: ObjectStore,
        keys: Keys,
        epoch: int,
        next_number: Callable[[], int],
        loop: Loop,
        reserved_ms: Callable[[str], int],
    ) -> None:
        """`reserved_ms` says for how long a topic's messages are kept, 0 = for ever."""
        self._objects = objects
        self._keys = keys
        self._epoch = epoch
        self._next_number = next_number
        self._loop = loop
        self._reserved_ms = reserved_ms

    async def put_with(
        self, items: Sequence[tuple[str, bytes]], present: Collection[IndexObject]
    ) -> tuple[list[IndexObject], list[IndexObject]]:
        """Store items, by their topics, together with what the small ones of the present objects hold when these are many: the
        new objects, and those that they stand for. Raises ObjectStoreError."""
        by_time: dict[int, list[tuple[str, bytes]]] = defaultdict(list)
        for topic, part in items:
            if part:
                by_time[self._reserved_ms(topic)].append((topic, part))
        new: list[IndexObject] = []
        old: list[IndexObject] = []
        for reserved_ms, parts in by_time.items():
            portion = Portion(
                b"".join([part for _, part in parts]), reserved_ms, topics_of({topic for topic, _ in parts})
            )
            merged, taken = await self._with_small_ones(portion, present)
            new += await self.put(merged)
            old += taken
        return new, old

    async def _with_small_ones(
        self, portion: Portion, present: Collection[IndexObject]
    ) -> tuple[Portion, list[IndexObject]]:
        small = [
            entry
            for entry in present
            if entry.items <= _PORTION_ITEMS // 2 and entry.reserved_ms == portion.reserved_ms
        ]
        if portion.reserved_ms and small:  # it would keep old ones from going
            newest_ms, span = max(entry.end_ms for entry in small), span_ms(portion.reserved_ms)
            small = [entry for entry in small if entry.begin_ms > newest_ms - span]
        if len(small) < _MANY:
            return portion, []
        small.sort(key=attrgetter("items"))
        merged, topics = [portion.items], portion.topics
        count = len(portion.items) // ITEM.size
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
                topics = topics_with(topics, entry.topics)
                count += entry.items
        return Portion(b"".join(merged), portion.reserved_ms, topics), taken

    async def put(self, portion: Portion) -> list[IndexObject]:
        """Store them, in as many objects as they need. Raises ObjectStoreError; then nobody names what may be there."""
        entries: list[IndexObject] = []
        step = _PORTION_ITEMS * ITEM.size
        for start in range(0, len(portion.items), step):
            part = portion._replace(items=portion.items[start : start + step])
            encoded = partial(_encoded, self._keys, part, (self._epoch, self._next_number()))
            entry, content = await self._loop.aside(encoded)
            await self._objects.put(entry.name, content)
            entries.append(entry)
        return entries


def _encoded(keys: Keys, portion: Portion, name: tuple[int, int]) -> tuple[IndexObject, bytes]:
    """The object with these, and what the contents say of it."""
    content = encode_index(*keys.sorted(portion.items))
    return describe(content, *name, portion.reserved_ms, portion.topics), content
