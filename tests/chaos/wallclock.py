"""The settable wall clock of a daemon: makes the clock jump, and says that it did.

A time namespace can move the monotonic clocks only, which is the opposite of what is wanted; so a small library is loaded before
libc into the daemons of the one scenario that needs it, and the daemons' own code has no seam for it.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

from tests.chaos.shim import compile_shim, preloading

_SOURCE: Final = Path(__file__).with_name("wallclock.c")
_CLOCK: Final = struct.Struct("=qQ")


class WallClock:
    """One process's wall clock, ahead of the machine's by what `jump` says."""

    def __init__(self, directory: Path, name: str) -> None:
        """Raises RuntimeError when the shim does not compile."""
        self._file = directory / f"{name}.clock"
        self._file.write_bytes(_CLOCK.pack(0, 0))
        self.environment = preloading(compile_shim(_SOURCE, directory), "CHAOS_WALL_CLOCK", self._file)

    def jump(self, offset_s: int) -> None:
        with open(self._file, "r+b") as file:
            file.write(struct.pack("=q", offset_s * 1_000_000_000))

    @property
    def times_told(self) -> int:
        """How often the process was told a time that is not the machine's."""
        _, count = _CLOCK.unpack(self._file.read_bytes())
        return int(count)
