"""What all viewers of one subject have in common in this process: one ear for its announcements, and each build once.

A `Feed` belongs to the subject's channels group for as long as somebody follows it here. When the subject is announced, and every
`LOOK_AGAIN_S` in any case, a new `Moment` begins and the followers are woken; what comes within `PAUSE_S` is one moment. A lost
announcement so costs a delay, and a channel layer that fails costs no more: it is heard again when it is back.

A build belongs to its moment and to a key that names everything its outcome depends on (state, question, rights, time zone): the
first who asks has it made, all others of the moment are given the same, also who comes late. Nothing of a moment outlives it, so
what is shared is never older than `LOOK_AGAIN_S`. The next moment waits until nothing is being built: there is one builder at a
time, however slow. Called by `webapp.push`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from channels.db import database_sync_to_async

from webapp.announce import LAYER_ERRORS, hearing

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 2.0
PAUSE_S = 0.05
REJOIN_S = 30.0  # a channel layer that was restarted has forgotten who belongs to which group
MOST_BUILDS = 32  # that one moment keeps; more are made again when somebody asks

Built = TypeVar("Built")


class Moment:
    """What was built of a subject since something was last heard of it."""

    def __init__(self) -> None:
        self._builds: dict[Hashable, asyncio.Task[Any]] = {}

    async def built(self, key: Hashable, build: Callable[[], Built]) -> Built:
        """The build for the key; `build` is called in the database's thread when nobody had it made yet.

        What it raises reaches all who wait for it; who asks afterwards has it built anew.
        """
        task = self._builds.get(key)
        if task is None or _failed(task):
            self._make_room()
            task = self._builds[key] = asyncio.create_task(database_sync_to_async(build)())
        result: Built = await asyncio.shield(task)  # one who leaves takes it from nobody
        return result

    async def settled(self) -> None:
        """Wait until what is being built now is built."""
        while running := [task for task in self._builds.values() if not task.done()]:
            await asyncio.wait(running)

    def _make_room(self) -> None:
        """Forget the oldest build. One that is being made stays: there are no more of them than followers."""
        if len(self._builds) >= MOST_BUILDS:
            oldest = next((key for key, task in self._builds.items() if task.done()), None)
            self._builds.pop(oldest, None)


def _failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


class Feed:
    """One subject that somebody follows; made and ended by `following`."""

    def __init__(self, group: str) -> None:
        self.moment = Moment()
        self.followers: set[asyncio.Event] = set()
        self._group = group
        self._announced = asyncio.Event()
        self._tasks = [asyncio.create_task(self._hear()), asyncio.create_task(self._tell())]

    async def end(self) -> None:
        """Hear and tell no more. Raises what ended one of both before."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        await self.moment.settled()

    async def _hear(self) -> None:
        """Belong to the channels group."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with hearing(self._group, loop.time() + REJOIN_S) as hear:
                    self._announced.set()  # what was announced before is not heard
                    while True:
                        await hear()
                        self._announced.set()
            except TimeoutError:
                continue
            except LAYER_ERRORS as error:
                log.warning("%s is not heard, and looked at every %.0f s: %s", self._group, LOOK_AGAIN_S, error)
                await asyncio.sleep(LOOK_AGAIN_S)

    async def _tell(self) -> None:
        """Begin moments."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_AGAIN_S):
                    await self._announced.wait()
            await self.moment.settled()
            self._announced.clear()
            self.moment = Moment()
            for wake in self.followers:
                wake.set()
            await asyncio.sleep(PAUSE_S)


_feeds: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Feed]] = WeakKeyDictionary()


@asynccontextmanager
async def following(group: str, wake: asyncio.Event) -> AsyncIterator[Feed]:
    """Follow the subject that is announced to the channels group: inside the block, each new moment of it sets `wake`."""
    feeds = _feeds.setdefault(asyncio.get_running_loop(), {})
    feed = feeds.get(group)
    if feed is None:
        feed = feeds[group] = Feed(group)
    feed.followers.add(wake)
    try:
        yield feed
    finally:
        feed.followers.discard(wake)
        if not feed.followers:
            del feeds[group]
            await feed.end()
