"""The error of a reader that finds a record which is not what was stored, and where that is (pure)."""

from __future__ import annotations

from remoting.errors import CorruptedFile


class DamagedRecord(CorruptedFile):
    """No intact record starts at `physical_offset`, where one was appended. Another replica may have it."""

    def __init__(self, physical_offset: int, message: str) -> None:
        super().__init__(message)
        self.physical_offset = physical_offset
