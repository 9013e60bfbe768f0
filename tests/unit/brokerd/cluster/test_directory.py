"""What a broker tells its clients of its group: all addresses, soon after the members are there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from brokerd.cluster.directory import Directory
from remoting.facts.cluster_view import KNOWN_VIEW, SAME_VIEW, TOLD_VIEW, ClusterView, GroupView, ReplicaView
from remoting.facts.codec import encode
from remoting.frame import Command


@dataclass
class Member:
    is_master: bool = True
    broker_id: int | None = 1
    master_address: str = ""
    master_grpc_address: str = ""


class Controllers:
    """Answers every question with the replicas that have registered."""

    def __init__(self) -> None:
        self.replicas = [1]
        self.dead: set[int] = set()

    async def call(self, address: str, code: int, ext: Mapping[str, str] | None, *, timeout_ms: int) -> Command:
        replicas = tuple(
            ReplicaView(broker_id=n, address=f"r{n}:1", grpc_address=f"g{n}:1", alive=n not in self.dead)
            for n in self.replicas
        )
        name = f"{self.replicas} without {self.dead}"
        if ext is not None and ext.get(KNOWN_VIEW) == name:
            return Command(0, ext={TOLD_VIEW: name, SAME_VIEW: "true"})
        group = GroupView(cluster_name="c", broker_name="broker-a", replicas=replicas)
        return Command(0, ext={TOLD_VIEW: name}, body=encode(ClusterView(groups=(group,))))


async def test_members_that_register_after_this_broker_are_told_to_clients_before_they_could_ask_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("brokerd.cluster.directory._REFRESH_S", 3600)  # what comes, comes of the first rounds
    controllers = Controllers()
    directory = Directory(controllers, ["c:1"], Member(), "broker-a", "r1:1", "g1:1")  # type: ignore[arg-type]
    directory.start()
    try:
        await asyncio.sleep(0)
        assert directory.own_group().grpc_addresses == ["g1:1"]
        controllers.replicas = [1, 2, 3]
        async with asyncio.timeout(60):
            while len(directory.own_group().grpc_addresses) < 3:
                await asyncio.sleep(0.01)
        assert directory.own_group().grpc_addresses == ["g1:1", "g2:1", "g3:1"]
        assert directory.peers() == ["r2:1", "r3:1"]
    finally:
        await directory.close()


async def test_who_follows_the_view_hears_of_it_also_when_it_is_not_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brokerd.cluster.directory._FIRST_REFRESH_S", 0.01)
    directory = Directory(Controllers(), ["c:1"], Member(), "broker-a", "r1:1", "g1:1")  # type: ignore[arg-type]
    heard: list[ClusterView] = []
    directory.view_listeners.append(heard.append)
    directory.start()
    try:
        async with asyncio.timeout(60):
            while len(heard) < 3:
                await asyncio.sleep(0.01)
        assert heard[0] is heard[1] is heard[2]
    finally:
        await directory.close()


async def test_a_replica_that_died_keeps_its_address_and_is_said_to_be_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brokerd.cluster.directory._FIRST_REFRESH_S", 0.01)
    controllers = Controllers()
    controllers.replicas = [1, 2, 3]
    controllers.dead = {1, 2, 3}  # who asks is not down, and its master is followed elsewhere
    member = Member(is_master=False, master_address="r3:1", master_grpc_address="g3:1")
    directory = Directory(controllers, ["c:1"], member, "broker-a", "r1:1", "g1:1")  # type: ignore[arg-type]
    directory.start()
    try:
        async with asyncio.timeout(60):
            while directory.own_group().down != {"g2:1"}:
                await asyncio.sleep(0.01)
            assert directory.own_group().grpc_addresses == ["g3:1", "g1:1", "g2:1"]
            controllers.dead = set()
            while directory.own_group().down:
                await asyncio.sleep(0.01)
    finally:
        await directory.close()
