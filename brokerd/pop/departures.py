"""Messages that leave their queue: dead letters, and those that the log is about to lose. Copied once, whatever happens between.

A copy and the record of it are two records of the log, and a change of master may cut between them. So there are three: first the
broker takes the messages itself (a `taken` record with the invisible time `OWN_INVISIBLE_MS`), which ends them for their group;
then come the copies; then a `revived` record that lets the originals go. Whoever finds the first of them without the last, a new
master or this one after a refusal, looks whether copies are there already and appends those that are not. All copies of a batch
lie behind the position that its attempt id names, in queue 0 of its target, and a copy is known by all that it has from its
original.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, Final

from brokerd.journal.journal import Journal
from brokerd.pop import copies, records
from brokerd.pop.batch import MAX_BATCH, Batch, Older, Place, Queue
from brokerd.pop.counters import PopCounters
from brokerd.pop.order.group_order import encode_hashes
from brokerd.pop.order.under_way import UnderWay
from brokerd.pop.reading import read_offsets
from brokerd.pop.records import FORWARDED, OWN_INVISIBLE_MS, RETRY
from brokerd.pop.surroundings import Surroundings
from brokerd.store.draft import Draft
from brokerd.store.unit import Unit
from remoting import codes
from remoting.errors import LogboomError, RequestError, raise_refusal
from remoting.names import dead_letter_topic_of
from remoting.record.codec import Record, decode_record
from remoting.record.fields import offsets_of

log = logging.getLogger(__name__)

_CHUNK: Final = 256


class Departures:
    """Used on the master by those who decide that messages leave. `journal` and `counters` are the pop service's."""

    def __init__(self, around: Surroundings, journal: Journal, counters: PopCounters, under_way: UnderWay) -> None:
        self._around = around
        self.journal = journal
        self.counters = counters
        self._under_way = under_way

    def begin(self, places: Iterable[Place], kind: str, now_ms: int) -> list[Batch]:
        """Take messages for the dead-letter topic (`DEAD`, `FORWARDED`) or the retry topic (`RETRY`): nobody gets them any more.

        The result is for `carry_out`. Raises LogboomError when the log takes nothing; what was taken until then is tried again.
        """
        # by number, so that the same happens in the same order wherever the same is done
        ordered = sorted(places, key=lambda place: (place.batch.queue.number, place.offset))
        taken: list[Batch] = []
        last_ms = 0
        for _, group in groupby(ordered, key=lambda place: place.batch.queue.number):
            of_queue = list(group)
            queue = of_queue[0].batch.queue
            raise_refusal(self._around.metadata.ensure_topic(_target(queue, kind)))
            for start in range(0, len(of_queue), MAX_BATCH):
                last_ms = max(now_ms, queue.last_pop_time_ms + 1, last_ms + 1)  # of all: copies name it
                taken.append(self._take(of_queue[start : start + MAX_BATCH], kind, last_ms, now_ms))
        return taken

    def carry_out(self, batches: Sequence[Batch], *, is_new: bool) -> None:
        """Append the copies of what left, as far as they are not there, and the record that ends it.

        `is_new`: taken just now, so there is no copy yet. Raises LogboomError when the log does not take it.
        """
        drafts: list[Draft] = []
        dead = lost = 0
        stored = {} if is_new else self._stored(batches)
        for batch in batches:
            of_batch = self._drafts(batch)
            lost += batch.remaining.bit_count() - len(of_batch)
            dead += len(of_batch) * (_kind(batch) != RETRY)
            drafts += (
                of_batch if is_new else _missing(of_batch, stored[_target(batch.queue, _kind(batch))], _since(batch))
            )
        if drafts:
            end_offset = self._around.record_log.append_messages(drafts)
            moved = {
                copies.retry_target(each.queue.group, each.queue.topic) for each in batches if _kind(each) == RETRY
            }
            self._under_way.copied(moved, end_offset)
        self.journal.append(records.REVIVED, records.finished([batch.entry(batch.remaining) for batch in batches]))
        self.counters.lost += lost
        self.counters.dead_lettered += dead

    def forward(self, place: Place, pop_time_ms: int, now_ms: int) -> bool:
        """Send one message to the dead-letter topic for a client; False when there is nothing to copy: it is gone, or a dead
        letter already. Raises LogboomError when it could not begin, and then nothing changed."""
        queue, offset = place.batch.queue, place.offset
        if copies.is_dead_letter_topic(queue.group, queue.topic):
            return False
        if offset >= self._around.reads.max_offset(queue.topic, queue.queue_id):
            raise RequestError(
                codes.SYSTEM_BUSY, f"queue {queue.queue_id} of {queue.topic} is not confirmed so far yet"
            )
        if not read_offsets(self._around.reads, queue.topic, queue.queue_id, [offset]):
            return False
        raise_refusal(self._around.metadata.ensure_topic(_target(queue, FORWARDED)))
        batch = self._take([place], FORWARDED, pop_time_ms, now_ms)
        try:
            self.carry_out([batch], is_new=True)
        except LogboomError as error:  # it has left; its batch is due, and so looked at again
            log.warning("a dead letter of %s is copied later: %s", queue.topic, error)
        return True

    # ---- inside

    def _take(self, places: Sequence[Place], kind: str, pop_time_ms: int, now_ms: int) -> Batch:
        """Of one queue, ascending. The pop time is the queue's next one."""
        queue = places[0].batch.queue
        since = self._around.record_log.end_offset
        pop = records.Pop(pop_time_ms, OWN_INVISIBLE_MS, now_ms, attempt_id=f"{kind} {since}")
        offsets = [place.offset for place in places]
        counts = [place.batch.deliveries(place.place) for place in places]
        taken = records.taken_batch(queue.topic, queue.queue_id, queue.next_offset, offsets, counts)
        released = released_of([(queue.topic, [place.as_older() for place in places])])
        body = records.taken(queue.group, pop, [taken], released, hashes_of(places))
        self.journal.append(records.TAKEN, body)
        return queue.batches[pop_time_ms]

    def _drafts(self, batch: Batch) -> list[Draft]:
        """The copies of what is still in the store, in the order of their offsets."""
        queue = batch.queue
        if self._around.metadata.topic(queue.topic) is None or self._around.metadata.group(queue.group) is None:
            return []
        raise_refusal(self._around.metadata.ensure_topic(_target(queue, _kind(batch))))
        found = read_offsets(self._around.reads, queue.topic, queue.queue_id, batch.remaining_offsets())
        drafts = []
        for place in batch.remaining_places():
            encoded = found.get(batch.offset_at(place))
            if encoded is None:
                continue
            deliveries = copies.deliveries_before(queue.topic, offsets_of(encoded)[2]) + batch.deliveries(place)
            if _kind(batch) == RETRY:
                drafts.append(copies.retry_copy(queue.group, queue.topic, encoded, deliveries, batch.pop_time_ms))
            else:
                drafts.append(copies.dead_letter(queue.group, queue.topic, encoded, deliveries))
        return drafts

    def _stored(self, batches: Sequence[Batch]) -> dict[str, list[Record]]:
        """By target, what it has from where the first of the batches' copies may be."""
        since: dict[str, int] = {}
        for batch in batches:
            target = _target(batch.queue, _kind(batch))
            since[target] = min(_since(batch), since.get(target, _since(batch)))
        return {target: self._stored_since(target, position) for target, position in since.items()}

    def _stored_since(self, target: str, since: int) -> list[Record]:
        """What a topic has from a position of the log on, also what is not confirmed yet."""
        record_log = self._around.record_log
        low, end = record_log.queue_range(target, 0)
        units: list[Unit] = list(record_log.undispatched_units(target))
        while end > low and (not units or units[0][0] >= since):
            start = max(low, end - _CHUNK)
            units[:0] = record_log.read_units(target, 0, start, end - start)
            end = start
        return [decode_record(record_log.record_at(*unit[:2])) for unit in units if unit[0] >= since]


def released_of(places: Iterable[tuple[str, Iterable[Older]]]) -> list[list[Any]]:
    """What a `taken` record says of the places of stored topics that it lets go of."""
    masks: dict[tuple[str, int, int], int] = {}
    for topic, of_topic in places:
        for queue_id, _, pop_time_ms, place, _ in of_topic:
            key = topic, queue_id, pop_time_ms
            masks[key] = masks.get(key, 0) | 1 << place
    return [[*key, mask] for key, mask in masks.items()]


def hashes_of(places: Sequence[Place]) -> list[str] | None:
    """The message groups of one batch of these; None when those of some are not known."""
    hashes = [place.batch.groups[place.place] for place in places if place.batch.groups is not None]
    return [encode_hashes(hashes)] if len(hashes) == len(places) else None


def _kind(batch: Batch) -> str:
    return batch.attempt_id.split(" ")[0]


def _since(batch: Batch) -> int:
    """Where in the log its copies may begin."""
    return int(batch.attempt_id.split(" ")[1])


def _target(queue: Queue, kind: str) -> str:
    if kind == RETRY:
        return copies.retry_target(queue.group, queue.topic)
    return dead_letter_topic_of(queue.group)


def _missing(drafts: Sequence[Draft], stored: list[Record], since: int) -> list[Draft]:
    """The drafts of which no copy is stored. A copy that is found is taken out, so that it counts for one of equal messages."""
    missing = []
    for draft in drafts:
        copy = (n for n, each in enumerate(stored) if each.physical_offset >= since and copies.is_copy(each, draft))
        at = next(copy, -1)
        if at < 0:
            missing.append(draft)
        else:
            del stored[at]
    return missing
