"""A snapshot that is written in many turns of the loop, a slice in each, while its table goes on to change.

The slices say what was there when the first was written; what is appended between them is applied behind them (`replay`). So the
first slice may be all there is to write: then it is a whole snapshot as it ever was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from brokerd.journal.replay import VERSION, AddedRow, Table
from brokerd.loop.scheduler import Scheduler


class FrozenTable(Protocol):
    def rows(self) -> Iterator[Any]:
        """The state of one moment, whatever changes while they are read."""

    def close(self) -> None:
        """Nobody reads on."""


@dataclass(frozen=True, slots=True)
class InSlices:
    """How a table is written and read in slices: `freeze` it, make an empty one and what puts that in its place (`renew`), and
    the loop. Reading goes on in its next turn; writing after a pause, as what is appended next is acknowledged behind it."""

    freeze: Callable[[], FrozenTable]
    renew: Callable[[], tuple[Table, Callable[[], None]]]
    scheduler: Scheduler


class SliceWriter:
    """The records of one snapshot. `appended` is how many records the topic had got before the first slice."""

    def __init__(self, frozen: FrozenTable, slice_bytes: int, appended: int) -> None:
        self._frozen = frozen
        self._rows = frozen.rows()
        self._slice_bytes = slice_bytes
        self._appended = appended
        self._part = 0
        self.is_done = False
        self.size = 0

    def next(self, appended: int) -> bytes:
        """The next record; the topic has got so many by now. `is_done` says whether it is the last one."""
        rows: list[bytes] = []
        added: list[bytes] = []
        size = 0
        self.is_done = True
        for row in self._rows:
            encoded = orjson.dumps(row)
            (added if isinstance(row, AddedRow) else rows).append(encoded)
            size += len(encoded) + 1
            if size >= self._slice_bytes:
                self.is_done = False
                break
        more = b',"more":[%b]' % b",".join(added) if added else b""
        if not self._part and self.is_done:
            place = b'"part":0,"parts":1'
        else:
            back = appended - self._appended
            place = b'"part":%d,"parts":0,"back":%d,"last":%d' % (self._part, back, self.is_done)
        self._part += 1
        self.size += size
        return b'{"v":%d,%b,"rows":[%b]%b}' % (VERSION, place, b",".join(rows), more)

    def close(self) -> None:
        """Nothing more is written of it."""
        self._frozen.close()
