"""Where a group starts to consume a queue in which it has no offset yet.

A group that asks for the end still gets a young queue from its first message: while nothing of the queue was removed and its
first message is recent. Otherwise a consumer that starts together with its producer would miss what was sent in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Protocol

from remoting.names import RETRY_PREFIX


class InitMode(IntEnum):
    """Where a group that never consumed a queue starts: at its first message, or at its last."""

    MIN = 0
    MAX = 1


class QueueReads(Protocol):
    """What is needed of the store."""

    def min_offset(self, topic: str, queue_id: int) -> int: ...

    def max_offset(self, topic: str, queue_id: int) -> int: ...

    def read_units(
        self, topic: str, queue_id: int, queue_offset: int, count: int
    ) -> Sequence[tuple[int, int, int]]: ...


class StartOffsets:
    """`log_end` is the physical end of the log; a message is recent when it is among the last `recent_bytes` of it."""

    def __init__(self, reads: QueueReads, log_end: Callable[[], int], recent_bytes: int) -> None:
        self._reads = reads
        self._log_end = log_end
        self._recent_bytes = recent_bytes

    def begins_recently(self, topic: str, queue_id: int) -> bool:
        """Whether the queue is there from its first message on, and that one is recent (or not sent yet)."""
        if self._reads.min_offset(topic, queue_id) > 0:
            return False
        recent_from = self._log_end() - self._recent_bytes
        if recent_from <= 0:
            return True  # all of the log is; the console asks this of every queue each second, and the read may open a file
        units = self._reads.read_units(topic, queue_id, 0, 1)
        if not units:  # it is not sent yet, or is in the tier alone
            return self._reads.max_offset(topic, queue_id) == 0
        return units[0][0] >= recent_from

    def first_offset(self, topic: str, queue_id: int, init_mode: InitMode) -> int:
        """The queue offset at which a new group starts; at the end it is the last message."""
        low = self._reads.min_offset(topic, queue_id)
        if init_mode == InitMode.MIN or topic.startswith(RETRY_PREFIX):
            return low
        if self.begins_recently(topic, queue_id):
            return 0
        return max(low, self._reads.max_offset(topic, queue_id) - 1)
