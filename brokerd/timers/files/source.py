"""What the timer files are made of: the timer topic's queue, and a few facts of its records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

from brokerd.delay.rules import REAL_TOPIC
from brokerd.native.library import Library
from brokerd.store.queues.consume_queue import DamagedUnits
from brokerd.store.store_reads import StoreReads, Suspicion
from brokerd.store.unit import Unit
from brokerd.timers.codes import OUT_MS, added_of, leg_of, number_of
from brokerd.timers.done import Done
from brokerd.timers.native_said import NativeSaying
from brokerd.timers.said import Said
from remoting.errors import ProtocolError
from remoting.java_hash import java_hash
from remoting.names import TIMER_TOPIC
from remoting.record.fields import STORE_TIMESTAMP_END, properties_of, store_timestamp_of
from remoting.record.properties import decode_properties


class Origin(NamedTuple):
    """What the timer log keeps of a record for the original broker."""

    topic_hash: int  # String.hashCode of the topic that the message was sent to
    stored_ms: int
    is_leg: bool  # it is to be appended again at its time
    slot_ms: int | None = None  # that the original knows it by


UNKNOWN = Origin(0, 0, False)


@lru_cache(maxsize=1024)
def hash_of(topic: bytes) -> int:
    """Of an encoded topic."""
    return java_hash(str(topic, "utf-8", "replace"))


class Delivered(NamedTuple):
    """Which timers are done with for good. The record of the log that says so ends at `known_at` or before, and is confirmed; as
    long as the log is not cut there, these stay done."""

    done: Done
    known_at: int


class TimerSource(Protocol):
    """The dispatched entries of the timer topic, its records, and what the log says of them."""

    def delivered(self) -> Delivered | None:
        """How far timers are delivered by what is confirmed of the log; None while that is not known."""

    def log_range(self) -> tuple[int, int]:
        """Where the commitlog begins and ends."""

    def queue_range(self) -> tuple[int, int]:
        """The first queue offset whose record is still in the log, and the one behind the last."""

    def units(self, first: int, count: int) -> Sequence[Unit]:
        """Some of the entries from `first` on, none when there is none. Raises DamagedUnits when they begin with damage."""

    def known_units(self, first: int, count: int) -> Sequence[Unit]:
        """The same, of offsets that were read before: somebody holds them against what he knows of them."""

    def origin(self, physical_offset: int, size: int) -> Origin:
        """Of the record there; UNKNOWN when there is none."""

    def said(self, first: int, count: int, least_ms: int) -> Said | None:
        """What the records of entries say, as `Saying`; None where nobody looks at many at once."""


class Confirmed:
    """How far timers are delivered by what is confirmed of the log."""

    def __init__(self, dispatch_offset: Callable[[], int], present: Callable[[], Delivered | None]) -> None:
        """`present` is how far they are by all that was appended; None while nobody knows."""
        self._dispatch_offset = dispatch_offset
        self._present = present
        self._confirmed: Delivered | None = None
        self._next: Delivered | None = None

    def __call__(self) -> Delivered | None:
        """None while that is not known."""
        present = self._present()
        if present is None:
            self._next = None
            return None
        if self._confirmed is not None and self._confirmed.known_at > present.known_at:
            self._confirmed = None  # the log was cut before it
        dispatched = self._dispatch_offset()
        if self._next is None or present.known_at < self._next.known_at or present.known_at <= dispatched:
            self._next = present
        if self._next.known_at <= dispatched:
            self._confirmed, self._next = self._next, None
        return self._confirmed


class StoreSource:
    """`TimerSource` of a store."""

    def __init__(
        self, store: StoreReads, present: Callable[[], Delivered | None], library: Library | None = None
    ) -> None:
        """`present` as for `Confirmed`."""
        self._store = store
        self._saying = None if library is None else NativeSaying(library, self._checked, store.commitlog.reads.look_at)
        self.delivered = Confirmed(lambda: store.dispatch_offset, present)

    def log_range(self) -> tuple[int, int]:
        return self._store.commitlog.min_offset, self._store.commitlog.end_offset

    def queue_range(self) -> tuple[int, int]:
        return self._store.min_offset(TIMER_TOPIC, 0), self._store.max_offset(TIMER_TOPIC, 0)

    def units(self, first: int, count: int) -> Sequence[Unit]:
        queue = self._store.queues.table.get((TIMER_TOPIC, 0))
        found: list[Unit] = []
        if queue is not None:
            try:
                found.extend(queue.checked_units(first, count))
            except DamagedUnits as error:
                self._store.tell_damage(Suspicion(-1, TIMER_TOPIC, 0, max(error.first, queue.first_offset)))
                if not found:
                    raise
        return found

    def known_units(self, first: int, count: int) -> Sequence[Unit]:
        return self._store.read_units(TIMER_TOPIC, 0, first, count)

    def origin(self, physical_offset: int, size: int) -> Origin:
        record = self._store.commitlog.read(physical_offset, size)
        if len(record) < max(size, STORE_TIMESTAMP_END):
            return UNKNOWN
        try:
            encoded = properties_of(record)
        except ProtocolError:
            return UNKNOWN
        if (added := added_of(encoded)) is not None:
            return Origin(hash_of(added.topic), store_timestamp_of(record), added.has_leg, added.slot_ms)
        properties = decode_properties(encoded)
        topic_hash, is_leg = java_hash(properties.get(REAL_TOPIC, "")), leg_of(properties) is not None
        return Origin(topic_hash, store_timestamp_of(record), is_leg, number_of(properties, OUT_MS))

    def said(self, first: int, count: int, least_ms: int) -> Said | None:
        return None if self._saying is None else self._saying(first, count, least_ms)

    def _checked(self, first: int, count: int) -> bytes:
        """Encoded units; none where they begin with damage, of which `units` tells."""
        queue = self._store.queues.table.get((TIMER_TOPIC, 0))
        count = 0 if queue is None else min(count, queue.max_offset - first)
        try:
            return b"" if queue is None or count <= 0 else queue.read_checked(first, count)
        except DamagedUnits:
            return b""
