"""How far a round of the scrubber is, so that the next start goes on there (pure).

    offset, beganMs, endedMs, CRC-32 of these with a space behind each: decimal numbers, separated by spaces

`endedMs` is -1 while a round goes on; times are the wall's. What cannot be read is no loss: the round begins again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from remoting.checksum import crc32

PATH: Final = "scrub"


@dataclass(slots=True)
class Progress:
    """`offset` is a record boundary of the log: what is before it was looked at in the round that began at `began_ms`."""

    offset: int = 0
    began_ms: int = -1
    ended_ms: int = -1


def encode(progress: Progress) -> bytes:
    numbers = f"{progress.offset} {progress.began_ms} {progress.ended_ms} ".encode()
    return numbers + str(crc32(numbers)).encode()


def decode(content: bytes | None) -> Progress:
    """The progress; of a round that has not begun when there is none, or it is damaged."""
    numbers, _, checksum = (content or b"").rpartition(b" ")
    if not numbers or str(crc32(numbers + b" ")).encode() != checksum:
        return Progress()
    offset, began_ms, ended_ms = map(int, numbers.split())
    return Progress(offset, began_ms, ended_ms)
