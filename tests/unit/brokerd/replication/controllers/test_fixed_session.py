"""Groups with fixed roles: the session alone, and whole brokers over real sockets with a small name server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from brokerd.replication.controllers.fixed_session import FixedSession
from brokerd.replication.controllers.session import BrokerNames, SessionRequest
from brokerd.replication.epochs.log_lineage import LINEAGE_FILE, LogLineage
from brokerd.replication.required_set.sync_state import Proposal
from brokerd.replication.roles.effects import Ask, Role, RoleView
from brokerd.replication.settings import ReplicationSettings
from brokerd.store.put_status import PutStatus
from remoting import codes
from remoting.errors import CorruptedFile, ProtocolError, RequestError, SettingsError
from remoting.frame import Command
from remoting.transport.client import RemotingClient
from remoting.transport.connection import RemotingConnection
from remoting.transport.server import Place, RemotingServer, each
from tests.support.disks import MemoryDisk
from tests.unit.brokerd.replication.test_replica import Broker, free_ports, until

LINEAGE = "0123456789abcdef" * 2
MASTER, NS = "127.0.0.1:1", "127.0.0.1:9876"
ASK_MASTER, ASK_GROUP = codes.EXCHANGE_BROKER_HA_INFO, codes.GET_BROKER_MEMBER_GROUP


class Observer:
    """Records what the driver would be told."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.lineages: list[str] = []
        self.views: list[RoleView] = []
        self.members: frozenset[int] = frozenset()
        self.accepted: list[tuple[int, frozenset[int], int]] = []

    def identified(self, broker_id: int) -> None:
        self.ids.append(broker_id)

    def lineage_known(self, name: str) -> None:
        self.lineages.append(name)

    def observed(self, view: RoleView, now_ms: int) -> None:
        self.views.append(view)

    def members_known(self, broker_ids: frozenset[int], learners: frozenset[int], now_ms: int) -> None:
        self.members = broker_ids

    def proposal_accepted(self, token: int, members: Iterable[int], set_epoch: int, now_ms: int) -> None:
        self.accepted.append((token, frozenset(members), set_epoch))

    def proposal_failed(self, token: int, code: int | None, now_ms: int) -> None:
        raise AssertionError("a fixed group refuses nothing, and loses no answer")


class Lineage:
    """A file that nobody reads again."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kept: list[str] = []

    def load(self, *, draw: bool) -> str:
        return self.name

    def keep(self, name: str) -> None:
        self.kept.append(name)


class Talk:
    def __init__(self, broker_id: int, *, highest: int = 0, acting: bool = False, total: int = 3) -> None:
        self.now_ms = 0
        self.observer = Observer()
        names = BrokerNames("c", "b", MASTER if broker_id == 0 else "r:1", "m:2", "m:3")
        settings = ReplicationSettings(
            roles="fixed", broker_id=broker_id, total_replicas=total, acting_master=acting,
            fixed_master="" if broker_id == 0 else MASTER,
        )  # fmt: skip
        self.lineage: Any = Lineage(LINEAGE if broker_id == 0 or highest else "")
        self.settings, self.names = settings, names
        self.session = FixedSession(settings, names, [NS], self.observer, self.lineage, highest)
        self.waiting: list[SessionRequest] = []

    def tick(self, milliseconds: int = 0) -> list[tuple[str, int]]:
        self.now_ms += milliseconds
        self.session.tick(self.now_ms, 0)
        new = self.session.take_requests()
        self.waiting += new
        return [(request.address, request.code) for request in new]

    def answer(self, code: int, ext: dict[str, str] | None = None, body: Any = None, status: int = 0) -> None:
        request = next(each for each in self.waiting if each.code == code)
        self.waiting.remove(request)
        encoded = b"" if body is None else orjson.dumps(body)
        self.session.answered(request.token, status, ext or {}, encoded, self.now_ms)


def told(epoch: int, *members: int, set_epoch: int = 4) -> dict[str, str]:
    return {
        "masterAddress": MASTER,
        "masterHaAddress": "m:2",
        "masterFlushOffset": "77",
        "masterEpoch": str(epoch),
        "masterGrpcAddress": "m:3",
        "syncStateSet": ",".join(map(str, members)),
        "syncStateSetEpoch": str(set_epoch),
        "lineage": LINEAGE,
    }


def test_every_start_of_the_master_is_a_new_epoch() -> None:
    talk = Talk(0, highest=6)
    assert talk.tick() == []
    assert talk.observer.views == [RoleView(0, 7, frozenset({0}), 1, MASTER, "m:2", "m:3")]
    assert talk.observer.members == {0, 1, 2}
    talk.session.ask(Ask.SYNC)
    talk.tick(50)
    assert talk.observer.views[-1].master_epoch == 7


def test_what_the_master_proposes_is_the_set() -> None:
    talk = Talk(0)
    talk.tick()
    talk.session.propose(Proposal(5, frozenset({0, 1}), 1), 1)
    talk.session.propose(Proposal(6, frozenset({0}), 9), 99)  # of an ended mastership
    talk.tick(50)
    assert talk.observer.accepted == [(5, frozenset({0, 1}), 2)]
    assert talk.session.exchange_fields()["syncStateSet"] == "0,1"
    assert talk.session.exchange_fields()["masterEpoch"] == "1"


def test_a_replica_asks_its_master_now_and_then_and_when_wished() -> None:
    talk = Talk(1)
    assert talk.tick() == [(MASTER, ASK_MASTER)]
    assert talk.observer.views == [], "it knows nothing yet"
    talk.answer(ASK_MASTER, told(3, 0, 2))
    assert talk.observer.views == [RoleView(0, 3, frozenset({0, 2}), 4, MASTER, "m:2", "m:3")]
    assert talk.lineage.kept == talk.observer.lineages == [LINEAGE]
    assert talk.tick(999) == []
    assert talk.tick(1) == [(MASTER, ASK_MASTER)]
    assert talk.tick(5000) == [], "one question at a time"
    talk.session.failed(talk.waiting.pop().token, "no answer", talk.now_ms)
    talk.session.ask(Ask.SYNC)
    assert talk.tick() == [(MASTER, ASK_MASTER)]


def test_a_replica_that_starts_without_its_master_is_a_replica_of_what_it_knew() -> None:
    talk = Talk(2, highest=5)
    talk.tick()
    assert talk.observer.views == [RoleView(0, 5, master_address=MASTER)]


@pytest.mark.parametrize(
    ("ext", "status", "words"),
    [
        (told(4, 0), 0, "older copy"),
        ({**told(9, 0), "lineage": "f" * 32}, 0, "was replaced"),
        ({"masterHaAddress": "m:2", "masterAddress": MASTER}, 0, "classic_master"),
        ({}, 0, "not the master"),
        ({}, codes.REQUEST_CODE_NOT_SUPPORTED, "not the master"),
        ({**told(9), "masterEpoch": "x"}, 0, "cannot be understood"),
        ({**told(9), "syncStateSet": "1,b"}, 0, "cannot be understood"),
    ],
)
def test_a_master_that_is_none_is_said(ext: dict[str, str], status: int, words: str) -> None:
    talk = Talk(1, highest=5)
    talk.tick()
    talk.answer(ASK_MASTER, ext, status=status)
    assert words in talk.session.last_error
    talk.tick(1000)
    talk.answer(ASK_MASTER, told(6, 0))
    assert talk.session.last_error == ""


def group(*ids: int) -> dict[str, Any]:
    return {"brokerMemberGroup": {"cluster": "c", "brokerName": "b", "brokerAddrs": {str(each): "a:1" for each in ids}}}


def test_the_smallest_replica_stands_in_while_no_name_server_knows_a_master() -> None:
    talk = Talk(1, acting=True)
    assert (NS, ASK_GROUP) in talk.tick()
    talk.answer(ASK_GROUP, body=group(0, 1, 2))
    assert not talk.session.acts_as_master
    talk.session.min_id_changed(talk.now_ms)
    assert (NS, ASK_GROUP) in talk.tick(10)
    talk.answer(ASK_GROUP, body=group(1, 2))
    assert talk.session.acts_as_master
    talk.tick(1000)
    talk.answer(ASK_GROUP, body=group(0, 1, 2))
    assert not talk.session.acts_as_master
    talk.tick(1000)
    talk.answer(ASK_GROUP, body=group(2))
    assert not talk.session.acts_as_master, "it is not there itself, as far as clients can see"
    talk.tick(1000)
    talk.answer(ASK_GROUP, body=group(1))
    assert talk.session.acts_as_master
    talk.session.disconnected(NS, talk.now_ms)
    assert not talk.session.acts_as_master


def test_settings_that_cannot_be_are_refused_with_what_to_do() -> None:
    for settings, words in (
        ({"broker_id": 3, "total_replicas": 3}, "total_replicas"),
        ({"broker_id": 1, "total_replicas": 3}, "fixed_master"),
        ({"broker_id": 0, "learner": True}, "learner"),
    ):
        names = BrokerNames("c", "b", "", "", "")
        chosen = ReplicationSettings(roles="fixed", **settings)
        with pytest.raises(SettingsError, match=words):
            FixedSession(chosen, names, [NS], Observer(), Lineage(LINEAGE), 0)


# ---- over sockets


class NameServer:
    """Remembers registrations by id; forgets those whose connection closed."""

    def __init__(self) -> None:
        self.brokers: dict[int, tuple[object, dict[str, str]]] = {}
        handlers = {
            codes.REGISTER_BROKER: each(self._register),
            codes.UNREGISTER_BROKER: each(self._unregister),
            ASK_GROUP: each(self._group),
        }
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        self.server = RemotingServer(Place("127.0.0.1", port), handlers, closed=self._closed)

    def _register(self, connection: RemotingConnection, request: Command) -> None:
        self.brokers[int(request.ext["brokerId"])] = connection, dict(request.ext)
        connection.respond(request)

    def _unregister(self, connection: RemotingConnection, request: Command) -> None:
        self.brokers.pop(int(request.ext["brokerId"]), None)
        connection.respond(request)

    def _group(self, connection: RemotingConnection, request: Command) -> None:
        connection.respond(request, body=orjson.dumps(group(*self.brokers)))

    def _closed(self, connection: object) -> None:
        self.brokers = {key: value for key, value in self.brokers.items() if value[0] is not connection}


@asynccontextmanager
async def fixed_group(size: int, **settings: object) -> AsyncIterator[tuple[NameServer, list[Broker]]]:
    name_server = NameServer()
    await name_server.server.start()
    brokers: list[Broker] = []
    for broker_id in range(size):
        brokers.append(Broker([name_server.address], ReplicationSettings()))
        brokers[-1].settings = ReplicationSettings(
            roles="fixed",
            broker_id=broker_id,
            total_replicas=size,
            fixed_master=f"127.0.0.1:{brokers[0].remoting_port}" if broker_id else "",
            **settings,  # type: ignore[arg-type]
        )
    try:
        for broker in brokers:
            await broker.start()
        yield name_server, brokers
    finally:
        for broker in brokers:
            await broker.stop()
        await name_server.server.close()


async def acknowledge(master: Broker, count: int) -> None:
    before = len(master.statuses)
    for index in range(count):
        master.append(b"message %d" % (before + index))
    await until(lambda: len(master.statuses) == before + count, f"{count} answers")
    assert set(master.statuses[before:]) == {PutStatus.PUT_OK}


async def test_a_fixed_group_replicates_and_its_master_comes_back_in_a_new_epoch() -> None:
    async with fixed_group(3) as (name_server, brokers):
        master, *replicas = brokers
        await until(lambda: master.is_master and len(master.state().sync_state_set) == 3, "all in the set")
        assert set(name_server.brokers) == {0, 1, 2}
        await acknowledge(master, 20)
        await until(lambda: all(each.log.data == master.log.data for each in replicas), "equal logs")
        await replicas[1].stop()
        await acknowledge(master, 5)
        assert master.state().sync_state_set == [0, 1]
        assert master.state().leading.quorum.downgraded
        await replicas[1].start()
        await until(lambda: len(master.state().sync_state_set) == 3, "back in the set")
        await until(lambda: not master.state().leading.missing, "nobody is missing")
        await master.stop()
        await until(lambda: 0 not in name_server.brokers, "the routes without it")
        assert [each.replica.role for each in replicas] == [Role.REPLICA] * 2, "nobody takes its place"
        await master.start()
        await until(lambda: len(master.state().sync_state_set) == 3, "all in the set again")
        assert master.replica.master_epoch == 2
        await acknowledge(master, 3)
        await until(lambda: all(each.log.data == master.log.data for each in replicas), "equal logs")


async def test_a_master_with_another_data_directory_is_refused_by_its_replicas() -> None:
    async with fixed_group(2) as (_, (master, replica)):
        await until(lambda: master.is_master and len(master.state().sync_state_set) == 2, "both in the set")
        await acknowledge(master, 3)
        await until(lambda: replica.log.data == master.log.data, "equal logs")
        held = bytes(replica.log.data)
        await master.stop()
        await master.start()
        await until(lambda: replica.replica.master_epoch == 2, "the second epoch")
        await master.stop()
        master.disk = MemoryDisk()
        master.log.reset(0)
        await master.start()
        await until(lambda: "was replaced" in replica.state().controllers_error, "the reason")
        await acknowledge(master, 3)
        for _ in range(3):  # its epochs reach, and pass, those that the replica has seen
            await master.stop()
            await master.start()
            await until(lambda: master.is_master, "the master again")
            await until(lambda: not replica.replica.is_connected_to_master, "no connection")
        await acknowledge(master, 3)
        assert bytes(replica.log.data) == held, "nothing was cut, nothing was copied"
        assert master.state().sync_state_set == [0]
        await until(lambda: [each.broker_id for each in master.state().leading.missing] == [1], "it is missed")


def test_a_lineage_is_drawn_once_and_a_damaged_one_is_refused() -> None:
    disk = MemoryDisk()
    assert LogLineage(disk).load(draw=False) == ""
    name = LogLineage(disk).load(draw=True)
    assert LogLineage(disk).load(draw=False) == LogLineage(disk).load(draw=True) == name
    assert LogLineage(MemoryDisk()).load(draw=True) != name
    disk.replace_bytes(LINEAGE_FILE, b"x")
    with pytest.raises(CorruptedFile, match="copy the file"):
        LogLineage(disk).load(draw=True)
    with pytest.raises(ProtocolError, match="cannot be a name"):
        LogLineage(disk).keep("../x")


def test_a_master_that_names_its_log_as_no_log_is_named_ends_no_replica() -> None:
    talk = Talk(1)
    talk.lineage = LogLineage(MemoryDisk())
    session = talk.session = FixedSession(talk.settings, talk.names, [NS], talk.observer, talk.lineage, 0)
    talk.tick()
    talk.answer(ASK_MASTER, {**told(3, 0), "lineage": "../x"})
    assert "cannot be a name" in session.last_error
    assert (talk.observer.views, talk.observer.lineages) == ([], [])
    talk.tick(1000)
    talk.answer(ASK_MASTER, told(2, 0))
    assert [view.master_epoch for view in talk.observer.views] == [2], "nothing of the refused answer was taken over"


async def test_a_replica_names_its_topics_to_stand_in_and_clients_requests_are_answered() -> None:
    async with fixed_group(2, acting_master=True) as (name_server, (master, replica)):
        await until(lambda: master.is_master and len(master.state().sync_state_set) == 2, "both in the set")
        await until(lambda: 1 in name_server.brokers, "the replica's registration")
        assert name_server.brokers[1][1]["enableActingMaster"] == "true"
        await master.stop()
        client = RemotingClient()
        address = f"127.0.0.1:{replica.remoting_port}"
        try:
            await client.call(address, codes.NOTIFY_MIN_BROKER_ID_CHANGE, {"minBrokerId": "1", "brokerName": "b"})
            await until(lambda: replica.replica._session.acts_as_master, "the replica stands in")
            assert not replica.replica.is_connected_to_master
            assert (await client.call(address, ASK_MASTER)).ext == {}, "it is not the master"
            with pytest.raises(RequestError, match="cannot be told"):
                await client.call(address, ASK_MASTER, {"masterAddress": "evil:1"})
            with pytest.raises(RequestError, match="by their epochs"):
                await client.call(address, codes.RESET_MASTER_FLUSH_OFFSET, {"masterFlushOffset": "0"})
            await master.start()
            await until(lambda: not replica.replica._session.acts_as_master, "the master is back")
        finally:
            client.close()


async def test_tools_are_told_what_the_original_tells_them() -> None:
    async with fixed_group(2) as (_, (master, replica)):
        await until(lambda: master.is_master and len(master.state().sync_state_set) == 2, "both in the set")
        await acknowledge(master, 5)
        client = RemotingClient()
        try:
            status = orjson.loads(
                (await client.call(f"127.0.0.1:{master.remoting_port}", codes.GET_BROKER_HA_STATUS)).body
            )
            assert (status["master"], status["inSyncSlaveNums"]) == (True, 1)
            (link,) = status["haConnectionInfo"]
            assert link["addr"].startswith("127.0.0.1:")
            assert link["inSync"] is True
            assert link["diff"] == 0
            assert set(link) >= {"slaveAckOffset", "transferFromWhere", "transferredByteInSecond"}
            status = orjson.loads(
                (await client.call(f"127.0.0.1:{replica.remoting_port}", codes.GET_BROKER_HA_STATUS)).body
            )
            runtime = status["haClientRuntimeInfo"]
            assert (status["master"], runtime["isActivated"]) == (False, True)
            assert runtime["masterAddr"] == f"127.0.0.1:{master.ha_port}"
            assert runtime["maxOffset"] == replica.log.end_offset
            assert runtime["lastReadTimestamp"] > 1_600_000_000_000
        finally:
            client.close()
        await asyncio.sleep(0)
