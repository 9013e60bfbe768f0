"""Raft messages between controllers, over remoting connections: one-way requests on one dialled connection per peer.

Loss is allowed (the core repeats), so nothing here waits: while a connection is being made at most `_QUEUE_MESSAGES` messages are
kept, the oldest is dropped; a peer that does not read gets nothing more. A message of another group, for another node or from a
node that is no member closes the connection it came on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from controllerd.raft.codec import decode_message, encode_message
from controllerd.raft.messages import Message
from controllerd.raft.quorum import NodeId
from remoting import codes
from remoting.errors import ConnectionLost, ProtocolError
from remoting.frame import Command
from remoting.transport.client import connect
from remoting.transport.connection import RemotingConnection
from remoting.transport.tasks import TaskOwner

log = logging.getLogger(__name__)

_QUEUE_MESSAGES: Final = 64
_CONNECT_TIMEOUT_MS: Final = 500
_FIRST_RETRY_MS: Final = 50
_MAX_RETRY_MS: Final = 500
_STABLE_S: Final = 2.0


class _Peer:
    """The outgoing side to one peer."""

    __slots__ = ("address", "connected_at", "connection", "is_dialling", "queue", "retry_ms")

    def __init__(self, address: str) -> None:
        self.address = address
        self.connection: RemotingConnection | None = None
        self.connected_at = 0.0
        self.is_dialling = False
        self.retry_ms = 0
        self.queue: deque[Message] = deque(maxlen=_QUEUE_MESSAGES)


class Peers:
    """All other controllers of the group."""

    def __init__(
        self,
        group: str,
        node_id: NodeId,
        addresses: Mapping[NodeId, str],
        receive: Callable[[Message], None],
        unreachable: Callable[[NodeId], None],
        owner: TaskOwner,
    ) -> None:
        self._group = group
        self._node_id = node_id
        self._receive = receive
        self._unreachable = unreachable
        self._owner = owner
        self._peers = {node: _Peer(address) for node, address in addresses.items() if node != node_id}

    def send(self, message: Message) -> None:
        """Send or drop a message; never waits."""
        peer = self._peers.get(message.to)
        if peer is None:
            return
        if peer.connection is not None and peer.connection.is_open:
            if not self._write(peer.connection, message):
                self._unreachable(message.to)
            return
        peer.queue.append(message)
        if not peer.is_dialling:
            peer.is_dialling = True
            self._owner.spawn(self._dial(message.to, peer), f"connect to {message.to}")

    def handle(self, connection: RemotingConnection, requests: Sequence[Command]) -> None:
        """The handler of RAFT_MESSAGE."""
        for request in requests:
            try:
                self._receive(self._check(request))
            except ProtocolError as error:
                log.warning("closing the connection of %s: %s", connection.peer, error)
                connection.close()
                return

    def close(self) -> None:
        """Close what was dialled."""
        for peer in self._peers.values():
            if peer.connection is not None:
                peer.connection.close()

    def _check(self, request: Command) -> Message:
        group = request.ext.get("group")
        if group != self._group:
            raise ProtocolError(f"it speaks for the controller group {group!r}, this is {self._group!r}")
        message = decode_message(bytes(request.body))
        if message.to != self._node_id or message.sender not in self._peers:
            raise ProtocolError(f"a raft message from {message.sender!r} to {message.to!r} came to {self._node_id!r}")
        return message

    def _write(self, connection: RemotingConnection, message: Message) -> bool:
        return connection.notify(codes.RAFT_MESSAGE, {"group": self._group}, encode_message(message))

    async def _dial(self, node: NodeId, peer: _Peer) -> None:
        loop = asyncio.get_running_loop()
        if peer.connection is not None and loop.time() - peer.connected_at > _STABLE_S:
            peer.retry_ms = 0
        try:
            while peer.queue:
                # A peer that refuses us closes every connection at once: it counts like one that is not there.
                await asyncio.sleep(peer.retry_ms / 1000)
                peer.retry_ms = min(max(2 * peer.retry_ms, _FIRST_RETRY_MS), _MAX_RETRY_MS)
                try:
                    peer.connection = await connect(peer.address, timeout_ms=_CONNECT_TIMEOUT_MS)
                except ConnectionLost:
                    self._unreachable(node)
                    peer.queue.clear()
                    continue
                peer.connected_at = loop.time()
                while peer.queue:
                    self._write(peer.connection, peer.queue.popleft())
        finally:
            peer.is_dialling = False
