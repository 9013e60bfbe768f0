"""Which queues got messages in a round of dispatch, and with which tags codes (pure).

Of ten thousand queues that get messages hardly one is waited for: what C put behind queues is looked at when somebody asks.
"""

from __future__ import annotations

from collections.abc import Collection, Set
from typing import NamedTuple

from brokerd.store.log.entry_columns import EntryColumns
from brokerd.store.log.laid_out import LaidOut
from brokerd.store.queues.queue_offsets import QueueKey


class ReadBack(NamedTuple):
    """Entries that C derived and put behind their queues, but for those of `others`; `topics` are those of the queues."""

    entries: EntryColumns
    topics: Set[str]
    others: Set[QueueKey]


_Part = dict[QueueKey, list[int]] | LaidOut | ReadBack


class RoundCodes:
    """In parts, one behind the other."""

    __slots__ = ("_parts",)

    def __init__(self, codes: dict[QueueKey, list[int]] | None = None) -> None:
        """Of each queue the codes, in order."""
        self._parts: list[_Part] = [] if codes is None else [codes]

    def add(self, entries: LaidOut | ReadBack) -> None:
        """All of these are in their queues."""
        self._parts.append(entries)

    def present(self) -> dict[QueueKey, list[int]]:
        """Where codes are put that come next."""
        if self._parts and isinstance(part := self._parts[-1], dict):
            return part
        part = {}
        self._parts.append(part)
        return part

    def topics(self) -> set[str]:
        """Those of the queues."""
        found: set[str] = set()
        for part in self._parts:
            if isinstance(part, LaidOut):
                found.update([tally.topic for tally in part.tallies])
            elif isinstance(part, ReadBack):
                found |= part.topics
            else:
                found.update([topic for topic, _ in part])
        return found

    def queues(self) -> Collection[QueueKey]:
        """These, for who does not want the codes, which are what takes time."""
        found: dict[QueueKey, None] = {}
        for part in self._parts:
            if isinstance(part, LaidOut):
                found.update(dict.fromkeys(part.queues()))
            elif isinstance(part, ReadBack):
                found.update(dict.fromkeys(key for key in part.entries.keys if key not in part.others))
            else:
                found.update(dict.fromkeys(part))
        return found.keys()

    def all(self) -> dict[QueueKey, list[int]]:
        """Of each queue the codes, in order."""
        parts = self._parts
        if len(parts) != 1 or not isinstance(parts[0], dict):
            self._parts = [_joined(parts)]
        return self.present()

    def __bool__(self) -> bool:
        return any(self._parts)


def _joined(parts: list[_Part]) -> dict[QueueKey, list[int]]:
    found: dict[QueueKey, list[int]] = {}
    for part in parts:
        if isinstance(part, LaidOut):
            for topic, queue_id, _, _, _, code, _, count in part:
                found.setdefault((topic, queue_id), []).extend([code] * count)
        elif isinstance(part, ReadBack):
            for each in part.entries.by_queue():
                if each.key not in part.others:
                    found.setdefault(each.key, []).extend(each.codes)
        else:
            for key, codes in part.items():
                found.setdefault(key, []).extend(codes)
    return found
