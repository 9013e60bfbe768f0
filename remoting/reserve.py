"""A little room of a directory that is kept for when its disk is full.

Whoever gives up a lead, or starts, has to write down a line or two first. A disk without a free byte would end the process for
that, while its log, which is refused like everybody's, waits for room in peace. So one file of a page is written when there is
room, and becomes the small file that has to be replaced when there is none; the one that was replaced leaves room for the next
one. Where nothing is overwritten in place this does not help, and the refusal stands.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

_NAME: Final = "reserve"
_BYTES: Final = 4096


class Reserve:
    """Any thread may use it: it is one file, which is taken as a whole."""

    def __init__(self, root: Path) -> None:
        self._path = root / _NAME
        self.refill()

    def refill(self) -> None:
        """Set the room aside, if it is not and the disk has it."""
        with contextlib.suppress(OSError):
            if self._path.stat().st_size == _BYTES:
                return
        try:
            with open(self._path, "wb", opener=open_private) as file:
                file.write(b"\xff" * _BYTES)  # a hole in a file would be no room
                file.flush()
                os.fsync(file.fileno())
        except OSError:  # a part of it is no room
            with contextlib.suppress(OSError):
                self._path.unlink()

    def write(self, path: Path, content: bytes) -> bool:
        """Make a file of that content, durably, out of what was set aside; False when that was not possible."""
        if len(content) > _BYTES:
            return False
        try:
            os.replace(self._path, path)
            with open(path, "r+b") as file:
                file.write(content)
                file.truncate()
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            with contextlib.suppress(OSError):
                path.unlink()
            return False
        return True


def open_private(path: str, flags: int) -> int:
    """An opener of files that only their owner may read."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
