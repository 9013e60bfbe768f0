"""What the log says of timers, as far as it is read: made before the store is opened, whose files follow it."""

from __future__ import annotations

from brokerd.journal.reading import Reading
from brokerd.timers.cursor import TIMERS_TOPIC, TimerTable
from brokerd.timers.files.source import Delivered


class TimersInLog:
    """The table, and how far it is read. Empty until the service of the timers reads the log."""

    def __init__(self) -> None:
        self.table = TimerTable()
        self.reading = Reading(TIMERS_TOPIC, self.table)

    def delivered(self) -> Delivered | None:
        """How far timers are delivered by all that was appended; None while that is read again."""
        if self.reading.is_under_way:
            return None
        return Delivered(self.table.done, self.reading.applied_offset)
