"""A broker that looks at its clock seldom notices everything as soon as one that looks often."""

from __future__ import annotations

import pytest

from brokerd.replication.calm import EARLY_MS, TICK_MS, calm_tick_ms
from brokerd.replication.settings import ReplicationSettings
from tests.unit.brokerd.replication.group import Group, Node

CALM_TICK_MS = calm_tick_ms(ReplicationSettings())
AHEAD_MS = CALM_TICK_MS + TICK_MS


def idle_group() -> Group:
    """Three brokers, of which the first is the master, idle for a while."""
    found = Group()
    found.elect(1)
    found.append(found[1])
    found.settle(100)
    return found


@pytest.fixture
def group() -> Group:
    return idle_group()


def master_of(group: Group) -> Node:
    return next(node for node in group.nodes.values() if node.is_master)


def replicas_of(group: Group) -> list[Node]:
    return [node for node in group.nodes.values() if not node.is_master]


def is_calm(node: Node) -> bool:
    return node.driver.is_calm(node.group.now_ms, AHEAD_MS)


def test_calm_ticks_are_often_enough_for_what_is_said_regularly() -> None:
    assert CALM_TICK_MS == 250
    for heartbeat_ms, calm_ms in ((50, 50), (120, 100), (250, 250), (5000, 250)):
        assert calm_tick_ms(ReplicationSettings(heartbeat_ms=heartbeat_ms, silence_limit_ms=10_000)) == calm_ms
    assert EARLY_MS < TICK_MS


def test_an_idle_group_is_calm(group: Group) -> None:
    assert [is_calm(node) for node in group.nodes.values()] == [True] * 3


def test_seldom_ticks_keep_everybody_alive_and_calm(group: Group) -> None:
    for _ in range(40):
        group.tick(CALM_TICK_MS)
        group.settle_now()
        assert [is_calm(node) for node in group.nodes.values()] == [True] * 3
    assert len(master_of(group).machine.mastership.followers) == 2


def test_what_is_not_everywhere_ends_the_calm(group: Group) -> None:
    master = master_of(group)
    group.append(master)
    assert not is_calm(master)
    group.settle(3)
    assert is_calm(master)


def test_a_broker_whose_disk_or_connection_is_slow_is_not_calm(group: Group) -> None:
    master, (first, _) = master_of(group), replicas_of(group)
    group.append(master)
    group.flush(master)
    group.one_round_without_controllers()
    assert not is_calm(first)
    group.settle(3)
    assert is_calm(first)
    group.crash(first)
    group.settle_now()
    assert not is_calm(master)


def test_one_without_a_role_is_not_calm() -> None:
    group = Group()
    assert not any(is_calm(node) for node in group.nodes.values())


def noticed_ms(group: Group, node: Node, *, often: bool) -> int:
    """When a node that hears nobody any more gives up whom it spoke with."""
    began_ms, connected = group.now_ms, len(group.wires)
    while len([wire for wire in group.wires.values() if wire.open_at_master and wire.open_at_replica]) == connected:
        period_ms = CALM_TICK_MS if not often and is_calm(node) else TICK_MS
        group.now_ms += period_ms
        node.driver.tick(group.now_ms, period_ms)
        assert group.now_ms - began_ms < 60_000
    return group.now_ms - began_ms


@pytest.mark.parametrize("replica", [False, True])
def test_silence_is_noticed_as_soon_as_by_looking_often(replica: bool) -> None:
    found = []
    for often in (True, False):
        group = idle_group()
        node = replicas_of(group)[0] if replica else master_of(group)
        assert is_calm(node)
        found.append(noticed_ms(group, node, often=often))
    assert found[0] == found[1]
