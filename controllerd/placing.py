"""The leader's watch over placements: hears the masters, proposes what should change, and gives up what is not prepared in time.

Every controller hears records; only the serving leader is told of topics and asks for changes. A change is proposed when the
masters have said the same for a moment, as tools make a topic on one broker group after the other. After a proposal that came to
nothing the next one waits, each time longer where the topic has a placement.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from controllerd.nameserver.routes import RouteTable
from controllerd.placements.news import Changes, news_of
from controllerd.placements.records import LEVEL, PlacementActivated, Record
from controllerd.placements.reports import Reports
from controllerd.placements.requests import Abort, Prepare, Request
from controllerd.placements.state import PlacementsState
from controllerd.placements.wanted import Wanted
from controllerd.pushes import Pushes
from controllerd.raft.driver import RaftDriver
from controllerd.replicas.broker_groups import BrokerGroups
from controllerd.state.machine import ControllerMachine
from remoting import codes
from remoting.errors import LogboomError
from remoting.facts.placements import PlacementNews, PlacementReport
from remoting.transport.beats import CALM_MS, Beat, on_next_beat
from remoting.transport.tasks import TaskOwner

log = logging.getLogger(__name__)

_LOOK_MS: Final = 100
_SETTLE_MS: Final = 300
_PATIENCE_MS: Final = 10_000
_PAUSE_MS: Final = 5_000
_LONGEST_PAUSE_MS: Final = 300_000
_MOST_OPEN: Final = 64
_DECIDE_MS: Final = 5_000
_COMPARED_AT_ONCE: Final = 500  # topics, in one turn of the loop


class Placing:
    def __init__(
        self,
        driver: RaftDriver,
        machine: ControllerMachine,
        groups: BrokerGroups,
        routes: RouteTable,
        pushes: Pushes,
        owner: TaskOwner,
    ) -> None:
        self._driver = driver
        self._machine = machine
        self._groups = groups
        self._routes = routes
        self._pushes = pushes
        self._owner = owner
        self._reports = Reports()
        self._wanted = Wanted()
        self._changes = Changes()
        self._followed = 0  # up to which revision all records were followed, as the leader
        self._proposed: dict[str, int] = {}  # versions by topic
        self._open: dict[tuple[str, int], int] = {}  # proposals, and since when they are seen here
        self._failed: dict[str, tuple[int, int]] = {}  # by topic: how often in a row, and when to try again
        self._under_way: set[Request] = set()
        self._told_names: set[str] = set()
        self._timer: Beat | asyncio.TimerHandle | None = None
        self._is_calm = False  # the next look is a while away

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    # ---- what brokers say

    def heard(self, broker_name: str, broker_id: int) -> None:
        """A broker that knows of placements is there."""
        self._reports.heard(broker_name, broker_id)

    def reported(self, broker_name: str, epoch: int, table: int, report: PlacementReport) -> bool:
        """The present master of a group reports; whether its topics are known here."""
        known = self._reports.told(broker_name, epoch, table, report.topics, self._groups.now_ms())
        if report.topics is not None or report.prepared:
            self._look_soon()
        for topic, version in report.prepared.items():
            present = self._machine.placements.topics.get(topic)
            proposed = present.proposed if present is not None and broker_name in present.waits_for else None
            if proposed is not None and proposed.version == version:
                self._ask(Prepare(topic, version, broker_name))
        return known

    def news(self, revision: int, complete: int, most: int) -> PlacementNews:
        """What changed behind that revision, for a master that knew all at `complete`: so many topics at most."""
        return news_of(self._machine.placements, self._changes, revision, complete, most, is_placing=self.is_placing)

    def all_news(self, revision: int) -> PlacementNews:
        """All that changed behind that revision, for masters of releases that do not ask for parts of it."""
        state = self._machine.placements
        whole = revision < state.forgotten or revision > state.revision
        topics = self._changes.behind(state, 0 if whole else revision, len(state.topics))
        return PlacementNews(state.revision, state.last_version, topics, whole, self.is_placing)

    def no_news(self) -> PlacementNews:
        """For a broker that does not lead."""
        state = self._machine.placements
        return PlacementNews(state.revision, state.last_version, is_placing=self.is_placing)

    @property
    def is_placing(self) -> bool:
        """Whether a topic that gets message groups now is placed in a moment; with one broker group nobody has to wait for it."""
        told = self._wanted.told
        return self._machine.features.level >= LEVEL and told.are_all_there and len(told.members) > 1

    # ---- what is agreed on

    def recorded(self, record: Record, state: PlacementsState) -> None:
        """A placement changed, on every controller."""
        present = state.topics.get(record.topic)
        self._changes.changed(record.topic, state)
        if isinstance(record, PlacementActivated):
            self._failed.pop(record.topic, None)
        if not self._driver.is_serving:
            return  # whoever begins to lead looks at all topics of which it did not follow each record
        if state.revision == self._followed + 1:
            self._followed = state.revision
        self._wanted.changed(record.topic)
        self._look_soon()
        if present is not None and present.proposed is not None:
            self._proposed[record.topic] = present.proposed.version
        else:
            self._proposed.pop(record.topic, None)
        if isinstance(record, PlacementActivated) and present is not None and present.active is not None:
            log.info("%s: version %d of its placement is in force", record.topic, present.active.version)
        if present is not None:
            facts = [fact for fact in (present.active, present.proposed) if fact is not None]
            if not self._told_names:
                asyncio.get_running_loop().call_soon(self._tell)
            self._told_names |= {*present.voters, *(share.broker_name for fact in facts for share in fact.shares)}

    def _tell(self) -> None:
        """Have the masters ask; best effort, as they also ask by themselves."""
        names, self._told_names = self._told_names, set()
        for name in names:
            group = self._groups.get(name)
            if group is not None and group.master is not None:
                self._pushes.push(group.master.address, codes.PLACEMENTS_CHANGED, {})

    # ---- looking

    def scan(self) -> None:
        """Look from now on, time and again."""
        is_open = self._open or self._under_way or self._wanted.is_due or self._wanted.requests
        self._is_calm = not (self._driver.is_serving and is_open)
        self._timer = on_next_beat(CALM_MS if self._is_calm else _LOOK_MS, self.scan)
        if self._driver.is_serving and self._machine.features.level >= LEVEL:
            self._look(self._groups.now_ms())
            if self._wanted.is_due:
                self._timer.cancel()
                self._timer = asyncio.get_running_loop().call_later(0, self.scan)

    def _look_soon(self) -> None:
        if self._is_calm and self._timer is not None:
            self._is_calm = False
            self._timer.cancel()
            self._timer = on_next_beat(_LOOK_MS, self.scan)

    def _look(self, now_ms: int) -> None:
        state = self._machine.placements
        if state.revision != self._followed:  # a snapshot replaced it, or others led
            self._followed = state.revision
            self._wanted.replaced(state)
            self._proposed = {topic: each.proposed.version for topic, each in state.topics.items() if each.proposed}
        self._open = {each: self._open.get(each, now_ms) for each in self._proposed.items()}
        for (topic, version), since_ms in self._open.items():
            if now_ms - since_ms > _PATIENCE_MS and Abort(topic, version) not in self._under_way:
                count = self._failed.get(topic, (0, 0))[0] + 1
                # a topic without a placement in force is sent to by nobody until it has one
                longest_ms = _LONGEST_PAUSE_MS if state.topics[topic].active is not None else _PAUSE_MS
                pause_ms = min(_PAUSE_MS * 2 ** min(count, 10), longest_ms)
                self._failed[topic] = count, now_ms + pause_ms
                waits_for = state.topics[topic].waits_for
                log.warning("%s: version %d is given up, as %s did not prepare", topic, version, ", ".join(waits_for))
                self._ask(Abort(topic, version))
        groups = self._groups
        told = self._reports.summary(groups.decided().groups, self._routes.groups(), groups.is_alive, now_ms)
        wanted = self._wanted
        if told != wanted.told:
            wanted.tell(told, state)
        wanted.compare(state, now_ms, _COMPARED_AT_ONCE)
        for request in wanted.settled(now_ms, _SETTLE_MS):
            if len(self._open) + len(self._under_way) >= _MOST_OPEN:
                break
            if now_ms >= self._failed.get(request.topic, (0, 0))[1]:
                self._ask(request)

    def _ask(self, request: Request) -> None:
        if request not in self._under_way:
            self._under_way.add(request)
            self._owner.spawn(self._propose(request), f"placement of {request.topic}")

    async def _propose(self, request: Request) -> None:
        try:
            await self._driver.propose(request, _DECIDE_MS)
        except LogboomError as error:
            log.warning("no decision on the placement of %s: %s", request.topic, error)
        finally:
            self._under_way.discard(request)
