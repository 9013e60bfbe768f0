"""The narrow view of the replicated log that replicated state is kept in: append records, wait for them, read them back.

Implemented over the message store and the replication by the broker's assembly, and in memory by the tests. A record is a
message in queue 0 of a system topic: its TAGS are the kind, its body is JSON. Since the log is one, order is its guarantee:
when a record survives a change of master, everything appended before it survives too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from brokerd.store.again import Copies, Looked, Names
from brokerd.store.draft import Draft
from brokerd.store.put_status import PutStatus
from brokerd.store.unit import Unit
from remoting import codes
from remoting.errors import RequestError


class RecordLog(Protocol):
    @property
    def begin_offset(self) -> int:
        """Where the log begins (physical): files before it were removed."""

    @property
    def end_offset(self) -> int:
        """Where the log ends (physical)."""

    @property
    def dispatch_offset(self) -> int:
        """Everything before it (physical) is in its queue, nothing behind it is."""

    def append(self, topic: str, kind: str, body: bytes) -> int:
        """Append a record to queue 0 of a system topic at once and return the physical offset of its end.

        Raises NotMaster, or another LogboomError when the log takes no writes; then nothing was appended.
        """

    def append_records(self, topic: str, records: Sequence[tuple[str, bytes]]) -> int:
        """The same for several records (kind, body), all or none, in one write."""

    def append_leading(
        self, topic: str, kind: str, body: bytes, behind: Sequence[Draft | Copies], *, makes_room: bool = False
    ) -> tuple[int, int]:
        """Append a record to queue 0 of a system topic, and messages that the broker makes itself right behind it: all or none,
        with nothing between them. Where the record ends, and where the last message does. What `makes_room` lets files of the log
        go, and is taken on a disk that is too full for all else."""

    def append_trailing(self, ahead: Sequence[Draft | Copies], topic: str, kind: str, body: bytes) -> int:
        """The same with the record right behind the messages; where it ends."""

    def append_messages(self, drafts: Sequence[Draft]) -> int:
        """Append messages that the broker makes itself (retry copies, dead letters), all or none; return the last's end.

        Raises like `append`. The drafts' topics exist and their properties are complete.
        """

    def when_acknowledged(self, end_offset: int, done: Callable[[PutStatus], None]) -> None:
        """Call `done` once when everything below `end_offset` is acknowledged or can no longer be."""

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """[min, max) of the dispatched queue offsets; (0, 0) when there is none."""

    def read_units(self, topic: str, queue_id: int, start: int, count: int) -> Sequence[Unit]:
        """Up to `count` entries of a consume queue from queue offset `start` on."""

    def units_at(self, topic: str, queue_id: int, offsets: Sequence[int]) -> Sequence[Unit]:
        """The entries of a consume queue at these queue offsets, in any order, up to the first that it does not have."""

    def undispatched_units(self, topic: str) -> Sequence[Unit]:
        """The entries that the log holds for queue 0 of a topic behind what was dispatched, in log order."""

    def undispatched_codes(self, topic: str, start: int) -> Sequence[int] | None:
        """The codes of the entries for queue 0 of a topic that belong to records behind the physical offset `start` and behind
        what was dispatched; None when that cannot be said without reading the log."""

    def look_again(self, units: Sequence[Unit], places: Sequence[int], names: Names) -> Looked:
        """Look at records that units name, to store their messages again; see `again.Again.look`."""

    def record_at(self, physical_offset: int, size: int) -> bytes:
        """The bytes of one record. Raises StorageError when they cannot be read."""

    def find_record(self, physical_offset: int) -> bytes | None:
        """The record that starts there, confirmed or not; None when none does."""


def error_of(status: PutStatus) -> RequestError | None:
    """What to tell somebody who asked for a change; None when it is acknowledged."""
    if status == PutStatus.PUT_OK:
        return None
    code, reason = reason_of(status)
    return RequestError(code, f"the change {reason}; look at the present state before you repeat it")


def reason_of(status: PutStatus) -> tuple[int, str]:
    """The code for a change that is not acknowledged, and what became of it."""
    return _REASONS.get(status, (codes.SYSTEM_ERROR, "was refused"))


_REASONS = {
    PutStatus.FLUSH_DISK_TIMEOUT: (codes.FLUSH_DISK_TIMEOUT, "is written but not yet safe on the master's disk"),
    PutStatus.FLUSH_SLAVE_TIMEOUT: (codes.FLUSH_SLAVE_TIMEOUT, "is written but its replicas have not confirmed it yet"),
    PutStatus.SERVICE_NOT_AVAILABLE: (codes.SERVICE_NOT_AVAILABLE, "was cut off by a change of the master"),
    PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH: (codes.SERVICE_NOT_AVAILABLE, "has not enough replicas in sync"),
}
