"""Which messages are read from the tier though this broker's files have them, too, as an operator says.

Messages are the same in both, at the same offsets, so a level changes where a consumer's reads go and nothing that he gets: the
tier is asked as far as it has all messages from an offset on, and what it cannot give is read from files. It is for who wants to
see that what is in the tier can be read while files still have it, or whose object store is faster than his disk.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final

from brokerd.store.queues.consume_queue import ConsumeQueue


class ReadLevel(StrEnum):
    """The names that the original gives them."""

    DISABLE = "DISABLE"  # nothing is read from the tier: queues begin where files do
    NOT_IN_DISK = "NOT_IN_DISK"  # what files do not have
    NOT_IN_MEM = "NOT_IN_MEM"  # and what would have to be read from disk
    FORCE = "FORCE"  # and all else that the tier has


class ColdFirst:
    """Of what files and the tier have, what is the tier's to give. `run_end` says up to where the tier has all messages of a
    queue (topic, id) from an offset on: the offset itself when it has none there. `is_in_memory` says whether a queue's message,
    which files have, can be read without the disk."""

    def __init__(
        self, run_end: Callable[[str, int, int], int], is_in_memory: Callable[[ConsumeQueue, int], bool]
    ) -> None:
        self._run_end = run_end
        self._is_in_memory = is_in_memory

    def end(self, queue: ConsumeQueue, queue_offset: int) -> int:
        """Up to where a read from there on is the tier's, which is so by the first message; 0 when it is the files'."""
        end = self._run_end(queue.topic, queue.queue_id, queue_offset)
        return end if end > queue_offset and not self._is_in_memory(queue, queue_offset) else 0


def never_in_memory(_queue: ConsumeQueue, _queue_offset: int) -> bool:
    """As the level FORCE has it."""
    return False


LEVELS: Final = tuple(str(level) for level in ReadLevel)
