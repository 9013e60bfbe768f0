"""Raft messages over real connections: introductions, snapshots in pieces, and who is refused."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from controllerd.raft import homes
from controllerd.raft.acquaintances import Acquaintances
from controllerd.raft.chunks import CHUNK_BYTES, MAX_TOTAL_BYTES, Assembly, cut
from controllerd.raft.codec import encode_message
from controllerd.raft.members import Members
from controllerd.raft.messages import Message, MessageKind, Snapshot
from controllerd.raft.peers import PeerEvents, Peers
from controllerd.raft.quorum import Configuration
from remoting import codes
from remoting.errors import ProtocolError
from remoting.transport.client import connect, split_address
from remoting.transport.connection import RemotingConnection
from remoting.transport.server import Place, RemotingServer
from remoting.transport.tasks import TaskOwner
from tests.support.disks import MemoryDisk
from tests.unit.controllerd.raft.test_driver import until


class Node:
    """One end of the peers' conversation."""

    def __init__(self, node_id: str, group: str = "group") -> None:
        self.received: list[Message] = []
        self.unreachable: list[str] = []
        self.snapshots: list[tuple[str, bool]] = []
        self.lost: list[str] = []
        self.removed = 0
        self.lost_logs: list[str] = []
        self.copied: list[str] = []
        self.has_log = True
        self.owner = TaskOwner(node_id)
        self.node_id = node_id
        self.group = group
        self.handlers: dict[int, object] = {}
        self.server = RemotingServer(Place("127.0.0.1", 0), self.handlers, closed=self._closed)  # type: ignore[arg-type]

    def _closed(self, connection: RemotingConnection) -> None:
        self.peers.connection_closed(connection)

    def _was_removed(self) -> None:
        self.removed += 1

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def meet(self, addresses: dict[str, str], configuration: Configuration | None = None) -> None:
        self.members = Members(self.node_id, addresses)
        self.members.configured(configuration or Configuration.of(addresses))
        events = PeerEvents(
            self.received.append,
            self.unreachable.append,
            lambda node, delivered: self.snapshots.append((node, delivered)),
            self.lost.append,
            self._was_removed,
            lambda: self.has_log,
            self.lost_logs.append,
            self.copied.append,
        )
        self.peers = Peers(self.group, self.members, events, self.owner)
        self.handlers.update(self.peers.handlers())

    async def close(self) -> None:
        await self.owner.close()
        self.peers.close()
        await self.server.close()
        await asyncio.sleep(0)


@asynccontextmanager
async def two_nodes(
    group_of_other: str = "group",
    configuration: Configuration | None = None,
    configuration_of_other: Configuration | None = None,
    *,
    acquainted: bool = True,
) -> AsyncIterator[tuple[Node, Node]]:
    nodes = [Node("n0"), Node("n1", group_of_other)]
    try:
        for node in nodes:
            await node.server.start()
        addresses = {node.node_id: node.address for node in nodes}
        nodes[0].meet(addresses, configuration)
        nodes[1].meet(addresses if acquainted else {"n1": nodes[1].address}, configuration_of_other)
        yield nodes[0], nodes[1]
    finally:
        for node in nodes:
            await node.close()


def message(number: int, to: str = "n1", sender: str = "n0", kind: MessageKind = MessageKind.HEARTBEAT) -> Message:
    return Message(kind, sender, to, number)


def snapshot_message(size_bytes: int) -> Message:
    snapshot = Snapshot(5, 1, Configuration.of(("n0", "n1")), bytes(range(256)) * (size_bytes // 256))
    return Message(MessageKind.SNAPSHOT, "n0", "n1", 1, snapshot=snapshot)


async def test_messages_arrive_in_order_over_one_connection() -> None:
    async with two_nodes() as (one, other):
        for number in range(40):
            one.peers.send(message(number))
        await until("forty messages", lambda: len(other.received) == 40)
        assert [each.term for each in other.received] == list(range(40))
        one.peers.send(message(1, to="stranger"))
        one.peers.send(message(1, to="n0"))
        assert len(other.server.connections) == 1


async def test_a_member_says_what_it_reads_as_long_as_it_is_connected() -> None:
    async with two_nodes() as (one, other):
        for said, level in ((7, 7), (-1, 0), (10**9, 0), (2, 2)):
            other.peers._own_level = said
            assert one.peers.level("n1") == 0
            one.peers.send(message(1))
            await until("the message", lambda: other.received)
            assert one.peers.level("n1") == level
            other.received.clear()
            for connection in list(other.server.connections):
                connection.close()
            await until("the end of the connection", lambda: not one.peers._peers["n1"].connection.is_open)
        assert (one.peers.level("n0"), one.peers.level("n2")) == (0, 0)


async def test_while_nobody_answers_the_oldest_are_dropped_and_the_peer_is_reported() -> None:
    async with two_nodes() as (one, other):
        await other.server.close()
        for number in range(1000):
            one.peers.send(message(number))
        await until("the report", lambda: one.unreachable)
        assert set(one.unreachable) == {"n1"}


async def test_a_node_that_knows_nobody_answers_who_introduced_itself() -> None:
    async with two_nodes(acquainted=False, configuration_of_other=Configuration()) as (one, other):
        other.peers.send(message(1, to="n0", sender="n1"))
        one.peers.send(message(7))
        await until("the message", lambda: other.received)
        other.peers.send(message(8, to="n0", sender="n1"))
        await until("the answer", lambda: one.received)
        assert [each.term for each in one.received] == [8]


async def test_a_large_snapshot_arrives_in_pieces_and_is_reported() -> None:
    sent = snapshot_message(3 * CHUNK_BYTES)
    async with two_nodes() as (one, other):
        one.peers.send(sent)
        await until("the report", lambda: one.snapshots)
        assert one.snapshots == [("n1", False)], "nobody was connected yet"
        one.peers.send(message(1))
        await until("a connection", lambda: other.received)
        one.peers.send(sent)
        one.peers.send(sent)  # one at a time: this one is dropped
        one.peers.send(message(2))
        await until("the report", lambda: len(one.snapshots) == 2)
        assert one.snapshots[1] == ("n1", True)
        assert [each.kind for each in other.received].count(MessageKind.SNAPSHOT) == 1
        assert other.received[1] == message(2), "heartbeats do not wait for a snapshot"
        assert sent in other.received


async def test_a_snapshot_that_is_cut_off_is_reported_as_lost() -> None:
    async with two_nodes() as (one, other):
        one.peers.send(message(1))
        await until("a connection", lambda: other.received)
        one.peers.send(snapshot_message(40 * CHUNK_BYTES))
        await asyncio.sleep(0)
        for connection in list(other.server.connections):
            connection.abort()
        await until("the report", lambda: one.snapshots)
        assert one.snapshots == [("n1", False)]
        assert all(each.kind is not MessageKind.SNAPSHOT for each in other.received)
        await until("the loss is noticed", lambda: other.lost == ["n0"])


@pytest.mark.parametrize(
    ("position", "total", "size", "sentence"),
    [
        (1, 100, 10, "a snapshot starts at position 0"),
        (0, 0, 1, "a snapshot of 0 bytes"),
        (0, MAX_TOTAL_BYTES + 1, 10, "the limit is"),
        (0, 5, 6, "behind the announced end"),
        (0, 5, 0, "do not follow"),
        (0, 5, 5, "raft value|not understood"),
    ],
)
async def test_pieces_that_do_not_fit_are_refused(position: int, total: int, size: int, sentence: str) -> None:
    async with two_nodes() as (one, _):
        connection = await connect(one.address)
        answer = await connection.call(codes.RAFT_SNAPSHOT, {"position": "0", "total": "9"}, b"x")
        assert "introduce yourself" in str(answer.remark)
        await introduce(connection, one)
        ext = {"position": str(position), "total": str(total)}
        answer = await connection.call(codes.RAFT_SNAPSHOT, ext, bytes(size))
        assert answer.code != codes.SUCCESS
        assert re.search(sentence, str(answer.remark)), answer.remark
        assert one.received == []
        connection.close()


def test_pieces_are_put_together_in_order_only() -> None:
    content = bytes(range(256)) * (CHUNK_BYTES // 100)
    assembly = Assembly(len(content))
    pieces = list(cut(content))
    assert len(pieces) == 3
    assert assembly.add(0, len(content), pieces[0][1]) is None
    for wrong in ((0, len(content)), (CHUNK_BYTES, len(content) + 1), (2 * CHUNK_BYTES, len(content))):
        with pytest.raises(ProtocolError, match="do not follow"):
            assembly.add(*wrong, pieces[1][1])
    assert assembly.add(CHUNK_BYTES, len(content), pieces[1][1]) is None
    assert assembly.add(2 * CHUNK_BYTES, len(content), pieces[2][1]) == content


async def introduce(connection: RemotingConnection, other: Node, node: str = "n1", **ext: str) -> str:
    """Say hello; the reason of a refusal, or nothing."""
    fields = {"group": "group", "node": node, "to": other.node_id, "address": "127.0.0.1:1", "cluster": ""} | ext
    answer = await connection.call(codes.RAFT_HELLO, fields)
    return "" if answer.code == codes.SUCCESS else str(answer.remark)


async def test_who_is_refused_and_why() -> None:
    members = replace(Configuration.of(("n0", "n1")), cluster="c1", retired=("n5",))
    async with two_nodes(configuration=members) as (one, _):
        connection = await connect(one.address)
        assert "the controller group 'other', this is 'group'" in await introduce(connection, one, group="other")
        assert "another cluster" in await introduce(connection, one, cluster="c2")
        assert "looks for 'n7'" in await introduce(connection, one, to="n7")
        assert "was removed from the group" in await introduce(connection, one, "n5", cluster="c1")
        assert "is no member" in await introduce(connection, one, "n9")
        assert "looks for" in await introduce(connection, one, "x" * 65)
        assert "is not an address" in await introduce(connection, one, address="nowhere")
        assert await introduce(connection, one, "n9", cluster="c1") == "", "it may have been added without our knowing"
        assert await introduce(connection, one) == ""
        connection.close()


@pytest.mark.parametrize(
    "stranger", [message(1, to="n0", sender="n7"), message(1, to="n5", sender="n1"), message(1, to="n0", sender="n0")]
)
async def test_another_name_or_a_wrong_address_closes_the_connection(stranger: Message) -> None:
    async with two_nodes() as (one, _):
        for is_introduced in (False, True):
            connection = await connect(one.address)
            if is_introduced:
                assert await introduce(connection, one) == ""
            connection.notify(codes.RAFT_MESSAGE, None, encode_message(stranger))
            await until("the connection closed", lambda connection=connection: not connection.is_open)
        assert one.received == []


async def test_a_removed_node_learns_it_from_the_others() -> None:
    members = replace(Configuration.of(("n0", "n1")), cluster="c1")
    without = replace(Configuration.of(("n1",)), cluster="c1", retired=("n0",))
    async with two_nodes(configuration=members, configuration_of_other=without) as (one, other):
        one.peers.send(message(1))
        await until("the news", lambda: one.removed)
        assert other.received == []


async def test_a_founder_whose_log_is_gone_is_told_so_before_anything_else() -> None:
    """Its disk was emptied: what it promised before is forgotten, and a second promise could undo a decision."""
    configuration = replace(Configuration.of(("n0", "n1")), cluster="c1")
    async with two_nodes(configuration=configuration) as (one, other):
        other.has_log = False
        for kind in (*_VOTES, MessageKind.HEARTBEAT):
            one.peers.send(message(1, kind=kind))
        await until("the loss", lambda: other.lost_logs)
        assert other.received == []


def in_life(node: Node, *lives: str) -> Node:
    """A process that is the node in these lives, newest first, wherever it listens."""
    node.members.lives = lives
    return node


async def copy_of(node: Node, *lives: str) -> Node:
    """Another process with a copy of the node's directory, at an address of its own."""
    other = Node(node.node_id)
    await other.server.start()
    addresses = dict(node.members.table()) | {node.node_id: other.address}
    other.meet(addresses, node.members.configuration)
    return in_life(other, *lives)


async def test_an_incarnation_that_was_replaced_has_lost_its_log() -> None:
    """Its directory was put back: it may come back, as another one again, and was not removed."""
    members = replace(Configuration.of(("n0", "n1")), cluster="c1")
    later = replace(Configuration.of(("n0~ab", "n1")), cluster="c1", retired=("n0",))
    async with two_nodes(configuration=members, configuration_of_other=later) as (one, other):
        one.peers.send(message(1))
        await until("the news", lambda: one.lost_logs)
        assert one.lost_logs == ["n0 lost its log once, and came back as n0~ab"]
        assert (one.removed, other.received) == (0, [])


FOUNDED = replace(Configuration.of(("n0", "n1")), cluster="c1")


async def test_a_process_with_a_copy_of_a_directory_is_refused_while_the_first_one_is_at_home() -> None:
    async with two_nodes(configuration=FOUNDED, configuration_of_other=FOUNDED) as (one, other):
        in_life(one, "b", "a").peers.send(message(1))
        await until("the message", lambda: other.received)
        second = await copy_of(one, "c", "b", "a")
        try:
            second.peers.send(message(2))
            await until("the refusal", lambda: second.copied)
            assert "another process is controller n0" in second.copied[0]
            one.peers.send(message(3))
            await until("the first one goes on", lambda: other.received[-1].term == 3)
            assert [each.term for each in other.received] == [1, 3]
            assert one.copied == []
        finally:
            await second.close()


async def test_a_copy_waits_while_the_first_process_takes_connections_and_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Had it been admitted meanwhile, the first one would be the older one when it goes on."""
    async with two_nodes(configuration=FOUNDED, configuration_of_other=FOUNDED) as (one, other):
        in_life(one, "b", "a").peers.send(message(1))
        await until("the message", lambda: other.received)
        answering = one.handlers[codes.RAFT_HELLO]
        one.handlers[codes.RAFT_HELLO] = lambda connection, requests: None
        second = await copy_of(one, "c", "b", "a")
        patience_ms = homes._PART_TIMEOUT_MS
        monkeypatch.setattr(homes, "_PART_TIMEOUT_MS", 100)  # only while it waits in vain: an answer may take long
        second.owner.spawn(second.peers.greet(), "introduce it")
        try:
            for _ in range(homes._LOOKS + 2):
                second.peers.send(message(2))
                second.unreachable.clear()
                await until("a refusal", lambda: second.unreachable)
            assert other.members.acquaintances.life("n0") == "b"
            assert second.copied == []
            monkeypatch.setattr(homes, "_PART_TIMEOUT_MS", patience_ms)
            one.handlers[codes.RAFT_HELLO] = answering
            second.peers.send(message(2))
            await until("the last refusal", lambda: second.copied)
            one.peers.send(message(3))
            await until("the first one goes on", lambda: other.received[-1].term == 3)
            assert [each.term for each in other.received] == [1, 3]
            assert one.lost_logs == []
        finally:
            await second.close()


async def test_who_starts_again_is_met_in_its_new_life_and_an_older_copy_is_not() -> None:
    async with two_nodes(configuration=FOUNDED, configuration_of_other=FOUNDED) as (one, other):
        in_life(one, "b", "a").peers.send(message(1))
        await until("the message", lambda: other.received)
        one.peers.close()
        await until("the connection closed", lambda: not other.server.connections)
        in_life(one, "d", "c", "b", "a").peers.send(message(2))  # one start nobody heard of
        await until("the message of its new life", lambda: len(other.received) == 2)
        one.peers.close()
        await until("the connection closed", lambda: not other.server.connections)
        in_life(one, "e", "a").peers.send(message(3))
        await until("the refusal", lambda: one.lost_logs)
        assert "it is a copy that was put back" in one.lost_logs[0]
        assert [each.term for each in other.received] == [1, 2]


async def test_an_older_copy_is_found_out_by_members_that_were_all_started_again() -> None:
    disk = MemoryDisk()
    async with two_nodes(configuration=FOUNDED, configuration_of_other=FOUNDED) as (one, other):
        other.members.acquaintances = Acquaintances(disk)
        in_life(one, "d", "c", "b", "a").peers.send(message(1))
        await until("the message", lambda: other.received)
    async with two_nodes(configuration=FOUNDED, configuration_of_other=FOUNDED) as (one, other):
        other.members.acquaintances = Acquaintances(disk)
        in_life(one, "e", "b", "a").peers.send(message(2))
        await until("the refusal", lambda: one.lost_logs)
        assert "it is a copy that was put back" in one.lost_logs[0]
        in_life(one, "f", "e", "d", "c").peers.send(message(3))
        await until("the message of one that is not", lambda: other.received)
        assert [each.term for each in other.received] == [3]


async def test_a_node_is_known_in_its_new_life_also_by_who_gets_no_message_of_it() -> None:
    """The leader alone would know it, and when that is gone nobody would find an older copy out."""
    async with two_nodes(configuration=FOUNDED, configuration_of_other=FOUNDED) as (one, other):
        other_address = other.address
        await other.server.close()
        one = in_life(one, "b", "a")
        one.owner.spawn(one.peers.greet(), "introduce it")
        await until("a try", lambda: one.unreachable)
        other.server = RemotingServer(Place(*split_address(other_address)), other.handlers, closed=other._closed)  # type: ignore[arg-type]
        await other.server.start()
        await until("the introduction", lambda: one.peers._greeted)
        assert other.members.acquaintances.life("n0") == "b"
        one.peers.close()
        await until("the connection closed", lambda: not other.server.connections)
        in_life(one, "c", "a").peers.send(message(1))
        await until("the refusal", lambda: one.lost_logs)
        assert other.received == []


@pytest.mark.parametrize(("cluster", "has_log", "votes"), [("c1", False, False), ("c1", True, True), ("", False, True)])
async def test_who_joins_does_not_vote_before_it_was_sent_anything(cluster: str, has_log: bool, votes: bool) -> None:
    configuration = replace(Configuration.of(("n0", "n1")), cluster=cluster)
    expected = [*_VOTES, MessageKind.HEARTBEAT] if votes else [MessageKind.HEARTBEAT]
    async with two_nodes(configuration=configuration) as (one, other):
        other.members.configured(Configuration())
        other.has_log = has_log
        for kind in (*_VOTES, MessageKind.HEARTBEAT):
            one.peers.send(message(1, kind=kind))
        await until("the heartbeat", lambda: other.received and other.received[-1].kind is MessageKind.HEARTBEAT)
        assert [each.kind for each in other.received] == expected


_VOTES = (MessageKind.PRE_VOTE, MessageKind.VOTE)


async def test_who_moves_is_dialled_at_its_new_address_and_who_leaves_is_left() -> None:
    async with two_nodes() as (one, other):
        one.peers.send(message(1))
        await until("the message", lambda: other.received)
        third = Node("n1")
        await third.server.start()
        third.meet({"n0": one.address, "n1": third.address})
        one.members._settings["n1"] = third.address
        one.peers.send(message(2))
        await until("the message at the new place", lambda: third.received)
        await until("the old connection closed", lambda: not other.server.connections)
        one.members.configured(replace(Configuration.of(("n0",)), retired=("n1",)))
        one.peers.configured()
        await until("the connection closed", lambda: not third.server.connections)
        one.peers.send(message(3))
        assert [each.term for each in third.received] == [2]
        await third.close()
