"""Whether a consumer group has finished what lies before a handover, in the queues of this broker group.

Finished, not only taken: of each queue the earliest unfinished message decides, be it with a client, on its way back, or passed
over. What was moved to the group's retry topic is unfinished as well. What a new group would not be given does not count, nor
what lies untaken in a queue that is not read any more: nobody is given that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from brokerd.metadata.service import MetadataService
from brokerd.metadata.start_offsets import InitMode
from brokerd.pop.handles import retry_topic, retry_topic_v1
from brokerd.pop.ledger import PopLedger
from brokerd.pop.order.under_way import UnderWay


class Extents(Protocol):
    """What is needed of the store: where queues begin and end."""

    def min_offset(self, topic: str, queue_id: int) -> int: ...

    def max_offset(self, topic: str, queue_id: int) -> int: ...


class FirstOffsets(Protocol):
    """Where a group starts that was never in a queue; `StartOffsets`."""

    def first_offset(self, topic: str, queue_id: int, init_mode: InitMode) -> int: ...


class Passed:
    """Reads, and changes nothing. `ends` are offsets by queue: what lies before them came before the handover."""

    def __init__(
        self,
        metadata: MetadataService,
        extents: Extents,
        ledger: PopLedger,
        starts: FirstOffsets,
        under_way: UnderWay,
    ) -> None:
        self._metadata = metadata
        self._extents = extents
        self._ledger = ledger
        self._starts = starts
        self._under_way = under_way

    def has_passed(self, topic: str, ends: Mapping[int, int], group: str, init_mode: InitMode) -> bool:
        """Whether the group finished everything before the ends. `init_mode` is how it starts where it never was."""
        config = self._metadata.topic(topic)
        read_queues = config.read_queue_nums if config is not None else 0
        return all(
            self._position(group, topic, queue_id, init_mode) >= end
            for queue_id, end in ends.items()
            if end and (queue_id < read_queues or self._has_some(group, topic, queue_id))
        ) and not self.has_copies(group, topic, init_mode)

    def is_nothing_left(self, topic: str, ends: Mapping[int, int]) -> bool:
        """Whether retention removed everything before the ends, and nobody has anything of it."""
        if any(self._extents.min_offset(topic, queue_id) < end for queue_id, end in ends.items()):
            return False
        if any(
            queue.topic == topic and queue.batches and queue.committed_offset() < ends.get(queue.queue_id, 0)
            for queue in self._ledger.queues()
        ):
            return False
        return not any(self.has_copies(group, topic, InitMode.MIN) for group in self._metadata.groups())

    def has_copies(self, group: str, topic: str, init_mode: InitMode) -> bool:
        """Whether messages of the topic are in the group's retry topics, or on their way there, and not finished."""
        return any(
            self._under_way.may_come(name, group, topic)
            or any(
                self._position(group, name, queue_id, init_mode) < self._extents.max_offset(name, queue_id)
                for queue_id in range(queues)
            )
            for name, queues in self._retry_topics(group, topic)
        )

    def groups_with_copies(self, group: str, topic: str) -> frozenset[int] | None:
        """The message groups of which there are unfinished copies; None while it is not known of some copies what they are, as
        nobody has looked at them, or they have the order of a queue."""
        found: set[int] = set()
        for name, queues in self._retry_topics(group, topic):
            if self._under_way.may_come(name, group, topic):
                return None
            for queue_id in range(queues):
                queue = self._ledger.queue(group, name, queue_id)
                if queue is None or not queue.keeps_groups:
                    is_known = queue is None and not self._extents.max_offset(name, queue_id)
                else:
                    is_known = queue.next_offset >= self._extents.max_offset(name, queue_id)
                    found.update(queue.order.groups)
                if not is_known:
                    return None
        return frozenset(found)

    # ---- inside

    def _has_some(self, group: str, topic: str, queue_id: int) -> bool:
        queue = self._ledger.queue(group, topic, queue_id)
        return queue is not None and bool(queue.batches)

    def _position(self, group: str, topic: str, queue_id: int, init_mode: InitMode) -> int:
        """Everything before it is finished, or is never given to the group."""
        queue = self._ledger.queue(group, topic, queue_id)
        committed = self._metadata.consumer_offset(group, topic, queue_id)
        if queue is not None and queue.batches:
            return queue.committed_offset()
        if queue is None and committed is None:
            return self._starts.first_offset(topic, queue_id, init_mode)
        next_offset = queue.next_offset if queue is not None else 0
        return max(next_offset, committed or 0, self._extents.min_offset(topic, queue_id))

    def _retry_topics(self, group: str, topic: str) -> Iterable[tuple[str, int]]:
        names: Sequence[str] = (retry_topic(group, topic), retry_topic_v1(group, topic))
        found = ((name, self._metadata.topic(name)) for name in names)
        return [(name, config.read_queue_nums) for name, config in found if config is not None]
