"""The objects of a manifest: a checkpoint of all contents, and what changed since, one object each (pure).

    {epoch, number, checkpoint, epochs: [[master epoch, start in the log], ...], changes: [change, ...]}

as `checked_json` stores it.

Numbers of an epoch are consecutive from 0 on, and 0 is a checkpoint, or the first piece of one. Whoever wants the contents takes
the last checkpoint of the highest epoch, and what follows it by number. `epochs` says which log they were made of: what was
uploaded belongs to it up to where another log goes apart.

A large checkpoint is several objects, so that nobody makes or reads all of it at once: pieces, with `piece`, counted from 0 on,
and `last`. It counts when its last piece is there; until then the one before it does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

from remoting.tier.checked_json import Layout, decode_json, encode_json
from remoting.tier.contents import GROWN, MERGED, Change, Queue, TierContents
from remoting.tier.segments import Segment

PIECE_ROWS: Final = 500

_LAYOUT: Final = Layout(b"LBTIER\x00\x01", "manifest")
_OF_PIECES: Final = Layout(b"LBTIER\x00\x02", "manifest")


class Position(NamedTuple):
    """Which object of the manifest."""

    epoch: int
    number: int


class ManifestPart(NamedTuple):
    """One object. `epochs` are the log's: (master epoch, where it begins). `piece` and `is_last` are those of a checkpoint."""

    position: Position
    is_checkpoint: bool
    epochs: list[tuple[int, int]]
    changes: list[Change]
    piece: int = 0
    is_last: bool = True

    @property
    def is_begin(self) -> bool:
        """Whether it is a checkpoint, or the first piece of one."""
        return self.is_checkpoint and self.piece == 0


class Followed:
    """What the parts of a manifest make of contents, one after the other."""

    def __init__(self, contents: TierContents) -> None:
        """They are changed, until a checkpoint takes their place."""
        self.contents = contents
        self._begun: TierContents | None = None  # of a checkpoint whose last piece is still to come

    def take(self, part: ManifestPart) -> list[tuple[Queue, Segment]]:
        """The next part; what it merged, and what was there of what grew. Raises ValueError when it does not fit what precedes
        it."""
        if not part.is_checkpoint:
            self._begun = None  # its writer went on without its end
            return [each for change in part.changes for each in self._replaced_by(change)]
        if part.is_begin:
            self._begun = TierContents()
        if self._begun is None:
            raise ValueError(f"piece {part.piece} of a checkpoint follows no piece {part.piece - 1}")
        for change in part.changes:
            self._begun.apply(change)
        if part.is_last:
            self.contents, self._begun = self._begun, None
        return []

    def _replaced_by(self, change: Change) -> list[tuple[Queue, Segment]]:
        """Carry it out; the segments in whose place it put one of the same messages."""
        match change:
            case [str(kind), str(topic), int(queue_id), _] if kind == GROWN:
                queue = Queue(topic, queue_id)
                before = self.contents.queues.get(queue)  # which stays as it is
                self.contents.apply(change)
                return [(queue, before.last)] if before is not None else []
        gone = self.contents.apply(change)
        return gone if change[0] == MERGED else []


def has_whole_checkpoint(parts: Iterable[ManifestPart]) -> bool:
    """Whether the last piece of a checkpoint is among them, which follow each other and begin with the first one."""
    return any(part.is_checkpoint and part.is_last for part in parts)


def in_pieces(rows: Iterable[Change], most: int) -> Iterator[tuple[list[Change], bool]]:
    """What each piece of a checkpoint has, at least one piece, and whether it is the last one."""
    rest = iter(rows)
    piece = list(islice(rest, most))
    while True:
        following = list(islice(rest, most))
        yield piece, not following
        if not following:
            return
        piece = following


def encode_part(part: ManifestPart) -> bytes:
    """As it is stored."""
    document = {
        "epoch": part.position.epoch,
        "number": part.position.number,
        "checkpoint": part.is_checkpoint,
        "epochs": part.epochs,
        "changes": part.changes,
    }
    if part.is_last and not part.piece:
        return encode_json(_LAYOUT, document)
    return encode_json(_OF_PIECES, document | {"piece": part.piece, "last": part.is_last})


def decode_part(content: bytes, name: str) -> ManifestPart:
    """Raises ValueError, whose text names the object, when that is none, is damaged, or is of a version that is not known."""
    is_piece = content.startswith(_OF_PIECES.magic)
    document = decode_json(_OF_PIECES if is_piece else _LAYOUT, content, name)
    try:
        part = _part(document)
        return _piece(part, document["piece"], document["last"]) if is_piece else part
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ValueError(f"{name} cannot be read: {error}") from error


def _part(document: Any) -> ManifestPart:
    epoch, number, changes = document["epoch"], document["number"], document["changes"]
    epochs = [(each[0], each[1]) for each in document["epochs"]]
    whole = [epoch, number, *(value for entry in epochs for value in entry)]
    if not all(type(value) is int and value >= 0 for value in whole) or not isinstance(changes, list):
        raise ValueError("its numbers or its changes are none")
    return ManifestPart(Position(epoch, number), document["checkpoint"] is True, epochs, changes)


def _piece(part: ManifestPart, piece: Any, is_last: Any) -> ManifestPart:
    if type(piece) is not int or piece < 0 or type(is_last) is not bool or not part.is_checkpoint:
        raise ValueError("it is no piece of a checkpoint")
    return part._replace(piece=piece, is_last=is_last)
