"""In which order one master delivers timers, as its batches say it.

Each batch names the entries of the timer topic that follow it. They are taken by their keys: when each waits no longer where it
waits, which may be before its message is due when it was to be rolled on, and was late. Behind the cursor keys rise from batch to
batch; and so they do behind the front, where the newest are delivered while others are late.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from brokerd.timers.codes import START, Key, key_of
from brokerd.timers.cursor import Begin


class Order:
    """Of one master, from when it became that. `code_of` and `place_of` answer for a queue offset of the timer topic;
    `require` raises when what it is given is false."""

    def __init__(
        self, code_of: Callable[[int], int], place_of: Callable[[int], int], require: Callable[[bool, str], None]
    ) -> None:
        self._code_of = code_of
        self._place_of = place_of
        self._require = require
        self._places: list[int] = []  # what the last batch still has to deliver
        self.restart()

    def restart(self) -> None:
        """Timers may follow that are due before what was delivered."""
        self._cursor = self._front = START

    def begins(self, begin: Begin) -> None:
        """A batch is announced."""
        self._places = [self._place_of(offset) for offset in begin.offsets]
        if begin.taken == 0:  # what was announced before, or was set aside
            return
        keys = [key_of(self._code_of(offset), offset) for offset in begin.offsets]
        last = self._cursor if begin.after is None else max(self._front, begin.after)
        self._keep(keys, last, begin.to)
        if begin.after is None:
            self._cursor = begin.to
        else:
            self._front = begin.to

    def delivers(self, place: int) -> None:
        """A message follows the batch."""
        self._require(place in self._places, f"{place} is delivered behind a batch that does not name it there")
        del self._places[: self._places.index(place) + 1]

    def _keep(self, keys: Sequence[Key], last: Key, to: Key) -> None:
        order = [last, *keys, to]
        is_kept = all(before < after for before, after in zip(order[:-2], keys, strict=True)) and order[-2] <= to
        self._require(is_kept, f"what is due behind {last} and up to {to} is delivered as {keys}")
