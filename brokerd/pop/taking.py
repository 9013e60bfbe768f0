"""What a pop takes: which queues (`visits`), which messages of each (`picking`, in order `order/taking.py`).

One plan for three: a pop takes what it says, a peek shows it, and a notification tells whether it has something. It reads the
store and the ledger and changes neither. Whoever finds nothing because a gate is closed is noted there.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from brokerd.filters.budget import TurnBudget
from brokerd.filters.message_filter import MessageFilter
from brokerd.metadata.start_offsets import StartOffsets
from brokerd.pop.cold_turns import ColdTurns
from brokerd.pop.handles import FLAG_NORMAL
from brokerd.pop.ledger import PopLedger
from brokerd.pop.order.gate import Gate
from brokerd.pop.order.passed import Passed
from brokerd.pop.order.taking import OrderedTaking
from brokerd.pop.picking import SCAN_ROUNDS, Picking
from brokerd.pop.plan import Source, Taking, Work
from brokerd.pop.requests import PopRequest
from brokerd.pop.surroundings import Surroundings
from brokerd.pop.visits import Visits


class Order(NamedTuple):
    """What the rules of order ask."""

    gate: Gate
    passed: Passed


class Taker:
    """Plans; see the module."""

    def __init__(
        self,
        around: Surroundings,
        ledger: PopLedger,
        starts: StartOffsets,
        order: Order,
        rng: random.Random,
        cold_turns: ColdTurns,
    ) -> None:
        self._metadata = around.metadata
        self._reads = around.reads
        self._settings = around.settings
        self._scheduler = around.scheduler
        self._turn = TurnBudget(around.scheduler.call_soon)
        self.cold_turns = cold_turns
        self._ledger = ledger
        self._gate = order.gate
        self._visits = visits = Visits(around.metadata, around.settings.retry_share_percent, rng)
        self._picking = picking = Picking(around, ledger, starts, cold_turns)
        self._ordered = OrderedTaking(ledger, visits, picking, order.passed)
        self.draw_again = visits.draw_again

    def plan(self, request: PopRequest, message_filter: MessageFilter, now_ms: int) -> Taking:
        """What the request gets now; nothing found = wait."""
        new_left = self._settings.max_in_flight_per_group - self._ledger.in_flight(request.group)
        taking = Taking(request.max_count, self._settings.max_batch_bytes, self._turn.look(), new_left)
        topic, group = self._metadata.topic(request.topic), self._metadata.group(request.group)
        if topic is None or group is None or self._metadata.is_forbidden(request.group, request.topic):
            return taking
        taking.is_ordered = request.fifo or group.fifo
        taking.keeps_groups = taking.is_ordered and group.keeps_message_groups
        asked = Source(request.topic, FLAG_NORMAL, topic.read_queue_nums)
        copied = self._visits.retry_sources(request)
        chance = self._visits.chance
        limits = self._gate.limits(request.topic, request.group, request.init_mode) if taking.is_ordered else {}
        work = Work(request, message_filter, chance, now_ms, taking, {}, limits)
        if taking.is_ordered:
            self._ordered.take(work, copied, asked)
        elif chance.returned_first:
            self._take_returned(work, (asked, *copied))
            for source in (*copied, asked):
                self._take_new(work, source)
        else:
            self._take_new(work, asked)
            self._take_returned(work, (asked, *copied))
            for source in copied:
                self._take_new(work, source)
        if work.again:
            self._picking.join(work, (asked, *copied))
        if taking.is_gated and not taking.found:
            self._gate.wait(request, request.deadline_ms - int(self._scheduler.time() * 1000), now_ms)
        return taking

    # ---- inside

    def _take_returned(self, work: Work, sources: Iterable[Source]) -> None:
        """What came back and is where it was, whichever queue that is."""
        taking, group = work.taking, work.request.group
        for topic, _, _ in sources:
            waiting = self._ledger.returned_places(group, topic)
            looked_at = 0
            for _ in range(SCAN_ROUNDS):
                places = list(islice(waiting, taking.messages_left)) if not taking.is_full else []
                if not places:
                    break
                looked_at += len(places)
                self._picking.again(work, topic, places)
            else:
                is_more = looked_at < self._ledger.returned_count(group, topic)
                taking.more |= is_more and not taking.is_out_of_turn
            taking.rest_count += self._ledger.returned_count(group, topic)
        taking.rest_count -= len(taking.dropped) + sum(map(len, work.again.values()))

    def _take_new(self, work: Work, source: Source) -> None:
        for queue_id in self._visits.queue_ids(work, source):
            if work.taking.is_full:
                offset, _ = self._picking.next_offset(work.request, source.topic, queue_id)
                work.taking.rest_count += max(0, self._reads.max_offset(source.topic, queue_id) - offset)
            else:
                self._picking.of_queue(work, source, queue_id)
