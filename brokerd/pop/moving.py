"""Moves what the log is about to lose: messages that wait to be taken again and lie in files that retention removes soon.

They are stored again, in the group's retry topic, with the deliveries that they had; pop state never keeps a file from its end.
What is with a client then is not moved: it is the client's, by its handle. In an ordered queue what comes behind that stays, too,
and what moved is given before what stayed of its queue, or of its message group (`order/taking.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from brokerd.loop.scheduler import Timer
from brokerd.pop.batch import Place
from brokerd.pop.departures import Departures
from brokerd.pop.ledger import PopLedger
from brokerd.pop.queue_ledger import QueueLedger
from brokerd.pop.records import RETRY
from brokerd.pop.surroundings import Surroundings
from remoting.errors import LogboomError

log = logging.getLogger(__name__)

_LOOK_S: Final = 10.0


class Mover:
    """Runs while this broker is the master. `changed()` is told when the ledger has new timers."""

    def __init__(
        self, around: Surroundings, ledger: PopLedger, departures: Departures, changed: Callable[[], None]
    ) -> None:
        self._around = around
        self._ledger = ledger
        self._departures = departures
        self._changed = changed
        self._timer: Timer | None = None

    def start(self) -> None:
        self._timer = self._around.scheduler.call_later(_LOOK_S, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ---- inside

    def _look(self) -> None:
        most = self._around.settings.revive_messages
        going_offset = self._around.reads.going_offset
        places = list(islice(self._going(going_offset), most)) if going_offset else []
        is_done = len(places) < most
        if places:
            try:
                self._departures.carry_out(self._departures.begin(places, RETRY, self._around.now_ms()), is_new=True)
            except LogboomError as error:
                log.warning("%d messages in files that go soon are moved later: %s", len(places), error)
                is_done = True
            self._changed()
        self._timer = self._around.scheduler.call_later(_LOOK_S if is_done else 0.0, self._look)

    def _going(self, going_offset: int) -> Iterator[Place]:
        """What waits and lies below the position of the log."""
        for queue in self._ledger.queues():
            bound = self._around.reads.offset_behind(queue.topic, queue.queue_id, going_offset) if queue.batches else 0
            if queue.committed_offset() >= bound:
                continue
            if next(iter(queue.batches.values())).ordered:
                yield from _in_order(queue, bound)
                continue
            for batch in self._ledger.returned(queue.group, queue.topic):
                if batch.queue is queue:
                    for place in batch.remaining_places():
                        if batch.offset_at(place) < bound:
                            yield Place(batch, place)


def _in_order(queue: QueueLedger, bound: int) -> Iterator[Place]:
    """What of an ordered queue waits and lies below the bound, ascending, as far as nothing before it stays, in the queue or in
    its message group."""
    if not queue.keeps_groups:
        found = queue.unfinished(queue.in_flight, lambda batch: batch.is_returned)
        yield from (Place(batch, place) for batch, place in found if batch.offset_at(place) < bound)
        return
    staying: set[int] = set()
    for batch, place in queue.unfinished(queue.in_flight, lambda batch: batch.first_remaining() < bound):
        assert batch.groups is not None
        group = batch.groups[place]
        if batch.offset_at(place) >= bound or not batch.is_returned:
            staying.add(group)
        elif not group or group not in staying:
            yield Place(batch, place)
