"""Work beside the event loop: what mostly runs without the interpreter's lock, and touches nothing that the loop changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")


class HelperThreads:
    """So many at most; they are begun when they are needed, and end with the process."""

    def __init__(self, count: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(count, name)

    async def run(self, work: Callable[[], _T]) -> _T:
        """Its result. Raises what it raises."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)
