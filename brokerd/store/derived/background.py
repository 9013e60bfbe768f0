"""Time for the followers of the log: short slices between the loop's other work.

Serving comes first. While messages arrive, a follower gets a small share of the time, which grows with how far it is behind, so
that it never falls behind for ever; while none arrive, half of what is idle. While something is late that should be served, all
but a little waits until that is out, or until a follower is so far behind that its share would be the largest one otherwise. A
slice is about a millisecond; who wants the followers to be up to date (`hurry`) gets them there in slices too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from brokerd.loop.scheduler import Scheduler, Timer
from brokerd.store.derived.followers import Reader
from remoting.errors import StorageError

_SLICE_S: Final = 0.001
_PIECE_BYTES: Final = 1 << 16  # of a follower that is slow
_LARGEST_PIECE_BYTES: Final = 1 << 20
_MOST_PIECES: Final = 64
_REST_S: Final = 0.05  # what arrives in between is taken together
_BLOCKED_S: Final = 0.1
_AGAIN_S: Final = 1.0
_LEAST_SHARE: Final = 0.05
_LATE_SHARE: Final = 0.02
_LARGEST_SHARE: Final = 0.5  # of a busy loop
_IDLE_SHARE: Final = 0.5  # of idle time
_FAR_BEHIND_BYTES: Final = 4 << 30  # what a burst of seconds leaves is read after it


def decide_pause_s(
    spent_s: float, busy: float, behind_bytes: int, *, hurried: bool, others_are_late: bool = False
) -> float:
    """How long to leave the loop alone after a slice of `spent_s`.

    `busy` is the part of the time before the slice, 0 to 1, in which the process had other work. While `others_are_late`, a
    share begins to grow where it is the largest one else: what is left waits, and has a bound.
    """
    least = _LEAST_SHARE
    if others_are_late:
        least, behind_bytes = _LATE_SHARE, max(0, behind_bytes - _FAR_BEHIND_BYTES)
    least += (_LARGEST_SHARE - least) * min(1.0, behind_bytes / _FAR_BEHIND_BYTES)
    if hurried:
        least = _LARGEST_SHARE
    share = max(least, _IDLE_SHARE * (1 - busy))
    return spent_s * (1 - share) / share


class Background:
    """Drives the followers; `limit()` is how far they may read, `cpu_s()` the processor time of the process so far."""

    def __init__(
        self,
        followers: Sequence[Reader],
        limit: Callable[[], int],
        scheduler: Scheduler,
        cpu_s: Callable[[], float],
        on_failure: Callable[[StorageError], bool | None],
        others_are_late: Callable[[], bool] = lambda: False,
    ) -> None:
        """`on_failure` says whether the followers shall try again in a while; otherwise nothing is read any more.
        `others_are_late` says whether the loop has something to do that should be done already."""
        self._followers = followers
        self._limit = limit
        self._scheduler = scheduler
        self._cpu_s = cpu_s
        self._on_failure = on_failure
        self._others_are_late = others_are_late
        self._timer: Timer | None = None
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self._ended_at = (scheduler.time(), cpu_s())
        self._limit_before = limit()
        self._piece_bytes = _PIECE_BYTES
        self.is_closed = False

    @property
    def behind_bytes(self) -> int:
        """What of the log the slowest follower has still to read."""
        limit = self._limit()
        return max((limit - follower.offset for follower in self._followers), default=0)

    def wake(self) -> None:
        """There may be something to read."""
        if self._timer is None and not self.is_closed and self.behind_bytes > 0:
            self._timer = self._scheduler.call_later(_REST_S, self._slice)

    def hurry(self, done: Callable[[], None]) -> None:
        """Call back when the followers have read what is readable now: in a later turn of the loop."""
        if self.is_closed:
            self._scheduler.call_soon(done)
            return
        self._waiting.append((self._limit(), done))
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._scheduler.call_later(0, self._slice)

    def close(self) -> None:
        """Read no further; who waits is called."""
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._call_waiting(everybody=True)

    def _slice(self) -> None:
        self._timer = None
        begin_s, begin_cpu_s = self._scheduler.time(), self._cpu_s()
        # On a machine that others keep busy the processor time says little: whether messages arrived meanwhile says more.
        busy = 1.0 if self._limit() > self._limit_before else _busy(self._ended_at, (begin_s, begin_cpu_s))
        try:
            moved = self._read(begin_s)
        except StorageError as error:
            if self._on_failure(error):
                self._timer = self._scheduler.call_later(_AGAIN_S, self._slice)
            else:
                self.is_closed = True
            self._call_waiting(everybody=True)
            return
        self._ended_at, self._limit_before = (self._scheduler.time(), self._cpu_s()), self._limit()
        spent_s = self._ended_at[1] - begin_cpu_s
        self._call_waiting(everybody=False)
        behind = self.behind_bytes
        if behind > 0 and not self.is_closed and self._timer is None:
            pause_s = self._pause_s(spent_s, busy, behind) if moved else _BLOCKED_S
            self._timer = self._scheduler.call_later(pause_s, self._slice)

    def _pause_s(self, spent_s: float, busy: float, behind_bytes: int) -> float:
        is_hurried = bool(self._waiting)
        return decide_pause_s(
            spent_s, busy, behind_bytes, hurried=is_hurried, others_are_late=not is_hurried and self._others_are_late()
        )

    def _read(self, begin_s: float) -> int:
        """One slice of reading for every follower that is behind; returns how far that went."""
        limit, moved, now_s = self._limit(), 0, begin_s
        for follower in self._followers:
            for _ in range(_MOST_PIECES):
                piece = follower.take(limit, self._piece_bytes)
                moved += piece
                before_s, now_s = now_s, self._scheduler.time()
                self._adapt(now_s - before_s)
                if not piece or now_s - begin_s >= _SLICE_S:
                    break
        return moved

    def _adapt(self, piece_s: float) -> None:
        """Large pieces cost less, but a slice must not take much longer than it is meant to."""
        if piece_s > _SLICE_S:
            self._piece_bytes = _PIECE_BYTES
        elif piece_s < _SLICE_S / 2:
            self._piece_bytes = min(2 * self._piece_bytes, _LARGEST_PIECE_BYTES)

    def _call_waiting(self, *, everybody: bool) -> None:
        reached = min((follower.offset for follower in self._followers), default=0)
        limit = self._limit()  # a cut of the log may have left less than somebody waits for
        ready = [done for target, done in self._waiting if everybody or reached >= min(target, limit)]
        self._waiting = [each for each in self._waiting if not (everybody or reached >= min(each[0], limit))]
        for done in ready:
            done()


def _busy(before: tuple[float, float], now: tuple[float, float]) -> float:
    """The part of the time between two (seconds, processor seconds) that the process was working."""
    wall_s = now[0] - before[0]
    return min(1.0, (now[1] - before[1]) / wall_s) if wall_s > 0 else 0.0
