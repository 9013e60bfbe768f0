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
from brokerd.replication.roles.effects import Role
from brokerd.store.put_status import PutStatus
from brokerd.store.settings import StoreSettings
from remoting.transport.connection import RemotingConnection
from tests.support.disks import MemoryDisk
from tests.support.turns import Turns


class AloneReplica:
    """A replica that acknowledges at once; its role is what the test says."""

    def __init__(self, replicated: ReplicatedLog, confirm_offset: int) -> None:
        self.log = replicated
        self.is_master = False
        self.is_taking = True
        self.confirm_offset = confirm_offset
        self.epochs: list[EpochEntry] = []
        self.refusal = PutStatus.SERVICE_NOT_AVAILABLE
        self._roles: list[Callable[[Role, int], None]] = []
        self._confirmed: list[Callable[[int], None]] = []

    @property
    def accepts_messages(self) -> bool:
        return self.is_master and self.is_taking

    @property
    def acknowledges_at_once(self) -> bool:
        return self.accepts_messages

    def add_role_listener(self, listener: Callable[[Role, int], None]) -> None:
        self._roles.append(listener)

    def add_confirm_listener(self, listener: Callable[[int], None]) -> None:
        self._confirmed.append(listener)

    def become(self, role: Role, epoch: int = 1) -> None:
        self.is_master = role is Role.MASTER
        if self.is_master and (not self.epochs or self.epochs[-1].epoch < epoch):
            self.epochs.append(EpochEntry(epoch, self.log.end_offset))
        for listener in self._roles:
            listener(role, epoch)

    def on_appended(self, end_offset: int) -> None:
        self.confirm_offset = end_offset
        for listener in self._confirmed:
            listener(end_offset)

    def wait(self, position: int, callback: Callable[[PutStatus], None]) -> None:
        callback(PutStatus.PUT_OK)


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
        log = StoreReplicatedLog(opened, lambda: None)
        self.replica = AloneReplica(log, opened.confirm_offset)
        self.core = BrokerCore(ground, clients or Nobody(), log, self.replica)
