"""How far the files of a running store are durable: the checkpoint's page, and one checkpoint on its way to disk.

The flusher's thread leaves word of every sync, a helper thread of every checkpoint, the loop cuts the log: the page, and the
generation of the log that its positions are of, change under one lock. So no position of a log that was cut meanwhile is written,
and between two cuts they only grow.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from brokerd.store.derived.followers import Follower, FollowerWrite
from brokerd.store.log.commitlog import CommitLog, SyncMark
from brokerd.store.queues.queue_write import QueueWrite
from brokerd.store.start.checkpoint_page import Checkpoint, Positions
from remoting.invariants import monotonic

# A start verifies at least this much of the log before the last checkpoint, when there is that much.
_RECHECK_BYTES = 32 << 20


class DurablePositions:
    """What a start after a crash may rely on. `positions` are what the page says."""

    def __init__(self, page: Checkpoint, commitlog: CommitLog) -> None:
        self._page = page
        self._commitlog = commitlog
        self._lock = threading.Lock()
        self._boundaries = (0, 0)  # record boundaries, the second at least _RECHECK_BYTES behind the first

    @property
    def positions(self) -> Positions:
        return self._page.positions

    @property
    def known(self) -> Positions | None:
        """The positions, unless another program wrote the page or there was none."""
        return self._page.positions if self._page.known else None

    def begin(self, *, flushed: int, queues: int, confirm: int, checked_from: int) -> None:
        """A start found this; it verified the log from the record boundary `checked_from` on. Durable when it returns."""
        self._boundaries = (checked_from, checked_from)
        with self._lock:
            positions = self._page.positions
            positions.flushed_offset, positions.queues_offset, positions.confirm_offset = flushed, queues, confirm
            self._page.write(durable=True)

    def note_flushed(self, mark: SyncMark) -> None:
        """The log was synced, maybe farther than the loop knows that it goes; any thread."""
        with self._lock:
            positions = self._page.positions
            # An empty log has no file that would tell a start where it begins.
            before = max(positions.flushed_offset, self._commitlog.min_offset)
            if mark.generation == self._commitlog.generation and mark.complete_offset > before:
                positions.flushed_offset = mark.complete_offset
                self._page.write(durable=False)

    def next_positions(
        self, *, dispatch_offset: int, confirm_offset: int, dispatched_timestamp_ms: int, index_timestamp_ms: int
    ) -> Positions:
        """What a checkpoint that begins now will say."""
        present = self._page.positions
        timestamp, offset = max(present.logics_timestamp_ms, dispatched_timestamp_ms), dispatch_offset
        if offset > present.flushed_offset:
            # Units of unsynced records are written too, but not vouched for; the time stays at what was vouched for.
            timestamp, offset = present.logics_timestamp_ms, present.flushed_offset
        older, newer = self._boundaries
        if offset - newer >= _RECHECK_BYTES:
            self._boundaries = (newer, offset)
        return Positions(
            physic_timestamp_ms=timestamp,
            logics_timestamp_ms=timestamp,
            index_timestamp_ms=index_timestamp_ms,
            confirm_offset=confirm_offset,
            queues_offset=offset,
            recheck_offset=older,
        )

    def note_checkpoint(self, positions: Positions, generation: int) -> None:
        """The queues of a checkpoint are durable: say so on the page, unless the log was cut meanwhile; any thread."""
        with self._lock:
            if generation == self._commitlog.generation:
                present = self._page.positions
                positions.flushed_offset = present.flushed_offset
                monotonic(present.confirm_offset, positions.confirm_offset, "the confirm offset of the checkpoint")
                queues_offset = monotonic(present.queues_offset, positions.queues_offset, "what queues durably have")
                assert queues_offset <= present.flushed_offset, "queues name records that are not durable"
                self._page.positions = positions
                self._page.write(durable=True)

    def truncate(self, offset: int) -> None:
        """Cut the log, and before it the positions behind the cut."""
        with self._lock:
            positions = self._page.positions
            for name in ("flushed_offset", "queues_offset", "confirm_offset", "recheck_offset"):
                setattr(positions, name, min(getattr(positions, name), offset))
            older, newer = self._boundaries
            self._boundaries = (min(older, offset), min(newer, offset))
            # First on the page: the cut log must not look like one that lost durable bytes.
            self._page.write(durable=True)
            self._commitlog.truncate(offset)

    def reset(self, offset: int) -> None:
        """Empty the log, which goes on at an offset; nothing is durable any more."""
        with self._lock:
            self._page.positions = Positions()
            self._boundaries = (0, 0)
            self._page.write(durable=True)
            self._commitlog.reset(offset)

    def close(self) -> None:
        self._page.close()


@dataclass
class StoreCheckpoint:
    """One checkpoint on its way to disk. `run` blocks: it writes and syncs consume queues and what the followers of the log have,
    then the page that says so."""

    durable: DurablePositions
    write: QueueWrite
    follower_writes: Sequence[tuple[Follower, FollowerWrite]]
    positions: Positions
    generation: int

    def run(self) -> None:
        self.write.run()
        for _, write in self.follower_writes:
            write.run()
        self.durable.note_checkpoint(self.positions, self.generation)
