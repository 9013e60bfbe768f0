"""What a connection asked of late: it may go on with any of that when it stays with the carrier's thread."""

from __future__ import annotations

from typing import Final

from brokerd.native.stays import MOST_KINDS, ToldOfKind
from brokerd.processors.pulling.terms import PullTerms

_MOST_UNUSED: Final = 4


class AskedBefore:
    """Requests that are like the one in that slot (`PullReader.alike`); where the next of them begins, as long as its reader goes
    on, and how far the last one went."""

    __slots__ = ("_unused", "advance", "next_offset", "slot", "terms")

    def __init__(self, slot: int, terms: PullTerms) -> None:
        self.slot = slot
        self.terms = terms
        self.next_offset = self.advance = 0
        self._unused = 0

    def asked(self, next_offset: int, advance: int) -> None:
        """That was answered just now."""
        self.next_offset, self.advance = next_offset, advance
        self._unused = 0

    def note(self, told: ToldOfKind, *, is_much: bool) -> None:
        """That was done in a stay, in which much was asked or not."""
        if told.answers:
            self.next_offset = told.next_offset
            self._unused = 0
        else:
            self._unused += is_much

    def leave(self) -> None:
        """Have it forgotten."""
        self._unused = _MOST_UNUSED

    @property
    def is_left(self) -> bool:
        """Whether it was not asked any more for some time in which others were."""
        return self._unused >= _MOST_UNUSED


def note_asked(kinds: dict[int, AskedBefore], slot: int, terms: PullTerms) -> AskedBefore:
    """One of the requests in the slot came, and means that. What is known longest makes room for it."""
    asked = kinds.get(slot)
    if asked is None or asked.terms is not terms:
        if asked is None and len(kinds) == MOST_KINDS:
            del kinds[next(iter(kinds))]
        asked = kinds[slot] = AskedBefore(slot, terms)
    return asked
