"""A replica of the original's copies the log, in the original's bytes: no proof, no incarnation, no checksums, acks from memory.

It is of a build that has no persistent broker id (the `seed` layout), so it is a guest: nothing may wait for it or count on it.
It does what those do: it compares epochs, cuts its log, appends what comes and notes an epoch when its first bytes come; now
and then it loses power and forgets what it had in memory. Verdict: it is never sent what does not fit, in the end its log and its
epochs are its master's, and what the group acknowledged is where it would be without it.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from brokerd.replication.wire import rocketmq_layouts
from tests.sim.broker import SimBroker
from tests.sim.checks import read_log
from tests.sim.links import Link
from tests.sim.world import Node

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster

_HOST: Final = "10.9.0.1"
_ADDRESS: Final = f"{_HOST}:10911".encode()
_LOOK_MS: Final = 100
_POWER_LOST: Final = 0.05  # of the looks
_HANDSHAKE_HEAD: Final = struct.Struct(">ihhi")


class Originals:
    """The one guest of a story."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        for broker in cluster.brokers:
            broker.settings = broker.first_settings = replace(broker.first_settings, plain_peers=_HOST)
        self._guest = OriginalReplica(cluster)

    def begin(self) -> None:
        self._guest.begin()

    def end(self) -> None:
        """It copies on, and loses power no more."""
        self._guest.is_ending = True

    def is_settled(self) -> bool:
        master = self._cluster.master()
        return master is not None and len(self._guest.log) == master.core.store.commitlog.end_offset

    def check(self) -> None:
        master, guest, require = self._cluster.master(), self._guest, self._cluster.world.require
        assert master is not None
        require(bytes(guest.log) == read_log(master), f"the log of the original's replica is not that of {master.name}")
        own = [tuple(entry) for entry in master.driver.machine.epochs.entries if entry.start_offset < len(guest.log)]
        held = [each for n, each in enumerate(own) if own[n + 1 : n + 2] == [] or own[n + 1][1] > each[1]]
        require(guest.epochs == held, f"its epochs are {guest.epochs}, those of {master.name} {held}")


class OriginalReplica(Node):
    """A slave of the original, from its connection to its log. It finds its master as clients do."""

    def __init__(self, cluster: SimCluster) -> None:
        super().__init__(cluster.world, "original")
        self.network = cluster.network
        self.log = bytearray()
        self.epochs: list[tuple[int, int]] = []
        self.is_ending = False
        self._cluster = cluster
        self._rng = cluster.world.random("original")
        self._link: Link | None = None
        self._connection = 0
        self._buffer = b""
        self._heard_ms = 0.0

    def begin(self) -> None:
        self.begin_life()
        self.every(_LOOK_MS, self._look)

    # ---- its connection

    def _look(self) -> None:
        if not self.is_ending and self._rng.random() < _POWER_LOST:
            self._lose_power()
        master = self._cluster.master()
        if self._link is not None and (self._link.peer is not master or self.world.now_ms - self._heard_ms > 2000):
            self._link.end(notify=True)
            self._link = None
        if self._link is None and master is not None and not self.network.is_cut(self.name, master.name):
            self._dial(master)

    def _dial(self, master: SimBroker) -> None:
        here: Any = self
        near, far = Link(here, master), Link(master, here)
        near.other, far.other = far, near
        self._link, self._buffer, self._heard_ms = near, b"", self.world.now_ms
        master.guarded(lambda: master.driver.accepted(far.connection, master.monotonic_ms(), host=_HOST))()
        near.outgoing.send(_HANDSHAKE_HEAD.pack(1, 0, 0, len(_ADDRESS)) + _ADDRESS)

    def new_connection(self, link: Link) -> int:
        self._connection += 1
        return self._connection

    def connection_lost(self, connection: int) -> None:
        if self._link is not None and self._link.connection == connection:
            self._link = None

    def received(self, connection: int, data: bytes) -> None:
        """Bytes of the master, cut anywhere."""
        link = self._link
        if link is None or link.connection != connection:
            return
        self._heard_ms = self.world.now_ms
        self._buffer += data
        while self._link is link and self._take(link):
            pass

    def _take(self, link: Link) -> bool:
        """One frame, if it is all there."""
        buffer = self._buffer
        if len(buffer) < 8:
            return False
        state, size = struct.unpack_from(">ii", buffer)
        head = rocketmq_layouts.REPLY if state == rocketmq_layouts.HANDSHAKE_STATE else rocketmq_layouts.TRANSFER
        end = head.size + size
        if len(buffer) < end:
            return False
        fields, body, self._buffer = head.unpack_from(buffer), buffer[head.size : end], buffer[end:]
        if state == rocketmq_layouts.HANDSHAKE_STATE:
            self._greeted(fields[2], [tuple(each) for each in rocketmq_layouts.REPLY_ENTRY.iter_unpack(body)])
        else:
            self._append(link, fields[2], fields[3], fields[4], body)
        if self._link is link:
            link.outgoing.send(rocketmq_layouts.encode_ack(len(self.log)))
        return True

    # ---- its log

    def _greeted(self, end_offset: int, entries: list[tuple[int, ...]]) -> None:
        """Cut the log where it last agrees with the master's."""
        of_master = {epoch: (start, end) for epoch, start, end in _spans(entries, end_offset)}
        common = 0
        for epoch, start, end in reversed(_spans(self.epochs, len(self.log))):
            if epoch in of_master and of_master[epoch][0] == start:
                common = min(end, of_master[epoch][1])
                break
        self._cut(common)

    def _append(self, link: Link, offset: int, epoch: int, epoch_start: int, body: bytes) -> None:
        self.world.require(
            offset == len(self.log),
            f"{link.peer.name} sent the original's replica offset {offset}, it has {len(self.log)}",
        )
        last_epoch, last_start = self.epochs[-1] if self.epochs else (-1, -1)
        if (
            epoch > last_epoch and epoch_start > last_start
        ):  # its list takes no epoch that begins where the last one does
            self.epochs.append((epoch, epoch_start))
        self.log += body
        self._cluster.history.count("copy of the original", "bytes" if body else "heartbeat")

    def _cut(self, end: int) -> None:
        del self.log[end:]
        self.epochs = [each for each in self.epochs if each[1] < end]

    def _lose_power(self) -> None:
        """A part of its log is gone, also of what it had acknowledged; it copies that again."""
        self.world.note("the original's replica loses power")
        self._cluster.coverage.fault("original loses power", self.world.now_ms)
        if self._link is not None:
            self._link.end(notify=True)
            self._link = None
        self._cut(self._rng.randrange(len(self.log) + 1))


def _spans(entries: list[tuple[int, ...]] | list[tuple[int, int]], end: int) -> list[tuple[int, int, int]]:
    """(epoch, start, end) of each."""
    starts = [*(start for _, start in entries[1:]), end]
    return [(entry[0], entry[1], stop) for entry, stop in zip(entries, starts, strict=False)]
