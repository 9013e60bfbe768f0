"""Tiers for the rest of the broker: a resident of the log that uploads while this broker is the master, and says what is where.

Every replica knows what is in the tier, from the log, and what of its own files is not; so files wait for their upload where they
are (`waiting_offset`). To lead is to open the tier: read what the last master left in its manifest, write a checkpoint in the
own epoch, and go on from there. Until that succeeds, and after somebody with a higher epoch was seen, nothing is uploaded or
removed.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from brokerd.journal.journal import Journal, JournalSettings
from brokerd.journal.record_log import RecordLog
from brokerd.journal.slices import InSlices
from brokerd.metadata import tier_policy as policy
from brokerd.replication.epochs.epoch_list import EpochEntry
from brokerd.store.derived.dispatcher import Arrival
from brokerd.tiers.commits import Commits, Told
from brokerd.tiers.index.searching import ColdIndex
from brokerd.tiers.index.writing import IndexWriter
from brokerd.tiers.manifests import Fenced, Manifests, ManifestWriter
from brokerd.tiers.objects.interface import ObjectStore, ObjectStoreError
from brokerd.tiers.opening import opening_changes
from brokerd.tiers.reading.cold_reads import ColdReads
from brokerd.tiers.settings import TierSettings
from brokerd.tiers.table import TierTable
from brokerd.tiers.upload.batches import QueueReads
from brokerd.tiers.upload.pending import Pending, Waiting
from brokerd.tiers.upload.uploader import Loop, Uploader
from remoting.settings import Live
from remoting.tier.contents import Change, Queue, committed, dropped, expired, unindexed
from remoting.tier.index import Posting
from remoting.tier.segments import QueueSegments, Segment

log = logging.getLogger(__name__)

TIERS_TOPIC: Final = "rmq_sys_logboom_tiers"

_MANY_MESSAGES: Final = 4096  # do not wait for their time (storage.md 4.3)
_SLICE: Final = 200  # queues looked at in one turn of the loop
_TEND_S: Final = 60.0
_REMOVAL_DELAY_MS: Final = 300_000  # a replica may still read by what it knew
_ID_BITS: Final = 128
_LONGEST_PAUSE_S: Final = 60.0
_REMOVED_AT_ONCE: Final = 500
_EMPTY: Final = QueueSegments()


class LocalQueues(QueueReads, Protocol):
    """This broker's own consume queues and log."""

    def local_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """[min, max) of the queue offsets whose messages its files have."""

    def position_of(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Where the message begins in the log; the queue offset is in the local range."""

    def next_offset(self, topic: str, queue_id: int) -> int:
        """The number that the queue's next message gets."""

    def all_queues(self) -> Sequence[tuple[str, int]]:
        """Every queue that has messages, or had."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the service works with. `attributes` are a topic's, None without one. Messages in front of where it was `deleted_at`
    last, -1 for never, are not the topic's. `lineage` is the log's epochs, its end."""

    local: LocalQueues
    attributes: Callable[[str], Mapping[str, str] | None]
    deleted_at: Callable[[str], int]
    lineage: Callable[[], tuple[Sequence[EpochEntry], int]]
    random_bits: Callable[[int], int]
    loop: Loop


class TierService:
    """A `journal.resident.Resident`, and the `Target` of uploads. `trouble` is why nothing is uploaded, "" when all is well."""

    own_topics: Final = frozenset({TIERS_TOPIC})

    def __init__(
        self,
        record_log: RecordLog,
        objects: ObjectStore | None,
        around: Surroundings,
        settings: Live[TierSettings],
        journal_settings: JournalSettings | None = None,
    ) -> None:
        self.table = TierTable()
        self.pending = Pending(_MANY_MESSAGES)
        self.trouble = ""
        self.is_open = False
        self._record_log = record_log
        self._objects = objects
        self._around = around
        self._loop = around.loop
        self._settings = settings
        in_slices = InSlices(self.table.freeze, self.table.begin_again, around.loop.scheduler)
        self._journal = Journal(record_log, TIERS_TOPIC, self.table, journal_settings, in_slices=in_slices)
        self.cold: ColdReads | None = None
        self.index: ColdIndex | None = None
        if objects is not None:
            limits = settings.value.cache_bytes, settings.value.fetches_in_flight
            self.cold = ColdReads(objects, self.segments_of, around.loop, *limits)
            self.table.listeners.append(self.cold.cache.forget)
            self.index = ColdIndex(objects, lambda: self.table.contents, self.cold, around.loop)
        self._life = 0
        self._epoch = -1
        self._numbers = itertools.count(1)
        self._uploader: Uploader | None = None
        self._commits: Commits | None = None
        self._to_look_at: list[Queue] = []
        self._going: list[tuple[int, str]] = []  # when objects may be removed, and their names

    # ---- what is in the tier

    def segments_of(self, queue: Queue) -> QueueSegments:
        """Of the topic that there is now: those of an earlier one of its name are about to be dropped."""
        segments = self.table.contents.queues.get(queue, _EMPTY)
        return _EMPTY if len(segments) and self._is_of_deleted(queue, segments.last) else segments

    def _is_of_deleted(self, queue: Queue, segment: Segment) -> bool:
        return segment.log_end <= self._around.deleted_at(queue.topic)

    # ---- Target

    @property
    def epoch(self) -> int:
        return self._epoch

    def base_of(self, queue: Queue) -> int:
        return self.segments_of(queue).message_end

    def next_number(self) -> int:
        return next(self._numbers)

    def stored(self, queue: Queue, segment: Segment, postings: Sequence[Posting]) -> None:
        if self._commits is not None and not self._is_of_deleted(queue, segment):
            self._commits.add(committed(queue, segment), partial(self._committed, queue), postings)
        elif self._uploader is not None:
            self._uploader.finished(queue)

    def passed(self, queue: Queue, queue_offset: int) -> None:
        waiting = self.pending.of(queue)
        if waiting is None:
            return
        if waiting.first < queue_offset < waiting.end:
            position = self._around.local.position_of(*queue, queue_offset)
            self.pending.put(queue, waiting._replace(first=queue_offset, position=position))
        else:  # its files went before they were uploaded, or all of it is blank
            self._look_at(queue)

    def troubled(self, error: ObjectStoreError | None) -> None:
        text = str(error) if error is not None else ""
        if text and not self.trouble:
            log.warning("the tier is in trouble, and messages stay here: %s", text)
        elif self.trouble and not text:
            log.info("the tier does what it should again")
        self.trouble = text

    # ---- resident of the log

    def held_offset(self) -> int | None:
        return self._journal.held_offset()

    def waiting_offset(self) -> int | None:
        """The first byte of the log that is to be uploaded; files are kept from there on while the disk has room."""
        return self.pending.held_offset() if self._objects is not None else None

    def dispatched(self, arrivals: Sequence[Arrival]) -> None:
        self._journal.follow()
        for queue in self.table.take_committed():
            if queue in self.pending and self._uploader is None:
                self._look_at(queue)

    def truncated(self, end_offset: int) -> None:
        self._journal.truncated(end_offset)
        self.pending.clear()
        self._look_at_all()

    def rolled(self) -> None:
        self._journal.want_snapshot()
        self._loop.scheduler.call_soon(self._journal.maintain)

    def rebuild(self) -> None:
        self._journal.rebuild()
        self.pending.clear()
        self._look_at_all()

    def catch_up(self) -> None:
        self._journal.catch_up()

    def lead(self) -> None:
        """Open the tier."""
        self._journal.maintain_when_settled()
        if self._objects is not None:
            epochs, _ = self._around.lineage()
            self._epoch = epochs[-1].epoch
            self._loop.spawn(self._open(self._objects, self._life), "open the tier")

    def step_down(self) -> None:
        self._life += 1
        self.is_open = False
        if self._uploader is not None:
            self._uploader.stop()
        if self._commits is not None:
            self._commits.stop()
        self._uploader = self._commits = None
        self._going.clear()

    def close(self) -> None:
        self._journal.close()
        self.step_down()

    # ---- messages and topics

    def arrived(self, arrivals: Sequence[Arrival]) -> None:
        """Messages became readable."""
        if self._objects is None:
            return
        for arrival in arrivals:
            queue = Queue(arrival.topic, arrival.queue_id)
            if queue in self.pending:
                self.pending.grown(queue, arrival.max_offset)
            else:
                self._look_at(queue)
        if self._uploader is not None:
            self._uploader.wake()

    def topic_changed(self, topic: str) -> None:
        """It was made, or its attributes are others now."""
        for topic_of, queue_id in self._around.local.all_queues():
            if topic_of == topic:
                self._look_at(Queue(topic, queue_id))

    def topic_deleted(self, topic: str) -> None:
        """Its queues begin anew, if they ever do."""
        if self.cold is not None:
            self.cold.cache.forget(topic)
        for queue in [queue for queue, _ in self.pending.items() if queue.topic == topic]:
            self.pending.remove(queue)
        if self._commits is not None and any(queue.topic == topic for queue in self.table.contents.queues):
            self._commit(dropped(topic))

    # ---- opening

    async def _open(self, objects: ObjectStore, life: int) -> None:
        pause_s = 1.0
        while life == self._life:
            try:
                await self._try_open(objects, life)
            except Fenced as error:
                self._fence(str(error))
            except ObjectStoreError as error:
                self.troubled(error)
                await self._loop.pause(pause_s)
                pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
                continue
            return

    async def _try_open(self, objects: ObjectStore, life: int) -> None:
        """Raises ObjectStoreError, Fenced among them."""
        manifests, position = Manifests(objects), self.table.position
        if await manifests.highest_epoch(self._epoch - 1) is not None:
            raise Fenced(
                f"the tier has a manifest of epoch {self._epoch} or a later one: another log is, or was, kept under the name "
                "of this broker group. Give tiers.url another prefix, or remove what is there"
            )
        parts = await manifests.newest(position.epoch) or await manifests.behind(position)
        if life != self._life:
            return
        try:
            changes = opening_changes(self.table.contents, parts, self._around.lineage(), self._is_stale, self._new_id)
        except ValueError as error:
            raise ObjectStoreError(f"the manifest of the tier contradicts itself: {error}") from error
        wanted = self.table.contents.copy()
        for change in changes:
            wanted.apply(change)
        log_of = self._record_log, self._journal, self.table
        writer = ManifestWriter(objects, self._epoch)
        index = IndexWriter(objects, self._epoch, self.next_number, self._loop)
        told = Told(self.troubled, self._fence, self._gone)
        self._commits = commits = Commits(log_of, writer, index, self._epochs, self._loop, told)
        commits.open(list(wanted.rows()), changes, partial(self._opened, life, objects))

    def _opened(self, life: int, objects: ObjectStore) -> None:
        if life != self._life:
            return
        self.is_open = True
        self.troubled(None)
        self._numbers = itertools.count(1)
        self._uploader = Uploader(self.pending, self._around.local, objects, self, self._loop, self._settings)
        self._look_at_all()
        self._tend(life, objects)

    def _fence(self, reason: str) -> None:
        """Somebody else owns the tier: touch nothing there as long as this broker leads in this epoch."""
        self.step_down()
        self.troubled(ObjectStoreError(reason))

    def _epochs(self) -> Sequence[tuple[int, int]]:
        return [(entry.epoch, entry.start_offset) for entry in self._around.lineage()[0]]

    def _is_stale(self, queue: Queue, segments: QueueSegments) -> bool:
        """Whether that is of a topic that is gone, also when there is another one of its name."""
        if self._around.attributes(queue.topic) is None or segments.end > self._around.local.next_offset(*queue):
            return True
        return bool(len(segments)) and self._is_of_deleted(queue, segments.last)

    def _new_id(self) -> str:
        return f"{self._around.random_bits(_ID_BITS):032x}"

    # ---- what waits

    def _look_at(self, queue: Queue) -> None:
        """See whether the queue has something that is not in the tier."""
        attributes = self._around.attributes(queue.topic)
        low, high = self._around.local.local_range(*queue)
        first = max(low, self.segments_of(queue).end)
        if attributes is None or first >= high or not policy.is_kept(queue.topic, attributes):
            self.pending.remove(queue)
        else:
            position = self._around.local.position_of(*queue, first)
            self.pending.put(queue, Waiting(first, high, position, self._loop.wall_ms()))

    def _look_at_all(self) -> None:
        """The same for all queues, some in each turn of the loop."""
        if self._objects is None:
            return
        begins = not self._to_look_at
        self._to_look_at = [Queue(*queue) for queue in self._around.local.all_queues()]
        if begins and self._to_look_at:
            self._loop.scheduler.call_soon(self._look_on)

    def _look_on(self) -> None:
        for queue in self._to_look_at[-_SLICE:]:
            self._look_at(queue)
        del self._to_look_at[-_SLICE:]
        if self._to_look_at:
            self._loop.scheduler.call_soon(self._look_on)
        elif self._uploader is not None:
            self._uploader.wake()

    # ---- what is committed, expires, and is removed

    def _committed(self, queue: Queue) -> None:
        self._look_at(queue)
        if self._uploader is not None:
            self._uploader.finished(queue)

    def _commit(self, change: Change) -> None:
        """Commit a change that takes segments out; their objects go later."""
        if self._commits is None:
            return
        gone = self.table.contents.taken_out_by(change)
        names = [name for queue, segment in gone for name in segment.names(*queue)]
        self._commits.add(change, partial(self._gone, names))

    def _gone(self, names: Sequence[str]) -> None:
        at_ms = self._loop.wall_ms() + _REMOVAL_DELAY_MS
        self._going += [(at_ms, name) for name in names]

    def _tend(self, life: int, objects: ObjectStore) -> None:
        """Now and then: what is too old expires, and objects that nobody names any more are removed."""
        if life != self._life:
            return
        now_ms = self._loop.wall_ms()
        for queue, segments in list(self.table.contents.queues.items()):
            offset = self._expired_to(queue, segments, now_ms)
            if offset is not None:
                self._commit(expired(queue, offset))
        self._expire_index()
        if self._going and self._going[0][0] <= now_ms:
            self._loop.spawn(self._remove(life, objects, now_ms), "remove objects of the tier")
        self._loop.scheduler.call_later(_TEND_S, self._tend, life, objects)

    def _expire_index(self) -> None:
        """Objects of the index go when all that they can name is gone."""
        contents = self.table.contents
        kept_ms = min((next(iter(each)).first_ms for each in contents.queues.values() if len(each)), default=None)
        old = [entry for entry in contents.index.values() if kept_ms is None or entry.end_ms < kept_ms]
        if old and self._commits is not None:
            self._commits.add(unindexed(old), partial(self._gone, [entry.name for entry in old]))

    def _expired_to(self, queue: Queue, segments: QueueSegments, now_ms: int) -> int | None:
        attributes = self._around.attributes(queue.topic) or {}
        reserved_ms = policy.reserved_time_ms(attributes, self._settings.value.reserved_time_ms)
        if not reserved_ms:
            return None
        old = list(itertools.takewhile(lambda each: each.last_ms < now_ms - reserved_ms, segments))
        return old[-1].end if old else None

    async def _remove(self, life: int, objects: ObjectStore, now_ms: int) -> None:
        """Nobody may have a higher epoch: what that one's contents name is not ours to remove."""
        names = [name for _, name in itertools.takewhile(lambda each: each[0] <= now_ms, self._going)]
        try:
            if await Manifests(objects).highest_epoch(self._epoch) is not None:
                self._fence("a later master has opened the tier")
                return
            for start in range(0, len(names), _REMOVED_AT_ONCE):
                await objects.remove(names[start : start + _REMOVED_AT_ONCE])
        except ObjectStoreError as error:
            self.troubled(error)
            return
        if life == self._life:
            del self._going[: len(names)]
