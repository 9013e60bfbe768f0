"""A table kept in the replicated log: appends and applies on the master, follows the dispatch on a replica.

The table reflects every record of its topic below `applied_offset` (a physical offset). On the master that is all that was
appended; on a replica all that was dispatched. When the log was cut below it, or this broker stops being the master (what it
appended may be cut), the table is rebuilt.

Snapshots bound the rebuild: the master writes one when enough was appended since the last, and in each new file of the
commitlog, so that retention can remove old files without looking here. That of a table that can be large is written in slices,
one in each turn of the loop (`slices`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from brokerd.journal.reading import Reading
from brokerd.journal.record_log import RecordLog, error_of
from brokerd.journal.replay import (
    SNAPSHOT,
    Position,
    apply_units,
    encode_snapshot,
    find_snapshot,
    follow,
    rebuild,
    rebuild_undispatched,
)
from brokerd.journal.reread import Reread
from brokerd.journal.slices import InSlices, SliceWriter
from brokerd.loop.scheduler import Timer
from brokerd.store.again import Copies
from brokerd.store.draft import Draft
from brokerd.store.put_status import PutStatus
from remoting.errors import LogboomError, RequestError, as_request_error
from remoting.settings import check, setting

log = logging.getLogger(__name__)

_SETTLE_S = 1.0  # of a new master: what it takes first would be acknowledged behind a large snapshot
_RETRY_AFTER_RECORDS = 256
_SLICES_PER_PART = 8


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """When the master writes a snapshot of a table, and how it is cut."""

    snapshot_every_records: int = setting(
        4096, "records after which a snapshot is due; fewer make the start shorter", minimum=1, maximum=1 << 30
    )
    snapshot_bytes_factor: int = setting(
        2, "a snapshot also waits until this many times its size was appended since the last", minimum=0, maximum=1000
    )
    snapshot_part_bytes: int = setting(
        1 << 20, "a snapshot is cut into records of about this size", minimum=1024, maximum=2 << 20
    )

    snapshot_pause_ms: int = setting(
        20, "pause after each eighth of that of a large snapshot, for what else is written", minimum=0, maximum=1000
    )

    def __post_init__(self) -> None:
        check("journal", self)


class Journal:
    """One table and its topic. `before_append` brings into the log what has to be there before any record of it, or raises.

    With `in_slices` the table's snapshots are written in many turns of the loop.
    """

    def __init__(
        self,
        records: RecordLog,
        reading: Reading,
        settings: JournalSettings | None = None,
        before_append: Callable[[], None] = lambda: None,
        in_slices: InSlices | None = None,
    ) -> None:
        self.topic = reading.topic
        self._log = records
        self._reading = reading
        self._table = reading.table
        self._settings = settings or JournalSettings()
        self._records_since = 0
        self._bytes_since = 0
        self._snapshot_bytes = 0
        self._snapshot_wanted = False
        self._appending = False
        self._before_append = before_append
        self._looked_to = 0  # up to which unit the last whole snapshot was looked for
        self._last_snapshot = -1  # where it begins
        self._in_slices = in_slices
        self._writer: SliceWriter | None = None  # of the snapshot under way
        self._settling: Timer | None = None
        self._appended = 0  # records since this journal was made
        self._is_read = False

    @property
    def applied_offset(self) -> int:
        """The table reflects every record that ends at or below this physical offset."""
        return self._reading.applied_offset

    @property
    def is_being_read(self) -> bool:
        """Whether the table is what it was before a `rebuild` that is still under way."""
        return self._reading.is_under_way

    def append(self, kind: str, body: Any) -> int:
        """Append a record and apply it; return the physical offset of its end, to wait for.

        Raises what `RecordLog.append` raises; then nothing changed.
        """
        return self.append_all([(kind, body)])

    def append_all(self, records: Sequence[tuple[str, Any]]) -> int:
        """The same for several records (kind, body) that were decided upon together: one write, and all of them or none."""
        self._before_append()
        encoded = [(kind, orjson.dumps(body)) for kind, body in records]
        end_offset = self._append(encoded)
        for kind, body in records:
            self._table.apply(kind, body, end_offset)
        self._count([body for _, body in encoded])
        return end_offset

    def append_leading(
        self, kind: str, body: Any, behind: Sequence[Draft | Copies], *, makes_room: bool = False
    ) -> int:
        """Append a record and apply it, and messages right behind it in the log: one write, and all of them or none. What
        `makes_room` lets files of the log go.

        The physical offset of the last one's end, to wait for.
        """

        def append(encoded: bytes) -> tuple[int, int]:
            return self._log.append_leading(self.topic, kind, encoded, behind, makes_room=makes_room)

        return self._append_beside(kind, body, append)

    def append_trailing(self, ahead: Sequence[Draft | Copies], kind: str, body: Any) -> int:
        """The same with the record right behind the messages; the physical offset of its end."""

        def append(encoded: bytes) -> tuple[int, int]:
            end_offset = self._log.append_trailing(ahead, self.topic, kind, encoded)
            return end_offset, end_offset

        return self._append_beside(kind, body, append)

    def record(self, records: Iterable[tuple[str, Any]], done: Callable[[RequestError | None], None]) -> None:
        """Append records and apply them; `done` follows when all are acknowledged, or with the reason why one was refused: those
        before it are in the log then."""
        end_offset = self.applied_offset
        try:
            for kind, body in records:
                end_offset = self.append(kind, body)
        except LogboomError as error:
            done(as_request_error(error))
            return
        self.when_acknowledged(end_offset, lambda status: done(error_of(status)))

    def when_acknowledged(self, end_offset: int, done: Callable[[PutStatus], None]) -> None:
        """Call `done` once when everything below `end_offset` is acknowledged or can no longer be."""
        self._log.when_acknowledged(end_offset, done)

    @property
    def begins_later(self) -> bool:
        """Whether this log was copied from a master that has removed its first files: a snapshot says what was in them."""
        return self._reading.position.next_unit < self._log.queue_range(self.topic, 0)[0]

    def follow(self) -> None:
        """Apply what was dispatched since the last call; on the master, where it is applied already, only move on.

        Where the log begins later, nothing is applied before its first whole snapshot was dispatched.
        """
        # a log that dispatches inside the append: the record is applied by who appends it
        if self._appending or self._reading.reread is not None:
            return
        low, high = self._log.queue_range(self.topic, 0)
        before = self._reading.position
        if before.next_unit < low:
            if find_snapshot(self._log, self.topic, low, high) is not None:
                self.rebuild()
        elif high > before.next_unit:
            self._reading.position = follow(self._log, self.topic, self._table, before, high)
            if self._reading.position.applied_offset > before.applied_offset:
                self._records_since += high - before.next_unit

    def catch_up(self) -> None:
        """Apply all the log holds, also what is not confirmed yet, and want a snapshot: for a broker that becomes the master with
        this very log."""
        while self._reading.reread is not None:
            self._read_on(self._reading.reread)
        self.follow()
        units = self._log.undispatched_units(self.topic)
        if self.begins_later:
            self._reading.position = rebuild_undispatched(self._log, self.topic, self._table, units)
        else:
            applied_offset = apply_units(self._log, self._table, units, self.applied_offset)
            self._reading.position = Position(self._reading.position.next_unit, applied_offset)
        self.want_snapshot()

    def rebuild(self) -> None:
        """Read the state from the log: at start, when the log was cut, and when this broker stopped being the master.

        With slices it may take further turns of the loop, but for the first time; the table is what it was until then.
        """
        self._abandon()
        self._records_since = 0
        self._bytes_since = 0
        if self._in_slices is not None and self._is_read:
            self._reading.reread = Reread(self._log, self.topic, *self._in_slices.renew())
            self._read_in_turns(self._reading.reread, self._in_slices)
        else:
            self._reading.position = rebuild(self._log, self.topic, self._table)
            self._is_read = True

    def truncated(self, end_offset: int) -> None:
        """The log ends at `end_offset` now, and the consume queues with it."""
        _, high = self._log.queue_range(self.topic, 0)
        if high < self._looked_to:
            self._looked_to, self._last_snapshot = 0, -1
        if (
            end_offset < self.applied_offset
            or high < self._reading.position.next_unit
            or self._reading.reread is not None
        ):
            self.rebuild()

    def want_snapshot(self) -> None:
        """The next `maintain` writes a snapshot: a new file of the log was begun, or this broker becomes the master."""
        self._snapshot_wanted = self.applied_offset > 0

    def maintain(self) -> None:
        """Write the snapshot that is wanted, on the master; elsewhere it stays wanted."""
        if self._snapshot_wanted and self._writer is None:
            self._write_snapshot()

    def maintain_when_settled(self) -> None:
        """The same for a table with slices, and a broker that has just become the master: a little later."""
        assert self._in_slices is not None
        if self._snapshot_wanted:
            self._settling = self._in_slices.scheduler.call_later(_SETTLE_S, self.maintain)

    def close(self) -> None:
        """Nothing more is written of a snapshot under way; it does not count."""
        self._abandon()

    def held_offset(self) -> int | None:
        """From where on the log must be kept so that the table can be read from it; None while the topic is empty."""
        low, high = self._log.queue_range(self.topic, 0)
        if low == high:
            return None
        if high > self._looked_to:
            found = find_snapshot(self._log, self.topic, low, high, self._looked_to)
            self._looked_to = high
            if found is not None:
                self._last_snapshot = found.first
        first = max(low, self._last_snapshot)
        if self._reading.reread is not None:
            first = max(low, min(first, self._reading.reread.held_unit))
        return self._log.read_units(self.topic, 0, first, 1)[0][0]

    # ---- inside

    def _append_beside(self, kind: str, body: Any, append: Callable[[bytes], tuple[int, int]]) -> int:
        """Append a record beside messages, and apply it; `append` says where it ends, and where all of it does."""
        self._before_append()
        encoded = orjson.dumps(body)
        self._appending = True
        try:
            record_end, end_offset = append(encoded)
        finally:
            self._appending = False
        self._appended_to(record_end, 1)
        self._table.apply(kind, body, record_end)
        self._count([encoded])
        return end_offset

    def _append(self, records: Sequence[tuple[str, bytes]]) -> int:
        self._appending = True
        try:
            end_offset = self._log.append_records(self.topic, records)
        finally:
            self._appending = False
        self._appended_to(end_offset, len(records))
        return end_offset

    def _appended_to(self, end_offset: int, records: int) -> None:
        assert end_offset > self.applied_offset
        self._reading.position = Position(self._reading.position.next_unit, end_offset)
        self._appended += records

    def _count(self, bodies: Sequence[bytes]) -> None:
        """Records were appended and applied; a snapshot may be due."""
        self._records_since += len(bodies)
        self._bytes_since += sum(map(len, bodies))
        enough_bytes = self._settings.snapshot_bytes_factor * self._snapshot_bytes
        is_due = self._records_since >= self._settings.snapshot_every_records and self._bytes_since >= enough_bytes
        if is_due and self._writer is None:
            self._write_snapshot()

    def _write_snapshot(self) -> None:
        """Append the whole state. When the log refuses, a part may be in it, which is harmless; it is tried again later."""
        if self._in_slices is not None:
            self._begin_slices(self._in_slices)
            return
        parts = encode_snapshot(self._table, self._settings.snapshot_part_bytes)
        try:
            for part in parts:
                self._append([(SNAPSHOT, part)])
        except LogboomError as error:
            self._refused(error)
            return
        self._snapshot_bytes = sum(map(len, parts))
        self._snapshot_wanted = False
        self._records_since = 0
        self._bytes_since = 0

    def _refused(self, error: LogboomError) -> None:
        """The log takes no snapshot now."""
        log.info("the snapshot of %s waits: %s", self.topic, error)
        self._snapshot_wanted = True
        self._records_since = max(0, self._settings.snapshot_every_records - _RETRY_AFTER_RECORDS)

    # ---- in slices

    def _read_in_turns(self, reread: Reread, in_slices: InSlices) -> None:
        if self._reading.reread is reread and not self._read_on(reread):
            in_slices.scheduler.call_soon(self._read_in_turns, reread, in_slices)

    def _read_on(self, reread: Reread) -> bool:
        """Whether all is read."""
        try:
            is_done = reread.step()
        except LogboomError as error:
            log.error("%s could not be read in slices, and is read at once: %s", self.topic, error)
            self._reading.reread = None
            self._reading.position = rebuild(self._log, self.topic, self._table)
            return True
        if is_done:
            self._reading.position = reread.position
            self._reading.reread = None
        return is_done

    def _begin_slices(self, in_slices: InSlices) -> None:
        """The snapshot describes the state as it is now."""
        slice_bytes = self._settings.snapshot_part_bytes // _SLICES_PER_PART
        self._writer = SliceWriter(in_slices.freeze(), slice_bytes, self._appended)
        self._snapshot_wanted = False
        self._records_since = 0
        self._bytes_since = 0
        self._write_slice(self._writer, in_slices)

    def _write_slice(self, writer: SliceWriter, in_slices: InSlices) -> None:
        if self._writer is not writer:  # it was abandoned
            return
        try:
            self._append([(SNAPSHOT, writer.next(self._appended))])
        except LogboomError as error:
            self._abandon()
            self._refused(error)
            return
        if not writer.is_done:
            pause_s = self._settings.snapshot_pause_ms / 1000
            in_slices.scheduler.call_later(pause_s, self._write_slice, writer, in_slices)
            return
        self._snapshot_bytes = writer.size
        self._abandon()
        if self._snapshot_wanted:  # a new file was begun meanwhile
            in_slices.scheduler.call_soon(self.maintain)

    def _abandon(self) -> None:
        """What is written of a snapshot stays as it is."""
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None
        if self._writer is not None:
            self._writer.close()
            self._writer = None
