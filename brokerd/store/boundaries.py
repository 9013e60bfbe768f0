"""The inner loops of the store behind which compiled twins can stand (pure).

With the send kernel (`sending.boundary`) these are where a busy broker's time goes. Each takes many values in one call and gives
bytes, so that nothing of Python is needed inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from brokerd.store.derived.derive import Entry
from brokerd.store.queues.queue_offsets import QueueKey

Unit = tuple[int, int, int]  # physical offset, size, tags code


class QueueEnd(Protocol):
    """What one queue says of itself."""

    @property
    def max_offset(self) -> int: ...


class EntryApplication(Protocol):
    """Entries of the log into consume queues; `consume_queues.ConsumeQueues`."""

    @property
    def table(self) -> Mapping[QueueKey, QueueEnd]: ...

    def apply(self, entries: Sequence[Entry], arrivals: dict[QueueKey, list[int]]) -> None:
        """Append the entries' units, in log order, and add to `arrivals` which queues got messages with which tags codes."""


class CheckedReads(Protocol):
    """Records out of the log, none that is not what was stored; `checked_reads.RecordReads`.

    `encoded` are the units as their queue has them, empty when others are between them; `total` is the sum of their sizes. Raises
    CorruptedFile.
    """

    def records(self, units: Sequence[Unit], encoded: bytes, total: int) -> list[bytes]:
        """The records that the units name; those that are gone from the log's begin are left out."""

    def joined(self, units: Sequence[Unit], encoded: bytes, total: int) -> bytes | None:
        """The records one behind the other; None when they are not all in one file that is there."""
