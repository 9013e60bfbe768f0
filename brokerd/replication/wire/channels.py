"""The ends of all replication connections of one broker: bytes to frames and back, refusals, and how fast the log is sent (pure).

`driver` drives it; connections have the numbers that the shell gave them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from brokerd.replication.rocketmq_peers import RocketmqPeers
from brokerd.replication.settings import ReplicationSettings
from brokerd.replication.wire.accepted_end import AcceptedEnd
from brokerd.replication.wire.dialled_end import DialledEnd
from brokerd.replication.wire.frames import Frame, Handshake
from brokerd.replication.wire.proof import Credentials
from remoting.disk import Bytes
from remoting.errors import ProtocolError

_MAX_HOSTS_COUNTED: Final = 256
_OTHERS: Final = "others"
_BURST_MS: Final = 100


class Budget:
    """How many bytes one connection may be sent now, so that it stays below a rate."""

    __slots__ = ("_bytes_per_s", "_left", "_refilled_ms")

    def __init__(self, bytes_per_s: int, now_ms: int) -> None:
        """0 = no limit."""
        self._bytes_per_s = bytes_per_s
        self._left = bytes_per_s * _BURST_MS // 1000
        self._refilled_ms = now_ms

    def left(self, now_ms: int) -> int | None:
        """None = as many as there are."""
        if not self._bytes_per_s:
            return None
        earned = self._bytes_per_s * max(0, now_ms - self._refilled_ms) // 1000
        if earned:
            self._refilled_ms = now_ms
            self._left = min(self._left + earned, self._bytes_per_s * _BURST_MS // 1000)
        return max(0, self._left)

    def spend(self, count: int) -> None:
        if self._bytes_per_s:
            self._left -= count


class Channels:
    """Every connection of this broker by its number, whichever side dialled it."""

    def __init__(self, settings: ReplicationSettings, credentials: Credentials) -> None:
        """Raises SettingsError when the list of RocketMQ peers cannot be understood."""
        # host -> how many of its connections broke the protocol or did not prove themselves
        self.refused: dict[str, int] = {}
        self._settings = settings
        self._group = credentials.group
        self._credentials = credentials
        self._rocketmq_peers = RocketmqPeers(settings.plain_peers)
        self._hosts: dict[int, str] = {}
        self._masters: dict[int, AcceptedEnd] = {}  # this broker is the master there
        self._replicas: dict[int, DialledEnd] = {}
        self._budgets: dict[int, Budget] = {}

    def prove_lineage(self, name: str) -> None:
        """On connections from now on, prove, and ask for proof of, being of the group with this log."""
        self._credentials = replace(self._credentials, group=self._group + b"#" + name.encode())

    def accept(self, connection: int, host: str, now_ms: int) -> None:
        """A peer at `host` connected."""
        self._hosts[connection] = host
        is_listed = self._rocketmq_peers.allows(host)
        self._masters[connection] = AcceptedEnd(
            self._credentials, allows_rocketmq=is_listed, allows_classic=is_listed and self._settings.classic_peers
        )
        self._budgets[connection] = Budget(self._settings.max_transfer_bytes_per_s, now_ms)

    def dial(self, connection: int, host: str, handshake: Handshake) -> Sequence[bytes]:
        """This broker connected to a master; what it says first. Raises NotProven."""
        self._hosts[connection] = host
        end = self._replicas[connection] = DialledEnd(self._credentials, handshake)
        return _take_output(end)

    def forget(self, connection: int) -> None:
        """The connection is gone."""
        for table in (self._hosts, self._masters, self._replicas, self._budgets):
            table.pop(connection, None)

    def receive(self, connection: int, data: Bytes) -> tuple[Sequence[Frame], Sequence[bytes]]:
        """The peer's frames, and what to send it at once; nothing of a connection that is gone.

        Raises ProtocolError: close the connection.
        """
        end = self._masters.get(connection) or self._replicas.get(connection)
        if end is None:
            return (), ()
        frames = end.receive(data)
        return frames, _take_output(end)

    def accepted_end(self, connection: int) -> AcceptedEnd | None:
        return self._masters.get(connection)

    def dialled_end(self, connection: int) -> DialledEnd | None:
        return self._replicas.get(connection)

    def budget(self, connection: int) -> Budget:
        return self._budgets[connection]

    def is_open(self, connection: int) -> bool:
        """The peer has proven itself, or is one that need not."""
        end = self._masters.get(connection) or self._replicas.get(connection)
        return end is not None and end.is_open

    def refuse(self, connection: int, error: ProtocolError) -> str:
        """Count a peer that broke the protocol; what to log about it, "" = that was done before."""
        host = self._hosts.get(connection) or "unknown"
        if host not in self.refused and len(self.refused) >= _MAX_HOSTS_COUNTED:
            host = _OTHERS
        count = self.refused[host] = self.refused.get(host, 0) + 1
        return f"refused a replication connection with {host}: {error}" if count == 1 else ""


def _take_output(end: AcceptedEnd | DialledEnd) -> Sequence[bytes]:
    said, end.output = end.output, []
    return said
