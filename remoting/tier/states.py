"""What a mount needs of a broker group besides its messages: topics, groups and consumer offsets, an object at a time (pure).

    [row, ...], as the snapshots of the broker's metadata have them

and as `checked_json` stores it. The object of the highest epoch and number counts, as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from remoting.tier.checked_json import Layout, decode_json, encode_json

MAX_BYTES: Final = 256 << 20  # as stored
_LAYOUT: Final = Layout(b"LBSTAT\x00\x01", "state of a broker group")

Row = list[Any]


def encode_state(rows: Sequence[Row]) -> bytes:
    """As it is stored; equal rows give equal bytes."""
    return encode_json(_LAYOUT, rows)


def decode_state(content: bytes, name: str) -> list[Row]:
    """Raises ValueError, whose text names the object, when that is none, is damaged, or is of a version that is not known."""
    rows = decode_json(_LAYOUT, content, name)
    if not isinstance(rows, list) or not all(isinstance(row, list) and row for row in rows):
        raise ValueError(f"{name} cannot be read: it holds no rows")
    return rows
