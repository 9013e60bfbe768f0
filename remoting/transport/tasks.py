"""An owner for background tasks: none is lost, none outlives its owner, and an error in one is logged.

For work that may await (administration, connects, timers). Never used per message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from typing import Any

log = logging.getLogger(__name__)

_ASK_AGAIN_S = 1.0


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel the tasks and wait until they have ended, whatever they end with.

    Asks again after a second: up to Python 3.11, `asyncio.wait_for` in a library swallows a cancellation that comes together with
    its result.
    """
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        ended, pending = await asyncio.wait(pending, timeout=_ASK_AGAIN_S)
        for task in ended:
            if not task.cancelled():
                task.exception()  # looked at, so that nobody complains


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
        await end_tasks(task for task in self._tasks if task is not asyncio.current_task())

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed", task.get_name(), exc_info=error)
