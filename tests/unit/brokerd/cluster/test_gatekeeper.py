"""What a gate wants to know is asked of the masters of other broker groups, and handovers that nobody needs are forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import pytest

from brokerd.cluster.gatekeeper import Gatekeeper, GateParts
from brokerd.placement.handovers import Handover, Handovers
from brokerd.pop.requests import PopRequest
from remoting import codes
from remoting.errors import ConnectionLost
from remoting.facts.cluster_view import ClusterView, GroupView, ReplicaView
from remoting.frame import Command
from tests.support.pop_broker import PopBroker

ADDRESS = "b:1"


class Masters:
    """Answers for another broker group, or does not."""

    def __init__(self) -> None:
        self.answer: dict[str, str] | None = None
        self.asked: list[Mapping[str, str] | None] = []

    async def call(self, address: str, code: int, ext: Mapping[str, str] | None, *, timeout_ms: int) -> Command:
        assert (address, code) == (ADDRESS, codes.HANDOVER_PASSED)
        self.asked.append(ext)
        if self.answer is None:
            raise ConnectionLost("it is down")
        return Command(0, ext=self.answer)


class Gated:
    def __init__(self) -> None:
        self.handovers = Handovers()
        self.handovers.add(Handover("t", 4, {0: 0}, {0: 0}, ("broker-a", "broker-b")))
        self.broker = broker = PopBroker(handovers=self.handovers).become_master()
        broker.topic()
        broker.group("g", fifo=True)
        self.masters = Masters()
        pop = broker.pop_service
        self.parts = GateParts(
            "broker-a",
            pop.gate,
            pop.answers,
            self.handovers,
            broker.metadata.topics,
            self.handovers.prune,
            broker.turns.wall_ms,
        )
        self.keeper = Gatekeeper(self.parts, self.masters, lambda: True)  # type: ignore[arg-type]

    def look(self) -> None:
        replica = ReplicaView(broker_id=1, address=ADDRESS)
        group = GroupView(cluster_name="c", broker_name="broker-b", master_broker_id=1, replicas=(replica,))
        self.keeper.look(ClusterView(groups=(group,)))

    def wait(self) -> None:
        self.parts.gate.wait(PopRequest("g", "t", -1, 1, 1000, 0), 60_000, self.parts.now_ms())

    async def until_closed_is(self, is_closed: bool) -> None:
        async with asyncio.timeout(30):
            while self.parts.gate.is_wanted is not is_closed:
                self.broker.turns.run(100)
                await asyncio.sleep(0.001)


@pytest.fixture
async def gated(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Gated]:
    monkeypatch.setattr("brokerd.cluster.gatekeeper._LOOK_S", 0.001)
    gated = Gated()
    gated.keeper.start()
    try:
        yield gated
    finally:
        await gated.keeper.close()


async def test_a_gate_that_somebody_waits_at_opens_when_the_other_master_says_so(gated: Gated) -> None:
    gated.look()
    gated.masters.answer = {"passed": "true", "left": "true"}
    await asyncio.sleep(0)
    assert gated.masters.asked == [], "nobody waits"
    gated.wait()
    await gated.until_closed_is(False)
    assert gated.masters.asked == [{"topic": "t", "version": "4", "consumerGroup": "g", "initMode": "1"}]


async def test_a_group_that_is_down_keeps_the_gate_closed_and_is_asked_again(gated: Gated) -> None:
    gated.wait()
    async with asyncio.timeout(30):
        while not any(each.silent for each in gated.parts.gate.waits_of("g")):
            await asyncio.sleep(0.001)
    assert gated.masters.asked == [], "it has no master"
    gated.look()
    async with asyncio.timeout(30):
        while len(gated.masters.asked) < 3:
            gated.broker.turns.run(100)
            await asyncio.sleep(0.001)
    assert gated.parts.gate.is_wanted
    gated.masters.answer = {"passed": "true", "left": "true"}
    await gated.until_closed_is(False)


async def test_a_handover_is_forgotten_when_nothing_is_left_in_any_source(gated: Gated) -> None:
    await gated.keeper.prune_once()
    assert gated.handovers.of("t"), "broker-b has not said"
    gated.look()
    gated.masters.answer = {"passed": "false", "left": "true"}
    await gated.keeper.prune_once()
    assert gated.handovers.of("t")
    gated.masters.answer = {"passed": "false", "left": "false"}
    await gated.keeper.prune_once()
    assert not gated.handovers.of("t")


async def test_a_source_forgets_what_it_has_no_more_without_asking_anybody(gated: Gated) -> None:
    gated.handovers.add(Handover("t", 4, {0: 1}, {}, ("broker-a", "broker-b")))
    gated.broker.send("a1")
    await gated.keeper.prune_once()
    assert gated.handovers.of("t")
    gated.broker.log.expire("t", 0, 1)
    await gated.keeper.prune_once()
    assert not gated.handovers.of("t")
