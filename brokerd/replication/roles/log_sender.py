"""Sends the log to replicas: what each lacks, as fast as its connection and the settings let it (pure).

`driver` owns one and asks it whenever the log grew, a replica acked, or a connection can take bytes again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from brokerd.replication.log import ReplicatedLog
from brokerd.replication.roles.role_machine import RoleMachine
from brokerd.replication.wire.channels import Channels
from brokerd.replication.wire.frames import TransferHeader
from remoting.disk import Bytes

_NOTHING: tuple[int, Bytes] = (-1, b"")


class Outlet(Protocol):
    """Connections between brokers. Ids are the shell's; whatever it is told about an id it does not know it ignores."""

    def connect(self, address: str, attempt: int) -> None:
        """Dial; answer later with `connected` or `connect_failed`."""

    def send(self, connection: int, buffers: Sequence[Bytes]) -> None:
        """Hand over bytes; they may wait in memory."""

    def can_send(self, connection: int) -> bool:
        """Too much is not waiting already; `pump` is called when that changes."""

    def close(self, connection: int) -> None: ...


class LogSender:
    """The master's bytes on their way out."""

    def __init__(self, machine: RoleMachine, log: ReplicatedLog, channels: Channels, outlet: Outlet) -> None:
        self._machine = machine
        self._log = log
        self._channels = channels
        self._outlet = outlet
        self._last_read = _NOTHING

    def pump(self, connection: int, now_ms: int) -> None:
        """Send what the replica lacks, until it has all or its connection is full. Raises StorageError."""
        end, mastership = self._channels.accepted_end(connection), self._machine.mastership
        if end is None or mastership is None:
            return
        budget = self._channels.budget(connection)
        while self._outlet.can_send(connection):
            transfer = mastership.next_transfer(connection)
            if transfer is None:
                return
            left = budget.left(now_ms)
            if left == 0:
                return  # the next tick goes on
            length = transfer.length if left is None else min(transfer.length, left)
            body = self._read(transfer.header.offset, length)
            self._outlet.send(connection, (end.encode_transfer_header(transfer.header, len(body)), body))
            mastership.transferred(connection, len(body), now_ms)
            budget.spend(len(body))

    def heartbeat(self, connection: int, header: TransferHeader) -> None:
        """Say something, unless enough is on its way already."""
        end = self._channels.accepted_end(connection)
        if end is not None and self._outlet.can_send(connection):
            self._outlet.send(connection, (end.encode_transfer_header(header, 0),))

    def forget(self) -> None:
        """The log is about to change otherwise than by growing."""
        self._last_read = _NOTHING

    def _read(self, offset: int, length: int) -> Bytes:
        """Read the log; replicas that follow closely ask for the same bytes one after the other."""
        last_offset, last_body = self._last_read
        if last_offset == offset and 0 < len(last_body) <= length:
            return last_body
        body = self._log.read(offset, length)
        assert 0 < len(body) <= length, f"the log gave {len(body)} of {length} bytes at {offset}"
        self._last_read = (offset, body)
        return body
