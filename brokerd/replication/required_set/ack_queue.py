"""Who waits for a position of the log to be acknowledged: one ordered line of waiters, completed by position (pure).

Positions are ends of appends, so they arrive in order, and so does the time since when each waits: whoever is late is at the head
of the line. One deque therefore serves both: completing costs one comparison plus one call per completed waiter, whatever the
length of the line. A waiter stands for everything that one read event appended, not for a message.

Each waiter is completed exactly once: acknowledged, expired, or failed by a change of role. A callback may add waiters (they are
not looked at before the callback returned) and must not raise.

Owned by `driver`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from brokerd.store.put_status import PutStatus

Callback = Callable[[PutStatus], None]
Verdict = Callable[[int, int], PutStatus | None]  # (position, milliseconds waited) -> how to answer now


class AckQueue:
    """The waiters of one broker, across roles. `limit` bounds their number."""

    __slots__ = ("_limit", "_waiters", "acknowledged", "ended")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiters: deque[tuple[int, int, Callback]] = deque()
        self.acknowledged = 0
        self.ended: dict[PutStatus, int] = {}  # how many waits ended how, other than acknowledged

    def __len__(self) -> int:
        return len(self._waiters)

    @property
    def is_full(self) -> bool:
        """No room for another waiter: refuse the append that it would be for."""
        return len(self._waiters) >= self._limit

    @property
    def waiting_since_ms(self) -> int | None:
        """Since when the first in line waits."""
        return self._waiters[0][1] if self._waiters else None

    def wait(self, position: int, now_ms: int, callback: Callback) -> None:
        """Call back when everything below `position` is acknowledged; at once if it is."""
        if position <= self.acknowledged:
            callback(PutStatus.PUT_OK)
            return
        waiters = self._waiters
        if waiters and waiters[-1][0] > position:
            # A late waiter for an earlier position may as well wait for the last one's: acknowledged means all below it.
            position = waiters[-1][0]
        waiters.append((position, now_ms, callback))

    def acknowledge(self, position: int) -> int:
        """Everything below `position` is acknowledged: complete whom that satisfies and return their number."""
        if position <= self.acknowledged:
            return 0
        self.acknowledged = position
        waiters = self._waiters
        count = 0
        while waiters and waiters[0][0] <= position:
            waiters.popleft()[2](PutStatus.PUT_OK)
            count += 1
        return count

    def expire(self, now_ms: int, verdict: Verdict) -> None:
        """Answer those whose time is over (stored here, not known to be safe) as `verdict` says; the first for whom it says
        None waits on, and so does everybody behind."""
        waiters = self._waiters
        while waiters:
            position, since_ms, callback = waiters[0]
            status = verdict(position, now_ms - since_ms)
            if status is None:
                break
            waiters.popleft()
            self.ended[status] = self.ended.get(status, 0) + 1
            callback(status)

    def fail_all(self, status: PutStatus) -> None:
        """The role changed or the broker stops: whether they were stored for good is unknown to every waiter."""
        waiters = self._waiters
        for _ in range(len(waiters)):
            if not waiters:  # a callback failed the rest
                break
            self.ended[status] = self.ended.get(status, 0) + 1
            waiters.popleft()[2](status)

    def reset(self, acknowledged: int) -> None:
        """A mastership begins (or the log was cut): positions count anew from here."""
        assert not self._waiters
        self.acknowledged = acknowledged
