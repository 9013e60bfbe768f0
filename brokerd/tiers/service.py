"""Tiers for the rest of the broker: a resident of the log that uploads while this broker is the master, and says what is where.

Every replica knows what is in the tier, from the log, and what of its own files is not; so files wait for their upload where they
are (`waiting_offset`). To lead is to open the tier: read what the last master left in its manifest, write a checkpoint in the
own epoch, and go on from there. Until that succeeds, and after somebody with a higher epoch was seen, nothing is uploaded or
removed.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from brokerd.journal.journal import Journal, JournalSettings
from brokerd.journal.record_log import RecordLog
from brokerd.journal.slices import InSlices
from brokerd.metadata import tier_policy as policy
from brokerd.store.derived.dispatcher import Arrival, Arrivals
from brokerd.tiers.commits import Commits, Told
from brokerd.tiers.in_log import TierReads
from brokerd.tiers.index.searching import ColdIndex
from brokerd.tiers.index.writing import IndexWriter
from brokerd.tiers.losses import Losses, LossWatch
from brokerd.tiers.manifests import Fenced, Manifests, ManifestWriter
from brokerd.tiers.mounting.keeping import MountedElsewhere, StateKeeper, refuse_mounted
from brokerd.tiers.objects.interface import ObjectStore, ObjectStoreError
from brokerd.tiers.opening import Opening, opening_of
from brokerd.tiers.reconcile import NOTHING_MISSING, Missing
from brokerd.tiers.settings import TierSettings
from brokerd.tiers.surroundings import Surroundings
from brokerd.tiers.table import TIERS_TOPIC
from brokerd.tiers.upkeep import Upkeep
from brokerd.tiers.upload.batches import Source
from brokerd.tiers.upload.pending import Pending, Waiting, many_of
from brokerd.tiers.upload.uploader import Stored, Uploader
from remoting.facts.words import TierCondition
from remoting.settings import Live
from remoting.tier.contents import Queue, TierContents, committed, grown
from remoting.tier.manifest import ManifestPart
from remoting.tier.segments import QueueSegments, Segment
from remoting.tier.states import Row

log = logging.getLogger(__name__)

_SLICE: Final = 200  # queues looked at in one turn of the loop
_ID_BITS: Final = 128
_LONGEST_PAUSE_S: Final = 60.0


class TierService:
    """A `journal.resident.Resident`, and the `Target` of uploads. `trouble` is why nothing is uploaded, "" when all is well."""

    own_topics: Final = frozenset({TIERS_TOPIC})

    def __init__(
        self,
        record_log: RecordLog,
        reads: TierReads,
        around: Surroundings,
        settings: Live[TierSettings],
        journal_settings: JournalSettings | None = None,
    ) -> None:
        self.in_log = reads.in_log
        self.table = reads.in_log.table
        self.pending = Pending()
        self.trouble, self.trouble_since_ms = "", -1
        self.condition = TierCondition.FOLLOWING
        self.uploaded_segments = self.uploaded_messages = 0
        self._record_log = record_log
        self.objects, self.cold, self.line = reads.objects, reads.cold, reads.line  # None without a tier
        self._around = around
        self._loop = around.loop
        self._is_mount = around.is_mount
        self._settings = settings
        in_slices = InSlices(self.table.freeze, self.table.begin_again, around.loop.scheduler)
        self._journal = Journal(record_log, reads.in_log.reading, journal_settings, in_slices=in_slices)
        self.table.listeners.append(
            lambda topic: self._go_on_behind(self.table.contents.queues) if topic is None else None
        )
        self.index: ColdIndex | None = None
        if self.objects is not None and self.cold is not None:
            self.index = ColdIndex(self.objects, lambda: self.table.contents, self.cold, around.loop)
        self._life = 0
        self._epoch = -1
        self._numbers = itertools.count(1)
        self._uploader: Uploader | None = None
        self._commits: Commits | None = None
        self._to_look_at: list[Queue] = []
        self._deleted_meanwhile: dict[str, None] = {}  # since the opening began
        self.upkeep: Upkeep | None = None  # from when the tier is being opened on
        self.states: StateKeeper | None = None  # from when it is open on
        self._writer: ManifestWriter | None = None  # of this epoch
        self._losses = Losses(around.loop, settings)
        self._watch: LossWatch | None = None

    # ---- what is in the tier

    def segments_of(self, queue: Queue) -> QueueSegments:
        """See `TierInLog.segments_of`."""
        return self.in_log.segments_of(queue)

    def range_of(self, topic: str, queue_id: int) -> QueueSegments:
        """What of the queue is in the tier."""
        return self.segments_of(Queue(topic, queue_id))

    # ---- for who watches

    @property
    def is_open(self) -> bool:
        """Whether this broker uploads."""
        return self.condition is TierCondition.OPEN

    @property
    def settings(self) -> TierSettings:
        """As they are now."""
        return self._settings.value

    def now_ms(self) -> int:
        """The time of day."""
        return self._loop.wall_ms()

    @property
    def expiring_objects(self) -> int:
        """Objects that nobody names any more, and that are removed soon."""
        return self.upkeep.removal.waiting if self.upkeep is not None else 0

    # ---- Target, and what upkeep needs of the master

    @property
    def contents(self) -> TierContents:
        return self.table.contents

    def state_rows(self) -> Sequence[Row]:
        return self._around.state_rows()

    def attributes(self, topic: str) -> Mapping[str, str]:
        return self._around.attributes(topic) or {}

    def reserved_ms(self, topic: str) -> int:
        return policy.reserved_time_ms(self.attributes(topic), self.settings.reserved_time_ms)

    @property
    def epoch(self) -> int:
        return self._epoch

    def is_stowed(self, epoch: int, number: int) -> bool:
        return self._around.stowage.is_named((epoch, number))

    def base_of(self, queue: Queue) -> int:
        return self.segments_of(queue).message_end

    def growing(self, queue: Queue, first_ms: int) -> Segment | None:
        segments = self.segments_of(queue)
        if self.upkeep is None or not len(segments):
            return None
        return segments.last if self.upkeep.lets_grow(queue, segments.last, first_ms) else None

    def is_growing(self, queue: Queue) -> bool:
        return self._uploader is not None and self._uploader.is_growing(queue)

    def next_number(self) -> int:
        return next(self._numbers)

    def is_of_deleted(self, queue: Queue, log_end: int) -> bool:
        return self.in_log.is_of_deleted(queue, log_end)

    def stored(self, queue: Queue, stored: Stored) -> None:
        segment, index_items, grew_from = stored
        self.uploaded_segments += grew_from is None
        self.uploaded_messages += stored.messages
        if self._commits is not None and not self.is_of_deleted(queue, segment.log_end):
            if self.upkeep is not None:
                self.upkeep.uploaded(queue, segment)
            change = committed(queue, segment) if grew_from is None else grown(queue, segment)
            self._commits.add(change, partial(self._committed, queue), index_items)
        elif self._uploader is not None:
            self._uploader.finished(queue)

    def passed(self, queue: Queue, queue_offset: int) -> None:
        waiting = self.pending.of(queue)
        if waiting is None:
            return
        if waiting.first < queue_offset < waiting.end:
            position = self._around.local.position_of(*queue, queue_offset)
            self._wait(queue, waiting._replace(first=queue_offset, position=position))
        else:  # its files went before they were uploaded, or all of it is blank
            self._look_at(queue)

    def troubled(self, error: ObjectStoreError | None) -> None:
        if self.condition in (TierCondition.OPENING, TierCondition.OPEN):
            self._say(str(error) if error is not None else "")

    def _say(self, text: str) -> None:
        """What the trouble is."""
        if text and not self.trouble:
            log.warning("the tier is in trouble, and messages stay here: %s", text)
            self.trouble_since_ms = self._loop.wall_ms()
        elif self.trouble and not text:
            log.info("the tier does what it should again")
        self.trouble = text

    # ---- resident of the log

    def held_offset(self) -> int | None:
        return self._journal.held_offset()

    def waiting_offset(self) -> int | None:
        """The first byte of the log that is to be uploaded; files are kept from there on while the disk has room. All are while
        there are queues of which it is not known, and while what is in the tier only may be lost."""
        if self.objects is None:
            return None
        return 0 if self._to_look_at or self._losses.is_any else self.pending.held_offset()

    def dispatched(self, arrivals: Sequence[Arrival]) -> None:
        self._journal.follow()
        committed = self.table.take_committed()
        self._go_on_behind(committed)
        for queue in committed:
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
        self._go_on_behind(self.table.contents.queues)
        self.pending.clear()
        self._look_at_all()

    def catch_up(self) -> None:
        self._journal.catch_up()

    def lead(self) -> None:
        """Open the tier."""
        self._journal.maintain_when_settled()
        self._go_on_behind(self.table.contents.queues)
        if self.objects is not None:
            self._epoch = self._around.epoch()
            self.condition = TierCondition.OPENING
            self._loop.spawn(self._open(self.objects, self._life), "open the tier")
        elif self.table.contents.holdings.messages:
            log.warning(
                "this broker group has %d messages in a tier, which cannot be read: start its brokers with the same tiers.url "
                "as before",
                self.table.contents.holdings.messages,
            )

    def step_down(self) -> None:
        self._end_life()
        self.condition = TierCondition.FOLLOWING
        self.trouble = ""
        self._writer = None
        self._losses.forget()

    def _end_life(self) -> None:
        self._life += 1
        if self._uploader is not None:
            self._uploader.stop()
        if self._commits is not None:
            self._commits.stop()
        self._uploader = self._commits = None
        if self.upkeep is not None:
            self.upkeep.stop()
        if self.states is not None:
            self.states.stop()
        if self._watch is not None:
            self._watch.stop()
        self.upkeep = self.states = self._watch = None
        self._around.stowage.close()

    def close(self) -> None:
        self._journal.close()
        self.step_down()

    # ---- messages and topics

    def arrived(self, arrivals: Arrivals) -> None:
        """Messages became readable."""
        if self.objects is None or self._is_mount:
            return
        is_news, pending = False, self.pending
        for queue, max_offset in arrivals.ends():
            if queue in pending:
                is_news |= pending.grown(queue, max_offset)
            else:
                self._look_at(Queue(*queue))
                is_news |= queue in pending
        if is_news and self._uploader is not None:
            self._uploader.wake()

    def topic_changed(self, topic: str) -> None:
        """It was made, or its attributes are others now."""
        for topic_of, queue_id in self._around.local.all_queues():
            if topic_of == topic:
                self._look_at(Queue(topic, queue_id))
        if self._uploader is not None:
            self._uploader.wake()

    def topic_deleted(self, topic: str) -> None:
        """Its queues begin anew, if they ever do."""
        if self.cold is not None:
            self.cold.cache.forget(topic)
        for queue in [queue for queue in self.pending.queues() if queue.topic == topic]:
            self.pending.remove(queue)
        if self._uploader is not None:
            self._uploader.forget(topic)
        if self.upkeep is not None:
            self.upkeep.drop(topic)
        else:
            self._deleted_meanwhile[topic] = None

    # ---- opening

    async def _open(self, objects: ObjectStore, life: int) -> None:
        pause_s = 1.0
        while life == self._life:
            try:
                await self._try_open(objects, life)
            except Fenced as error:
                if life == self._life:
                    self.end_for(error)
            except ObjectStoreError as error:
                if life == self._life:
                    self._losses.failed(error)
                    self.troubled(error)
                await self._loop.pause(pause_s)
                pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
                continue
            return

    async def _try_open(self, objects: ObjectStore, life: int) -> None:
        """Raises ObjectStoreError, Fenced among them."""
        if not self._is_mount:
            await refuse_mounted(objects, self._around.broker_name)
        manifests, position, before = Manifests(objects), self.table.position, self._writer
        if await manifests.highest_epoch(self._epoch - (before is None)) is not None:
            raise Fenced(
                f"the tier has a manifest of epoch {self._epoch} or a later one: another log is, or was, kept under the name "
                "of this broker group. Give tiers.url another prefix, or remove what is there"
            )
        parts = await manifests.beyond(position) if before is None else []
        missing = NOTHING_MISSING
        if not parts and not self._is_mount:
            missing = await self._losses.given_up(objects, self.table, lambda: life == self._life)
        if life != self._life:
            return
        try:
            opening = await self._opening_of(parts, life, missing)
        except ValueError:  # the log has a part of a commit, so the manifest counts from a checkpoint on
            opening = await self._opening_from_checkpoint(manifests, life)
        if opening is None:
            return
        log_of = self._record_log, self._journal, self.table
        self._writer = writer = ManifestWriter(objects, self._epoch, before.begun if before is not None else 0)
        if before is None:
            self._numbers = itertools.count(1)
        keys, loop, reserved_ms = self._around.keys, self._loop, self.reserved_ms
        index = IndexWriter(objects, keys, self._epoch, self.next_number, loop, reserved_ms)
        told = Told(self.troubled, self.fenced, self.retired)
        self._commits = commits = Commits(log_of, writer, index, self._epochs, self._loop, told)
        self.upkeep = Upkeep(objects, self, commits, self._loop, self._settings)
        commits.open(opening.wanted, opening.changes, partial(self._opened, life, objects))
        for topic in self._deleted_meanwhile:
            self.upkeep.drop(topic)

    async def _opening_of(
        self, parts: Sequence[ManifestPart], life: int, missing: Missing = NOTHING_MISSING
    ) -> Opening | None:
        """A step of it in each turn of the loop; None when this life ended. Raises Fenced, and ValueError when the parts do not
        fit the own contents."""
        self._deleted_meanwhile = {}
        rules = self._around.lineage(), self._is_stale, self._new_id
        steps = opening_of(
            self.table.contents.copy(),
            parts,
            *rules,
            may_claim=self._is_mount,
            missing=missing,
            local_from=self._local_from,
        )
        try:
            while life == self._life:
                next(steps)
                await self._loop.pause(0)
        except StopIteration as end:
            opening: Opening = end.value
            return opening
        return None

    async def _opening_from_checkpoint(self, manifests: Manifests, life: int) -> Opening | None:
        """The same, whatever the own contents are. Raises ObjectStoreError, Fenced among them."""
        try:
            return await self._opening_of(await manifests.newest(-1), life)
        except ValueError as error:
            raise ObjectStoreError(f"the manifest of the tier contradicts itself: {error}") from error

    def _opened(self, life: int, objects: ObjectStore) -> None:
        if life != self._life:
            return
        self.condition = TierCondition.OPEN
        self.troubled(None)
        broker_name = "" if self._is_mount else self._around.broker_name
        self.states = StateKeeper(objects, self._epoch, broker_name, self, self._loop)
        self.states.begin()
        if self._is_mount:
            if self.upkeep is not None:
                self.upkeep.begin(expires_only=True)
            return
        source = Source(self._around.local, self._around.keys)
        self._uploader = Uploader(self.pending, source, objects, self, self._loop, self._settings)
        self._look_at_all()
        self._losses.forget()
        self._around.stowage.open(self)
        if self.upkeep is not None:
            self.upkeep.begin()
        if self._writer is not None:
            lost = partial(self._lost, objects)
            self._watch = LossWatch(objects, self._writer, lambda: self.table.contents, self._loop, lost)
            self._watch.begin()

    def _lost(self, objects: ObjectStore) -> None:
        """Something that was put there is missing: end what goes on, and open the tier once more, in the same epoch."""
        self._end_life()
        self.condition = TierCondition.OPENING
        self._losses.suspect()
        self.pending.clear()
        self._look_at_all()
        self._loop.spawn(self._open(objects, self._life), "open the tier again")

    def fenced(self, reason: str) -> None:
        """Somebody else owns the tier: touch nothing there as long as this broker leads in this epoch. A mount has nothing
        else to serve, and ends."""
        self.step_down()
        self.condition = TierCondition.FENCED
        self._say(reason)
        if self._is_mount:
            self._around.usurped(reason)

    def end_for(self, error: Fenced) -> None:
        """Somebody else has the tier; beside a mount nobody serves the group."""
        self.fenced(str(error))
        if isinstance(error, MountedElsewhere):
            self._around.usurped(str(error))

    def _epochs(self) -> Sequence[tuple[int, int]]:
        return [(entry.epoch, entry.start_offset) for entry in self._around.lineage()[0]]

    def _is_stale(self, queue: Queue, segments: QueueSegments) -> bool:
        """Whether that is of a topic that is gone, also when there is another one of its name."""
        if self._is_mount:
            return False
        if self._around.attributes(queue.topic) is None or segments.end > self._around.local.next_offset(*queue):
            return True
        if not len(segments):  # all of it expired, maybe of an earlier topic of the name: what is here goes up again
            return self.in_log.was_deleted(queue.topic)
        return self.in_log.is_of_deleted(queue, segments.last.log_end)

    def _new_id(self) -> str:
        return f"{self._around.random_bits(_ID_BITS):032x}"

    # ---- what waits

    def _local_from(self, queue: Queue) -> int | None:
        """See `reconcile.LocalFrom`."""
        attributes = self._around.attributes(queue.topic)
        low, high = self._around.local.local_range(*queue)
        return low if attributes is not None and low < high and policy.is_kept(queue.topic, attributes) else None

    def _go_on_behind(self, queues: Iterable[Queue]) -> None:
        """A queue goes on behind what of it is in the tier. A log that begins later may know of none of its messages: they went
        before it was copied, or the files of the queues were lost. Without this its numbers would begin anew."""
        ends = {
            (queue.topic, queue.queue_id): segments.end
            for queue in queues
            if len(segments := self.segments_of(queue))
            and self._around.attributes(queue.topic) is not None
            and self._around.local.local_range(*queue)[1] < segments.end
        }
        if ends:
            self._around.local.go_on_at(ends)

    def _look_at(self, queue: Queue) -> None:
        """See whether the queue has something that is not in the tier."""
        if self._is_mount:
            return
        attributes = self._around.attributes(queue.topic)
        low, high = self._around.local.local_range(*queue)
        first = max(low, self.segments_of(queue).end)
        if attributes is None or first >= high or not policy.is_kept(queue.topic, attributes):
            self.pending.remove(queue)
        else:
            position = self._around.local.position_of(*queue, first)
            self._wait(queue, Waiting(first, high, position, self._loop.wall_ms()))

    def _wait(self, queue: Queue, waiting: Waiting) -> None:
        self.pending.put(queue, waiting, many_of(self.segments_of(queue), self._settings.value.commit_bytes))

    def _look_at_all(self) -> None:
        """The same for all queues, some in each turn of the loop."""
        if self.objects is None:
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

    def retired(self, names: Sequence[str]) -> None:
        """Nobody needs these objects any more."""
        if self.upkeep is not None:
            self.upkeep.removal.add(names)

    def _committed(self, queue: Queue) -> None:
        self._look_at(queue)
        if self.upkeep is not None:
            self.upkeep.grown(queue)
        if self._uploader is not None:
            self._uploader.finished(queue)
