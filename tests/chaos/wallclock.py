"""The settable wall clock of a daemon: compiles the shim once per run, makes the clock jump, and says that it did.

A time namespace can move the monotonic clocks only, which is the opposite of what is wanted; so a small library is loaded before
libc into the daemons of the one scenario that needs it, and the daemons' own code has no seam for it.
"""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path
from typing import Final

_SOURCE: Final = Path(__file__).with_name("wallclock.c")
_CLOCK: Final = struct.Struct("=qQ")


def compile_shim(directory: Path) -> Path:
    """The shared object; raises RuntimeError with the compiler's words."""
    target = directory / "wallclock.so"
    if not target.exists():
        command = ["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(target), str(_SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the clock shim does not compile: {done.stderr}")
    return target


class WallClock:
    """One process's wall clock, ahead of the machine's by what `jump` says."""

    def __init__(self, shim: Path, file: Path) -> None:
        self._file = file
        file.write_bytes(_CLOCK.pack(0, 0))
        self.environment = {"LD_PRELOAD": str(shim), "CHAOS_WALL_CLOCK": str(file)}

    def jump(self, offset_s: int) -> None:
        with open(self._file, "r+b") as file:
            file.write(struct.pack("=q", offset_s * 1_000_000_000))

    @property
    def times_told(self) -> int:
        """How often the process was told a time that is not the machine's."""
        _, count = _CLOCK.unpack(self._file.read_bytes())
        return int(count)
