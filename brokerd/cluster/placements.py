"""Keeps this broker's placements with the controllers: reports to their leader, and takes what changed.

Every broker says that it knows of placements, as a group is counted only when all who could lead it do. The master tells its
topics, and what it has prepared for, and hears of changes; it asks at once when something changed here or the controllers say so,
ten times a second while a change is under way or its topics are wanted, and every second anyway, as replicas do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final

import orjson

from brokerd.metadata.configs import PERM_WRITE, TopicConfig
from brokerd.placement.service import PlacementService
from brokerd.replication.replica import Replica
from remoting import codes
from remoting.errors import LogboomError, ProtocolError
from remoting.facts.codec import encode, read
from remoting.facts.placements import MESSAGE_TYPES, PlacementNews, PlacementReport, TopicPlacement
from remoting.frame import Command
from remoting.names import is_system_topic
from remoting.transport.beats import until_last_beat
from remoting.transport.connection import Handler, RemotingConnection
from remoting.transport.server import each
from remoting.transport.tasks import TaskOwner

log = logging.getLogger(__name__)

_REPORT_S: Final = 1.0
_SOON_S: Final = 0.1  # while a change is under way
_UNKNOWN_S: Final = 5.0  # controllers of releases without placements
_MOST_TOLD: Final = 500  # topics, in one answer
_TAKEN_AT_ONCE: Final = 50  # topics, in one turn of the loop: some milliseconds

Ask = Callable[[int, Mapping[str, str], bytes], Awaitable[Command]]
Topics = Callable[[], Mapping[str, TopicConfig]]


class PlacementFollower:
    """Started and stopped by its owner. `ask` brings a request to the controllers' leader."""

    def __init__(
        self, placements: PlacementService, replica: Replica, topics: Topics, ask: Ask, broker_name: str
    ) -> None:
        self._placements = placements
        self._replica = replica
        self._topics = topics
        self._ask = ask
        self._broker_name = broker_name
        self._tasks = TaskOwner("placements")
        self._is_due = asyncio.Event()
        self._told: Mapping[str, int] = {}  # what `_table` is the number of
        self._table = 0
        self._topics_changed = True
        self._tells_topics = True

    def start(self) -> None:
        self._tasks.spawn(self._follow(), "follow placements")

    async def close(self) -> None:
        await self._tasks.close()

    def handlers(self) -> dict[int, Handler]:
        return {codes.PLACEMENTS_CHANGED: each(self._changed)}

    def topics_changed(self) -> None:
        """Topics are others now."""
        self._topics_changed = True
        self.wake()

    def wake(self) -> None:
        """Ask soon."""
        self._is_due.set()

    # ---- inside

    def _changed(self, connection: RemotingConnection, request: Command) -> None:
        """The controllers have news. Anybody can say that, so it is only a reason to ask."""
        self.wake()
        connection.respond(request)

    async def _follow(self) -> None:
        while True:
            self._is_due.clear()
            pause_s = await self._report() if self._replica.broker_id is not None else _SOON_S
            await until_last_beat(pause_s, self._is_due)

    async def _report(self) -> float:
        """Report once; how long to wait for the next time."""
        placements, replica = self._placements, self._replica
        is_master, epoch = replica.is_master, replica.master_epoch
        ext = {"brokerName": self._broker_name, "brokerId": str(replica.broker_id)}
        body = b""
        if is_master:
            self._look_at_topics()
            topics = self._told if self._tells_topics else None
            body = encode(PlacementReport(topics, placements.prepared()))
            ext |= {
                "masterEpoch": str(epoch),
                "table": str(self._table),
                "revision": str(placements.revision),
                "complete": str(placements.complete),
                "most": str(_MOST_TOLD),
            }
        try:
            answer = await self._ask(codes.REPORT_PLACEMENTS, ext, body)
            if answer.code != codes.SUCCESS:
                log.debug("the controllers take no report of placements: %s", answer.remark)
                return _UNKNOWN_S if answer.code == codes.REQUEST_CODE_NOT_SUPPORTED else _REPORT_S
            if is_master and await self._take(bytes(answer.body), epoch):
                return 0
        except LogboomError as error:
            log.debug("placements stay as they were: %s", error)
            return _REPORT_S
        return _SOON_S if is_master and (placements.changes or self._tells_topics) else _REPORT_S

    async def _take(self, document: bytes, epoch: int) -> bool:
        """Take news, some topics in each turn of the loop; whether the controllers have more to tell. Raises LogboomError."""
        news, topics = _parsed(document)
        self._tells_topics = news.wants_topics
        known: list[TopicPlacement] = []
        if news.revision < self._placements.revision:
            return False
        while self._replica.is_master and self._replica.master_epoch == epoch:
            first = len(known)
            known += (read(TopicPlacement, each) for each in topics[first : first + _TAKEN_AT_ONCE])
            is_last = len(known) == len(topics)
            part = replace(news, topics=tuple(known[first:]))
            if not is_last:
                part = replace(part, revision=self._placements.revision, names=None, more=True)
            elif news.whole:  # of a controller that tells no names
                part = replace(part, names=tuple(each.topic for each in known))
            if self._placements.take(part, self.wake) and is_last:
                return news.more and self._placements.revision == news.revision
            await asyncio.sleep(0)
        return False

    def _look_at_topics(self) -> None:
        if self._topics_changed:
            self._topics_changed = False
            found = {
                name: config.write_queue_nums if config.perm & PERM_WRITE else 0
                for name, config in self._topics().items()
                if config.message_type in MESSAGE_TYPES and not is_system_topic(name)
            }
            if found != self._told:
                self._told, self._table, self._tells_topics = found, self._table + 1, True


def _parsed(document: bytes) -> tuple[PlacementNews, list[object]]:
    """News without their topics, and these as they came. Raises ProtocolError."""
    try:
        told = orjson.loads(document)
    except orjson.JSONDecodeError as error:
        raise ProtocolError(f"news of placements are not JSON: {error}") from error
    has_topics = isinstance(told, dict) and isinstance(told.get("topics"), list)
    topics = told.pop("topics") if has_topics else []
    return read(PlacementNews, told), topics
