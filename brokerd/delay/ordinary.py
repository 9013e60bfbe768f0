"""Waiting messages that are stored again as they are, many at once, and no message made of them (`store/again.py`).

Of others each is decoded: what nobody can read, what is sent to a topic that is gone, what has an IPv6 host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from brokerd.delay.destinations import destination_of
from brokerd.delay.rules import REAL_QUEUE, REAL_TOPIC, Target
from brokerd.metadata.service import MetadataService
from brokerd.store.again import Copies, Looked, Names, Role
from brokerd.store.unit import Unit
from remoting.errors import LogboomError

NAMES: Final[Names] = {REAL_TOPIC: Role.TOPIC, REAL_QUEUE: Role.QUEUE}
LEAST_TOGETHER: Final = 4  # fewer are stored as fast one by one
# In one turn of the loop. One that is decoded takes ten times as long as a copy: so many take as long as a few full batches,
# some two milliseconds, and who sends meanwhile has to wait no longer.
MOST_DECODED: Final = 64

Look = Callable[[Sequence[Unit], Sequence[int], Names], Looked]


class Ordinary:
    """Which of these entries are ordinary, by their numbers from 0 on. `places` are their queue offsets."""

    def __init__(
        self, look: Look, units: Sequence[Unit], places: Sequence[int], names: Names, metadata: MetadataService
    ) -> None:
        self.looked = look(units, places, names)
        first = min(units)[0]
        groups = self.looked.groups
        self._targets = [_target(topic, str(queue_id), first, metadata) for topic, queue_id in groups]
        if None in self._targets:
            self.leave(n for n, group in enumerate(self.looked.group) if self._targets[group] is None)

    def leave(self, numbers: Iterable[int]) -> None:
        """These are not ordinary after all."""
        for n in numbers:
            self.looked.ordinary[n] = 0

    def end(self, begin: int, end: int) -> int:
        """Up to where all from `begin` on, `end` at most, are ordinary."""
        left = self.looked.ordinary.find(0, begin, end)
        return end if left < 0 else left

    def copies(self, begin: int, end: int) -> Copies:
        """Their messages."""
        return Copies(self.looked, begin, end, self._targets)


def _target(topic: str, queue: str, first: int, metadata: MetadataService) -> Target | None:
    """Where messages go whose records are at that offset of the log or behind; None where each has to be looked at."""
    try:
        return destination_of({REAL_TOPIC: topic, REAL_QUEUE: queue}, first, metadata)
    except LogboomError:
        return None  # whoever looks at one of them says what is wrong
