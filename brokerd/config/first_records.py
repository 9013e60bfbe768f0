"""What a master has to bring into its log before anything else: what RocketMQ left beside it, and what only queue files said.

Until that is done, the tables show it without any record (`overlay`), so that reads go on, and every change is refused with the
reason why the log took no record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from brokerd.config.takeover import Takeover, takeover_records
from brokerd.loop.scheduler import Scheduler
from brokerd.metadata import records
from brokerd.metadata.service import MetadataService
from brokerd.sending.acknowledging import ReplicaView
from brokerd.store.store import MessageStore
from remoting.errors import LogboomError

log = logging.getLogger(__name__)

_RETRY_S: Final = 0.2
_ANY_END: Final = (1 << 63) - 1


class FirstRecords:
    """The preface of the metadata (`metadata.service.Preface`)."""

    def __init__(
        self,
        store: MessageStore,
        takeover: Takeover,
        replica: ReplicaView,
        scheduler: Scheduler,
        now_ms: Callable[[], int],
    ) -> None:
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
        self._are_there = not (self._takeover.is_pending or self._store.lost_ends)
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
