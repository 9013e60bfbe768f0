"""Torn or rotten: what a record that does not match its checksum says about itself (pure)

A crash tears what no sync covered: bytes are missing. The file ends inside the record, or the file system made the file longer
and a sector's share of the record was never written, so that the whole share reads as zeros. What was torn was never
acknowledged, and is dropped. A record of its full length without such a share was written whole, and something changed it
since: it is rotten, and perhaps somebody counts on it. When in doubt it is rot: suspicion is safe, forgetting is not.

A share is what a sector of the disk and the record have in common. Disks write sectors of 512 bytes, or of a multiple of it, as
a whole, so nothing smaller is ever missing alone. A short share may be zeros by nature: the high bytes of numbers, padding, an
empty field. `LEAST_BYTES` zeros in a row are in no header of ours (the longest run, of a record without anything, is below 48);
bodies of messages may hold more, so who reads those needs another witness beside this one. A writer whose records begin and end
with a byte that is never zero, and hold no sector of zeros, may trust a share of any length.

Called by whoever recovers a log: `controllerd/raft/record_format.py`, `brokerd/store/start`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

SECTOR_BYTES: Final = 512
LEAST_BYTES: Final = 64


def is_torn(found: bytes | memoryview, position: int, length: int, *, least_bytes: int = LEAST_BYTES) -> bool:
    """Whether a record that does not match its checksum was torn by a crash; otherwise it is rotten.

    `found` is what the file holds of the record, `position` where that begins in the file, `length` how long the whole record is.
    `length` must be known for certain (by a checksum of its own, say): a flipped bit in it would make every record a short one.
    A share counts when it has at least `least_bytes`.
    """
    return len(found) < length or has_unwritten_sector(found[:length], position, least_bytes=least_bytes)


def has_unwritten_sector(found: bytes | memoryview, position: int, *, least_bytes: int = LEAST_BYTES) -> bool:
    """Whether some sector's share of these bytes, which begin at `position` of the file, is long enough and all zeros."""
    return any(len(share) >= least_bytes and not any(share) for share in shares(found, position))


def shares(found: bytes | memoryview, position: int) -> Iterator[memoryview]:
    """What each sector holds of the bytes that begin at `position` of the file."""
    view = memoryview(found)
    end = SECTOR_BYTES - position % SECTOR_BYTES
    start = 0
    while start < len(view):
        yield view[start:end]
        start, end = end, end + SECTOR_BYTES
