"""How many timers of each second wait in the tier, for a limit that an owner may set: on the master, while there is one.

What goes there and comes back is counted as it does. What was there before is read once, from the summaries of its objects, some
at a time. Until that is done the log says how many are due on a day, which is as many as may be due in a second of it. Where the
object store does not give a summary, nobody waits for it: its timers are not counted, and `trouble` says so.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from brokerd.journal.journal import Journal
from brokerd.loop.scheduler import Scheduler, Timer
from brokerd.store.put_status import PutStatus
from brokerd.timers.codes import DAY_MS, SLOT_MS
from brokerd.timers.cursor import TimerTable
from brokerd.timers.slots import SlotCounts
from brokerd.timers.tier import TimerTier
from remoting.tier.stowed import StowedObject, Waiting
from remoting.tier.stowed_summary import Summary, second_of

log = logging.getLogger(__name__)

MOST_READ: Final = 4  # at a time
_ADDED_AT_ONCE: Final = 2048  # seconds, in a turn of the loop
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0

_Key = tuple[int, int]
_Second = tuple[int, int]  # since 1970, and how many are due in it


class TierSlots:
    """A `slots.TierCounts`. `follow` begins and ends it."""

    def __init__(self, table: TimerTable, tier: TimerTier, journal: Journal, scheduler: Scheduler) -> None:
        self._table = table
        self._tier = tier
        self._journal = journal
        self._scheduler = scheduler
        self._life = 0
        self._is_running = False
        self._timer: Timer | None = None
        self._forget()

    def _forget(self) -> None:
        self._trouble = ""
        self._counts = SlotCounts()
        self._missing: set[_Key] = set()  # objects that are not counted whole
        self._reading: set[_Key] = set()
        self._queued: set[_Key] = set()  # objects that are being added
        self._work: deque[tuple[_Key | None, deque[_Second], int]] = deque()
        self._pause_s, self._rests_until_s = _FIRST_PAUSE_S, 0.0

    def follow(self, *, is_wanted: bool) -> None:
        """Whether this broker is the master and there is a limit."""
        if is_wanted and not self._is_running:
            self._is_running = True
            self.begin_again()
        elif self._is_running and not is_wanted:
            self.stop()

    def begin_again(self) -> None:
        """What was known may not be true any more."""
        if self._is_running:
            self.stop()
            self._is_running = True
            self._missing.update(self._table.objects)
            self._read_more()

    def stop(self) -> None:
        self._life += 1
        self._is_running = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._forget()

    @property
    def trouble(self) -> str:
        """Why some of them do not count; "" when they do, or will in a moment."""
        return self._trouble if self._missing else ""

    # ---- slots.TierCounts

    def most_of(self, slot_ms: int) -> int:
        known = self._counts.of(slot_ms)
        if not self.is_unsure:
            return known
        day = slot_ms // DAY_MS
        return max(known, sum(days.get(day, 0) for days in self._table.days.values()))

    @property
    def is_unsure(self) -> bool:
        return bool(self._missing) and not self.trouble

    def forget_before(self, slot_ms: int) -> None:
        self._counts.forget_before(slot_ms)

    # ---- what goes there and comes back

    def stowed(self, entry: StowedObject, timers: Sequence[Waiting]) -> None:
        """The log names an object of these timers."""
        if self._is_running:
            self._missing.add(entry.key)
            self._add(entry.key, _seconds(timers), 1)

    def returned(self, entry: StowedObject, timers: Sequence[Waiting], end_offset: int) -> None:
        """These are in the log again, up to there; the entry says what the object has since."""
        if not self._is_running:
            return
        if entry.key not in self._missing or entry.key in self._queued:  # else they are not found there any more
            taken = partial(self._taken_off, self._life, _seconds(timers))
            self._journal.when_acknowledged(end_offset, taken)
        if not entry.left and entry.key not in self._queued:
            self._missing.discard(entry.key)

    # ---- inside

    def _taken_off(self, life: int, seconds: Iterable[_Second], status: PutStatus) -> None:
        """Once its entries are dispatched they count by these. Where it is not known that they stay, another master counts."""
        if life == self._life and status is PutStatus.PUT_OK:
            self._add(None, seconds, -1)

    def _read_more(self) -> None:
        self._timer = None
        now_s = self._scheduler.time()
        if now_s < self._rests_until_s:
            self._timer = self._scheduler.call_later(self._rests_until_s - now_s, self._read_more)
            return
        room = MOST_READ - len(self._reading)
        wanted = [
            entry for key in self._missing - self._reading - self._queued if (entry := self._table.objects.get(key))
        ]
        for entry in sorted(wanted, key=lambda each: (each.due_ms, each.key))[:room]:
            self._reading.add(entry.key)
            self._tier.summarize(entry, partial(self._summarized, self._life, entry.key))

    def _summarized(self, life: int, key: _Key, summary: Summary | str) -> None:
        if life != self._life:
            return
        self._reading.discard(key)
        entry = self._table.objects.get(key)
        if entry is None:
            self._missing.discard(key)
        elif isinstance(summary, str):
            self._rest(summary)
        else:
            self._pause_s = _FIRST_PAUSE_S
            self._add(key, summary.behind(entry.returned), 1)
        if self._timer is None:
            self._read_more()

    def _rest(self, reason: str) -> None:
        self._rests_until_s = self._scheduler.time() + self._pause_s
        self._pause_s = min(_LONGEST_PAUSE_S, 2 * self._pause_s)
        if not self._trouble:
            log.warning("some timers in the tier do not count for timers.max_per_slot yet: %s", reason)
        self._trouble = f"timers in the tier do not count for timers.max_per_slot: {reason}"

    def _add(self, key: _Key | None, seconds: Iterable[_Second], sign: int) -> None:
        if key is not None:
            self._queued.add(key)
        self._work.append((key, deque(seconds), sign))
        if len(self._work) == 1:
            self._scheduler.call_soon(self._add_some, self._life)

    def _add_some(self, life: int) -> None:
        if life != self._life:
            return
        left = _ADDED_AT_ONCE
        while self._work and left > 0:
            key, seconds, sign = self._work[0]
            while seconds and left > 0:
                second, count = seconds.popleft()
                self._counts.add(second * SLOT_MS, sign * count)
                left -= 1
            if not seconds:
                self._work.popleft()
                if key is not None:
                    self._is_counted(key)
        if self._work:
            self._scheduler.call_soon(self._add_some, life)

    def _is_counted(self, key: _Key) -> None:
        self._queued.discard(key)
        self._missing.discard(key)
        if not self._missing and self._trouble:
            log.info("all timers in the tier count for timers.max_per_slot")
            self._trouble = ""


def _seconds(timers: Sequence[Waiting]) -> list[_Second]:
    return list(Counter(second_of(each.due_ms) for each in timers).items())
