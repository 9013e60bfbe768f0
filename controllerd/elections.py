"""The leader's watch over broker masters: finds groups that need an election, has it decided, tells the brokers.

Every controller looks at the same moments (heartbeat changes, closed connections, the periodic scan); only the serving leader
acts. One election per group at a time; a failed one is found again by the next look. How long each took from the look that found
it to the decision is logged and counted.

A master without room lives, and may have acknowledged what its successor lacks, where that does not take all of the set: so it
hands over first, as in a planned switch, and keeps the lead for now when it cannot.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeAlias

from controllerd.live_settings import LiveSettings
from controllerd.metrics import Counters, election_result
from controllerd.pushes import Pushes
from controllerd.raft.driver import RaftDriver
from controllerd.raft.messages import Role, SoftState
from controllerd.replicas.answers import master_fields, sync_state_set_body
from controllerd.replicas.broker_groups import BrokerGroups
from controllerd.replicas.requests import CountLives, ElectMaster
from controllerd.replicas.standing_disks import disk_stands
from controllerd.replicas.state import Group
from controllerd.replicas.triggers import due_counts, due_elections
from remoting import codes
from remoting.errors import LogboomError, RequestError
from remoting.facts.words import Cause
from remoting.transport.beats import CALM_MS, Beat, on_next_beat
from remoting.transport.tasks import TaskOwner

log = logging.getLogger(__name__)

_HAND_OVER_AGAIN_MS: Final = 5000  # a master that could not do it is not asked again before: it takes nothing meanwhile

HandOver: TypeAlias = Callable[[Group, int], Awaitable[object]]


class Elections:
    """`hand_over` has a group's master wait for its successor, and raises RequestError when the switch should not be made now."""

    def __init__(
        self,
        settings: LiveSettings,
        driver: RaftDriver,
        groups: BrokerGroups,
        counters: Counters,
        owner: TaskOwner,
        hand_over: HandOver,
    ) -> None:
        self._settings = settings
        self._driver = driver
        self._groups = groups
        self._counters = counters
        self._owner = owner
        self._hand_over = hand_over
        self._put_off: dict[str, int] = {}  # till when, by the group whose master could not hand over
        self._under_way: set[str] = set()
        self._timer: Beat | None = None
        self._scanned_ms = groups.now_ms()
        self._after_ms = settings.start.liveness.scan_ms  # how long after the last scan the next one is planned
        self._is_calm = False  # and it is a while till then
        self._term = 0

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def raft_changed(self, state: SoftState) -> None:
        """Another role or term: whoever leads anew must first hear the brokers."""
        if state.role is Role.LEADER and state.term != self._term:
            self._term = state.term
            self._counters.leader_changes += 1
            self._groups.table.lead(self._groups.now_ms())
            self._scan_soon()

    def look(self, names: Iterable[str] | None = None) -> None:
        """Start the elections that are due, over all groups or the named ones."""
        if not self._driver.is_serving:
            return
        groups = self._groups
        for request in self._due(names):
            if request.broker_name not in self._under_way and not self._is_put_off(request):
                self._under_way.add(request.broker_name)
                log.info(
                    "%s needs a master: %s", request.broker_name, self._reason(request.broker_name, request.broker_id)
                )
                self._owner.spawn(self._elect(request, time.monotonic()), f"election for {request.broker_name}")
        for count in due_counts(groups.decided(), groups.table, groups.now_ms(), names):
            if count.broker_name not in self._under_way:
                self._under_way.add(count.broker_name)
                self._owner.spawn(self._count(count), f"count the lives of {count.broker_name}")
        if self._is_calm and not self._may_rest():
            self._scan_soon()

    def _due(self, names: Iterable[str] | None) -> list[ElectMaster]:
        groups, unclean = self._groups, self._settings.election.value.unclean
        return due_elections(
            groups.decided(), groups.table, groups.now_ms(), unclean=unclean, names=names, at_ms=groups.wall_ms()
        )

    def _is_put_off(self, request: ElectMaster) -> bool:
        """Whether its master could not hand over a moment ago, and is well otherwise."""
        until_ms = self._put_off.get(request.broker_name, 0)
        return self._groups.now_ms() < until_ms and self._gives_way_for_room(request)

    def _gives_way_for_room(self, request: ElectMaster) -> bool:
        grounds = self._groups.grounds(request.broker_name, request)
        return grounds is not None and grounds.cause is Cause.NO_ROOM

    async def _count(self, request: CountLives) -> None:
        try:
            await self._driver.propose(request, self._settings.start.raft.decide_timeout_ms)
        except LogboomError as error:
            log.warning("the lives of %s are not counted yet: %s", request.broker_name, error)
        finally:
            self._under_way.discard(request.broker_name)

    def _reason(self, broker_name: str, successor: int | None) -> str:
        group = self._groups.decided().groups[broker_name]
        master_id, now_ms = group.master_broker_id, self._groups.now_ms()
        if master_id is None:
            return "it has none, and a replica that may lead is there"
        if self._groups.table.is_dead(group, master_id, now_ms):
            return f"broker {master_id} is dead ({self._groups.table.why_dead(group, master_id, now_ms)})"
        if successor is not None and disk_stands(group, self._groups.table, master_id):
            return f"the disk of broker {master_id} stands still, that of broker {successor} works"
        if successor is not None:
            return f"the disk of broker {master_id} takes no message, that of broker {successor} does"
        return f"broker {master_id} restarted"

    async def _elect(self, found: ElectMaster, found_s: float) -> None:
        try:
            request = await self._handed_over(found) if self._gives_way_for_room(found) else found
            if request is not None:
                await self._decide(request, found_s)
        finally:
            self._under_way.discard(found.broker_name)

    async def _handed_over(self, found: ElectMaster) -> ElectMaster | None:
        """The election as it is due when the successor has all that the master has; None when it is not, or not due any more."""
        name, group, successor = found.broker_name, self._groups.decided().groups[found.broker_name], found.broker_id
        assert successor is not None
        try:
            await self._hand_over(group, successor)
        except RequestError as error:
            log.info("%s: broker %s keeps the lead: %s", name, group.master_broker_id, error)
            self._put_off[name] = self._groups.now_ms() + _HAND_OVER_AGAIN_MS
            return None
        self._put_off.pop(name, None)
        return next((each for each in self._due([name]) if each.broker_id in (None, successor)), None)

    async def _decide(self, request: ElectMaster, found_s: float) -> None:
        grounds = self._groups.grounds(request.broker_name, request)
        try:
            with self._counters.log_operations.measured("append"):
                applied = await self._driver.propose(request, self._settings.start.raft.decide_timeout_ms)
        except LogboomError as error:
            log.warning("no decision on an election for %s: %s", request.broker_name, error)
        else:
            self._groups.note_decision(grounds, applied.state.groups.get(request.broker_name))
            self._counters.elected(request.cluster_name, request.broker_name, election_result(applied.reply.code))
            if applied.reply.code not in (codes.SUCCESS, codes.CONTROLLER_MASTER_STILL_EXIST):
                log.warning("election for %s: %s", request.broker_name, applied.reply.remark)
            else:
                if applied.reply.code == codes.SUCCESS and applied.reply.remark:
                    log.warning("election for %s: %s", request.broker_name, applied.reply.remark)
                self._decided((time.monotonic() - found_s) * 1000, request.broker_name)

    def _decided(self, took_ms: float, broker_name: str) -> None:
        log.info("%s: the election was decided %.1f ms after it was found due", broker_name, took_ms)
        self._counters.elections_decided += 1
        self._counters.last_election_us = int(took_ms * 1000)
        self._counters.longest_election_us = max(self._counters.longest_election_us, int(took_ms * 1000))

    def scan(self) -> None:
        """Look at all groups from now on, time and again."""
        now_ms = self._groups.now_ms()
        pause_ms = self._groups.table.scan(now_ms, self._after_ms)
        self._scanned_ms = now_ms
        self._is_calm = self._may_rest()
        self._set_timer(max(CALM_MS, self._scan_ms) if self._is_calm else self._scan_ms)
        if pause_ms:
            self._counters.pauses += 1
            log.warning("this process stood still for %d ms: that is not held against brokers", pause_ms)
        self.look()

    @property
    def _scan_ms(self) -> int:
        return self._settings.start.liveness.scan_ms

    def _may_rest(self) -> bool:
        """Whether nothing can become due in a while but by what is heard."""
        if not self._driver.is_serving:
            return True
        rest_ms = CALM_MS + self._scan_ms
        return not self._under_way and self._groups.table.is_calm(self._groups.now_ms(), rest_ms)

    def _scan_soon(self) -> None:
        if self._timer is not None and self._is_calm:
            self._is_calm = False
            self._timer.cancel()
            self._set_timer(self._scan_ms)

    def _set_timer(self, period_ms: int) -> None:
        self._timer = on_next_beat(period_ms, self.scan)
        self._after_ms = max(self._scan_ms, int(self._timer.at_s * 1000) - self._scanned_ms)


def tell_of_master(pushes: Pushes, groups: BrokerGroups, group: Group) -> None:
    """Push the new roles to the live replicas of a group; best effort, as they also ask."""
    ext, body = master_fields(group), sync_state_set_body(group)
    for broker_id, replica in group.replicas.items():
        if groups.is_alive(group, broker_id):
            pushes.push(replica.address, codes.NOTIFY_BROKER_ROLE_CHANGED, ext, body)
