"""Queues that C finds by topic and id, so that it puts entries that it derived from the log behind them
(`brokerd/native/derived_tails.c`).

A replica and a start read back all that they dispatch, and of ten thousand queues nearly every message is of another one. What C
leaves is the twin's, `ConsumeQueues.apply`, or made ready for it here: a queue that it has not met or that has no room.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, cast

from brokerd.native.library import Library
from brokerd.store.log.derive import NO_RULES, RecordShape
from brokerd.store.log.entry_columns import EntryColumns
from brokerd.store.log.laid_out import QueueKey
from brokerd.store.log.native_derive import NativeDeriver
from brokerd.store.queues.consume_queue import ConsumeQueue, QueueFiles
from brokerd.store.queues.native_tails import NativeQueue, NativeTails
from brokerd.store.unit import UNIT
from remoting.disk import Disk
from remoting.record.codec import encode_record
from remoting.record.hosts import pack_host

# `enum fate`, `struct spot` and `struct named` of derived_tails.c
_FITS, _IS_PLACED, _IS_UNKNOWN, _IS_ODD, _HAS_NO_ROOM = range(5)
_FATE, _TOPIC, _, _FIRST, _COUNT = range(5)
_SPOT_NUMBERS: Final = 5
_NAMED_NUMBERS: Final = 5
_LEAST_BUCKETS: Final = 64


class _Names(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("topics", "queues")),
        ("count", ctypes.c_int64),
        ("buckets", ctypes.c_void_p),
        ("buckets_count", ctypes.c_int64),
    )


class _Landing(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("walk", "names", "tails")),
        ("tails_count", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("spots", "dirty")),
        *((name, ctypes.c_int64) for name in ("dirty_count", "messages", "left_count")),
    )


class Wanting(NamedTuple):
    """Entries of one queue that follow one another, for which it has no room, or which C does not know (`is_known`)."""

    key: QueueKey
    first: int  # queue offset
    messages: int
    is_known: bool


class Landing:
    """Entries on their way. By the last call of `NamedTails.land` so many `messages` came to their places, these queues became
    `dirty`, and entries of so many queues are left."""

    __slots__ = ("dirty", "entries", "left_count", "messages", "spots")

    def __init__(self, entries: EntryColumns) -> None:
        self.entries = entries
        self.spots = array("q", bytes(8 * _SPOT_NUMBERS * len(entries.keys)))
        self.messages = self.left_count = 0
        self.dirty: list[NativeQueue] = []

    def wanting(self) -> Iterator[Wanting]:
        """Those for which something can be done."""
        fates, firsts, counts = (self.spots[each::_SPOT_NUMBERS] for each in (_FATE, _FIRST, _COUNT))
        for number, fate in enumerate(fates):
            if fate in (_IS_UNKNOWN, _HAS_NO_ROOM):
                yield Wanting(self.entries.keys[number], firsts[number], counts[number], fate != _IS_UNKNOWN)

    def left(self) -> set[QueueKey]:
        """The queues whose entries are in no place."""
        keys = self.entries.keys
        return {keys[number] for number, fate in enumerate(self.spots[::_SPOT_NUMBERS]) if fate != _IS_PLACED}


class NamedTails:
    """The queues that C finds by name, of those whose tails it has."""

    def __init__(self, library: Library, tails: NativeTails) -> None:
        self._land = library.function("native_apply_walk", None, ctypes.c_void_p)
        self._name = library.function("native_name_queues", None, ctypes.c_void_p, ctypes.c_int64)
        self._tails = tails
        self._forget()

    def _forget(self) -> None:
        self._holder = self._tails.holder  # another one when a queue has gone, whose number another one gets
        self._topics: dict[str, tuple[int, int, int]] = {}  # where it is among all, its length and number
        self._topic_names: list[str] = []
        self._topics_area = array("B")
        self._named = array("q")
        self._buckets = array("i", bytes(4 * _LEAST_BUCKETS))

    def land(self, landing: Landing) -> None:
        """Put entries behind their queues: of each queue all that are not in their places, or none of them."""
        if self._holder is not self._tails.holder:
            self._forget()
        spots, count = landing.spots.buffer_info()
        dirty = array("q", bytes(8 * (count // _SPOT_NUMBERS)))
        names, (tails, tails_count) = self._names(), self._tails.rows()
        call = _Landing(
            landing.entries.walk, ctypes.addressof(names), tails, tails_count, spots, dirty.buffer_info()[0]
        )
        self._land(ctypes.addressof(call))
        landing.messages, landing.left_count = call.messages, call.left_count
        landing.dirty = self._tails.queues(dirty[: call.dirty_count])

    def topics_of(self, landing: Landing) -> set[str]:
        """Those of the entries that are in their places."""
        if not landing.left_count:
            return {self._topic_names[number] for number in set(landing.spots[_TOPIC::_SPOT_NUMBERS])}
        fates, topics = (landing.spots[each::_SPOT_NUMBERS] for each in (_FATE, _TOPIC))
        placed = {topic for fate, topic in zip(fates, topics, strict=True) if fate == _IS_PLACED}
        return {self._topic_names[number] for number in placed}

    def prepare(self, queue: ConsumeQueue, count: int, *, is_known: bool) -> None:
        """C is to find the queue from now on, and room in it for so many units."""
        number = self._tails.number_of(queue)
        if not is_known:
            self._add(queue, number)
        self._tails.make_room(number, count)

    def _add(self, queue: ConsumeQueue, number: int) -> None:
        index = len(self._named) // _NAMED_NUMBERS
        self._named.extend((*self._topic(queue.topic), queue.queue_id, number))
        if 2 * index >= len(self._buckets):
            self._buckets, index = array("i", bytes(8 * len(self._buckets))), 0
        names = self._names()
        self._name(ctypes.addressof(names), index)

    def _topic(self, name: str) -> tuple[int, int, int]:
        found = self._topics.get(name)
        if found is None:
            encoded = name.encode("utf-8", "surrogateescape")
            found = self._topics[name] = len(self._topics_area), len(encoded), len(self._topic_names)
            self._topics_area.frombytes(encoded)
            self._topic_names.append(name)
        return found

    def _names(self) -> _Names:
        """As they are now: areas move when they grow."""
        queues, numbers = self._named.buffer_info()
        buckets, buckets_count = self._buckets.buffer_info()
        return _Names(self._topics_area.buffer_info()[0], queues, numbers // _NAMED_NUMBERS, buckets, buckets_count)


def named_tails_agree(library: Library) -> bool:
    """Whether entries are put behind the queues that they name, and others left: of no such queue, of another offset."""
    tails = NativeTails(library)
    named, files = NamedTails(library, tails), QueueFiles(cast("Disk", None), 1, 1)  # nothing looks at them
    queues = [NativeQueue(topic, queue_id, files, 5) for topic, queue_id in (("T", 0), ("T", 1), ("Other", 0))]
    numbers = ((0, 5), (1, 5), (0, 6), (2, 6), (0, 7))
    log = _records([(queues[which], offset) for which, offset in numbers])
    entries = NativeDeriver(library)(log, 0, RecordShape(2 * len(log), len(log)), NO_RULES).entries
    if not isinstance(entries, EntryColumns):
        return False
    landing, found = Landing(entries), []
    for _ in range(3):
        named.land(landing)
        found.append((landing.messages, len(landing.dirty), landing.left_count))
        for key, _, count, is_known in landing.wanting():
            queue = next(each for each in queues if (each.topic, each.queue_id) == key)
            named.prepare(queue, count, is_known=is_known)
    units = [b"".join(UNIT.pack(*entry[3:6]) for entry in entries if entry[:2] == ("T", n)) for n in range(2)]
    return (
        found == [(0, 0, 3), (4, 2, 1), (0, 0, 1)]
        and [bytes(queue.tail) for queue in queues] == [*units, b""]
        and landing.left() == {("Other", 0)}
        and named.topics_of(landing) == {"T"}
        and [(queue.max_offset, queue.dirty) for queue in queues] == [(8, True), (6, True), (5, False)]
        and [queue.last_physical for queue in queues] == [entries[4][3], entries[1][3], -1]
    )


def _records(numbers: Sequence[tuple[ConsumeQueue, int]]) -> bytes:
    """Of messages for these queues and queue offsets."""
    log, host = b"", pack_host("192.0.2.1", 10911)
    for queue, queue_offset in numbers:
        log += encode_record(
            topic=queue.topic.encode(),
            queue_id=queue.queue_id,
            queue_offset=queue_offset,
            physical_offset=len(log),
            body=b"",
            properties=b"TAGS\x01a",
            born_timestamp_ms=1,
            born_host=host,
            store_timestamp_ms=2,
            store_host=host,
        )
    return log
