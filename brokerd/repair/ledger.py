"""What was found damaged and what became of it, for the broker's state and its metrics (pure)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from brokerd.store.scrub.damage import Damage

MOST_KEPT: Final = 256  # damaged ranges that are known by their place; of more only the number is


@dataclass(slots=True)
class Unrepaired:
    """A range that no peer could give yet, or that the disk did not take: then it `is_written`, and perhaps not durable."""

    range: Damage
    since_ms: int
    reason: str
    is_written: bool = False


@dataclass(slots=True)
class DamageLedger:
    """Counts since the start. `unrepaired` has what is damaged now, by where it starts; times are the wall's."""

    ranges_found: int = 0
    ranges_repaired: int = 0
    bytes_repaired: int = 0
    units_repaired: int = 0
    index_repaired: int = 0
    dropped: int = 0
    last_ms: int = -1
    last: str = ""
    unrepaired: dict[int, Unrepaired] = field(default_factory=dict)

    def found(self, damaged: Damage, now_ms: int) -> bool:
        """A range is damaged; whether that is news."""
        if damaged.start in self.unrepaired:
            return False
        self.ranges_found += 1
        self.last_ms, self.last = now_ms, f"the log from {damaged.start} to {damaged.end}"
        if len(self.unrepaired) < MOST_KEPT:
            self.unrepaired[damaged.start] = Unrepaired(damaged, now_ms, "nobody was asked yet")
        return True

    def failed(self, damaged: Damage, reason: str, *, is_written: bool = False) -> None:
        """Nobody could give it, or the disk did not take it."""
        if (known := self.unrepaired.get(damaged.start)) is not None:
            known.range, known.reason, known.is_written = damaged, reason, is_written

    def repaired(self, damaged: Damage, written_bytes: int) -> None:
        """It is what it was, by so many bytes of a peer."""
        self.unrepaired.pop(damaged.start, None)
        self.ranges_repaired += 1
        self.bytes_repaired += written_bytes

    def healed(self, start: int) -> None:
        """What was damaged is not any more: it was written again, or cut, or went with its file."""
        self.unrepaired.pop(start, None)

    def cut(self, offset: int) -> None:
        """The log was cut there: what is behind is another log, or none."""
        self.unrepaired = {start: each for start, each in self.unrepaired.items() if each.range.end <= offset}

    def derived_again(self, what: str, now_ms: int, *, units: int = 0, index: int = 0) -> None:
        """What is derived from the log was wrong, and was made again from it."""
        self.units_repaired += units
        self.index_repaired += index
        self.last_ms, self.last = now_ms, what
