"""The watch over masters: who has to hand over before another one is elected, and who cannot."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from controllerd.elections import Elections
from controllerd.replicas.broker_groups import BrokerGroups
from controllerd.replicas.state import Group
from remoting import codes
from remoting.errors import RequestError
from remoting.transport.tasks import TaskOwner
from tests.unit.controllerd.replicas.builders import group_of, group_of_three
from tests.unit.controllerd.replicas.test_heartbeat import make_table
from tests.unit.controllerd.replicas.test_room import LATER_MS, START_MS, keep_saying, say


class Watch:
    """The watch of a controller that leads, over one group; what is proposed is decided at once."""

    def __init__(self) -> None:
        self.machine, self.table, self.now_ms = group_of_three(), make_table(), LATER_MS
        self.events: list[str] = []
        self.refusal = ""
        self.meanwhile = lambda: None  # happens while the master hands over
        groups = BrokerGroups(lambda: self.machine.state, self.table, lambda: self.now_ms, lambda: 0)
        settings: Any = SimpleNamespace(
            start=SimpleNamespace(liveness=SimpleNamespace(scan_ms=100), raft=SimpleNamespace(decide_timeout_ms=1000)),
            election=SimpleNamespace(value=SimpleNamespace(unclean=False)),
        )
        counters: Any = SimpleNamespace(
            log_operations=SimpleNamespace(measured=_measured),
            elected=lambda *_: None,
            elections_decided=0,
            last_election_us=0,
            longest_election_us=0,
        )
        driver: Any = SimpleNamespace(is_serving=True, propose=self._propose)
        self.owner = TaskOwner("test")
        self.elections = Elections(settings, driver, groups, counters, self.owner, self._hand_over)

    async def look(self) -> list[str]:
        """What came of a look."""
        self.events.clear()
        self.elections.look()
        for _ in range(10):
            await asyncio.sleep(0)
        return self.events

    @property
    def master(self) -> int | None:
        return group_of(self.machine).master_broker_id

    async def _hand_over(self, group: Group, broker_id: int) -> None:
        self.events.append(f"{group.master_broker_id} hands over to {broker_id}")
        await asyncio.sleep(0)
        self.meanwhile()
        if self.refusal:
            raise RequestError(codes.CONTROLLER_ELECT_MASTER_FAILED, self.refusal)

    async def _propose(self, request: Any, _timeout_ms: int) -> Any:
        outcome = self.machine.run(request)
        self.events.append(f"{group_of(self.machine).master_broker_id} leads")
        return SimpleNamespace(state=self.machine.state, reply=outcome)


@contextmanager
def _measured(_kind: str) -> Iterator[None]:
    yield


@pytest.fixture
def full() -> Watch:
    """The disk of the master, 1, is full, and that of 2 is not."""
    watch = Watch()
    keep_saying(watch.table, START_MS, LATER_MS, b1=False, b2=True, b3=False)
    return watch


async def test_a_master_without_room_hands_over_before_another_one_is_elected(full: Watch) -> None:
    """It lives, and acknowledges what it appends itself: by one or two disks of three, where not all are asked for."""
    assert await full.look() == ["1 hands over to 2", "2 leads"]


async def test_a_master_that_cannot_hand_over_keeps_the_lead_for_now(full: Watch) -> None:
    full.refusal = "broker 2 still lacks 77 bytes of the log"
    assert await full.look() == ["1 hands over to 2"]
    assert full.master == 1
    keep_saying(full.table, full.now_ms, full.now_ms + 4900, b1=False, b2=True, b3=False)
    full.now_ms += 4900
    assert await full.look() == [], "it takes nothing while it tries"
    keep_saying(full.table, full.now_ms, full.now_ms + 200, b1=False, b2=True, b3=False)
    full.now_ms += 200
    full.refusal = ""
    assert await full.look() == ["1 hands over to 2", "2 leads"]


async def test_a_master_that_has_room_again_meanwhile_keeps_the_lead(full: Watch) -> None:
    full.meanwhile = lambda: say(full.table, full.now_ms, b1=True, b2=True, b3=False)
    assert await full.look() == ["1 hands over to 2"]
    assert full.master == 1


async def test_a_master_that_dies_meanwhile_is_followed_by_who_is_there(full: Watch) -> None:
    full.refusal = "the master did not answer"
    await full.look()
    full.table.connection_closed(full.table.get(group_of(full.machine), 1).connection, full.now_ms)
    events = await full.look()
    assert len(events) == 1, "nobody is asked"
    assert full.master in (2, 3)
