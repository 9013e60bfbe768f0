"""What a leader knows about one follower, and how much it may send it; owned by the core (pure)

Invariant: `match < next_index`. A follower is in one of three states: PROBE (where does its log agree? one append per
heartbeat), REPLICATE (appends are sent ahead of their answers, bounded by a window), SNAPSHOT (it needs entries that were
compacted; nothing is sent until it has the snapshot or that took too long).
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum


class ProgressState(StrEnum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Inflights:
    """The window of unanswered appends: (last index, bytes) in order, bounded by count and by bytes."""

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._sent: deque[tuple[int, int]] = deque()
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._sent)

    @property
    def is_full(self) -> bool:
        return len(self._sent) >= self._max_count or self._size_bytes >= self._max_bytes

    def add(self, last_index: int, size_bytes: int) -> None:
        assert not self.is_full, "an append was sent past the window"
        assert not self._sent or self._sent[-1][0] <= last_index
        self._sent.append((last_index, size_bytes))
        self._size_bytes += size_bytes

    def release_up_to(self, index: int) -> None:
        """Everything up to `index` was answered."""
        while self._sent and self._sent[0][0] <= index:
            self._size_bytes -= self._sent.popleft()[1]

    def clear(self) -> None:
        self._sent.clear()
        self._size_bytes = 0


class Progress:
    def __init__(self, next_index: int, max_inflight_messages: int, max_inflight_bytes: int) -> None:
        self.match = 0
        self.next_index = next_index
        self.state = ProgressState.PROBE
        self.paused = False
        self.pending_snapshot = 0
        self.waited_ticks = 0
        self.sent_commit = 0
        self.is_recently_active = False
        self.was_active = False
        self.has_answered = False  # since the last heartbeat
        self.is_punctual = False  # between the two last ones
        self.inflights = Inflights(max_inflight_messages, max_inflight_bytes)

    def become_probe(self) -> None:
        """Find out again where the logs agree; after a snapshot, right behind it."""
        self.next_index = max(self.match, self.pending_snapshot if self.state is ProgressState.SNAPSHOT else 0) + 1
        self._enter(ProgressState.PROBE)

    def become_replicate(self) -> None:
        self.next_index = self.match + 1
        self._enter(ProgressState.REPLICATE)

    def become_snapshot(self, index: int) -> None:
        self._enter(ProgressState.SNAPSHOT)
        self.pending_snapshot = index
        self.next_index = index + 1

    def snapshot_failed(self) -> None:
        """The snapshot did not arrive: probe from where the follower was."""
        self.pending_snapshot = 0
        self.become_probe()

    def snapshot_delivered(self) -> None:
        """The snapshot is over there: go on behind it with the follower's answer, or when it should be lost with the next
        heartbeat's."""
        self.become_probe()
        self.paused = True

    def _enter(self, state: ProgressState) -> None:
        self.state = state
        self.paused = False
        self.pending_snapshot = 0
        self.waited_ticks = 0
        self.inflights.clear()

    def acknowledged(self, index: int) -> bool:
        """The follower holds everything up to `index`; False when that is old news."""
        if index <= self.match:
            return False
        self.match = index
        self.next_index = max(self.next_index, index + 1)
        self.paused = False
        return True

    def refused(self, rejected_index: int, hint_index: int) -> bool:
        """The follower refused the append behind `rejected_index`; False when that answer is a late one."""
        if self.state is ProgressState.REPLICATE:
            if rejected_index <= self.match:
                return False
            self.next_index = self.match + 1
            self.sent_commit = 0
            return True
        if self.next_index - 1 != rejected_index:
            return False
        self.next_index = max(min(rejected_index, hint_index + 1), self.match + 1)
        self.paused = False
        return True

    def needs_commit(self, committed: int) -> bool:
        """Whether the follower holds decided entries of which it was not told that they are decided."""
        return self.sent_commit < min(committed, self.match)

    def sent_entries(self, last_index: int, count: int, size_bytes: int, commit: int) -> None:
        """An append with `count` entries left, naming a commit index."""
        self.sent_commit = max(self.sent_commit, min(commit, last_index))
        if self.state is ProgressState.REPLICATE:
            if count:
                self.next_index = last_index + 1
                self.inflights.add(last_index, size_bytes)
            self.paused = self.inflights.is_full
        else:
            assert self.state is ProgressState.PROBE
            self.paused = True

    @property
    def is_paused(self) -> bool:
        """Whether appends must wait for an answer."""
        return self.paused or self.state is ProgressState.SNAPSHOT
