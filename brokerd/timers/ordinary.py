"""Due timers whose messages are stored again as they are, many at once, and no message made of them (`store/again.py`).

A timer that does anything else than that when its turn comes is not among them: what is recalled, appended again on its way, or
dropped, or cannot be read, and what a broker of the original stored. Those are decoded, one by one (`batch.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from typing import Final

from brokerd.delay.destinations import destination_of
from brokerd.delay.rules import REAL_QUEUE, REAL_TOPIC, Target
from brokerd.metadata.service import MetadataService
from brokerd.store.again import Copies, Looked, Names, Role
from brokerd.store.unit import Unit
from brokerd.timers.codes import DELETE_KEY, DUE_MS, LEG_MS, MESSAGE, PLACE, ROLL_TIMES, ROLLED, encode_code
from brokerd.timers.copies import UNIQUE_KEY
from remoting.errors import LogboomError

NAMES: Final[Names] = {
    REAL_TOPIC: Role.TOPIC,
    REAL_QUEUE: Role.QUEUE,
    DUE_MS: Role.NUMBER,
    UNIQUE_KEY: Role.KEY,
    PLACE: Role.PLACE,
    ROLL_TIMES: Role.TIMES,
    LEG_MS: Role.UNUSUAL,
    DELETE_KEY: Role.UNUSUAL,
}
Look = Callable[[Sequence[Unit], Sequence[int], Names], Looked]


class Ordinary:
    """Which of these entries are ordinary, by their numbers from 0 on."""

    def __init__(self, look: Look, units: Sequence[Unit], offsets: Sequence[int], metadata: MetadataService) -> None:
        self._looked = looked = look(units, offsets, NAMES)
        first = min(units)[0]
        self._targets = [_target(topic, str(queue_id), first, metadata) for topic, queue_id in looked.groups]
        if None in self._targets or not self._are_all_meant([code for _, _, code in units]):
            for n, (_, _, code) in enumerate(units):
                if looked.ordinary[n] and not self._is_meant(n, code):
                    looked.ordinary[n] = 0

    def due_ms(self, begin: int, end: int) -> list[int]:
        """When these are due."""
        return list(self._looked.number[begin:end])

    def copies(self, begin: int, end: int) -> Copies:
        """Their messages."""
        return Copies(self._looked, begin, end, self._targets)

    def end_before(self, begin: int, end: int, due_ms: int) -> int:
        """Up to where all from `begin` on, `end` at most, are ordinary and due before that time."""
        left = self._looked.ordinary.find(0, begin, end)
        return bisect_left(self._looked.number, due_ms, begin, end if left < 0 else left)

    def end_kept(self, begin: int, end: int, places: Collection[int], names: Sequence[Collection[str]]) -> int:
        """Up to where none of these ordinary ones may be taken back, by its place or its name."""
        looked = self._looked
        for n in range(begin, end):
            name = f"{looked.groups[looked.group[n]][0]}+{looked.key(n)}"
            if looked.place[n] in places or any(name in each for each in names):
                return n
        return end

    def _are_all_meant(self, entry_codes: Sequence[int]) -> bool:
        """The same as `_is_meant` for each, as it mostly is: nothing was appended again, no time is out of bounds."""
        numbers = self._looked.number.tolist()
        meant = {number: encode_code(number, MESSAGE) for number in set(numbers)}
        return all(self._looked.is_added) and entry_codes == [meant[number] for number in numbers]

    def _is_meant(self, n: int, code: int) -> bool:
        """Whether the entry with that code says what its record does, and its message can go where it was sent."""
        looked = self._looked
        kind = MESSAGE if looked.is_added[n] else ROLLED
        return code == encode_code(looked.number[n], kind) and self._targets[looked.group[n]] is not None


def _target(topic: str, queue: str, first: int, metadata: MetadataService) -> Target | None:
    """Where messages go whose records are at that offset of the log or behind; None where each has to be looked at."""
    try:
        return destination_of({REAL_TOPIC: topic, REAL_QUEUE: queue}, first, metadata)
    except LogboomError:
        return None  # whoever looks at one of them says what is wrong
