"""Has timers come back from the tier before they are due, on the master: some objects at a time, a block of each.

A record in front of them says that they are in the log again, in one write; so who dies before it fetches them again, and who
dies after it does not. When the log was cut behind the record, the next master says from which timer on the object has what the
log lacks (`batch.py`). What the object store does not give is asked for again, for good: timers are late then, and none is lost.
An object goes when the return of its last timer is acknowledged.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from functools import partial
from typing import Final

from brokerd.delay.ordinary import MOST_DECODED
from brokerd.delay.rules import REAL_TOPIC
from brokerd.journal.journal import Journal
from brokerd.loop.scheduler import Timer
from brokerd.store.draft import Draft
from brokerd.store.put_status import PutStatus
from brokerd.timers.batch import Batch
from brokerd.timers.codes import PLACE, day_of, number_of
from brokerd.timers.copies import rolled
from brokerd.timers.delivery import Appending
from brokerd.timers.tier import Fetched, ToTier
from brokerd.timers.tier_slots import TierSlots
from remoting import codes
from remoting.errors import LogboomError
from remoting.record.codec import Record, decode_record
from remoting.tier.stowed import StowedObject

log = logging.getLogger(__name__)

MOST_AT_ONCE: Final = 4  # objects
LOOK_S: Final = 1.0

_RETRY_S: Final = 0.2
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0


class Returning:
    """From `start` to `stop`."""

    def __init__(self, appending: Appending, journal: Journal, to_tier: ToTier, slots: TierSlots) -> None:
        self._batches, self._delivery, self._times = appending
        self._table = self._batches.table
        self._journal = journal
        self._slots = slots
        self._tier, _, self._back_ms = to_tier
        self._life = 0
        self._is_running = False
        self._timer: Timer | None = None
        self._busy: set[tuple[int, int]] = set()
        self._pause_s, self._rests_until_s = _FIRST_PAUSE_S, 0.0
        self._is_told = self._is_missed = False

    def start(self) -> None:
        """This broker is the master now."""
        self.stop()
        self._is_running = True
        self._pause_s, self._rests_until_s = _FIRST_PAUSE_S, 0.0
        self.look_later()

    def stop(self) -> None:
        """It is not any more."""
        self._life += 1
        self._is_running = False
        self._busy.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def look_later(self) -> None:
        """There may be objects."""
        if self._is_running and self._timer is None and self._table.objects:
            self._timer = self._times.scheduler.call_later(LOOK_S, self._look)

    # ---- inside

    def _look(self) -> None:
        self._timer = None
        self._fetch_due()
        self.look_later()

    def _fetch_due(self) -> None:
        room = MOST_AT_ONCE - len(self._busy)
        if room <= 0 or self._times.scheduler.time() < self._rests_until_s:
            return
        until_ms = self._times.now_ms() + self._back_ms
        due = [each for each in self._table.objects.values() if each.due_ms <= until_ms and each.key not in self._busy]
        if due and not self._tier.is_there:
            self._tell_missing(len(due))
            return
        for entry in sorted(due, key=lambda each: each.due_ms)[:room]:
            self._busy.add(entry.key)
            self._tier.fetch(entry, partial(self._fetched, self._life, entry))

    def _fetched(self, life: int, entry: StowedObject, fetched: Fetched | None) -> None:
        if life != self._life:
            return
        if fetched is None:
            self._busy.discard(entry.key)
            self._rests_until_s = self._times.scheduler.time() + self._pause_s
            self._pause_s = min(_LONGEST_PAUSE_S, 2 * self._pause_s)
            return
        self._pause_s = _FIRST_PAUSE_S
        self._append(life, entry, fetched)

    def _append(self, life: int, entry: StowedObject, fetched: Fetched, most: int = MOST_DECODED) -> None:
        """The first ones, `most` at once; the others in further turns."""
        if life != self._life:
            return
        if self._table.objects.get(entry.key) != entry:  # a torn return was put right meanwhile
            self._busy.discard(entry.key)
            return
        batch = self._batch(entry, fetched, most)
        try:
            end_offset = self._delivery.move(batch)
        except LogboomError as error:
            if error.code == codes.MESSAGE_ILLEGAL and batch.offsets:
                # together they do not fit into a file, or one does not
                self._append(life, entry, fetched, len(batch.offsets) // 2)
                return
            self._tell("timers come back from the tier later: %s", error)
            self._times.scheduler.call_later(LOOK_S, self._append, life, entry, fetched, most)
            return
        if end_offset is None:
            self._times.scheduler.call_later(_RETRY_S, self._append, life, entry, fetched, most)
            return
        self._is_told = False
        after = batch.stowed
        assert after is not None
        count = after.returned - entry.returned
        self._slots.returned(after, fetched.timers[:count], end_offset)
        self._appended(life, after, fetched._replace(timers=fetched.timers[count:]), end_offset)

    def _appended(self, life: int, entry: StowedObject, rest: Fetched, end_offset: int) -> None:
        if rest.timers:
            self._times.scheduler.call_soon(self._append, life, entry, rest)
            return
        self._busy.discard(entry.key)
        if not entry.left:
            log.info("all %d timers of %s came back from the tier", entry.timers, entry.name)
            self._tier.hold(entry)
            self._journal.when_acknowledged(end_offset, partial(self._acknowledged, life, entry))
        self._times.scheduler.call_soon(self._look_now, life)

    def _acknowledged(self, life: int, entry: StowedObject, status: PutStatus) -> None:
        """Where that is not known, a sweep finds the object once nothing names it."""
        if life == self._life and status is PutStatus.PUT_OK:
            self._tier.retire(entry)

    def _look_now(self, life: int) -> None:
        """There may be more of that object to be fetched."""
        if life == self._life:
            self._fetch_due()
            self.look_later()

    def _batch(self, entry: StowedObject, fetched: Fetched, most: int) -> Batch:
        """Of the first timers. Without `most` one is given up that no log takes."""
        timers, now_ms = fetched.timers[: max(1, most)], self._times.now_ms()
        days: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        batch = Batch(self._table.cursor, days=days, first_ms=timers[0].due_ms)
        records = [decode_record(each.record) for each in timers]
        for record, each in zip(records, timers, strict=True):
            days[record.property_map().get(REAL_TOPIC, "")][day_of(each.due_ms)] += 1
        if most:
            for record, each in zip(records, timers, strict=True):
                batch.drafts.append(self._draft(batch, entry, record, each.due_ms, now_ms))
                batch.size_bytes += record.size
            batch.offsets = list(range(entry.returned, entry.returned + len(timers)))
            batch.rolled = len(timers)
        else:
            log.error("a timer of %s in %s is lost, as the log does not take it", timers[0].due_ms, entry.name)
            batch.lost = 1
        rest = fetched.timers[len(timers) :]
        next_ms = rest[0].due_ms if rest else fetched.next_ms
        batch.stowed = entry._replace(
            returned=entry.returned + len(timers), due_ms=timers[-1].due_ms if next_ms is None else next_ms
        )
        return batch

    def _draft(self, batch: Batch, entry: StowedObject, record: Record, due_ms: int, now_ms: int) -> Draft:
        place = number_of(record.property_map(), PLACE)
        leg_ms = self._batches.leg_ms(batch, due_ms, now_ms)
        place = record.queue_offset if place is None else place
        return rolled(record, place, due_ms, leg_ms, is_cut=True, moved=max(1, entry.before))

    def _tell(self, text: str, *values: object) -> None:
        """Once, as long as it lasts."""
        if not self._is_told:
            log.warning(text, *values)
        self._is_told = True

    def _tell_missing(self, objects: int) -> None:
        if not self._is_missed:
            log.error(
                "%d objects of the tier have timers that are due, and there is no object store: start this broker group with the "
                "same tiers.url as before",
                objects,
            )
        self._is_missed = True
