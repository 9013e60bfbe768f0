"""Changes from outside to what groups popped: a reset to an offset, and topics and groups that are deleted."""

from __future__ import annotations

import logging

from brokerd.journal.journal import Journal
from brokerd.metadata.service import MetadataService
from brokerd.metadata.tables import Change
from brokerd.pop import records
from brokerd.pop.ledger import PopLedger
from brokerd.pop.looking import PopLooking
from brokerd.pop.waiting import PopWaiting
from remoting import codes
from remoting.errors import LogboomError, RequestError

log = logging.getLogger(__name__)


class PopAdministration:
    """Owned by the pop service, on the master only."""

    def __init__(
        self,
        metadata: MetadataService,
        ledger: PopLedger,
        journal: Journal,
        waiting: PopWaiting,
        looking: PopLooking,
    ) -> None:
        self._metadata = metadata
        self._ledger = ledger
        self._journal = journal
        self._waiting = waiting
        self._looking = looking

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Let a group that pops a queue go on at an offset of it; what it took of the queue is forgotten, and cannot be acked.

        What waits in the retry topic stays there. Nothing happens where the group never popped. Raises
        LogboomError when the log does not take the record.
        """
        if self._ledger.queue(group, topic, queue_id) is not None:
            self._journal.append(records.RESET, records.reset(group, topic, queue_id, offset))

    def deleted(self, change: Change) -> None:
        """Topics or groups went: so do their entries and those who wait."""
        for topic in change.topics_deleted:
            self._drop(None, topic)
        for group in change.groups_deleted:
            self._drop(group, None)

    def drop_orphans(self) -> None:
        """Forget what has no topic or group: the master before died between their deletion and the record that says so."""
        for group, topic in dict.fromkeys((queue.group, queue.topic) for queue in self._ledger.queues()):
            if self._metadata.group(group) is None:
                self._drop(group, None)
            elif self._metadata.topic(topic) is None:
                self._drop(None, topic)

    def _drop(self, group: str | None, topic: str | None) -> None:
        if any(group in (None, each.group) and topic in (None, each.topic) for each in self._ledger.queues()):
            try:
                self._journal.append(records.DROPPED, records.dropped(group, topic))
            except LogboomError as error:
                log.warning("what was popped of the deleted topic or group lingers until the next start: %s", error)
        gone = f"consumer group {group}" if group is not None else f"topic {topic}"
        code = codes.TOPIC_NOT_EXIST if group is None else codes.SUBSCRIPTION_GROUP_NOT_EXIST
        error_answer = RequestError(code, f"{gone} was deleted")
        self._waiting.end(error_answer, group, topic)
        self._looking.end(error_answer, group, topic)
