"""Sends the log to replicas: what each lacks, as fast as its connection and the settings let it (pure).

`driver` owns one and asks it whenever the log grew, a replica acked, or a connection can take bytes again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from brokerd.replication.log import ReplicatedLog
from brokerd.replication.roles.role_machine import RoleMachine
from brokerd.replication.wire.channels import Channels
from brokerd.replication.wire.frames import TransferHeader
from remoting.disk import Bytes
from remoting.errors import CorruptedFile, DamagedRange

log = logging.getLogger(__name__)

_HELD_MS: Final = 1000  # a range that was found damaged is looked at again after that
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
    """The master's bytes on their way out.

    Damage in the log is not a failed disk: what precedes it is sent, and a replica that needs what is damaged stays connected and
    waits, out of the set before long, until the range was repaired.
    """

    def __init__(self, machine: RoleMachine, log: ReplicatedLog, channels: Channels, outlet: Outlet) -> None:
        self._machine = machine
        self._log = log
        self._channels = channels
        self._outlet = outlet
        self._last_read = _NOTHING
        self._held_offset = -1  # what could not be read when it was last tried
        self._held_until_ms = 0
        # Told, each time it is found, what of the log is damaged
        self.damage_listeners: list[Callable[[DamagedRange], None]] = []

    def pump(self, connection: int, now_ms: int) -> None:
        """Send what the replica lacks, until it has all, its connection is full, or the log is damaged. Raises StorageError."""
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
            offset = transfer.header.offset
            if offset == self._held_offset and now_ms < self._held_until_ms:
                return
            try:
                body = self._read(offset, length)
            except CorruptedFile as error:
                if error.damage is None:
                    raise
                self._hold(offset, error, error.damage, now_ms)
                return
            self._outlet.send(connection, (end.encode_transfer_header(transfer.header, len(body)), body))
            mastership.transferred(connection, len(body), now_ms)
            budget.spend(len(body))

    def _hold(self, offset: int, error: CorruptedFile, damage: DamagedRange, now_ms: int) -> None:
        if offset != self._held_offset:
            log.error("replicas wait at offset %d: %s", offset, error)
        self._held_offset, self._held_until_ms = offset, now_ms + _HELD_MS
        for listener in self.damage_listeners:
            listener(damage)

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
