"""Which client of a group may consume which queue in order: locks that last a minute unless they are refreshed (pure).

In memory only, as in the original: after a change of master clients lock anew, and for a moment two of them may hold one queue.
Consumers that need the order kept through that use a FIFO group, whose order is in the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

LOCK_MS: Final = 60_000
MAX_LOCKS: Final = 1_000_000

Queue = tuple[str, int]  # topic, queue id


class QueueLocks:
    """The locks of one broker. `limit` bounds their number."""

    def __init__(self, limit: int = MAX_LOCKS) -> None:
        self._limit = limit
        self._locks: dict[str, dict[Queue, tuple[str, int]]] = {}  # group -> queue -> (client id, refreshed)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def lock(self, group: str, client_id: str, queues: Iterable[Queue], now_ms: int) -> list[Queue]:
        """Lock, or refresh, what is free or this client's own; returns what it holds now of the queues asked for."""
        held = []
        looked_for_room = False
        for queue in queues:
            owner = self._locks.get(group, {}).get(queue)
            if owner is not None and owner[0] != client_id and now_ms - owner[1] < LOCK_MS:
                continue
            if owner is None and self._count >= self._limit:
                if not looked_for_room:
                    looked_for_room = True
                    self.expire(now_ms)
                if self._count >= self._limit:
                    continue
            self._count += owner is None
            self._locks.setdefault(group, {})[queue] = client_id, now_ms
            held.append(queue)
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[Queue]) -> None:
        """Give up what this client holds."""
        locks = self._locks.get(group, {})
        for queue in queues:
            owner = locks.get(queue)
            if owner is not None and owner[0] == client_id:
                self._forget(group, queue)

    def is_locked(self, group: str, now_ms: int) -> bool:
        """Whether somebody of the group holds any queue."""
        return any(now_ms - refreshed_ms < LOCK_MS for _, refreshed_ms in self._locks.get(group, {}).values())

    def expire(self, now_ms: int) -> None:
        """Forget locks that nobody refreshed."""
        old = [
            (group, queue)
            for group, locks in self._locks.items()
            for queue, (_, refreshed_ms) in locks.items()
            if now_ms - refreshed_ms >= LOCK_MS
        ]
        for group, queue in old:
            self._forget(group, queue)

    def clear(self) -> None:
        """This broker does not lock any more."""
        self._locks.clear()
        self._count = 0

    def _forget(self, group: str, queue: Queue) -> None:
        locks = self._locks[group]
        del locks[queue]
        self._count -= 1
        if not locks:
            del self._locks[group]
