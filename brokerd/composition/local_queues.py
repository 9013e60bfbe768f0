"""This broker's own consume queues and log, as tiers see them: `tiers.surroundings.LocalQueues` over the message store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from brokerd.store.store import MessageStore


class StoreQueues:
    """What is in the store's files, whatever else is readable."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self.read_run, self.run_aside = store.read_run, store.run_aside

    def local_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        return self._store.local_min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)

    def position_of(self, topic: str, queue_id: int, queue_offset: int) -> int:
        return self._store.read_units(topic, queue_id, queue_offset, 1)[0][0]

    def next_offset(self, topic: str, queue_id: int) -> int:
        return max(self._store.queue_offsets.next(topic, queue_id), self._store.max_offset(topic, queue_id))

    def go_on_at(self, ends: Mapping[tuple[str, int], int]) -> None:
        self._store.empty_queues(ends)

    def all_queues(self) -> Sequence[tuple[str, int]]:
        return list(self._store.queues.table)
