"""`QueueFiles.write` of many queues over `brokerd/native/queue_files.c`. What C leaves (a file that is not there yet, units that
go on in the next one) is written here, by the twin."""

from __future__ import annotations

import ctypes
import os
from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

from brokerd.native.library import Library
from brokerd.native.memory import Pinned
from brokerd.store.queues.consume_queue import CHECKS_DIRECTORY, DIRECTORY, QueueFiles
from brokerd.store.unit import UNIT_BYTES
from remoting.disk import LocalDisk
from remoting.errors import StorageError

_IS_LEFT: Final = -1
_PART_NUMBERS: Final = 6  # of struct part: where its name is, its units, the first one, and the outcome


class UnitsOf(NamedTuple):
    """Units for the files of a directory, from unit `first` of the queue on; at least one."""

    directory: str
    first: int
    units: bytes


class _Writes(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_char_p) for name in ("queues", "checks")),
        *((name, ctypes.c_void_p) for name in ("names", "units", "parts")),
        *((name, ctypes.c_int64) for name in ("count", "file_units")),
    )


class NativeWrites:
    """Writes as `QueueFiles.write` does, several queues in a call. A helper thread may call it."""

    def __init__(self, library: Library, disk: LocalDisk, files: QueueFiles) -> None:
        self._write = library.function("native_write_units", None, ctypes.c_void_p)
        self._places = [os.fsencode(disk.full_path(f"{name}/")) for name in (DIRECTORY, CHECKS_DIRECTORY)]
        self._files = files

    def write(self, several: Sequence[UnitsOf]) -> None:
        """Make all of them durable. Raises StorageError."""
        names, numbers, units_at, name_at = [], array("q"), 0, 0
        for directory, first, units in several:
            name = os.fsencode(directory.removeprefix(f"{DIRECTORY}/"))
            names.append(name)
            numbers.extend((name_at, len(name), units_at, len(units) // UNIT_BYTES, first, _IS_LEFT))
            name_at += len(name)
            units_at += len(units)
        content = several[0].units if len(several) == 1 else b"".join([each.units for each in several])
        with Pinned(b"".join(names)) as names_begin, Pinned(content) as units_begin:
            parts, count = numbers.buffer_info()
            writes = _Writes(
                *self._places, names_begin, units_begin, parts, count // _PART_NUMBERS, self._files.file_units
            )
            self._write(ctypes.addressof(writes))
        self._files.note_written()
        for outcome, each in zip(numbers[_PART_NUMBERS - 1 :: _PART_NUMBERS], several, strict=True):
            if outcome > 0:
                reason = OSError(outcome, os.strerror(outcome))
                raise StorageError(f"cannot write units of {each.directory}: {reason.strerror}") from reason
            if outcome == _IS_LEFT:
                self._files.write(*each)
