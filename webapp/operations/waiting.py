"""Waiting for the end of an operation: its announcement says when to look at its row, and nothing asks the database meanwhile."""

from __future__ import annotations

import asyncio
import logging

from asgiref.sync import async_to_sync

from webapp.announce import LAYER_ERRORS, hearing
from webapp.operations.models import Operation

log = logging.getLogger(__name__)

MAX_WAIT_S = 10.0


def wait(operation: Operation, seconds: float) -> Operation:
    """Wait until the operation is finished, at most so long; its row says what it is then, whatever became of the channel layer.

    Views are synchronous, so a request that waits keeps its thread and its database connection. Under ASGI that thread belongs to
    the request alone: nobody else waits for it, and the waiting itself is a coroutine on the server's own loop. Anywhere else
    each call runs a loop of its own.
    """
    seconds = min(seconds, MAX_WAIT_S)
    if seconds > 0 and not operation.finished:
        async_to_sync(_follow)(operation, seconds)
        if not operation.finished:
            operation.refresh_from_db()
    return operation


async def _follow(operation: Operation, seconds: float) -> None:
    """Return when the row says that the operation is finished, or when the time is over."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + seconds
    try:
        async with hearing(Operation.group_of(operation.pk), until_s) as hear:
            await operation.arefresh_from_db()  # it may have ended before we could hear of it
            if not operation.finished:
                while not (await hear())["finished"]:
                    pass
                await operation.arefresh_from_db()
    except LAYER_ERRORS as error:  # a TimeoutError is one of them
        left_s = until_s - loop.time()
        if left_s > 0:
            log.warning("hearing of operation %s failed, looking again in %.1f s: %s", operation.pk, left_s, error)
            await asyncio.sleep(left_s)
