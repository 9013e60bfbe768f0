"""Waits for the disk: a file system frees the room of deleted files later, and lets every sync wait meanwhile."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Final

_SYNCS: Final = 20
_PAGE: Final = bytes(4096)
_SLOWEST_S: Final = 0.02  # of the syncs of one page on an idle disk
_PATIENCE_S: Final = 60.0


def settle_disk(directory: Path) -> float:
    """Write out what waits in memory, then sync single pages of a file until none takes long, or it never ends; the median of
    the last ones, in milliseconds."""
    os.sync()
    deadline_s = time.monotonic() + _PATIENCE_S
    path = directory / "probe"
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
    try:
        while True:
            took_s = [_sync_page(descriptor) for _ in range(_SYNCS)]
            if max(took_s) < _SLOWEST_S or time.monotonic() > deadline_s:
                return statistics.median(took_s) * 1000
    finally:
        os.close(descriptor)
        path.unlink()


def _sync_page(descriptor: int) -> float:
    start_s = time.monotonic()
    os.pwrite(descriptor, _PAGE, 0)
    os.fdatasync(descriptor)
    return time.monotonic() - start_s
