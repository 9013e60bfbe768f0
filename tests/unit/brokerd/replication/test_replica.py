"""Whole replicas over real sockets, with a small controller: found, followed, killed, reconnected, diverged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import orjson
import pytest
import uvloop

from brokerd.metadata.configs import TopicConfig
from brokerd.replication.controllers.session import BrokerNames
from brokerd.replication.epochs.epoch_file import EpochFile
from brokerd.replication.facts import ReplicaFacts
from brokerd.replication.replica import Replica, Surroundings, Tail
from brokerd.replication.roles.effects import Role
from brokerd.replication.roles.role_machine import RoleMachine
from brokerd.replication.settings import ReplicationSettings
from brokerd.replication.wire.frames import Handshake
from brokerd.replication.wire.rocketmq_layouts import encode_ack, encode_handshake
from brokerd.store.put_status import PutStatus
from remoting import codes
from remoting.errors import CorruptedFile
from remoting.transport.client import RemotingClient
from remoting.transport.server import Place, RemotingServer
from tests.support.disks import MemoryDisk
from tests.support.ports import free_ports
from tests.unit.brokerd.replication.controllers.fake_controller import FakeController
from tests.unit.brokerd.replication.group import Fuse, MemoryReplicatedLog

DEADLINE_S = 60.0


async def until(condition: Callable[[], object], what: str) -> None:
    """Wait until the condition holds; fail with its name when it does not come about."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await asyncio.sleep(0.005)
    except TimeoutError:
        pytest.fail(f"did not happen: {what}")


class PromptLog(MemoryReplicatedLog):
    """Flushes by itself on the next turn of the loop."""

    def __init__(self) -> None:
        super().__init__(Fuse())
        self.flushed_callback: Callable[[], None] | None = None

    def request_flush(self) -> None:
        asyncio.get_running_loop().call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self.flush()
        if self.flushed_callback is not None:
            self.flushed_callback()


class Broker:
    """One broker without a store: log and disk outlive its replica."""

    def __init__(self, controllers: list[str], settings: ReplicationSettings) -> None:
        self.controllers = controllers
        self.settings = settings
        self.secrets: list[bytes] = [b"known to this cluster only"]
        self.disk = MemoryDisk()
        self.log = PromptLog()
        self.remoting_port, self.ha_port = free_ports(2)
        self.replica: Replica | None = None
        self.roles: list[Role] = []
        self.confirmed = 0
        self.statuses: list[PutStatus] = []

    async def start(self) -> None:
        host = "127.0.0.1"
        address = f"{host}:{self.remoting_port}"
        names = BrokerNames("c", "b", address, f"{host}:{self.ha_port}", f"{host}:1")
        topics = {"t": TopicConfig("t")}
        self.replica = Replica(
            self.settings,
            Surroundings(names, self.controllers, self.disk, lambda: topics, self.secrets),
            self.log,
            confirm_offset=0,
        )
        self.log.flushed_callback = self.replica.on_flushed
        self.replica.add_role_listener(lambda role, epoch: self.roles.append(role))
        self.replica.add_confirm_listener(self._confirm)
        self.server = RemotingServer(Place(host, self.remoting_port), self.replica.handlers())
        await self.server.start()
        await self.replica.start(host, self.ha_port)

    def _confirm(self, offset: int) -> None:
        self.confirmed = offset

    async def stop(self) -> None:
        if self.replica is not None:
            self.log.flushed_callback = None
            await self.replica.stop()
            await self.server.close()
            self.replica = None

    @property
    def is_master(self) -> bool:
        return self.replica is not None and self.replica.is_master

    def append(self, payload: bytes) -> None:
        assert self.replica is not None
        end = self.log.append_record(payload)
        self.log.request_flush()
        self.replica.on_appended(end)
        self.replica.wait(end, self.statuses.append)

    def state(self) -> ReplicaFacts:
        assert self.replica is not None
        return self.replica.state()


class Cluster:
    def __init__(self, controller: FakeController, brokers: list[Broker]) -> None:
        self.controller = controller
        self.brokers = brokers

    @property
    def master(self) -> Broker:
        (master,) = [broker for broker in self.brokers if broker.is_master]
        return master

    async def all_in_sync(self) -> None:
        await until(lambda: len(self.controller.members) == len(self.brokers), "all replicas in the sync-state set")

    async def has_master(self) -> None:
        await until(lambda: sum(broker.is_master for broker in self.brokers) == 1, "one master")

    async def acknowledge(self, count: int) -> None:
        """Append messages on the master and see them acknowledged."""
        master = self.master
        before = len(master.statuses)
        for index in range(count):
            master.append(b"%d:%d" % (before + index, id(master) % 1000))
        await until(lambda: len(master.statuses) == before + count, f"{count} answers")
        assert set(master.statuses[before:]) == {PutStatus.PUT_OK}

    async def equal_logs(self) -> None:
        await until(lambda: all(each.log.data == self.master.log.data for each in self.brokers), "equal logs")


@asynccontextmanager
async def cluster(size: int = 3, **settings: object) -> AsyncIterator[Cluster]:
    controller = FakeController()
    address = await controller.start()
    brokers = [Broker([address], ReplicationSettings(**settings)) for _ in range(size)]
    try:
        for broker in brokers:
            await broker.start()
        yield Cluster(controller, brokers)
    finally:
        for broker in brokers:
            await broker.stop()
        await controller.server.close()


async def test_three_find_each_other_replicate_and_survive_the_masters_end() -> None:
    async with cluster() as group:
        await group.has_master()
        await group.acknowledge(1)
        await group.all_in_sync()
        await group.acknowledge(200)
        await group.equal_logs()
        first = group.master
        await until(
            lambda: all(each.confirmed == first.log.end_offset for each in group.brokers), "confirmed everywhere"
        )
        await first.stop()
        await group.has_master()
        assert group.master is not first
        await group.acknowledge(50)
        await first.start()
        await group.all_in_sync()
        await group.equal_logs()
        assert not first.is_master
        assert first.state().following.stuck == ""


def test_the_same_on_uvloop() -> None:
    uvloop.run(test_three_find_each_other_replicate_and_survive_the_masters_end())


async def test_a_diverged_tail_of_the_old_master_is_cut() -> None:
    async with cluster() as group:
        await group.has_master()
        await group.all_in_sync()
        await group.acknowledge(10)
        old = group.master
        await old.stop()
        old.log.append_record(b"never acknowledged")
        old.log.flush()
        await group.has_master()
        await group.acknowledge(1)
        await old.start()
        await group.all_in_sync()
        await group.equal_logs()
        assert b"never acknowledged" not in old.log.records()
        assert old.state().following.state.cuts == 1


async def test_a_cut_connection_is_dialled_again_without_leaving_the_set() -> None:
    async with cluster(reconnect_grace_ms=5000) as group:
        await group.has_master()
        await group.all_in_sync()
        set_epoch = group.controller.set_epoch
        replicas = [broker for broker in group.brokers if not broker.is_master]
        for broker in replicas:
            connection = broker.replica._driver.machine.followership.connection
            broker.replica._hub._connections[connection].transport.abort()
        await group.acknowledge(20)
        await group.equal_logs()
        assert group.controller.set_epoch == set_epoch


async def test_a_stopped_replica_leaves_the_set_and_sends_go_on() -> None:
    async with cluster() as group:
        await group.has_master()
        await group.all_in_sync()
        gone = next(broker for broker in group.brokers if not broker.is_master)
        await gone.stop()
        await group.acknowledge(10)
        await until(lambda: len(group.controller.members) == 2, "two in the set")
        await gone.start()
        await group.all_in_sync()
        await group.equal_logs()


async def test_a_stop_lets_what_was_sent_be_acknowledged() -> None:
    async with cluster() as group:
        await group.has_master()
        await group.all_in_sync()
        master = group.master
        replica = master.replica
        for _ in range(5):
            master.append(b"sent just before")
        stopped = asyncio.create_task(replica.stop())
        await until(lambda: len(master.statuses) == 5, "the answers")
        assert master.statuses == [PutStatus.PUT_OK] * 5
        assert not replica.accepts_messages
        await stopped
        assert not replica.is_master


async def test_without_controllers_everything_goes_on() -> None:
    async with cluster() as group:
        await group.has_master()
        await group.all_in_sync()
        await group.controller.server.close()
        await group.acknowledge(100)
        await group.equal_logs()


async def test_a_master_that_restarts_at_once_gets_a_new_epoch() -> None:
    async with cluster(size=1) as group:
        await group.has_master()
        await group.acknowledge(3)
        epoch = group.master.replica.master_epoch
        broker = group.master
        group.controller._closed = lambda connection: None  # nobody notices
        await broker.stop()
        await broker.start()
        await group.has_master()
        assert broker.replica.master_epoch > epoch
        epochs = EpochFile(broker.disk).load()[0].entries
        assert len(epochs) == 2
        assert epochs[1].start_offset == broker.log.end_offset


async def test_a_proposal_without_an_answer_keeps_the_joining_replica_required() -> None:
    async with cluster(size=2, controller_request_timeout_ms=50, ack_timeout_ms=60_000) as group:
        group.controller.hold_alters = True
        await group.has_master()
        master = group.master
        await until(lambda: len(group.controller.held) >= 2, "a proposal, and another one after no answer")
        assert master.state().leading.required_set == [1, 2]
        other = next(broker for broker in group.brokers if broker is not master)
        await other.stop()
        master.append(b"needs both")
        await until(lambda: len(group.controller.held) >= 4, "more proposals")
        assert master.statuses == []
        group.controller.hold_alters = False
        await other.start()
        await until(lambda: master.statuses == [PutStatus.PUT_OK], "the acknowledgement")


async def test_a_person_sees_what_waits_elsewhere_too() -> None:
    async with cluster(1) as one:
        await one.has_master()
        broker = one.master
        assert broker.replica is not None
        assert (broker.state().waiting_sends, broker.state().waited_ms) == (0, 0)
        broker.replica.count_also(lambda: (3, 10**9))
        assert (broker.state().waiting_sends, broker.state().waited_ms) == (3, 10**9)
        broker.log.flushed_callback = None
        broker.append(b"more")
        broker.replica.count_also(lambda: (3, 0))
        assert (broker.state().waiting_sends, broker.state().waited_ms >= 0) == (4, True)


async def test_whether_the_calm_is_over_is_looked_at_once_for_all_appends_of_a_moment() -> None:
    """Where a message is acknowledged at once, each append would find it as it was."""
    async with cluster(1) as group:
        await group.all_in_sync()
        replica = group.master.replica
        assert replica is not None
        await until(lambda: replica._hub.on_event is not None, "calm")
        looks, look = list[None](), replica._look_at_calm

        def counted() -> None:
            looks.append(None)
            look()

        replica._hub.on_event = counted
        replica._ticker.cancel()  # a tick that comes in between ends the calm by itself, and nobody looks
        for _ in range(100):
            replica.on_appended(group.master.log.end_offset)
        assert looks == []
        await until(lambda: looks, "a look behind the appends")
        assert len(looks) < 10


async def test_name_servers_are_told_at_once() -> None:
    async with cluster(size=2) as group:
        await group.has_master()
        master = group.master
        other = next(broker for broker in group.brokers if broker is not master)
        routes = group.controller.routes
        await until(lambda: len(routes) == 2, "both registered")
        of_master = routes[f"127.0.0.1:{master.remoting_port}"]
        assert of_master["brokerId"] == "0"
        assert of_master["haServerAddr"] == f"127.0.0.1:{master.ha_port}"
        assert routes[f"127.0.0.1:{other.remoting_port}"]["brokerId"] == str(other.replica.broker_id)
        wrappers = [body["topicConfigSerializeWrapper"] for body in group.controller.route_bodies]
        assert {tuple(wrapper["topicConfigTable"]) for wrapper in wrappers} == {("t",), ()}
        assert all(wrapper["dataVersion"]["stateVersion"] == master.replica.master_epoch for wrapper in wrappers)
        told = len(group.controller.route_bodies)
        master.replica.topics_changed()
        await until(lambda: len(group.controller.route_bodies) > told, "registered again")
        await other.stop()
        await until(lambda: len(routes) == 1, "unregistered")


async def test_a_push_makes_brokers_ask_and_tools_get_their_answers() -> None:
    async with cluster(controller_poll_ms=600_000) as group:
        await group.has_master()
        await group.all_in_sync()
        old = group.master
        winner = next(broker for broker in group.brokers if broker is not old)
        group.controller.elect(winner.replica.broker_id)
        client = RemotingClient()
        try:
            for broker in group.brokers:
                await client.call(
                    f"127.0.0.1:{broker.remoting_port}",
                    codes.NOTIFY_BROKER_ROLE_CHANGED,
                    {"masterEpoch": "2147483647", "masterBrokerId": "1"},  # what a push claims is not believed
                )
            await until(lambda: winner.is_master and not old.is_master, "the designated master")
            await group.all_in_sync()
            address = f"127.0.0.1:{winner.remoting_port}"
            answer = orjson.loads((await client.call(address, codes.GET_BROKER_EPOCH_CACHE)).body)
            assert answer["epochList"][-1]["epoch"] == winner.replica.master_epoch
            status = orjson.loads((await client.call(address, codes.GET_BROKER_HA_STATUS)).body)
            assert status["master"] is True
            assert status["inSyncSlaveNums"] == 2
        finally:
            client.close()
        assert winner.replica.master_epoch < 100


async def test_the_replication_port_believes_nobody_it_does_not_know() -> None:
    async with cluster(size=1) as group:
        await group.has_master()
        port = group.master.ha_port

        async def answer_to(data: bytes) -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(data)
                async with asyncio.timeout(DEADLINE_S):
                    return await reader.read()
            except ConnectionResetError:
                return b""
            finally:
                writer.close()

        end = group.master.log.end_offset
        assert await answer_to(encode_ack(end)) == b""
        assert await answer_to(encode_handshake(Handshake(1)) + encode_ack(end)) == b""
        assert await answer_to(encode_handshake(Handshake(77)) + encode_ack(end)) == b""
        assert await answer_to(b"\xff" * 100) == b""
        await group.acknowledge(5)


async def test_a_broken_invariant_stops_the_broker() -> None:
    async with cluster() as group:
        await group.has_master()
        await group.all_in_sync()
        master = group.master
        failures: list[str] = []
        master.replica.on_failure(failures.append)

        def broken(offset: int) -> None:
            raise RuntimeError("a bug")

        master.replica.add_confirm_listener(broken)
        master.append(b"x")
        await until(lambda: failures, "the failure")
        assert failures == ["replication broke: a bug"]
        assert not master.is_master
        assert master.statuses == [PutStatus.SERVICE_NOT_AVAILABLE]


async def test_an_assertion_that_fails_in_a_role_change_stops_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(machine: RoleMachine, now_ms: int) -> None:
        raise AssertionError("the master epoch fell from 3 to 2")

    monkeypatch.setattr(RoleMachine, "_begin_epoch", broken)
    async with cluster(size=1) as group:
        failures: list[str] = []
        (broker,) = group.brokers
        broker.replica.on_failure(failures.append)
        await until(lambda: failures, "the failure")
        assert failures == ["replication broke: the master epoch fell from 3 to 2"]
        assert broker.replica.role is Role.FENCED
        assert Role.MASTER not in broker.roles


async def test_a_master_keeps_its_log_for_a_replica_that_has_stopped() -> None:
    async with cluster() as group:
        await group.has_master()
        await group.all_in_sync()
        group.master.append(b"x")
        await until(lambda: group.master.statuses == [PutStatus.PUT_OK], "acknowledged by all")
        end = group.master.log.end_offset
        await until(lambda: group.master.replica.expected_offset() is None, "nobody is away")
        gone = next(each for each in group.brokers if each is not group.master)
        assert gone.replica.expected_offset() is None, "only a master waits for others"
        await gone.stop()
        await until(lambda: group.master.replica.expected_offset() == end, "it may come back")


async def test_a_fresh_replica_copies_a_long_log() -> None:
    async with cluster(size=1) as group:
        await group.has_master()
        master = group.master
        body = bytes(range(200))
        for _ in range(3000):
            master.append(body)
        await until(lambda: len(master.statuses) == 3000, "acknowledged alone")
        fresh = Broker([group.controller.address], master.settings)
        group.brokers.append(fresh)
        await fresh.start()
        await group.all_in_sync()
        assert fresh.log.data == master.log.data


async def test_a_fixed_master_does_not_lead_without_what_was_confirmed() -> None:
    """Nobody else is elected, and its replicas, which have it, would be cut to its log."""
    broker = Broker([], ReplicationSettings(roles="fixed"))
    names = BrokerNames("c", "b", "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")
    around = Surroundings(names, [], broker.disk, dict, broker.secrets)
    with pytest.raises(CorruptedFile, match=r"was confirmed up to 900.*make a replica that has everything"):
        Replica(broker.settings, around, broker.log, confirm_offset=0, tail=Tail(kept=False, confirmed=900))
    judged: list[bool] = []
    tail = Tail(kept=False, judged=lambda: judged.append(True))
    Replica(broker.settings, around, broker.log, confirm_offset=0, tail=tail)
    assert judged
