"""Moves what the log is about to lose: timers in files that retention removes soon go on to the log's end, so that they keep no
file from its end.

By age none is left in such a file, since legs are shorter than that (`rolling.py`), unless the time for which files stay was
made shorter. But a disk that becomes full has files removed before their time; what lets them go is taken also where it is too
full for what is due. A move is a batch like any other (`cursor.py`): its record says that all entries in front of one are done
with, and those that were not follow it. To move is of no use where timers are most of what the log has: then their files stay,
and a full disk refuses sends until they are due.

With a tier legs are longer, and what is due long after its file goes waits there; the record names the object (`stowing.py`).
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final

from brokerd.delay.ordinary import MOST_DECODED
from brokerd.journal.record_log import RecordLog
from brokerd.loop.scheduler import Timer
from brokerd.store.unit import Unit
from brokerd.timers.codes import key_of
from brokerd.timers.delivery import Appending
from brokerd.timers.far import Far
from brokerd.timers.stowing import Stowing
from brokerd.timers.tier import ToTier
from brokerd.timers.tier_slots import TierSlots
from remoting import codes
from remoting.errors import LogboomError
from remoting.names import TIMER_TOPIC

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
MOST_PART: Final = 0.5  # of the log, of timers that wait, for a move to be worth it
_ENTRIES: Final = 4096  # looked at in a turn


class Mover:
    """Runs while this broker is the master. `going()` is up to which queue offset the timer topic's records lie in files that go
    soon."""

    def __init__(
        self,
        record_log: RecordLog,
        far: Far,
        appending: Appending,
        going: Callable[[], int],
        to_tier: ToTier,
        slots: TierSlots,
    ) -> None:
        self._log = record_log
        self._far = far
        self._batches, self._delivery, self._times = appending
        self._going = going
        self._stowing = Stowing(record_log, appending, to_tier, slots, self._stowed)
        self._timer: Timer | None = None
        self._is_running = False
        self._begin_again()

    def start(self) -> None:
        """This broker is the master now."""
        self.stop()
        self._begin_again()
        self._stowing.start()
        self._is_running = True
        self.look_later()

    def look_later(self) -> None:
        """Timers came."""
        if self._is_running and self._timer is None and self._has_waiting:
            self._timer = self._times.scheduler.call_later(LOOK_S, self._look)

    def stop(self) -> None:
        """It is not any more."""
        self._is_running = False
        self._stowing.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ---- inside

    @property
    def _has_waiting(self) -> bool:
        return self._log.queue_range(TIMER_TOPIC, 0)[1] > self._batches.table.taken

    @property
    def _first(self) -> int:
        """The first entry that may wait."""
        done = self._batches.table.done
        low = self._log.queue_range(TIMER_TOPIC, 0)[0]
        return max(self._at, low, done.moved, self._far.held_queue_offset(done))

    def _begin_again(self) -> None:
        self._at = 0  # all entries below it are done with
        self._plain_to = 0  # entries below it are not for the tier
        self._most = MOST_DECODED
        self._moved = self._moved_bytes = 0  # and not told of yet
        self._is_told = False  # why files stay

    def _stowed(self, plain_to: int) -> None:
        """Timers went to the tier, or are to go to the log's end up to there."""
        self._plain_to = max(self._plain_to, plain_to)
        if self._is_running:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._times.scheduler.call_later(0.0, self._look)

    def _look(self) -> None:
        end = min(self._going(), self._log.queue_range(TIMER_TOPIC, 0)[1])
        self._timer = None
        if self._at >= end or self._stowing.is_busy:
            has_more = False
        elif self._plain_to <= (first := self._first) < end and self._stowing.may_begin:
            has_more = False
            self._stowing.begin(first, end)
        else:
            has_more = self._go_on(min(end, self._plain_to) if first < self._plain_to else end)
        if not has_more and self._moved:
            log.info(
                "retention moved %d timers, %d bytes, to the end of the log: they waited in files that go soon",
                *(self._moved, self._moved_bytes),
            )
            self._moved = self._moved_bytes = 0
        if has_more:
            self._timer = self._times.scheduler.call_later(0.0, self._look)
        self.look_later()

    def _go_on(self, end: int) -> bool:
        """A portion of what lies below that queue offset; whether there may be more, for the next turn."""
        done = self._batches.table.done
        first = self._at = self._first
        units = self._log.read_units(TIMER_TOPIC, 0, first, min(_ENTRIES, end - first)) if first < end else ()
        found = [(offset, unit) for offset, unit in enumerate(units, first) if not done.has(key_of(unit[2], offset))]
        if not found:
            self._at = first + len(units)
            return bool(units)
        if self._is_of_no_use(found):
            return False
        sizes = accumulate(size for _, (_, size, _) in found)
        count = max(1, min(self._most, bisect_right(list(sizes), self._delivery.batch_bytes)))
        before = first + len(units) if count >= len(found) else found[count][0]
        offsets = [offset for offset, _ in found[:count]]
        try:
            batch = self._batches.of_moved(offsets, before, self._times.now_ms())
            is_moved = batch.before > offsets[0] and self._delivery.move(batch, offsets[0]) is not None
        except LogboomError as error:
            if error.code == codes.MESSAGE_ILLEGAL and count > 1:  # they do not fit into a file together
                self._most = 1
                return True
            self._tell("timers in files of the log that go soon are moved later: %s", error)
            return False
        if is_moved:
            self._moved += batch.rolled
            self._moved_bytes += batch.size_bytes
            self._is_told = False
        elif batch.before <= offsets[0]:
            self._tell(
                "the timer at queue offset %d keeps its file of the log until it is due: its properties have no room for what a "
                "move adds",
                offsets[0],
            )
        return is_moved

    def _is_of_no_use(self, found: Sequence[tuple[int, Unit]]) -> bool:
        """Whether timers are most of the log, by the size of these."""
        waiting = self._log.queue_range(TIMER_TOPIC, 0)[1] - self._batches.table.taken
        size = waiting * sum(size for _, (_, size, _) in found) // len(found)
        there = self._log.end_offset - self._log.begin_offset
        if size <= MOST_PART * there:
            return False
        self._tell(
            "files of the log that would go stay: of its %d bytes some %d are timers that wait, too many to be moved",
            *(there, size),
        )
        return True

    def _tell(self, text: str, *values: object) -> None:
        """Once, until something was moved."""
        if not self._is_told:
            log.warning(text, *values)
        self._is_told = True
