"""The asyncio shells: the driver over a real log file, and peers over real connections."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from controllerd.raft.codec import encode_message
from controllerd.raft.core import CoreSettings, RaftCore
from controllerd.raft.driver import RaftDriver
from controllerd.raft.log_file import RaftLogFile
from controllerd.raft.messages import Message, MessageKind, SoftState
from controllerd.raft.node import RaftNode
from controllerd.raft.peers import Peers
from controllerd.raft.quorum import Configuration
from remoting import codes
from remoting.errors import LogboomError, NotLeader, RequestTimeout, StorageError
from remoting.transport.client import connect
from remoting.transport.server import RemotingServer
from remoting.transport.tasks import TaskOwner
from tests.support.disks import FaultyDisk, MemoryDisk
from tests.unit.controllerd.raft.test_node import Recorder


async def until(what: str, condition: object) -> None:
    async with asyncio.timeout(10):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.005)


def make_driver(
    disk: MemoryDisk, voters: tuple[str, ...] = ("n0",), *, changed: list[SoftState] | None = None
) -> tuple[RaftDriver, Recorder, list[Message]]:
    file = RaftLogFile(disk, "group", "n0", voters)
    recovered = file.open()
    settings = CoreSettings(election_ticks=5)
    core = RaftCore("n0", Configuration.of(voters), recovered.log, recovered.hard_state, settings, random.Random(1))
    machine, sent = Recorder(), []
    node = RaftNode(core, machine, compact_after_entries=20, keep_entries=2)
    states = [] if changed is None else changed
    return RaftDriver(node, file, sent.append, states.append, tick_ms=5), machine, sent


@asynccontextmanager
async def running(driver: RaftDriver) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.get_running_loop().create_task(driver.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_node_alone_decides_reads_compacts_and_remembers() -> None:
    disk, states = MemoryDisk(), []
    driver, machine, _ = make_driver(disk, changed=states)
    async with running(driver):
        with pytest.raises(NotLeader):
            await driver.propose(b"early", 1000)
        await until("leading", lambda: driver.is_serving)
        replies = await asyncio.gather(*(driver.propose(b"c%d" % number, 5000) for number in range(50)))
        assert replies == [f"did c{number}" for number in range(50)]
        await driver.read_barrier(1000)
        await until("a compaction", lambda: driver.node.core.log.compacted_index > 0)
    assert states[-1].leader == "n0"
    again, machine, _ = make_driver(disk)
    async with running(again):
        await until("leading", lambda: again.is_serving)
        assert machine.applied == [b"c%d" % number for number in range(50)]


async def test_without_a_majority_a_request_times_out_and_a_closing_node_answers() -> None:
    driver, _, sent = make_driver(MemoryDisk(), ("n0", "n1", "n2"))
    async with running(driver):
        await until("a pre-vote", lambda: sent)
        driver.receive(Message(MessageKind.PRE_VOTE_RESPONSE, "n1", "n0", 1))
        await until("a vote request", lambda: sent[-1].kind is MessageKind.VOTE)
        driver.receive(Message(MessageKind.VOTE_RESPONSE, "n1", "n0", 1))
        await until("an append", lambda: sent[-1].kind in (MessageKind.APPEND, MessageKind.HEARTBEAT))
        driver.receive(Message(MessageKind.APPEND_RESPONSE, "n1", "n0", 1, index=1))
        await until("serving", lambda: driver.is_serving)
        with pytest.raises((RequestTimeout, NotLeader)):
            await driver.propose(b"x", 10)
        with pytest.raises((RequestTimeout, NotLeader)):
            await driver.read_barrier(10)


async def test_a_failing_disk_ends_the_node() -> None:
    disk = FaultyDisk(random.Random(1))
    driver, _, _ = make_driver(disk)
    async with running(driver) as task:
        await until("leading", lambda: driver.is_serving)
        disk.fail_sync_at(1)
        with pytest.raises(LogboomError):
            await driver.propose(b"x", 5000)
        with pytest.raises(StorageError):
            await task


async def test_a_lost_log_ends_the_node() -> None:
    driver, _, _ = make_driver(MemoryDisk(), ("n0", "n1", "n2"))
    async with running(driver) as task:
        driver.receive(Message(MessageKind.HEARTBEAT, "n1", "n0", 3, commit=9))
        with pytest.raises(StorageError, match="its data was lost or replaced"):
            await task
        assert not driver.is_serving


class Node:
    """One end of the peers' conversation."""

    def __init__(self, node_id: str, group: str = "group") -> None:
        self.received: list[Message] = []
        self.unreachable: list[str] = []
        self.owner = TaskOwner(node_id)
        self.node_id = node_id
        self.group = group
        self.peers: Peers | None = None
        self.server = RemotingServer("127.0.0.1", 0, {codes.RAFT_MESSAGE: lambda c, r: self.handle(c, r)})

    def handle(self, connection: object, requests: object) -> None:
        assert self.peers is not None
        self.peers.handle(connection, requests)  # type: ignore[arg-type]

    def meet(self, addresses: dict[str, str]) -> None:
        self.peers = Peers(
            self.group, self.node_id, addresses, self.received.append, self.unreachable.append, self.owner
        )

    async def close(self) -> None:
        await self.owner.close()
        if self.peers is not None:
            self.peers.close()
        await self.server.close()
        await asyncio.sleep(0)


@asynccontextmanager
async def two_nodes(group_of_other: str = "group") -> AsyncIterator[tuple[Node, Node]]:
    nodes = [Node("n0"), Node("n1", group_of_other)]
    try:
        for node in nodes:
            await node.server.start()
        addresses = {node.node_id: f"127.0.0.1:{node.server.port}" for node in nodes}
        for node in nodes:
            node.meet(addresses)
        yield nodes[0], nodes[1]
    finally:
        for node in nodes:
            await node.close()


def message(number: int, to: str = "n1", sender: str = "n0") -> Message:
    return Message(MessageKind.HEARTBEAT, sender, to, number)


async def test_messages_arrive_in_order_over_one_connection() -> None:
    async with two_nodes() as (one, other):
        assert one.peers is not None
        for number in range(40):
            one.peers.send(message(number))
        await until("forty messages", lambda: len(other.received) == 40)
        assert [each.term for each in other.received] == list(range(40))
        one.peers.send(message(1, to="stranger"))
        assert len(other.server.connections) == 1


async def test_while_nobody_answers_the_oldest_are_dropped_and_the_peer_is_reported() -> None:
    async with two_nodes() as (one, other):
        assert one.peers is not None
        await other.server.close()
        for number in range(1000):
            one.peers.send(message(number))
        await until("the report", lambda: one.unreachable)
        assert set(one.unreachable) == {"n1"}


async def test_another_group_or_a_wrong_address_closes_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    async with two_nodes("other group") as (one, other):
        assert one.peers is not None
        one.peers.send(message(1))
        await until("the refusal", lambda: "it speaks for the controller group 'group'" in caplog.text)
        await until("the connection closed", lambda: not other.server.connections)
        assert other.received == []
    async with two_nodes() as (one, _):
        address = f"127.0.0.1:{one.server.port}"
        for stranger in (message(1, to="n0", sender="n7"), message(1, to="n5", sender="n1")):
            connection = await connect(address)
            connection.notify(codes.RAFT_MESSAGE, {"group": "group"}, encode_message(stranger))
            await until("the connection closed", lambda connection=connection: not connection.is_open)
        assert one.received == []
