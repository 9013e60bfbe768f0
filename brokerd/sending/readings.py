"""What the library read of frames, so that nobody reads them again (pure).

The library finds out what is signed of a send by reading its header; who lays the send out needs the same of it. So what is
laid out is what was checked, and is read once.
"""

from __future__ import annotations

from collections.abc import Sequence


class Reading:
    """Of so many frames at the beginning of a buffer. It lies in memory that the library writes to again and again: `times_begun`
    has one number while it is there, and another one as soon as something else may be. `kept` is that memory, and what else must
    stay where it is."""

    __slots__ = ("_address", "_begun", "_buffer", "_count", "_kept", "_times_begun")

    def __init__(self, buffer: bytes, address: int, count: int, times_begun: Sequence[int], kept: object) -> None:
        self._buffer = buffer
        self._address = address
        self._count = count
        self._times_begun = times_begun
        self._begun = times_begun[0]
        self._kept = kept

    def of(self, buffer: bytes) -> tuple[int, int]:
        """Where it lies, and of how many frames it is; of none when it is gone, or of another buffer than this very one, whose
        bytes cannot change."""
        if buffer is not self._buffer or self._times_begun[0] != self._begun:
            return 0, 0
        return self._address, self._count
