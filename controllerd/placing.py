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
from controllerd.placements.compare import Told, differences
from controllerd.placements.records import LEVEL, PlacementActivated, Record
from controllerd.placements.reports import Reports
from controllerd.placements.requests import Abort, Drop, Prepare, Propose, Request
from controllerd.placements.state import PlacementsState
from controllerd.pushes import Pushes
from controllerd.raft.driver import RaftDriver
from controllerd.replicas.broker_groups import BrokerGroups
from controllerd.state.machine import ControllerMachine
from remoting import codes
from remoting.errors import LogboomError
from remoting.facts.placements import PlacementNews, PlacementReport
from remoting.transport.tasks import TaskOwner

log = logging.getLogger(__name__)

_LOOK_S: Final = 0.1
_LOOK_ANYWAY_MS: Final = 3000
_SETTLE_MS: Final = 300
_PATIENCE_MS: Final = 10_000
_PAUSE_MS: Final = 5_000
_LONGEST_PAUSE_MS: Final = 300_000
_MOST_OPEN: Final = 64
_DECIDE_MS: Final = 5_000


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
        self._told = Told({}, set(), are_all_there=False)
        self._looked_ms = 0
        self._is_due = True
        self._wanted: dict[str, tuple[Propose | Drop, int]] = {}  # by topic, and since when
        self._revision = -1
        self._open: dict[tuple[str, int], int] = {}  # proposals, and since when they are seen here
        self._failed: dict[str, tuple[int, int]] = {}  # by topic: how often in a row, and when to try again
        self._under_way: set[Request] = set()
        self._told_names: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    # ---- what brokers say

    def heard(self, broker_name: str, broker_id: int) -> None:
        """A broker that knows of placements is there."""
        self._reports.heard(broker_name, broker_id)

    def reported(self, broker_name: str, epoch: int, table: int, report: PlacementReport) -> bool:
        """The present master of a group reports; whether its topics are known here."""
        changed, known = self._reports.told(broker_name, epoch, table, report.topics, self._groups.now_ms())
        self._is_due |= changed
        for topic, version in report.prepared.items():
            present = self._machine.placements.topics.get(topic)
            proposed = present.proposed if present is not None and broker_name in present.waits_for else None
            if proposed is not None and proposed.version == version:
                self._ask(Prepare(topic, version, broker_name))
        return known

    def news(self, revision: int, *, wants_topics: bool) -> PlacementNews:
        """What changed behind that revision."""
        state = self._machine.placements
        whole = revision < state.forgotten or revision > state.revision
        topics = (
            state.topics.values() if whole else (each for each in state.topics.values() if each.revision > revision)
        )
        found = tuple(topics) if revision != state.revision else ()
        return PlacementNews(state.revision, state.last_version, found, whole, self.is_placing, wants_topics)

    @property
    def is_placing(self) -> bool:
        """Whether a topic that gets message groups now is placed in a moment; with one broker group nobody has to wait for it."""
        return self._machine.features.level >= LEVEL and self._told.are_all_there and len(self._told.members) > 1

    # ---- what is agreed on

    def recorded(self, record: Record, state: PlacementsState) -> None:
        """A placement changed, on every controller."""
        self._is_due = True
        if isinstance(record, PlacementActivated):
            self._failed.pop(record.topic, None)
        if not self._driver.is_serving:
            return
        present = state.topics.get(record.topic)
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
        self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self.scan)
        if self._driver.is_serving and self._machine.features.level >= LEVEL:
            self._look(self._groups.now_ms())

    def _look(self, now_ms: int) -> None:
        state = self._machine.placements
        if state.revision != self._revision:
            self._revision = state.revision
            proposed = [(topic, each.proposed.version) for topic, each in state.topics.items() if each.proposed]
            self._open = {each: self._open.get(each, now_ms) for each in proposed}
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
        if told != self._told or now_ms - self._looked_ms > _LOOK_ANYWAY_MS:
            self._told, self._is_due = told, True
        if self._is_due:
            self._looked_ms = now_ms
            self._compare(now_ms)

    def _compare(self, now_ms: int) -> None:
        wanted: dict[str, tuple[Propose | Drop, int]] = {}
        for request in differences(self._machine.placements, self._told):
            before = self._wanted.get(request.topic)
            since_ms = before[1] if before is not None and before[0] == request else now_ms
            wanted[request.topic] = request, since_ms
            is_due = now_ms - since_ms >= _SETTLE_MS and now_ms >= self._failed.get(request.topic, (0, 0))[1]
            if is_due and len(self._open) + len(self._under_way) < _MOST_OPEN:
                self._ask(request)
        self._wanted = wanted
        self._is_due = bool(wanted)

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
