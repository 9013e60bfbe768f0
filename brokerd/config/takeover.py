"""Topics, groups and consumer offsets of a directory that RocketMQ wrote: taken over into the log, once.

A start that finds a checkpoint which is not ours, and JSON tables which are not ours, leaves word of that (`PENDING`). The first
time that this broker is the master, before it takes a message, it puts what the tables say into the log as records of its own.
What was taken is in the log too, by its digest, so doing it again changes nothing. From then on the tables on disk are derived
from the log (writer.py) and never read again, unless RocketMQ itself goes on with the directory in between.

Until that is done, the tables show it without any record (`overlay`), so that reads go on, and every change is refused with the
reason why the log took no record. What only queue files said is brought into the log with it.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from brokerd.config import documents
from brokerd.config.documents import Documents
from brokerd.config.mounted import TAKEN_OVER, mount_records
from brokerd.delay.levels import SCHEDULE_GROUP
from brokerd.loop.scheduler import Scheduler
from brokerd.metadata import records
from brokerd.metadata.names import DEVELOPMENT_TEMPLATE_TOPIC, SystemNames
from brokerd.metadata.service import MetadataService
from brokerd.metadata.tables import MetadataTables
from brokerd.sending.acknowledging import ReplicaView
from brokerd.store.store import MessageStore
from brokerd.tiers.mounting.group import MountedGroup
from brokerd.timers.files.original import note_left
from remoting.disk import Disk
from remoting.errors import LogboomError
from remoting.names import SCHEDULE_TOPIC, is_brokers_topic

log = logging.getLogger(__name__)

PENDING: Final = "config/takeover"
_BACKUP: Final = ".bak"
_PENDING_TEXT: Final = (
    b"The JSON tables beside this file were written by RocketMQ. The next master that opens this directory takes them over into"
    b" its log and removes this file.\n"
)
_ROWS_PER_RECORD: Final = 2000
_RETRY_S: Final = 0.2
_ANY_END: Final = (1 << 63) - 1

QueueEnd = Callable[[str, int], int]


class Takeover:
    """What is there to be taken over; asked at start and at each change of the role."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.is_pending = disk.exists(PENDING)

    def found_at_start(self, *, sealed: bool) -> None:
        """The store is about to be loaded. `sealed`: its checkpoint is ours, so nobody else went on with the directory.

        Raises CorruptedFile when the tables cannot be read: to go on without them would hide messages.
        """
        if not sealed:
            note_left(self._disk)
        if not self.is_pending and not sealed and any(self._document_of_original(path) for path in documents.PATHS):
            self._disk.replace_bytes(PENDING, _PENDING_TEXT)
            self.is_pending = True
        if self.is_pending:
            self.read()

    def read(self) -> tuple[Documents, str]:
        """The tables, and the digest of the files. Raises CorruptedFile."""
        topics, groups, offsets, delays = (self._document_of_original(path) for path in documents.PATHS)
        digest = 0
        for path in documents.PATHS:
            digest = zlib.crc32(self._content(path) or b"", digest)
        known = documents.decode_offsets(offsets or {})
        if delays is not None:
            known[SCHEDULE_GROUP, SCHEDULE_TOPIC] = documents.decode_delays(delays)
        found = Documents(
            documents.decode_topics(topics or {}),
            documents.decode_groups(groups or {}),
            known,
            documents.decode_forbidden(groups or {}),
        )
        return found, f"{digest:08x}"

    def finished(self) -> None:
        """What was taken over is acknowledged."""
        self._disk.remove(PENDING)
        self.is_pending = False

    def _document_of_original(self, path: str) -> dict[str, Any] | None:
        """The document in a file that we did not write; None without one."""
        content = self._content(path)
        if content is None:
            return None
        document = documents.parse(content, path)
        return None if documents.is_ours(document) else document

    def _content(self, path: str) -> bytes | None:
        """Like the original: when the file is missing or empty, the one before it counts."""
        return self._disk.read_bytes(path) or self._disk.read_bytes(path + _BACKUP) or None


def takeover_records(
    found: Documents, digest: str, tables: MetadataTables, names: SystemNames, queue_end: QueueEnd, now_ms: int
) -> list[records.Record]:
    """The records that make the tables say what the documents say (pure); none when that was done before.

    `queue_end` is where a queue goes on: RocketMQ may have lost messages after their offsets were committed, and an offset behind
    the end would leave out what comes next.
    """
    if tables.taken_over == digest:
        return []
    rows = list(_rows(found, tables, names, queue_end))
    parts = [rows[first : first + _ROWS_PER_RECORD] for first in range(0, len(rows), _ROWS_PER_RECORD)] or [[]]
    last = len(parts) - 1
    return [
        records.record(records.TAKEN_OVER, now_ms, rows=part, digest=digest if number == last else "")
        for number, part in enumerate(parts)
    ]


def _rows(found: Documents, tables: MetadataTables, names: SystemNames, queue_end: QueueEnd) -> Iterator[list[Any]]:
    for topic in found.topics.values():
        if is_brokers_topic(topic.name) or topic.name in names.topics or topic.name == DEVELOPMENT_TEMPLATE_TOPIC:
            continue
        if topic.attributes.get("queue.type", "SimpleCQ") != "SimpleCQ":
            log.warning("topic %s keeps batches as one unit, which is not read here", topic.name)
        yield ["t", records.encode_topic(topic)]
    for group in found.groups.values():
        if not names.is_system_group(group.name):
            yield ["g", records.encode_group(group)]
    for key in sorted(found.forbidden):
        yield ["f", *key]
    for (group_name, topic_name), queues in found.offsets.items():
        known = dict(tables.offsets.get((group_name, topic_name), {}))
        known |= {
            queue_id: min(offset, queue_end(topic_name, queue_id))
            for queue_id, offset in queues.items()
            if queue_id >= 0
        }
        yield ["o", group_name, topic_name, list(known.items())]


class FirstRecords:
    """The preface of the metadata (`metadata.service.Preface`)."""

    def __init__(
        self,
        store: MessageStore,
        takeover: Takeover,
        replica: ReplicaView,
        scheduler: Scheduler,
        now_ms: Callable[[], int],
        mounted: MountedGroup | None = None,
    ) -> None:
        """`mounted` is the group whose tier this broker serves: its topics, groups and offsets come first in the log."""
        self._mounted = mounted
        self._store = store
        self._takeover = takeover
        self._replica = replica
        self._scheduler = scheduler
        self._now_ms = now_ms
        self._are_there = False
        self._is_recording = False

    def begin(self, metadata: MetadataService) -> None:
        """Record it now, or as soon as the log takes records; not when this broker is the master no more."""
        if not self._replica.is_master:
            return
        try:
            self.record(metadata)
        except LogboomError as error:
            log.info("what was there before this log is not recorded yet: %s", error)
            self._scheduler.call_later(_RETRY_S, self.begin, metadata)

    def overlay(self, metadata: MetadataService) -> None:
        """Show what is to be taken over."""
        self._are_there = not (self._takeover.is_pending or self._store.lost_ends or self._mounted)
        if not self._takeover.is_pending:
            return
        found, digest = self._takeover.read()
        tables, names = metadata.tables, metadata.names
        for _, body in takeover_records(found, digest, tables, names, lambda *_: _ANY_END, 0):
            for row in body["rows"]:
                tables.load_row(row)

    def record(self, metadata: MetadataService) -> None:
        """Raises LogboomError when the log takes no records; then it is all to be done again."""
        if self._are_there or self._is_recording:
            return
        self._is_recording = True
        try:
            self._append(metadata)
        finally:
            self._is_recording = False
        self._are_there = True

    def _append(self, metadata: MetadataService) -> None:
        store, journal = self._store, metadata.journal
        ends = {key: end for key, end in store.lost_ends.items() if end > store.queue_offsets.next(*key)}
        if ends:
            journal.append(*records.queues_emptied(ends, self._now_ms()))
        if self._takeover.is_pending:
            self._take_over(metadata)
        if self._mounted is not None and metadata.tables.taken_over != TAKEN_OVER:
            for kind, body in mount_records(self._mounted, metadata.names, self._now_ms()):
                journal.append(kind, body)

    def _take_over(self, metadata: MetadataService) -> None:
        found, digest = self._takeover.read()
        tables, names = metadata.tables, metadata.names
        wanted = takeover_records(found, digest, tables, names, self._store.queue_offsets.next, self._now_ms())
        for kind, body in wanted:
            metadata.journal.append(kind, body)
        if wanted:
            log.info(
                "%d topics, %d groups and the offsets of %d subscriptions that RocketMQ left are taken over",
                *(len(found.topics), len(found.groups), len(found.offsets)),
            )
