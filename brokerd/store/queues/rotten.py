"""The mark of a start that met a unit which the log contradicts: the next start derives all consume queues from the log again.

A file whose presence counts, whatever its bytes suffer; what it says is for people. It goes when the checkpoint page
says that the queues are to be derived from the log's first record on, as that outlives a crash by itself.
"""

from __future__ import annotations

from typing import Final

from remoting.disk import Disk

PATH: Final = "queuesAreRotten"


def mark(disk: Disk, why: str) -> None:
    """Durable when it returns. Raises StorageError."""
    disk.replace_bytes(PATH, why.encode())


def is_marked(disk: Disk) -> bool:
    return disk.exists(PATH)


def unmark(disk: Disk) -> None:
    """Raises StorageError."""
    if disk.exists(PATH):
        disk.remove(PATH)
