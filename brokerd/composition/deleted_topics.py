"""What a deleted topic leaves behind: queues until dispatch has passed its deletion, numbers, figures.

The metadata says at which position of the log a topic was deleted. Messages below it are of the old topic; a later one of that
name begins anew, also where dispatch has not seen the deletion yet.
"""

from __future__ import annotations

from brokerd.metadata.tables import Change, MetadataTables
from brokerd.statistics.figures import Statistics
from brokerd.store.store import MessageStore


class DeletedTopics:
    """Keeps the store's queues, and the figures, to the topics and groups that there are."""

    def __init__(self, store: MessageStore, tables: MetadataTables, statistics: Statistics) -> None:
        self._store = store
        self._tables = tables
        self._statistics = statistics
        self._waiting: list[tuple[int, str]] = []  # deletions that dispatch has not passed yet

    def metadata_changed(self, change: Change) -> None:
        """The metadata read or made a record."""
        if change.rebuilt:
            self._remove_stale_queues()
            # A snapshot may be ahead of dispatch, which still has to bring back what lies before the deletions that it tells of.
            dispatched, deleted_at = self._store.dispatch_offset, self._tables.topics_deleted_at
            self._waiting = [(position, topic) for topic, position in deleted_at.items() if position > dispatched]
            self._store.empty_queues(self._tables.emptied_queues)
            return
        if change.queues_emptied:
            emptied = self._tables.emptied_queues
            self._store.empty_queues({key: emptied[key] for key in change.queues_emptied})
        for group in change.groups_deleted:
            self._statistics.forget_group(group)
        for topic in change.topics_deleted:
            self._statistics.forget_topic(topic)
            self._store.queue_offsets.forget(topic)
            self._waiting.append((change.position, topic))
        self.remove_queues()

    def remove_queues(self) -> None:
        """Dispatch went on: queues go whose topic's deletion it has passed."""
        if not self._waiting:
            return
        dispatched = self._store.dispatch_offset
        for position, topic in self._waiting:
            if position <= dispatched:
                self._store.queues.delete(topic, position)
        self._waiting = [each for each in self._waiting if each[0] > dispatched]

    def restart_numbers(self) -> None:
        """The store took the numbers of all messages in the log, also of those that belong to no topic any more."""
        if self._waiting:
            self._store.restart_queue_offsets({topic: position for position, topic in self._waiting})

    def rebuilt(self) -> None:
        """The metadata was read again from what was dispatched: no deletion waits."""
        self._waiting.clear()

    def _remove_stale_queues(self) -> None:
        """Deriving queues from the log brings back those of topics that were deleted since."""
        deleted_at = self._tables.topics_deleted_at
        for topic in sorted({topic for topic, _ in self._store.queues.table if topic in deleted_at}):
            self._store.queues.delete(topic, deleted_at[topic])
