"""Memory that uploads use again and again: the system takes longer to find new memory than the bytes take to be copied there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

BUFFER_BYTES: Final = 1 << 20

_KEPT: Final = 32  # between uploads


class Buffers:
    """Those that nobody uses at the moment; all have `BUFFER_BYTES`."""

    def __init__(self) -> None:
        self._free: list[bytearray] = []

    def take(self) -> bytearray:
        """One that is the caller's; its content is whatever it was."""
        return self._free.pop() if self._free else bytearray(BUFFER_BYTES)

    def give_back(self, buffers: Iterable[bytearray]) -> None:
        """Nobody looks at them any more. Others than those that were taken are left to the system."""
        room = _KEPT - len(self._free)
        self._free += [each for each in buffers if len(each) == BUFFER_BYTES][:room]
