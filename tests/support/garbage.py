"""What a piece of work leaves behind that only the collector of cycles can free."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collected() -> Iterator[list[object]]:
    """The list holds, after the block, the objects made in it that nobody could reach and that no count freed."""
    found: list[object] = []
    gc.collect()
    gc.freeze()  # what lives now is not walked through again, neither after the block nor before the next one
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found += gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
