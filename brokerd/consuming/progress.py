"""How far consumer groups are, whichever way they consume: pulled offsets are committed, popped ones are in the ledger.

A group may do both, one after the other: its offset in a queue is the larger of the two, and a pop starts there too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from brokerd.metadata.start_offsets import QueueReads
from brokerd.metadata.tables import Change, MetadataTables
from brokerd.pop.handles import retry_topic, retry_topic_v1
from brokerd.pop.ledger import PopLedger
from brokerd.pop.queue_ledger import WaitingGroup

MAX_PULLED_QUEUES: Final = 1_000_000  # more than those are not noted

Queue = tuple[str, int]  # stored topic, queue id


class PullOffsets:
    """Up to where each group pulled each queue: ahead of what it committed by what its consumers work on. In memory only."""

    def __init__(self) -> None:
        self._offsets: dict[tuple[str, str, int], int] = {}

    def note(self, reader: tuple[str, str, int], next_offset: int) -> None:
        """A pull of (group, topic, queue id) was answered: the next one goes on at that offset."""
        if len(self._offsets) < MAX_PULLED_QUEUES or reader in self._offsets:
            self._offsets[reader] = next_offset

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        return self._offsets.get((group, topic, queue_id))

    def forget(self, group: str | None, topic: str | None) -> None:
        """Everything of a group, or of a topic, that was deleted."""
        gone = [key for key in self._offsets if group in (None, key[0]) and topic in (None, key[1])]
        for key in gone:
            del self._offsets[key]


class ConsumerProgress:
    """Joins the tables of the two services; changes nothing."""

    def __init__(self, tables: MetadataTables, ledger: PopLedger, reads: QueueReads) -> None:
        self._tables = tables
        self._ledger = ledger
        self._reads = reads
        self.pulled = PullOffsets()

    def consumer_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Where a group is in a queue; None when it never consumed it."""
        committed = self._tables.consumer_offset(group, topic, queue_id)
        popped = self._ledger.committed_offset(group, topic, queue_id)
        if committed is None or popped is None:
            return popped if committed is None else committed
        return max(committed, popped)

    def is_popped(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether the ledger knows anything of the group in that queue."""
        return self._ledger.queue(group, topic, queue_id) is not None

    def in_flight(self, group: str, topic: str, queue_id: int) -> int:
        """How many popped messages of the queue are with clients or on their way back."""
        queue = self._ledger.queue(group, topic, queue_id)
        return queue.in_flight if queue is not None else 0

    def coming_back(self, group: str, topic: str, queue_id: int) -> int:
        """How many of those wait to be popped again."""
        queue = self._ledger.queue(group, topic, queue_id)
        return queue.returned if queue is not None else 0

    def held_since_ms(self, group: str, topic: str, queue_id: int) -> int | None:
        """When the oldest of those that clients have was taken; None without any."""
        queue = self._ledger.queue(group, topic, queue_id)
        return queue.oldest_pop_time_ms() if queue is not None else None

    def blocked_until_ms(self, group: str, topic: str, queue_id: int, now_ms: int) -> int | None:
        """Until when an ordered queue gives the group nothing, unless a client finishes what it has; None = it is not blocked."""
        queue = self._ledger.queue(group, topic, queue_id)
        return queue.blocked_until_ms(now_ms) if queue is not None else None

    def waiting_groups(self, group: str, topic: str, queue_id: int, now_ms: int) -> Iterator[WaitingGroup]:
        """The message groups of the queue that wait for a message that is with a client."""
        queue = self._ledger.queue(group, topic, queue_id)
        if queue is None:
            return iter(())
        moved = (retry_topic(group, topic), retry_topic_v1(group, topic))
        return queue.waiting_groups(now_ms, [each for name in moved for each in self._ledger.queues_of(group, name)])

    def taken_offset(self, group: str, topic: str, queue_id: int) -> int:
        """Every message of the queue below it was given to the group; 0 when it never took one, or this broker does not know."""
        pulled = self.pulled.get(group, topic, queue_id) or 0
        queue = self._ledger.queue(group, topic, queue_id)
        return max(pulled, queue.next_offset if queue is not None else 0)

    def all_offsets(self) -> Mapping[tuple[str, str], Mapping[int, int]]:
        """Where every group is, by (group, stored topic), then queue; a copy."""
        found = {key: dict(queues) for key, queues in self._tables.offsets.items()}
        for queue in self._ledger.queues():
            offsets = found.setdefault((queue.group, queue.topic), {})
            offsets[queue.queue_id] = max(offsets.get(queue.queue_id, 0), queue.committed_offset())
        return found

    def consumed_by(self, group: str) -> Sequence[Queue]:
        """The queues that a group has an offset in, in order."""
        pulled = {
            (topic, queue_id) for topic, queues in self._tables.offsets_of_group(group).items() for queue_id in queues
        }
        return sorted(pulled.union(self._ledger.popped_queues(group)))

    def consumed(self) -> Mapping[str, Collection[Queue]]:
        """The same of every group, in one pass."""
        found: dict[str, set[Queue]] = {}
        for (group, topic), queues in self._tables.offsets.items():
            found.setdefault(group, set()).update((topic, queue_id) for queue_id in queues)
        for queue in self._ledger.queues():
            found.setdefault(queue.group, set()).add((queue.topic, queue.queue_id))
        return found

    def metadata_changed(self, change: Change) -> None:
        """What was pulled of deleted topics and by deleted groups is forgotten."""
        for topic in change.topics_deleted:
            self.pulled.forget(None, topic)
        for group in change.groups_deleted:
            self.pulled.forget(group, None)

    def unread_queues(self, topic: str) -> int:
        """How many queues must stay readable: up to the last one with a message that some group has not consumed.

        Where no group ever consumed the topic, every message counts; so it does in a queue in which one of those that did has no
        offset, while that group is there.
        """
        groups = [group for group, queues in self.consumed().items() if any(name == topic for name, _ in queues)]
        config = self._tables.topics.get(topic)
        queue_id = config.read_queue_nums if config is not None else 0
        while queue_id > 0:
            queue_id -= 1
            high = self._reads.max_offset(topic, queue_id)
            low = self._reads.min_offset(topic, queue_id)
            offsets = {group: self.consumer_offset(group, topic, queue_id) for group in groups}
            if any(offset is None and group in self._tables.groups for group, offset in offsets.items()):
                read_up_to = low
            else:
                read_up_to = min((offset for offset in offsets.values() if offset is not None), default=low)
            if max(low, read_up_to) < high:
                return queue_id + 1
        return 0
