"""Leaves a watermark in the log now and then, on the master: how far it is confirmed (`store.start.watermark`).

One is due a second after something was confirmed that is no watermark itself; so a busy log has one a second, and an idle one
none. It is written behind what it speaks of, and is lost with it or not at all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from brokerd.journal.record_log import RecordLog
from brokerd.loop.scheduler import Scheduler, Timer
from brokerd.store.start.watermark import KIND, TOPIC, encode_watermark
from remoting.errors import LogboomError

log = logging.getLogger(__name__)

_PAUSE_S = 1.0


class Watermarks:
    """`confirm_offset` is asked when one is written."""

    def __init__(self, records: RecordLog, scheduler: Scheduler, confirm_offset: Callable[[], int]) -> None:
        self._records = records
        self._scheduler = scheduler
        self._confirm_offset = confirm_offset
        self._end = -1  # of the last watermark, or of the log when this broker began to lead; -1: it does not
        self._timer: Timer | None = None

    def lead(self) -> None:
        """This broker takes messages from now on."""
        self._end = self._records.end_offset

    def step_down(self) -> None:
        """It does not any more, or ends."""
        self._end = -1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def confirmed(self, offset: int) -> None:
        """The log is confirmed up to there."""
        if 0 <= self._end < offset and self._timer is None:
            self._timer = self._scheduler.call_later(_PAUSE_S, self._write)

    def _write(self) -> None:
        self._timer = None
        try:
            self._end = self._records.append(TOPIC, KIND, encode_watermark(self._confirm_offset()))
        except LogboomError as error:  # the next confirmation makes another one due
            log.info("no watermark is written now: %s", error)
