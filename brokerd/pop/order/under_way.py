"""Copies that are in the log and not in their queue yet, where nobody can take them (pure).

An ordered group finishes what was copied to its retry topics before it goes on with what stayed. A copy enters its queue when the
replicas have it, and its original is let go of before; in between the copy is to be waited for. What a new master has not
dispatched of its predecessors' log may hold copies of any group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable


class UnderWay:
    """Of one master. `dispatch_offset` says up to where the log is in queues."""

    def __init__(self, dispatch_offset: Callable[[], int]) -> None:
        self._dispatch_offset = dispatch_offset
        self._inherited_to = 0
        self._ends: dict[str, int] = {}  # by topic: behind its last copy
        self._held: dict[tuple[str, str], None] = {}

    def begin(self, end_offset: int) -> None:
        """This broker becomes the master, with a log that ends there."""
        self._inherited_to = end_offset
        self._ends.clear()
        self._held.clear()

    def copied(self, topics: Iterable[str], end_offset: int) -> None:
        """Copies were appended to these topics; the last one ends there."""
        self._ends.update(dict.fromkeys(topics, end_offset))

    def may_come(self, name: str, group: str, topic: str) -> bool:
        """Whether copies may come to the retry topic of that name; if so, the group waits for them before it goes on with the
        topic."""
        dispatched_to = self._dispatch_offset()
        if dispatched_to < self._inherited_to:
            self._held[group, topic] = None
            return True
        if dispatched_to < self._ends.get(name, 0):
            return True
        self._ends.pop(name, None)
        return False

    def released(self) -> Iterable[tuple[str, str]]:
        """Groups and topics that waited for what was inherited, and need not any more; each is told once. Whoever waits for a
        copy of this master hears of its arrival."""
        if not self._held or self._dispatch_offset() < self._inherited_to:
            return ()
        held, self._held = self._held, {}
        return held
