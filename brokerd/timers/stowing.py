"""Has timers that are due long after their files of the log stowed in the tier, on the master: one object after the other.

First the object is there, then a record names it and says that its timers' entries are done with. Until that is acknowledged
the files stay (`Delivery.held`). Who dies between leaves an object that nobody names; it is swept. When the object store does not
take it, timers go to the log's end instead (`moving.py`), for a while.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from brokerd.journal.record_log import RecordLog
from brokerd.timers.collecting import Collecting
from brokerd.timers.delivery import Appending
from brokerd.timers.tier import ToTier
from brokerd.timers.tier_slots import TierSlots
from remoting import codes
from remoting.errors import LogboomError
from remoting.tier.stowed import StowedObject

log = logging.getLogger(__name__)

_RETRY_S: Final = 1.0
_REST_S: Final = 60.0  # after the object store failed

Ended = Callable[[int], None]


class Stowing:
    """From `start` to `stop`."""

    def __init__(
        self, record_log: RecordLog, appending: Appending, to_tier: ToTier, slots: TierSlots, ended: Ended
    ) -> None:
        """`slots` counts what goes there. `ended` is told when what was begun is done, or comes to nothing: then up to which
        queue offset timers should go to the log's end."""
        self._log = record_log
        self._batches, self._delivery, self._times = appending
        self._tier, self._ahead_ms, _ = to_tier
        self._slots = slots
        self._ended = ended
        self._life = 0
        self._rests_until_s = 0.0
        self._is_told = False
        self.is_busy = False

    def start(self) -> None:
        """This broker is the master now."""
        self.stop()
        self._rests_until_s = 0.0

    def stop(self) -> None:
        """It is not any more."""
        self._life += 1
        self.is_busy = False

    @property
    def may_begin(self) -> bool:
        """Whether timers may go to the tier now."""
        return not self.is_busy and self._tier.is_open and self._times.scheduler.time() >= self._rests_until_s

    def begin(self, first: int, end: int) -> None:
        """Look at the entries from `first` on, up to `end` at most."""
        self.is_busy = True
        collecting = Collecting(self._log, self._batches, first, end, self._times.now_ms() + self._ahead_ms)
        self._collect(self._life, collecting)

    # ---- inside

    def _collect(self, life: int, collecting: Collecting) -> None:
        if life != self._life:
            return
        try:
            has_more = collecting.step()
        except LogboomError as error:
            log.warning("timers go to the tier later: %s", error)
            self._end(collecting.at)
            return
        if has_more:
            self._times.scheduler.call_soon(self._collect, life, collecting)
        elif collecting.is_worth_it:
            self._tier.store(collecting.timers(), collecting.at, lambda entry: self._stored(life, collecting, entry))
        else:
            self._end(collecting.at)

    def _stored(self, life: int, collecting: Collecting, entry: StowedObject | None) -> None:
        if life != self._life:
            if entry is not None:
                self._tier.settle(entry)
            return
        if entry is None:
            self._rests_until_s = self._times.scheduler.time() + _REST_S
            self._end(collecting.at)
        else:
            self._record(life, collecting, entry)

    def _record(self, life: int, collecting: Collecting, entry: StowedObject) -> None:
        """Have the log name it; as long as it takes nothing, again."""
        if life != self._life:
            self._tier.settle(entry)
            return
        batch = collecting.batch(entry, self._times.now_ms()) if self._tier.is_open else None
        is_recorded, may_be_later = False, batch is not None
        try:
            is_recorded = batch is not None and self._delivery.move(batch, collecting.first) is not None
        except LogboomError as error:
            may_be_later = error.code != codes.MESSAGE_ILLEGAL  # then what moves does not fit into a file together
            self._tell("timers in the tier are not in the log yet: %s", error)
        if not is_recorded and may_be_later:
            self._times.scheduler.call_later(_RETRY_S, self._record, life, collecting, entry)
            return
        self._tier.settle(entry)
        if is_recorded:
            self._is_told = False
            self._slots.stowed(entry, collecting.timers())
            log.info("%d timers went to the tier, in %s", entry.timers, entry.name)
        self._end(0 if is_recorded else collecting.at)

    def _end(self, plain_to: int) -> None:
        self.is_busy = False
        self._ended(plain_to)

    def _tell(self, text: str, *values: object) -> None:
        """Once, until it is done."""
        if not self._is_told:
            log.warning(text, *values)
        self._is_told = True
