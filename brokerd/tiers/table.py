"""What this broker group has in its tier, as its log says (pure).

Records, JSON objects with `v`, the version of their layout:

    changed {v, epoch, number, changes: [change, ...]}: the manifest's object of that epoch and number says the same
    snapshot rows: ["p", epoch, number], and changes that make the contents (`remoting.tier.contents`)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, Final

from remoting.errors import CorruptedFile
from remoting.tier.contents import COMMITTED, CUT, DROPPED, GROWN, Change, Queue, TierContents
from remoting.tier.manifest import Position

TIERS_TOPIC: Final = "rmq_sys_logboom_tiers"

MOST_CHANGES: Final = 1000  # of a record, and of an object of the manifest that is no checkpoint
VERSION: Final = 1
CHANGED: Final = "changed"

NOWHERE: Final = Position(-1, -1)  # nothing was ever written to a manifest


class TierTable:
    """A `journal.replay.Table`. The manifest up to `position` is in it."""

    def __init__(self) -> None:
        self.contents = TierContents()
        self.position = NOWHERE
        self._committed: dict[Queue, None] = {}
        self.listeners: list[
            Callable[[str | None], None]
        ] = []  # of what is not there any more: a topic, or None for anything

    def clear(self) -> None:
        self._become(TierTable())

    def begin_again(self) -> tuple[TierTable, Callable[[], None]]:
        """An empty table to be filled, and what makes this one the same."""
        fresh = TierTable()
        return fresh, partial(self._become, fresh)

    def freeze(self) -> Frozen:
        return Frozen(self.position, self.contents.copy())

    def apply(self, kind: str, body: Any, end_offset: int) -> None:
        place = f"the record of the tier that ends at {end_offset} of the commitlog"
        if kind != CHANGED:
            raise CorruptedFile(
                f"{place} is of kind {kind[:40]!r}, which this version does not know: start the version that wrote it"
            )
        try:
            for change in body["changes"]:
                self.contents.apply(change)
                if change[0] in (COMMITTED, GROWN):
                    self._committed[Queue(change[1], change[2])] = None
                if change[0] in (CUT, DROPPED):
                    self._tell(change[1])
        except ValueError as error:
            raise CorruptedFile(f"{place}: {error}") from error
        self.position = Position(body["epoch"], body["number"])

    def snapshot_rows(self) -> Iterator[Any]:
        return self.freeze().rows()

    def load_row(self, row: Any) -> None:
        match row:
            case ["p", int(epoch), int(number)]:
                self.position = Position(epoch, number)
            case _:
                try:
                    self.contents.apply(row)
                except ValueError as error:
                    raise CorruptedFile(f"a snapshot of the tier: {error}") from error

    def take_committed(self) -> Collection[Queue]:
        """The queues that got messages since this was asked last."""
        committed, self._committed = self._committed, {}
        return committed

    def _become(self, other: TierTable) -> None:
        """Be what another one is, which nobody uses any more."""
        self.contents, self.position = other.contents, other.position
        self._tell(None)

    def _tell(self, topic: str | None) -> None:
        for listener in self.listeners:
            listener(topic)


class Frozen:
    """What a table was when it was made, whatever becomes of that."""

    def __init__(self, position: Position, contents: TierContents) -> None:
        self._position = position
        self._contents = contents

    def rows(self) -> Iterator[Any]:
        if self._position != NOWHERE:
            yield ["p", *self._position]
        yield from self._contents.rows()

    def close(self) -> None:
        """Nothing was kept for it that anybody else waits for."""


def changed(position: Position, changes: Sequence[Change]) -> tuple[str, dict[str, Any]]:
    """The record: kind and body."""
    return CHANGED, {"v": VERSION, "epoch": position.epoch, "number": position.number, "changes": list(changes)}


def records_of(changes: Sequence[Change], before: Position, position: Position) -> list[tuple[str, dict[str, Any]]]:
    """As many records as it takes. With the last one the table is where the manifest is; who has the first ones alone is where he
    was `before`, and reads the manifest from a checkpoint of a later epoch on."""
    parts = [changes[at : at + MOST_CHANGES] for at in range(0, len(changes), MOST_CHANGES)] or [changes]
    return [changed(before, part) for part in parts[:-1]] + [changed(position, parts[-1])]
