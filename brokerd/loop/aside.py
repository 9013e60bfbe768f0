"""Work beside the event loop: what mostly runs without the interpreter's lock, and touches nothing that the loop changes."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

_T = TypeVar("_T")

NICER: Final = 10  # than the others of their process: threads whose work nobody else should wait for
_NICEST: Final = 19


class HelperThreads:
    """So many at most; they are begun when they are needed, and end with the process."""

    def __init__(self, count: int, name: str, *, nicer: int = 0) -> None:
        self._threads = (
            ThreadPoolExecutor(count, name, be_nicer, (nicer,)) if nicer else ThreadPoolExecutor(count, name)
        )

    async def run(self, work: Callable[[], _T]) -> _T:
        """Its result. Raises what it raises."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def be_nicer(by: int) -> None:
    """This thread alone, where a system has that: Linux, where each has a priority of its own."""
    thread = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, thread, min(_NICEST, os.getpriority(os.PRIO_PROCESS, thread) + by))
