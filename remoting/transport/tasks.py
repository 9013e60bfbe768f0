"""An owner for background tasks: none is lost, none outlives its owner, and an error in one is logged.

For work that may await (administration, connects, timers). Never used per message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger(__name__)


class TaskOwner:
    """Keeps the tasks that it started; `close` cancels and awaits them."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    def spawn(self, work: Coroutine[Any, Any, Any], what: str) -> None:
        """Run `work` in the background; `what` names it in the log."""
        if self._closed:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work, name=f"{self._name}: {what}")
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    async def close(self) -> None:
        """Cancel what still runs and wait until it ended."""
        self._closed = True
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed", task.get_name(), exc_info=error)
