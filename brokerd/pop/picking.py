"""What a plan takes of one queue: messages that come again, from where they are, and new ones from the group's offset on.

What came back and what is new in one queue are one batch of a pop: clients expect each queue once in an answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final

from brokerd.metadata.start_offsets import StartOffsets
from brokerd.pop.batch import MAX_BATCH, Older
from brokerd.pop.cold_turns import ColdTurns
from brokerd.pop.handles import FLAG_NORMAL
from brokerd.pop.ledger import PopLedger
from brokerd.pop.order.passing import New, Passing
from brokerd.pop.plan import Found, Source, Work
from brokerd.pop.reading import read_first
from brokerd.pop.records import taken_batch
from brokerd.pop.requests import PopRequest
from brokerd.pop.surroundings import Surroundings
from brokerd.store.queues.queue_reads import GetStatus
from remoting.errors import LogboomError
from remoting.record.fields import queue_offset_of

SCAN_ROUNDS: Final = 4  # reads of one queue whose filter lets nothing through, in one pop


class Picking:
    """Reads the store and the ledger, and changes neither."""

    def __init__(self, around: Surroundings, ledger: PopLedger, starts: StartOffsets, cold_turns: ColdTurns) -> None:
        self._metadata = around.metadata
        self._reads = around.reads
        self._ledger = ledger
        self._starts = starts
        self._cold_turns = cold_turns

    def again(self, work: Work, topic: str, places: Sequence[Older]) -> bool:
        """Take messages that were delivered before, as far as the filter admits them; whether there were any."""
        taking, message_filter = work.taking, work.message_filter
        by_queue: dict[int, list[Older]] = {}
        for queue_id, of_run in groupby(places, itemgetter(0)):
            by_queue.setdefault(queue_id, []).extend(of_run)
        before = taking.messages_left
        for queue_id, of_queue in by_queue.items():
            if taking.is_full:
                break
            if taking.budget.is_spent():
                taking.more = True
                break
            # On a broker that became the master a moment ago, what was taken may not be readable yet: that is not lost.
            high = self._reads.max_offset(topic, queue_id)
            of_queue.sort()
            if of_queue[-1].offset >= high:
                of_queue = [each for each in of_queue if each.offset < high]
            offsets = [each.offset for each in of_queue]
            if not offsets:
                continue
            if not self._cold_turns.may_read(work.request.group, topic, queue_id, offsets[0]):
                taking.is_out_of_turn = True
                continue
            most, most_bytes = self._cold_turns.limits(len(offsets), taking.bytes_left)
            try:
                records, count = read_first(self._reads, topic, queue_id, offsets[:most], most_bytes)
            except LogboomError:
                taking.unreadable |= dict.fromkeys((topic, queue_id, each.pop_time_ms) for each in of_queue)
                continue
            admitted: list[tuple[Older, bytes]] = []
            for offset, each in zip(offsets[:count], of_queue, strict=False):
                if taking.budget.is_spent():
                    taking.more = True
                    break
                record = records.get(offset)
                if record is not None and taking.budget.admits(message_filter, record):
                    admitted.append((each, record))
                else:
                    taking.dropped.append((topic, each))
                    taking.lost += record is None
            if admitted:
                work.again.setdefault((topic, queue_id), []).extend(admitted)
                taking.messages_left -= len(admitted)
                taking.bytes_left -= sum([len(record) for _, record in admitted])
        return taking.messages_left < before

    def of_queue(self, work: Work, source: Source, queue_id: int, passing: Passing | None = None) -> None:
        """Read on from the group's offset; `passing` where message groups have an order."""
        taking, message_filter, topic = work.taking, work.message_filter, source.topic
        offset, is_new = self.next_offset(work.request, topic, queue_id)
        high = self._reads.max_offset(topic, queue_id)
        limit = work.limits.get(queue_id, high) if source.retry_flag == FLAG_NORMAL else high
        if limit < high:
            taking.is_gated = True
            high = limit
        # What was copied counted before it left; and what an ordered group holds may wait for it.
        is_copied = taking.is_ordered and source.retry_flag != FLAG_NORMAL
        new_left = taking.messages_left if is_copied else taking.new_left
        if new_left <= 0 and offset < high:
            taking.is_held_back = True
            taking.rest_count += high - offset
            return
        if taking.budget.is_spent() and offset < high:
            taking.more = True
            taking.rest_count += high - offset
            return
        before = offset
        offsets: list[int] = []
        records: list[bytes] = []
        rounds = 0
        while offset < high and not offsets:
            if rounds == SCAN_ROUNDS or taking.budget.is_spent():
                taking.more = True
                break
            if not rounds and not self._cold_turns.may_read(work.request.group, topic, queue_id, offset):
                break
            rounds += 1
            most = min(taking.messages_left, new_left)
            count = MAX_BATCH if passing is not None and passing.offsets else most
            count, most_bytes = self._cold_turns.limits(count, taking.bytes_left)
            try:
                result = self._reads.read_messages(
                    topic, queue_id, offset, count, most_bytes, message_filter.tags_codes
                )
            except LogboomError as error:  # which is no reason to keep back what others have
                taking.failure = error.with_traceback(None)
                break
            records, next_offset = result.records, result.next_offset
            if result.status is GetStatus.BEING_FETCHED:
                self._cold_turns.missed(work.request.group, topic, queue_id)
                break
            if next_offset > high:  # a read of what a filter admits looks further than to the gate
                records, next_offset = [record for record in records if queue_offset_of(record) < high], high
            if not message_filter.is_exact:
                read = records
                records, tested = taking.budget.admitted(message_filter, read)
                if tested < len(read):
                    next_offset = queue_offset_of(read[tested])
            if len(records) == next_offset - offset:
                offsets = list(range(offset, next_offset))
            else:
                offsets = [queue_offset_of(record) for record in records]
            if next_offset <= offset:
                break
            if passing is None:
                offset = next_offset
                continue
            offsets, records, offset = passing.choose(offsets, records, next_offset, most)
            if offset < next_offset:
                break
        if offsets:
            taking.found.append(Found(topic, source.retry_flag, queue_id, offsets, records, None))
            taking.messages_left -= len(offsets)
            taking.new_left -= len(offsets)
            taking.bytes_left -= sum(map(len, records))
        if passing is not None and passing.offsets:
            taking.passing.append(New(topic, queue_id, offset, *passing.all_of(offsets)))
            taking.new_left -= len(passing.offsets)
        if offsets or offset > before or is_new:
            taking.batches.append(taken_batch(topic, queue_id, offset, offsets))
        taking.rest_count += max(0, high - offset)

    def next_offset(self, request: PopRequest, topic: str, queue_id: int) -> tuple[int, bool]:
        """Where to read on, and whether that is the group's first look at the queue, which must be remembered."""
        queue = self._ledger.queue(request.group, topic, queue_id)
        committed = self._metadata.consumer_offset(request.group, topic, queue_id)
        if queue is None and committed is None:
            return self._starts.first_offset(topic, queue_id, request.init_mode), True
        offset = max(queue.next_offset if queue is not None else 0, committed or 0)
        return max(offset, self._reads.min_offset(topic, queue_id)), False

    def join(self, work: Work, sources: Iterable[Source]) -> None:
        """One batch of each queue: what comes again, and behind it what is new."""
        taking = work.taking
        flags = {source.topic: source.retry_flag for source in sources}
        for (topic, queue_id), again in work.again.items():
            again.sort(key=itemgetter(0))
            places = [place for place, _ in again]
            records = [record for _, record in again]
            offsets = [place.offset for place in places]
            counts = [place.deliveries for place in places]
            queue = self._ledger.queue(work.request.group, topic, queue_id)
            assert queue is not None
            next_offset = queue.next_offset
            at = next((n for n, each in enumerate(taking.batches) if each[:2] == [topic, queue_id]), None)
            if at is not None:
                next_offset = taking.batches.pop(at)[2]
            at = next((n for n, each in enumerate(taking.found) if (each[0], each[2]) == (topic, queue_id)), None)
            if at is not None:
                new = taking.found.pop(at)
                offsets += new.offsets
                records += new.records
                counts += [1] * len(new.offsets)
            taking.found.append(Found(topic, flags[topic], queue_id, offsets, records, counts, places))
            taking.batches.append(taken_batch(topic, queue_id, next_offset, offsets, counts))
