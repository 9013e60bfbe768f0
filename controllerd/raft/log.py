"""The log of one node as the core sees it: every entry after the compacted prefix, durable or not (pure)

Invariants: indexes are consecutive, terms never decrease, `compacted_index <= applied <= committed <= last_index` (a received
snapshot is ahead of `applied` until it is restored), `stable_index <= last_index`; nothing at or below `committed` is ever cut.
The term of the compacted entry is kept, so the first kept entry still has a predecessor to match. Only the core calls it.
Controller state is small and the log is compacted often, therefore all kept entries stay in memory and the file is read at start
only.
"""

from __future__ import annotations

from collections.abc import Sequence

from controllerd.raft.messages import Entry, Snapshot
from remoting.errors import CorruptedFile


class LostLog(CorruptedFile):
    """Votes or entries that this node promised are gone: its files are damaged, or its disk was emptied or replaced.

    Its id must never count again. It comes back as another incarnation (see `returning`).
    """


class RaftLog:
    """Entries, the newest snapshot, and how far they are stable, committed and applied."""

    def __init__(
        self,
        snapshot: Snapshot | None = None,
        compacted_index: int = 0,
        compacted_term: int = 0,
        entries: Sequence[Entry] = (),
        committed: int = 0,
    ) -> None:
        """The log as recovered from disk: all of it stable, the state machine at the snapshot."""
        self.compacted_index = compacted_index
        self.compacted_term = compacted_term
        self._entries = list(entries)
        self.snapshot = snapshot
        self.pending_snapshot: Snapshot | None = None
        self.applied = snapshot.index if snapshot else 0
        self.committed = max(committed, self.applied)
        self.stable_index = self.last_index
        assert compacted_index <= self.applied, "entries that no snapshot covers were compacted"
        assert all(entry.index == compacted_index + 1 + place for place, entry in enumerate(self._entries))
        assert self.committed <= self.last_index, "the recovered log ends before what was committed"

    @property
    def first_index(self) -> int:
        """Index of the first entry that can still be read."""
        return self.compacted_index + 1

    @property
    def last_index(self) -> int:
        return self.compacted_index + len(self._entries)

    @property
    def last_term(self) -> int:
        return self._entries[-1].term if self._entries else self.compacted_term

    def term(self, index: int) -> int | None:
        """The term of the entry, or None when it is compacted or does not exist."""
        if index == self.compacted_index:
            return self.compacted_term
        if self.compacted_index < index <= self.last_index:
            return self._entries[index - self.compacted_index - 1].term
        return None

    def slice(self, start: int, end: int, max_bytes: int) -> tuple[Entry, ...]:
        """Entries of [start, end) up to `max_bytes`, but at least one if there is one."""
        assert start > self.compacted_index
        chosen: list[Entry] = []
        room = max_bytes
        for entry in self._entries[start - self.compacted_index - 1 : max(end - self.compacted_index - 1, 0)]:
            room -= entry.size_bytes
            if room < 0 and chosen:
                break
            chosen.append(entry)
        return tuple(chosen)

    def matches(self, index: int, term: int) -> bool:
        """Whether the log holds this entry."""
        return self.term(index) == term

    def is_up_to_date(self, index: int, term: int) -> bool:
        """Whether a log that ends at (index, term) holds at least what this one may have committed."""
        return (term, index) >= (self.last_term, self.last_index)

    # Changes

    def append(self, entries: Sequence[Entry]) -> None:
        """Put entries behind the log; what they overlap is cut first."""
        if not entries:
            return
        start = entries[0].index
        assert self.committed < start <= self.last_index + 1, "committed entries are never cut and the log has no holes"
        del self._entries[start - self.compacted_index - 1 :]
        self.stable_index = min(self.stable_index, start - 1)
        self._entries.extend(entries)

    def try_append(self, prev_index: int, prev_term: int, entries: Sequence[Entry]) -> int | None:
        """Follow the leader: return the last index now known to match, or None when the predecessor does not match."""
        if not self.matches(prev_index, prev_term):
            return None
        for place, entry in enumerate(entries):
            if not self.matches(entry.index, entry.term):
                if entry.index <= self.committed:
                    raise LostLog(
                        f"the leader's entry {entry.index} contradicts the committed one here: the log is damaged"
                    )
                self.append(entries[place:])
                break
        return prev_index + len(entries)

    def conflict_hint(self, index: int, term: int) -> tuple[int, int]:
        """The highest index at or below `index` whose term is at most `term`: the logs cannot agree above it."""
        while index > self.compacted_index:
            found = self.term(index)
            if found is not None and found <= term:
                break
            index -= 1
        return index, self.term(index) or 0

    def commit_to(self, index: int) -> None:
        """Entries up to `index` are decided. Raises LostLog when this node should have them and does not."""
        if index <= self.committed:
            return
        if index > self.last_index:
            raise LostLog(
                f"entry {index} was acknowledged by this controller, but its log ends at {self.last_index}: its data was lost or "
                "replaced"
            )
        self.committed = index

    def applied_to(self, index: int) -> None:
        """The state machine has applied everything up to `index`."""
        assert self.applied <= index <= self.committed
        self.applied = index

    def stable_to(self, index: int, term: int) -> None:
        """A write that ended with this entry is durable; ignored when the entry was replaced in the meantime."""
        if self.pending_snapshot is None and index > self.stable_index and self.matches(index, term):
            self.stable_index = index

    def unstable_entries(self) -> tuple[Entry, ...]:
        """Entries that are not yet known to be durable."""
        return tuple(self._entries[self.stable_index - self.compacted_index :])

    def next_committed(self, max_bytes: int) -> tuple[Entry, ...]:
        """Entries to apply next; none while a received snapshot waits to be restored."""
        if self.pending_snapshot is not None or self.applied >= self.committed:
            return ()
        return self.slice(self.applied + 1, self.committed + 1, max_bytes)

    def has_next_committed(self) -> bool:
        return self.pending_snapshot is None and self.applied < self.committed

    # Snapshots

    def restore(self, snapshot: Snapshot) -> None:
        """Replace everything by a snapshot received from the leader; it has yet to become durable and to be applied."""
        assert snapshot.index > self.committed
        self._entries = []
        self.compacted_index = snapshot.index
        self.compacted_term = snapshot.term
        self.stable_index = snapshot.index
        self.committed = snapshot.index
        self.snapshot = snapshot
        self.pending_snapshot = snapshot

    def snapshot_restored(self, snapshot: Snapshot) -> None:
        """The snapshot is durable and the state machine is at its index."""
        self.applied = max(self.applied, snapshot.index)
        if self.pending_snapshot is snapshot:
            self.pending_snapshot = None

    def compact(self, snapshot: Snapshot, keep_entries: int) -> None:
        """Remember a snapshot of the applied state and drop entries before it, except the last `keep_entries` of them.

        The kept ones let a slightly slow follower catch up without the snapshot.
        """
        assert snapshot.index <= self.applied
        self.snapshot = snapshot
        drop_to = min(snapshot.index - keep_entries, self.stable_index)
        if drop_to <= self.compacted_index:
            return
        term = self.term(drop_to)
        assert term is not None
        del self._entries[: drop_to - self.compacted_index]
        self.compacted_index = drop_to
        self.compacted_term = term

    def kept_entries(self) -> tuple[Entry, ...]:
        """All entries that are still here and stable, for writing the log anew."""
        return tuple(self._entries[: self.stable_index - self.compacted_index])
