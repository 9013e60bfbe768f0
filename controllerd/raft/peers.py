"""Raft messages between controllers, over remoting connections: each node dials every other one and sends on that connection.

A connection begins with an introduction: which group and cluster, who speaks, where it listens. A node of another group or
cluster, a former member, and a stranger that belongs to no cluster are refused with a sentence; what comes without introduction,
under another name or for another node closes the connection. So a node brought in later needs to know nobody: the leader dials
it and says who it is. The answer says up to which level of formats that node reads what entries hold.

An introduction tells the lives of its node, too, and one in a new life is looked at: when somebody else answers at the node's own
address, two processes have one identity, and the one that is not at home is refused for good (`homes`). When the node does not
remember the life in which it was met last (`acquaintances`), its directory is an older copy, and what it promised since is lost.
So that whoever is left can tell, a node introduces itself in each life to all members, and not only to whom it has something to
say (`greet`).

Loss is allowed (the core repeats), so nothing here waits: while a connection is being made at most `_QUEUE_MESSAGES` messages are
kept, the oldest is dropped; a peer that does not read gets nothing more. Snapshots may be large: they go in pieces, the next one
when the last was answered, one snapshot at a time for each peer, and their fate is reported.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from controllerd.raft.chunks import Assembly, cut
from controllerd.raft.codec import decode_message, encode_message
from controllerd.raft.homes import LOOK_TIMEOUT_MS, Homes
from controllerd.raft.incarnations import incarnations, name_of, present
from controllerd.raft.members import Members
from controllerd.raft.messages import Message, MessageKind
from controllerd.raft.quorum import NodeId
from controllerd.raft.standing import Standing, standing
from remoting import codes
from remoting.errors import ConnectionLost, InvalidParameter, LogboomError, ProtocolError, RequestError
from remoting.frame import Command
from remoting.transport.beats import until_last_beat
from remoting.transport.client import connect, split_address
from remoting.transport.connection import Handler, RemotingConnection
from remoting.transport.identity import NOBODY, Identity
from remoting.transport.server import each
from remoting.transport.tasks import TaskOwner

log = logging.getLogger(__name__)

_QUEUE_MESSAGES: Final = 64
_CONNECT_TIMEOUT_MS: Final = 500
_INTRODUCE_TIMEOUT_MS: Final = (
    _CONNECT_TIMEOUT_MS + LOOK_TIMEOUT_MS
)  # the peer may look who is at home before it answers
_CHUNK_TIMEOUT_MS: Final = 5000
_GREET_EVERY_S: Final = 1.0
_FIRST_RETRY_MS: Final = 50
_MAX_RETRY_MS: Final = 500
_STABLE_S: Final = 2.0
_MAX_NAME: Final = 64
_MAX_DIGITS: Final = 9
_MAX_INTRODUCED: Final = 256
_VOTES: Final = frozenset({MessageKind.VOTE, MessageKind.PRE_VOTE})


@dataclass(frozen=True, slots=True)
class PeerEvents:
    """Who hears of what happens here."""

    received: Callable[[Message], None]
    unreachable: Callable[[NodeId], None]
    snapshot_sent: Callable[[NodeId, bool], None]
    lost: Callable[[NodeId], None]
    removed: Callable[[], None]
    has_log: Callable[[], bool]  # asked: whether this node's log holds anything
    lost_log: Callable[[str], None]  # this node holds less than it promised; why
    copied: Callable[[str], None]  # another process is this node; who says so


@dataclass(slots=True)
class _Peer:
    """The outgoing side to one peer."""

    address: str
    connection: RemotingConnection | None = None
    connected_at: float = 0.0
    is_dialling: bool = False
    is_sending_snapshot: bool = False
    level: int = 0
    refusal: str = ""
    retry_ms: int = 0
    queue: deque[Message] = field(default_factory=lambda: deque(maxlen=_QUEUE_MESSAGES))

    def close(self) -> None:
        self.queue.clear()
        if self.connection is not None:
            self.connection.close()


@dataclass(slots=True)
class _Introduced:
    """The incoming side: who speaks on a connection."""

    node: NodeId
    cluster: str
    assembly: Assembly | None = None


class Peers:
    def __init__(
        self,
        group: str,
        members: Members,
        events: PeerEvents,
        owner: TaskOwner,
        identity: Identity = NOBODY,
        own_level: int = 0,
    ) -> None:
        """`own_level`: up to which level of formats this node reads what entries hold."""
        self._own_level = own_level
        self._identity = identity
        self._group = group
        self._members = members
        self._events = events
        self._owner = owner
        self._peers: dict[NodeId, _Peer] = {}
        self._greeted: set[NodeId] = set()  # the members that took this node's introduction
        self._introduced: dict[RemotingConnection, _Introduced] = {}
        self._homes = Homes(identity)

    def handlers(self) -> dict[int, Handler]:
        return {
            codes.RAFT_HELLO: each(self._hello),
            codes.RAFT_MESSAGE: self._messages,
            codes.RAFT_SNAPSHOT: each(self._snapshot_piece),
        }

    # Sending

    def send(self, message: Message) -> None:
        """Send or drop a message; never waits."""
        peer = self._peer(message.to)
        if peer is None:
            return
        if message.kind is MessageKind.SNAPSHOT:
            if not peer.is_sending_snapshot:
                peer.is_sending_snapshot = True
                self._owner.spawn(self._send_snapshot(peer, message), f"snapshot for {message.to}")
            return
        if peer.connection is not None and peer.connection.is_open:
            if not _write(peer.connection, message):
                self._events.unreachable(message.to)
            return
        peer.queue.append(message)
        self._dial_soon(message.to, peer)

    async def greet(self) -> None:
        """Introduce this node, as long as it runs, to each member of the group that has not taken its introduction yet."""
        while True:
            own = self._members.configuration
            for node in own.members if own.cluster else ():
                peer = self._peer(node)
                if peer is not None and node not in self._greeted:
                    self._dial_soon(node, peer)
            await until_last_beat(_GREET_EVERY_S)

    def level(self, node: NodeId) -> int:
        """Up to which level of formats the member reads, as it said on the open connection to it; 0 without one."""
        if node == self._members.node_id:
            return self._own_level
        peer = self._peers.get(node)
        return peer.level if peer is not None and peer.connection is not None and peer.connection.is_open else 0

    def configured(self) -> None:
        """The membership changed: leave those who are no members any more."""
        for node in [node for node in self._peers if self._members.address(node) is None]:
            self._peers.pop(node).close()

    def close(self) -> None:
        """Close what was dialled."""
        for peer in self._peers.values():
            peer.close()

    def _peer(self, node: NodeId) -> _Peer | None:
        address = self._members.address(node)
        if address is None or node == self._members.node_id:
            return None
        peer = self._peers.get(node)
        if peer is None or peer.address != address:
            if peer is not None:
                peer.close()
            peer = self._peers[node] = _Peer(address)
        return peer

    def _dial_soon(self, node: NodeId, peer: _Peer) -> None:
        if not peer.is_dialling:
            peer.is_dialling = True
            self._owner.spawn(self._dial(node, peer), f"connect to {node}")

    async def _dial(self, node: NodeId, peer: _Peer) -> None:
        loop = asyncio.get_running_loop()
        if peer.connection is not None and loop.time() - peer.connected_at > _STABLE_S:
            peer.retry_ms = 0
        try:
            await asyncio.sleep(peer.retry_ms / 1000)
            peer.retry_ms = min(max(2 * peer.retry_ms, _FIRST_RETRY_MS), _MAX_RETRY_MS)
            try:
                connection = await connect(peer.address, timeout_ms=_CONNECT_TIMEOUT_MS, identity=self._identity)
                await self._introduce(node, peer, connection)
            except LogboomError:  # a peer that refuses us counts like one that is not there
                self._events.unreachable(node)
                peer.queue.clear()
                return
            if self._peers.get(node) is not peer:
                connection.close()  # it moved or left meanwhile
                return
            peer.connection = connection
            peer.connected_at = loop.time()
            while peer.queue:
                _write(connection, peer.queue.popleft())
        finally:
            peer.is_dialling = False

    async def _introduce(self, node: NodeId, peer: _Peer, connection: RemotingConnection) -> None:
        """Say who this is. Raises RequestError when the peer wants nothing of it, ConnectionLost or RequestTimeout."""
        ext = self._introduction(node)
        try:
            answer = await connection.call(codes.RAFT_HELLO, ext, timeout_ms=_INTRODUCE_TIMEOUT_MS)
        except LogboomError:
            connection.close()
            raise
        if answer.code == codes.SUCCESS:
            peer.refusal = ""
            if ext["cluster"]:
                self._greeted.add(node)
            level = answer.ext.get("level", "")
            peer.level = int(level) if level.isdecimal() and len(level) <= _MAX_DIGITS else 0
            return
        connection.close()
        refusal = answer.remark or f"code {answer.code}"
        if refusal != peer.refusal:
            log.warning("controller %s at %s refuses this one: %s", node, peer.address, refusal)
            peer.refusal = refusal
        if answer.ext.get("cluster") == ext["cluster"] != "":
            if answer.ext.get("removed") == "true":
                self._events.removed()
            elif answer.ext.get(Standing.COPIED.value) == "true":
                self._events.copied(refusal)
            elif answer.ext.get(Standing.OLDER.value) == "true":
                self._events.lost_log(refusal)
        raise RequestError(answer.code, refusal)

    def _introduction(self, to: NodeId) -> dict[str, str]:
        return {
            "group": self._group,
            "cluster": self._members.configuration.cluster,
            "node": self._members.node_id,
            "to": to,
            "address": self._members.address(self._members.node_id) or "",
            "lives": ",".join(self._members.lives),
        }

    async def _send_snapshot(self, peer: _Peer, message: Message) -> None:
        delivered = False
        try:
            connection = peer.connection
            if connection is None or not connection.is_open:
                raise ConnectionLost(f"no connection to {message.to}")
            content = encode_message(message)
            for position, piece in cut(content):
                ext = {"position": str(position), "total": str(len(content))}
                answer = await connection.call(codes.RAFT_SNAPSHOT, ext, piece, _CHUNK_TIMEOUT_MS)
                if answer.code != codes.SUCCESS:
                    raise RequestError(answer.code, answer.remark or f"code {answer.code}")
            delivered = True
        except LogboomError as error:
            log.warning("the snapshot for controller %s did not arrive: %s", message.to, error)
        finally:
            peer.is_sending_snapshot = False
            self._events.snapshot_sent(message.to, delivered)

    # Receiving

    def connection_closed(self, connection: RemotingConnection) -> None:
        """A connection to this node ended; if nobody speaks for its node any more, the node may be gone."""
        introduced = self._introduced.pop(connection, None)
        if introduced is not None and all(other.node != introduced.node for other in self._introduced.values()):
            self._events.lost(introduced.node)

    def _hello(self, connection: RemotingConnection, request: Command) -> None:
        ext, own = request.ext, self._members.configuration
        node, cluster, address = ext.get("node", ""), ext.get("cluster", ""), ext.get("address", "")
        if ext.get("group") != self._group:
            raise _refused(f"it speaks for the controller group {ext.get('group')!r}, this is {self._group!r}")
        if cluster and own.cluster and cluster != own.cluster:
            raise _refused(
                f"it belongs to another cluster of the name {self._group!r}: {cluster} instead of {own.cluster}; check addresses"
            )
        to = ext.get("to", "")
        if cluster and name_of(to) == name_of(self._members.node_id) and self._is_emptied:
            self._events.lost_log("its group knows that it had entries, and it has none: its disk was emptied")
            raise _refused(f"controller {self._members.node_id!r} had entries of this group, and lost them")
        if to != self._members.node_id or not 0 < len(node.encode()) <= _MAX_NAME:
            raise _refused(f"controller {node!r} looks for {to!r}, this is {self._members.node_id!r}")
        if node in own.retired:
            self._refuse_former(connection, request, node)
            return
        if not cluster and own.members and node not in self._members.table():
            raise _refused(f"controller {node!r} is no member of the group {self._group!r}; add it first")
        split_address(address)
        lives = ext.get("lives", "").split(",")
        if ext.get("asks") == "true":
            connection.respond(request, ext={"life": next(iter(self._members.lives), "")})
        elif lives[0] in ("", self._members.acquaintances.life(node)):
            self._admit(connection, request)
        else:
            self._owner.spawn(self._meet(connection, request, lives), f"meet {node}")

    def _refuse_former(self, connection: RemotingConnection, request: Command, node: NodeId) -> None:
        own = self._members.configuration
        if incarnations(own, name_of(node)):
            how, remark = (
                Standing.OLDER.value,
                f"{node} lost its log once, and came back as {present(own, name_of(node))}",
            )
        else:
            how, remark = (
                "removed",
                f"controller {node} was removed from the group {self._group!r}; add a new one under a new id",
            )
        answer = {how: "true", "cluster": own.cluster}
        connection.respond(request, codes.CONTROLLER_INVALID_REQUEST, answer, remark=remark)

    async def _meet(self, connection: RemotingConnection, request: Command, lives: list[str]) -> None:
        """Admit a node in a new life, unless it is another process, or an older one, than who has its name."""
        node, own = request.ext["node"], self._members.configuration
        address = self._members.address(node)
        at_home = await self._homes.life(node, address, self._introduction(node)) if address else ""
        found = standing(lives, self._members.acquaintances.life(node), at_home)
        if found is Standing.UNKNOWN:
            remark = f"whether another process is controller {node} at {address} is not known yet: it does not answer"
            connection.respond(request, codes.SYSTEM_BUSY, remark=remark)
            return
        if found is Standing.COPIED:
            remark = f"another process is controller {node} at {address}: this one runs with a copy of its directory"
        elif found is Standing.OLDER:
            remark = (
                f"the directory of controller {node} is older than what it promised: it is a copy that was put back"
            )
        else:
            await asyncio.to_thread(self._members.acquaintances.note, node, lives[0], {*own.members, *own.retired})
            if connection.is_open:
                try:
                    self._admit(connection, request)
                except RequestError as error:
                    connection.respond_error(request, error)
            return
        log.error("%s; refused at %s", remark, connection.peer)
        answer = {found.value: "true", "cluster": own.cluster}
        connection.respond(request, codes.CONTROLLER_INVALID_REQUEST, answer, remark=remark)

    def _admit(self, connection: RemotingConnection, request: Command) -> None:
        ext, own = request.ext, self._members.configuration
        node, cluster, address = ext["node"], ext.get("cluster", ""), ext.get("address", "")
        for earlier in [other for other, introduced in self._introduced.items() if introduced.node == node]:
            del self._introduced[earlier]
            if earlier is not connection:
                earlier.close()
        if len(self._introduced) >= _MAX_INTRODUCED:
            raise RequestError(codes.SYSTEM_BUSY, f"{_MAX_INTRODUCED} controllers speak to this one already")
        self._members.met(node, address)
        self._introduced[connection] = _Introduced(node, cluster)
        connection.respond(request, ext={"cluster": own.cluster, "level": str(self._own_level)})

    def _messages(self, connection: RemotingConnection, requests: Sequence[Command]) -> None:
        for request in requests:
            try:
                self._take(connection, decode_message(bytes(request.body)))
            except ProtocolError as error:
                log.warning("closing the connection of %s: %s", connection.peer, error)
                connection.close()
                return

    def _snapshot_piece(self, connection: RemotingConnection, request: Command) -> None:
        introduced = self._introduced.get(connection)
        if introduced is None:
            raise _refused("introduce yourself first")
        try:
            position, total = int(request.ext["position"]), int(request.ext["total"])
        except (KeyError, ValueError) as error:
            raise InvalidParameter(f"a piece of a snapshot needs its position and the total: {error}") from error
        if position == 0:
            introduced.assembly = Assembly(total)
        if introduced.assembly is None:
            raise _refused("a snapshot starts at position 0")
        try:
            content = introduced.assembly.add(position, total, bytes(request.body))
            if content is not None:
                introduced.assembly = None
                self._take(connection, decode_message(content))
        except ProtocolError:
            introduced.assembly = None
            raise
        connection.respond(request)

    def _take(self, connection: RemotingConnection, message: Message) -> None:
        introduced = self._introduced.get(connection)
        if introduced is None:
            raise ProtocolError("a raft message from somebody who did not introduce itself")
        if message.to != self._members.node_id or message.sender != introduced.node:
            raise ProtocolError(
                f"a raft message from {message.sender!r} to {message.to!r} came from {introduced.node!r} to "
                f"{self._members.node_id!r}"
            )
        if message.sender in self._members.configuration.retired:
            raise ProtocolError(f"controller {message.sender} was removed")
        if message.kind in _VOTES and introduced.cluster and not self._events.has_log():
            log.warning("no vote for %s: this controller has to be sent everything first", message.sender)
            return
        self._events.received(message)

    @property
    def _is_emptied(self) -> bool:
        """Whether this node lost what it promised, when another one says that the group has an id: a group gets one when all its
        founders hold entries, and this founder has none."""
        return bool(self._members.configuration.members) and not self._events.has_log()


def _write(connection: RemotingConnection, message: Message) -> bool:
    return connection.notify(codes.RAFT_MESSAGE, None, encode_message(message))


def _refused(reason: str) -> RequestError:
    return RequestError(codes.CONTROLLER_INVALID_REQUEST, reason)
