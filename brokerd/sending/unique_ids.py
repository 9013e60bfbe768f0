"""Names for messages whose client gave none."""

from __future__ import annotations

import os


class UniqueIds:
    """Process, start and a count, in the clients' 32-digit form. `next_number` is the count of the next name."""

    __slots__ = ("next_number", "prefix")

    def __init__(self, now_ms: int) -> None:
        self.prefix = f"{os.getpid() & 0xFFFF:04X}{now_ms & 0xFFFFFFFFFFFF:012X}"
        self.next_number = 0

    def __call__(self) -> str:
        """A name that nobody else gets."""
        self.next_number += 1
        return self.ahead(-1)

    def ahead(self, count: int) -> str:
        """The name that comes after so many others; it is not taken until `next_number` is moved on."""
        return f"{self.prefix}{self.next_number + count:016X}"
