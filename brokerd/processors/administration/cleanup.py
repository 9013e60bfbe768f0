"""Cleaning up when an administrator asks: codes 306 (queue files), 316 (queues of unknown topics) and 329 (expired log files).

All of it by the rules that hold anyway: nothing goes that is not expired, that somebody still needs, or that the log could bring
back otherwise. What changes the group's state is recorded by the master, and its replicas follow; on a replica the requests clean
what is its own and succeed, as tools send them to every broker of a cluster.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from brokerd.metadata import records
from brokerd.metadata.service import MetadataService
from brokerd.store.housekeeping import Housekeeper
from brokerd.store.store import MessageStore
from remoting import codes
from remoting.errors import RequestError, raise_refusal
from remoting.frame import Command
from remoting.transport.connection import Handler, RemotingConnection
from remoting.transport.server import spawned
from remoting.transport.tasks import TaskOwner

log = logging.getLogger(__name__)

_QUEUES_PER_RECORD: Final = 2000
_TOPICS_PER_RECORD: Final = 500

Queue = tuple[str, int]


@dataclass(slots=True, eq=False)
class CleanupProcessor:
    """The handlers. `is_system_topic` names the topics that are there without a configuration."""

    queues: MessageStore
    files: Housekeeper
    metadata: MetadataService
    is_system_topic: Callable[[str], bool]
    is_master: Callable[[], bool]
    now_ms: Callable[[], int]
    tasks: TaskOwner = field(default_factory=lambda: TaskOwner("cleanup"))
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)

    def handlers(self) -> dict[int, Handler]:
        return {
            codes.CLEAN_EXPIRED_CONSUMEQUEUE: spawned(self.tasks, self._one_at_a_time(self._expired_queues)),
            codes.CLEAN_UNUSED_TOPIC: spawned(self.tasks, self._one_at_a_time(self._unused_topics)),
            codes.DELETE_EXPIRED_COMMITLOG: spawned(self.tasks, self._one_at_a_time(self._expired_log)),
        }

    async def close(self) -> None:
        await self.tasks.close()

    def _one_at_a_time(
        self, clean: Callable[[], Coroutine[None, None, str]]
    ) -> Callable[[RemotingConnection, Command], Coroutine[None, None, None]]:
        """One cleaning at a time; its sentence is the answer's remark."""

        async def handle(connection: RemotingConnection, request: Command) -> None:
            async with self.busy:
                done = await clean()
            log.info("%s asked to clean up: %s", connection.peer, done)
            connection.respond(request, remark=done)

        return handle

    async def _expired_log(self) -> str:
        """329"""
        return f"{await self.files.remove_expired_now()} expired files of the log are removed"

    async def _expired_queues(self) -> str:
        """306: files in front of the log's begin, and queues that hold no message any more. Where these go on is recorded, so no
        offset is given out twice, and consumers go on where they were."""
        removed = await self.files.remove_queue_files()
        emptied: dict[Queue, int] = {}
        if self.is_master():
            found = self.queues.expired_queues()
            emptied = {key: end for key, end in found.items() if not self.is_system_topic(key[0])}
            await self._record(
                records.queues_emptied(dict(part), self.now_ms())
                for part in _parts(list(emptied.items()), _QUEUES_PER_RECORD)
            )
        return f"{removed} files of consume queues are removed, and those of {len(emptied)} queues without a message"

    async def _unused_topics(self) -> str:
        """316: queues of topics that nobody made, or that were deleted where this log did not see it."""
        if not self.is_master():
            return "a replica follows its master"
        known = self.metadata.topics()
        unused = sorted(
            topic
            for topic in self.queues.topics_with_queues()
            if topic not in known and not self.is_system_topic(topic)
        )
        await self._record(
            records.record(records.TOPICS_DELETED, self.now_ms(), names=list(part))
            for part in _parts(unused, _TOPICS_PER_RECORD)
        )
        return f"the queues of {len(unused)} topics that do not exist are removed"

    async def _record(self, decisions: Any) -> None:
        """Raises RequestError when they were not acknowledged."""
        outcome: asyncio.Future[RequestError | None] = asyncio.get_running_loop().create_future()

        def done(error: RequestError | None) -> None:
            if not outcome.done():
                outcome.set_result(error)

        self.metadata.record(list(decisions), done)
        raise_refusal(await outcome)


def _parts(items: Sequence[Any], size: int) -> list[Any]:
    return [items[first : first + size] for first in range(0, len(items), size)]
