"""The objects of a manifest: a checkpoint of all contents, and what changed since, one object each (pure).

    {epoch, number, checkpoint, epochs: [[master epoch, start in the log], ...], changes: [change, ...]}

as `checked_json` stores it.

Numbers of an epoch are consecutive from 0 on, and 0 is a checkpoint. Whoever wants the contents takes the last checkpoint of
the highest epoch, and what follows it by number. `epochs` says which log they were made of: what was uploaded belongs to it up
to where another log goes apart.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from remoting.tier.checked_json import Layout, decode_json, encode_json
from remoting.tier.contents import Change

_LAYOUT: Final = Layout(b"LBTIER\x00\x01", "manifest")


class Position(NamedTuple):
    """Which object of the manifest."""

    epoch: int
    number: int


class ManifestPart(NamedTuple):
    """One object. `epochs` are the log's: (master epoch, where it begins)."""

    position: Position
    is_checkpoint: bool
    epochs: list[tuple[int, int]]
    changes: list[Change]


def encode_part(part: ManifestPart) -> bytes:
    """As it is stored."""
    return encode_json(
        _LAYOUT,
        {
            "epoch": part.position.epoch,
            "number": part.position.number,
            "checkpoint": part.is_checkpoint,
            "epochs": part.epochs,
            "changes": part.changes,
        },
    )


def decode_part(content: bytes, name: str) -> ManifestPart:
    """Raises ValueError, whose text names the object, when that is none, is damaged, or is of a version that is not known."""
    document = decode_json(_LAYOUT, content, name)
    try:
        return _part(document)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ValueError(f"{name} cannot be read: {error}") from error


def _part(document: Any) -> ManifestPart:
    epoch, number, changes = document["epoch"], document["number"], document["changes"]
    epochs = [(each[0], each[1]) for each in document["epochs"]]
    whole = [epoch, number, *(value for entry in epochs for value in entry)]
    if not all(type(value) is int and value >= 0 for value in whole) or not isinstance(changes, list):
        raise ValueError("its numbers or its changes are none")
    return ManifestPart(Position(epoch, number), document["checkpoint"] is True, epochs, changes)
