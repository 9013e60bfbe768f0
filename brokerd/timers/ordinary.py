"""Due timers whose messages are stored again as they are.

A timer that does anything else than that when its turn comes is not among them: what is recalled, appended again on its way, or
dropped, or cannot be read, and what a broker of the original stored. Those are decoded, one by one (`batch.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from typing import Final

from brokerd.delay import ordinary
from brokerd.delay.ordinary import Look, Ordinary
from brokerd.metadata.service import MetadataService
from brokerd.store.again import Names, Role
from brokerd.store.unit import Unit
from brokerd.timers.codes import DELETE_KEY, DUE_MS, LEG_MS, MESSAGE, MOVED, PLACE, ROLL_TIMES, ROLLED, encode_code
from brokerd.timers.copies import UNIQUE_KEY

NAMES: Final[Names] = {
    **ordinary.NAMES,
    DUE_MS: Role.NUMBER,
    UNIQUE_KEY: Role.KEY,
    PLACE: Role.PLACE,
    ROLL_TIMES: Role.TIMES,
    LEG_MS: Role.UNUSUAL,
    MOVED: Role.UNUSUAL,
    DELETE_KEY: Role.UNUSUAL,
}


class OrdinaryTimers(Ordinary):
    """Those whose entries say what their records do."""

    def __init__(self, look: Look, units: Sequence[Unit], offsets: Sequence[int], metadata: MetadataService) -> None:
        super().__init__(look, units, offsets, NAMES, metadata)
        if not self._are_all_meant([code for _, _, code in units]):
            self.leave(
                n for n, (_, _, code) in enumerate(units) if self.looked.ordinary[n] and not self._is_meant(n, code)
            )

    def due_ms(self, begin: int, end: int) -> list[int]:
        """When these are due."""
        return list(self.looked.number[begin:end])

    def end_before(self, begin: int, end: int, due_ms: int) -> int:
        """Up to where all from `begin` on, `end` at most, are ordinary and due before that time."""
        return bisect_left(self.looked.number, due_ms, begin, self.end(begin, end))

    def end_kept(self, begin: int, end: int, places: Collection[int], names: Sequence[Collection[str]]) -> int:
        """Up to where none of these ordinary ones may be taken back, by its place or its name."""
        looked = self.looked
        for n in range(begin, end):
            name = f"{looked.groups[looked.group[n]][0]}+{looked.key(n)}"
            if looked.place[n] in places or any(name in each for each in names):
                return n
        return end

    def _are_all_meant(self, entry_codes: Sequence[int]) -> bool:
        """The same as `_is_meant` for each, as it mostly is: nothing was appended again, no time is out of bounds."""
        numbers = self.looked.number.tolist()
        meant = {number: encode_code(number, MESSAGE) for number in set(numbers)}
        return all(self.looked.is_added) and entry_codes == [meant[number] for number in numbers]

    def _is_meant(self, n: int, code: int) -> bool:
        """Whether the entry with that code says what its record does."""
        kind = MESSAGE if self.looked.is_added[n] else ROLLED
        return code == encode_code(self.looked.number[n], kind)
