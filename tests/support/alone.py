"""A broker without sockets and without others: its core on a disk in memory, behind a replica that does what a test says."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from brokerd.composition.core import BrokerCore, open_store
from brokerd.composition.environment import BrokerIdentity, Clients, CoreSettings, Environment, Tier
from brokerd.composition.ground import make_ground
from brokerd.composition.log_access import StoreReplicatedLog
from brokerd.members.streams import CommandStream
from brokerd.native.library import Library
from brokerd.replication.epochs.epoch_list import EpochEntry
from brokerd.replication.log import ReplicatedLog
from brokerd.replication.required_set.ack_queue import AckQueue
from brokerd.replication.roles.effects import Role
from brokerd.store.put_status import PutStatus
from brokerd.store.settings import StoreSettings
from remoting.transport.carrying import nothing
from remoting.transport.connection import RemotingConnection
from tests.support.disks import MemoryDisk
from tests.support.turns import Turns


class AloneReplica:
    """A replica that acknowledges at once, or what is durable, when it has a line of who waits. Its role is what the test
    says."""

    def __init__(self, replicated: ReplicatedLog, confirm_offset: int) -> None:
        self.log = replicated
        self.is_master = False
        self.is_taking = True
        self.confirm_offset = confirm_offset
        self.epochs: list[EpochEntry] = []
        self.refusal = PutStatus.SERVICE_NOT_AVAILABLE
        self.acks: AckQueue | None = None
        self._roles: list[Callable[[Role, int], None]] = []
        self._confirmed: list[Callable[[int], None]] = []

    @property
    def accepts_messages(self) -> bool:
        return self.is_master and self.is_taking

    @property
    def acknowledges_alone(self) -> bool:
        return self.accepts_messages

    @property
    def acknowledges_durable(self) -> bool:
        return self.acks is not None

    def add_role_listener(self, listener: Callable[[Role, int], None]) -> None:
        self._roles.append(listener)

    def add_confirm_listener(self, listener: Callable[[int], None]) -> None:
        self._confirmed.append(listener)

    def become(self, role: Role, epoch: int = 1) -> None:
        self.is_master = role is Role.MASTER
        if self.is_master and (not self.epochs or self.epochs[-1].epoch < epoch):
            self.epochs.append(EpochEntry(epoch, self.log.end_offset))
        if self.acks is not None:
            self.acks.fail_all(PutStatus.SERVICE_NOT_AVAILABLE)
        for listener in self._roles:
            listener(role, epoch)

    def on_appended(self, end_offset: int) -> None:
        if self.acks is None:
            self._confirm(end_offset)

    def on_flushed(self) -> None:
        if self.acks is not None:
            self._confirm(self.log.flushed_offset)
            self.acks.acknowledge(self.confirm_offset)

    def expire(self) -> None:
        """Who waits for the disk waits too long."""
        assert self.acks is not None
        self.acks.expire(0, lambda _position, _waited_ms: PutStatus.FLUSH_DISK_TIMEOUT)

    def _confirm(self, offset: int) -> None:
        self.confirm_offset = offset
        for listener in self._confirmed:
            listener(offset)

    def wait(self, position: int, callback: Callable[[PutStatus], None]) -> None:
        if self.acks is None:
            callback(PutStatus.PUT_OK)
        elif not self.is_master:
            callback(PutStatus.SERVICE_NOT_AVAILABLE)
        else:
            self.acks.wait(position, 0, callback)


class Nobody:
    """No client is connected."""

    def is_alive(self, _client_id: str) -> bool:
        return False

    def producer_connections(self, _group: str, _topic: str) -> Sequence[RemotingConnection]:
        return ()

    def producer_streams(self, _group: str, _topic: str) -> Sequence[CommandStream]:
        return ()


class AloneBroker:
    """A core that has started, a replica until somebody makes it the master. `settings` are those of `CoreSettings`."""

    def __init__(
        self,
        disk: MemoryDisk,
        turns: Turns,
        store: StoreSettings,
        host: bytes,
        clients: Clients | None = None,
        library: Library | None = None,
        tier: Tier | None = None,
        **settings: Any,
    ) -> None:
        self.disk = disk
        self.turns = turns
        ground = make_ground(
            BrokerIdentity("c", "broker-a", host),
            CoreSettings(store, **settings),
            Environment(
                disk,
                turns,
                turns.wall_ms,
                random.Random(1),
                library=library,
                random_bits=random.Random(2).getrandbits,
                tier=tier,
            ),
        )
        opened = open_store(ground)
        self.request_flush = nothing
        log = StoreReplicatedLog(opened, lambda: self.request_flush())
        self.replica = AloneReplica(log, opened.confirm_offset)
        self.core = BrokerCore(ground, clients or Nobody(), log, self.replica)
