"""What administrators decided for a group and a topic (pure): how it asks for messages, whether it may read, where it goes on.

Part of the metadata tables: `apply` of a record is the only change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from brokerd.metadata import records

PULL: Final = "PULL"
POP: Final = "POP"

Key = tuple[str, str]  # group, topic


class RequestMode(NamedTuple):
    """How members ask for messages, for those who let the broker assign queues to them.

    When popping, `pop_share_queues` others share each member's queues; with 0 or less, and with too many, all share all.
    """

    mode: str
    pop_share_queues: int


class ConsumerRules:
    """`resets` are offsets, by queue, from which the group has to go on; until it was told, its commits do not count."""

    TAGS: Final = frozenset("mfr")

    def __init__(self) -> None:
        self.modes: dict[Key, RequestMode] = {}
        self.forbidden: set[Key] = set()
        self.resets: dict[Key, dict[int, int]] = {}

    def clear(self) -> None:
        self.modes.clear()
        self.forbidden.clear()
        self.resets.clear()

    def pending_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        if not self.resets:
            return None
        queues = self.resets.get((group, topic))
        return queues.get(queue_id) if queues is not None else None

    def apply(self, kind: str, body: Any) -> bool:
        """Carry out a record; False when it is none of these kinds."""
        if kind == records.REQUEST_MODE:
            self.modes[body["group"], body["topic"]] = RequestMode(body["mode"], body["share"])
        elif kind == records.FORBIDDEN:
            key = body["group"], body["topic"]
            if body["forbidden"]:
                self.forbidden.add(key)
            else:
                self.forbidden.discard(key)
        elif kind == records.OFFSETS_RESET:
            self.resets.setdefault((body["group"], body["topic"]), {}).update((each[0], each[1]) for each in body["o"])
        elif kind == records.RESETS_TAKEN:
            for group, topic, queue_id in body["o"]:
                self._take(group, topic, queue_id)
        else:
            return False
        return True

    def forget(self, concerns: Callable[[Key], bool]) -> None:
        """A group or a topic was deleted."""
        tables: Iterable[Any] = (self.modes, self.resets)
        for table in tables:
            for key in [each for each in table if concerns(each)]:
                del table[key]
        self.forbidden -= {each for each in self.forbidden if concerns(each)}

    def snapshot_rows(self) -> Iterator[Any]:
        for key, mode in self.modes.items():
            yield ["m", *key, *mode]
        for key in sorted(self.forbidden):
            yield ["f", *key]
        for key, queues in self.resets.items():
            yield ["r", *key, list(queues.items())]

    def load_row(self, row: Any) -> None:
        tag, group, topic, *rest = row
        if tag == "m":
            self.modes[group, topic] = RequestMode(*rest)
        elif tag == "f":
            self.forbidden.add((group, topic))
        else:
            self.resets[group, topic] = dict(rest[0])

    def _take(self, group: str, topic: str, queue_id: int) -> None:
        queues = self.resets.get((group, topic), {})
        queues.pop(queue_id, None)
        if not queues:
            self.resets.pop((group, topic), None)
