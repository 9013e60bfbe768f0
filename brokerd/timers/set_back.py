"""Setting the cursor back when it turns out to be earlier than it says: a clock was wrong, or is.

What is appended has to be due behind the cursor, so with one that is a day ahead all that is sent would wait for a day. One that
is ahead by less than `BOUND_MS` stays: what is sent then is late by no more than that.
"""

from __future__ import annotations

import logging
from typing import Final

from brokerd.journal.journal import Journal
from brokerd.journal.record_log import RecordLog
from brokerd.timers.codes import Key
from brokerd.timers.cursor import TimerTable, set_back
from brokerd.timers.done import MAX_FENCES
from remoting.errors import LogboomError
from remoting.names import TIMER_TOPIC

log = logging.getLogger(__name__)

BOUND_MS: Final = 60_000


def is_ahead(cursor: Key, now_ms: int) -> bool:
    """Whether the cursor is ahead of that time by more than it may stay."""
    return cursor.due_ms - now_ms > BOUND_MS


class SettingBack:
    """For a master, from `begin` on."""

    def __init__(self, record_log: RecordLog, journal: Journal, table: TimerTable) -> None:
        self._log = record_log
        self._journal = journal
        self._table = table
        self._is_told = False

    def begin(self) -> None:
        """This broker is the master now."""
        self._is_told = False

    def look(self, now_ms: int) -> bool:
        """Whether the cursor was ahead of this time by more than the bound, and is no more."""
        done = self._table.done
        if not is_ahead(done.front, now_ms):
            self._is_told = False
            return False
        ahead_ms, to = done.front.due_ms - now_ms, Key(now_ms, -1)
        before = self._log.queue_range(TIMER_TOPIC, 0)[1] + len(self._log.undispatched_units(TIMER_TOPIC))
        if len(done.set_back(to, before).fences) > MAX_FENCES:
            self._tell(
                "timers that are sent now wait until the clock is where it was, %d ms ahead: it was set back %d times before, "
                "each time further, and no more of that is recorded",
                ahead_ms,
                MAX_FENCES,
            )
            return False
        try:
            self._journal.append(*set_back(to, before))
        except LogboomError as error:
            self._tell("timers that are sent now wait %d ms longer, until the log takes records: %s", ahead_ms, error)
            return False
        self._is_told = False
        log.warning(
            "timers were delivered up to what is due %d ms ahead of what this machine's clock says now: those that are sent from "
            "here on go by this one",
            ahead_ms,
        )
        return True

    def _tell(self, text: str, *values: object) -> None:
        """Once, as long as it lasts."""
        if not self._is_told:
            log.error(text, *values)
        self._is_told = True
