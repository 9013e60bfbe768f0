"""The seam to the commitlog: what replication needs of it, and the facts about it that the pure cores work with.

The log itself is the store's. All positions are physical offsets; ranges are half-open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from remoting.disk import Bytes


@dataclass(slots=True)
class LogPosition:
    """The facts about this broker's own log that replication works with; `role_machine` keeps them up to date."""

    min_offset: int = 0
    end_offset: int = 0
    flushed_offset: int = 0
    segment_size_bytes: int = 0  # of a file of the log; 0: it has one file

    @property
    def last_file_start(self) -> int:
        """Where the last file begins that holds bytes."""
        if not self.segment_size_bytes or self.end_offset == self.min_offset:
            return self.min_offset
        last = self.end_offset - 1
        return max(self.min_offset, last - last % self.segment_size_bytes)


class ReplicatedLog(Protocol):
    """The commitlog as replication sees it. Calls block; the caller is the broker's event loop."""

    @property
    def min_offset(self) -> int:
        """The first byte that is still there."""

    @property
    def end_offset(self) -> int:
        """Behind the last byte appended."""

    @property
    def known_end_offset(self) -> int:
        """The same but for what somebody appends beside the loop, who is not asked: at least what is flushed."""

    @property
    def flushed_offset(self) -> int:
        """Behind the last byte that is durable.

        Never beyond the end. After `truncate` or `reset` a flush that began before must not raise it: what is appended then is
        not what that flush wrote.
        """

    @property
    def segment_size_bytes(self) -> int:
        """The size of its files."""

    def read(self, offset: int, length: int) -> Bytes:
        """At least one and up to `length` bytes from `offset`, fewer at the end of a segment file; `offset` is below the end.

        Raises CorruptedFile, with the range, when what stands there is not what was stored.
        """

    def append_replicated(self, offset: int, buffers: Sequence[Bytes]) -> None:
        """Append a master's bytes as they are, fillers at file ends included; `offset` is the end. May cross a file's end.

        Raises ProtocolError when they cannot be log bytes there, DamagedRecord when one of them is not what was stored; the end
        then says what was taken.
        """

    def truncate(self, offset: int) -> None:
        """Cut the log at `offset` (a record boundary) and everything derived from it (queues, indexes, tables).

        Durable when it returns: no crash afterwards brings a cut byte back, whatever is appended next. Raises ProtocolError,
        and cuts nothing, when no record starts there.
        """

    def reset(self, offset: int) -> None:
        """Remove the whole log and everything derived from it; it is then empty and begins at `offset`. Durable likewise."""

    def settle(self) -> None:
        """Get ready for mastership: cut a trailing incomplete record, make everything durable, and derive the queues up to the
        end, so that the next record gets the right queue offset."""

    def seal_records(self, on: bool | None) -> None:
        """From now on the master's own records get checksums, if the settings want them, or get none; None: like the log's last
        record."""

    def request_flush(self) -> None:
        """Flush what is there soon; `flushed_offset` rises, and the owner calls `Replica.on_flushed`."""
