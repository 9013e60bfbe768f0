"""Brokers of the original, in controller mode, under three of our controllers, which are their name servers too.

One group of two for the whole file, in the order of the tests: registered and elected, looked at with the original's tool,
switched by it, and re-elected after a kill.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.transport.client import split_address
from tests.interop.apache import Apache, Broker, CommandFailed, Session, wait_listening
from tests.interop.servers import route_of
from tests.support.cluster import Cluster, eventually

TOPIC = "interop"


@dataclass
class Mixed:
    """Our controllers and the original's brokers."""

    ours: Cluster
    session: Session
    brokers: list[Broker]

    @property
    def controllers(self) -> str:
        return ";".join(self.ours.controller_addresses)

    def tool(self, *words: str) -> str:
        return self.session.mqadmin(*words)

    def controller_tool(self, *words: str) -> str:
        """A command that wants one controller's address."""
        return self.session.mqadmin(words[0], "-a", self.ours.controller_addresses[0], *words[1:])

    def id_of(self, broker: Broker) -> int:
        group = self.ours.group()
        assert group is not None
        return next(each["brokerId"] for each in group["replicas"] if each["address"] == broker.address)

    def master(self) -> Broker:
        """The master, as controllers and routes agree on it; waits for one."""

        def agreed() -> Broker | None:
            address = self.ours.admin.masters().get("broker-a")
            return next((each for each in self.brokers if each.address == address and self.is_routed(each)), None)

        return eventually("a master that is in the routes", agreed, 60)

    def is_routed(self, broker: Broker) -> bool:
        """Whether every one of our name servers shows the broker as its group's master."""
        return all(route_of(address, "TBW102") == broker.address for address in self.ours.controller_addresses)

    def send(self, body: bytes) -> tuple[int, int]:
        """Send until it is taken; (queue id, queue offset)."""

        def sent() -> tuple[int, int] | None:
            answer = self.ours.admin.send(TOPIC, body)
            return int(answer["queueId"]), int(answer["queueOffset"])

        return eventually(f"{body!r} is sent", sent, 60)

    def wait_copied(self) -> None:
        """Wait until the replica has acknowledged the master's whole log.

        Being in the sync-state set does not say so here: by its defaults the original acknowledges messages that only its master
        has, and admits a replica that lacks some. What a kill may lose then is its own affair, not what these tests are about.
        """
        self.ours.wait_in_sync(2, 90)
        address = self.master().address

        def copied() -> bool:
            with SocketConnection(address, timeout_ms=2000) as connection:
                status = orjson.loads(connection.call(codes.GET_BROKER_HA_STATUS).body)
            end = status["masterCommitLogMaxOffset"]
            return end > 0 and [each["slaveAckOffset"] for each in status["haConnectionInfo"]] == [end]

        eventually("the replica has the master's whole log", copied, 60)

    def read(self, queue_id: int, offset: int) -> bytes:
        def found() -> tuple[bytes] | None:
            records = self.ours.admin.pull(TOPIC, "broker-a", queue_id, offset, 1).records
            return (bytes(records[0].body),) if records else None

        return eventually(f"message {offset} of queue {queue_id}", found, 30)[0]


@pytest.fixture(scope="module")
def mixed(apache: Apache, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    root: Path = tmp_path_factory.mktemp("brokers")
    with Cluster(root / "ours", controllers=3, replicas=0) as ours, apache.session(root / "apache") as session:
        for process in ours.controllers:
            process.start()
        ours.leader()
        addresses = ";".join(ours.controller_addresses)
        brokers = [session.broker("broker-a", addresses, controllers=addresses, wait=False) for _ in range(2)]
        for broker in brokers:
            wait_listening(broker.process, split_address(broker.address)[1])
        yield Mixed(ours, session, brokers)


def test_they_register_and_one_is_elected(mixed: Mixed) -> None:
    group = mixed.ours.wait_in_sync(2, 90)
    assert group["masterEpoch"] >= 1
    assert sorted(group["syncStateSet"]) == [1, 2]
    master = mixed.master()
    listed = mixed.tool("clusterList", "-n", mixed.controllers)
    lines = [line.split() for line in listed.splitlines() if " broker-a " in line]
    assert sorted(int(words[2]) for words in lines) == [
        0,
        *sorted(mixed.id_of(each) for each in mixed.brokers if each is not master),
    ]
    assert next(words[3] for words in lines if words[2] == "0") == master.address
    assert all(words[4] == "V5_3_3" for words in lines)


def test_the_tool_prints_what_our_controllers_know(mixed: Mixed) -> None:
    master = mixed.master()
    state = mixed.controller_tool("getSyncStateSet", "-b", "broker-a")
    assert f"#MasterBrokerId\t{mixed.id_of(master)}" in state
    assert f"#MasterAddr\t{master.address}" in state
    assert "#SyncStateSetNums\t2" in state
    members = re.findall(
        r"InSyncReplica:\tReplicaIdentity\{brokerName='broker-a', brokerId=(\d), brokerAddress='(.*?)', alive=true",
        state,
    )
    assert sorted(members) == sorted((str(mixed.id_of(each)), each.address) for each in mixed.brokers)
    by_cluster = mixed.controller_tool("getSyncStateSet", "-c", "DefaultCluster", "-n", mixed.controllers)
    assert f"#MasterAddr\t{master.address}" in by_cluster
    leader = mixed.ours.controller_addresses[mixed.ours.leader()]
    metadata = mixed.controller_tool("getControllerMetaData")
    assert "#ControllerGroup\tlogboom" in metadata
    assert f"#ControllerLeaderAddress\t{leader}" in metadata
    assert [line.partition("\t")[2] for line in metadata.splitlines() if line.startswith("#Peer")] == [
        f"n{number}:{address}" for number, address in enumerate(mixed.ours.controller_addresses)
    ]


def test_the_tool_prints_what_the_brokers_know_of_their_epochs_and_replicas(mixed: Mixed) -> None:
    master = mixed.master()
    status = mixed.tool("haStatus", "-b", master.address, "-n", mixed.controllers)
    assert f"#MasterAddr\t{master.address}" in status
    assert "#InSyncSlaveNum\t1" in status
    epochs = mixed.tool("getBrokerEpoch", "-b", "broker-a", "-n", mixed.controllers)
    assert len(re.findall(r"#Epoch: EpochEntry\{epoch=1, startOffset=0", epochs)) == 2


def test_settings_are_shown_and_changed_by_the_tool(mixed: Mixed) -> None:
    addresses = mixed.controllers

    def shown(name: str) -> list[str]:
        text = mixed.tool("getControllerConfig", "-a", addresses)
        return [line.partition("=")[2].strip() for line in text.splitlines() if line.split("=")[0].strip() == name]

    assert shown("election.unclean") == ["false"] * 3
    changed = mixed.tool("updateControllerConfig", "-a", addresses, "-k", "enableElectUncleanMaster", "-v", "true")
    assert "update controller config success" in changed
    assert shown("enableElectUncleanMaster") == ["true"] * 3, "on every one of the listed"
    mixed.tool("updateControllerConfig", "-a", addresses, "-k", "enableElectUncleanMaster", "-v", "false")
    with pytest.raises(CommandFailed, match="CODE: 16"):
        mixed.tool("updateControllerConfig", "-a", addresses, "-k", "controllerStorePath", "-v", "/etc")
    assert "nameserver.acting_master" in mixed.tool("getNamesrvConfig", "-n", addresses)


def test_topics_are_made_and_routed(mixed: Mixed) -> None:
    made = mixed.tool("updateTopic", "-t", TOPIC, "-n", mixed.controllers, "-c", "DefaultCluster", "-r", "4", "-w", "4")
    assert f"create topic to {mixed.master().address} success" in made
    eventually("the topic is in the routes", lambda: TOPIC in mixed.tool("topicList", "-n", mixed.controllers), 30)
    route = mixed.tool("topicRoute", "-t", TOPIC, "-n", mixed.controllers)
    assert f'0:"{mixed.master().address}"' in route
    assert re.search(r'"readQueueNums":4', route)
    assert "success" in mixed.tool(
        "updateOrderConf", "-n", mixed.controllers, "-m", "put", "-t", TOPIC, "-v", "broker-a:4"
    )
    assert "orderConf=[broker-a:4]" in mixed.tool("updateOrderConf", "-n", mixed.controllers, "-m", "get", "-t", TOPIC)
    wiped = mixed.tool("wipeWritePerm", "-b", "broker-a", "-n", mixed.controllers)
    assert wiped.count("OK") == 3
    assert mixed.tool("addWritePerm", "-b", "broker-a", "-n", mixed.controllers).count("OK") == 3


def test_the_tool_elects_a_master_and_what_was_sent_stays(mixed: Mixed) -> None:
    before = mixed.master()
    queue_id, offset = mixed.send(b"before the switch")
    mixed.wait_copied()
    other = next(each for each in mixed.brokers if each is not before)
    with pytest.raises(CommandFailed, match="2011"):
        mixed.controller_tool("electMaster", "-b", str(mixed.id_of(before)), "-bn", "broker-a", "-c", "DefaultCluster")
    printed = mixed.controller_tool(
        "electMaster", "-b", str(mixed.id_of(other)), "-bn", "broker-a", "-c", "DefaultCluster"
    )
    assert f"#BrokerMasterAddr\t{other.address}" in printed
    assert re.search(r"#MasterEpoch\t2", printed)
    assert all(each.address in printed for each in mixed.brokers), "the members are printed, too"
    assert mixed.master() is other
    assert mixed.read(queue_id, offset) == b"before the switch"
    mixed.ours.wait_in_sync(2, 60)
    assert mixed.read(*mixed.send(b"after the switch")) == b"after the switch"


def test_a_killed_master_is_replaced_and_comes_back_as_a_replica(mixed: Mixed) -> None:
    killed = mixed.master()
    queue_id, offset = mixed.send(b"before the kill")
    mixed.wait_copied()
    group = mixed.ours.group()
    assert group is not None
    killed.process.kill()
    after = mixed.master()
    assert after is not killed
    now = mixed.ours.group()
    assert now is not None
    assert now["masterEpoch"] > group["masterEpoch"]
    assert mixed.read(queue_id, offset) == b"before the kill"
    assert mixed.read(*mixed.send(b"after the kill")) == b"after the kill"
    killed.process.start()
    again = mixed.ours.wait_in_sync(2, 90)
    assert again["masterBrokerId"] == mixed.id_of(after)
    assert len(again["replicas"]) == 2, "it kept its id"


def test_a_dead_replica_is_cleaned_by_the_tool(mixed: Mixed) -> None:
    master = mixed.master()
    replica = next(each for each in mixed.brokers if each is not master)
    broker_id = str(mixed.id_of(replica))
    clean = ("cleanBrokerMetadata", "-bn", "broker-a", "-b", broker_id, "-c", "DefaultCluster")
    with pytest.raises(CommandFailed, match="2009"):
        mixed.controller_tool(*clean)
    replica.process.kill()
    eventually("the replica is not alive", lambda: not _alive(mixed, broker_id), 30)
    assert "success" in mixed.controller_tool(*clean)
    group = mixed.ours.group()
    assert group is not None
    assert [each["address"] for each in group["replicas"]] == [master.address]


def _alive(mixed: Mixed, broker_id: str) -> bool:
    group = mixed.ours.group()
    assert group is not None
    return any(each["alive"] for each in group["replicas"] if str(each["brokerId"]) == broker_id)
