"""Both ends of a replication connection handing their bytes to each other, cut as a test likes."""

from __future__ import annotations

from brokerd.replication.wire.accepted_end import AcceptedEnd
from brokerd.replication.wire.dialled_end import DialledEnd
from brokerd.replication.wire.frames import FromMaster, FromReplica, Handshake
from remoting.disk import Bytes
from tests.unit.brokerd.replication.group import credentials


class Pair:
    """A connection without a network. `at_master` and `at_replica` are the frames that arrived."""

    def __init__(self, handshake: Handshake, *, piece_bytes: int = 1 << 30, plain: bool = False) -> None:
        self.master = AcceptedEnd(credentials(1), allows_rocketmq=plain, allows_classic=plain)
        self.replica = DialledEnd(credentials(9), handshake)
        self.at_master: list[FromReplica] = []
        self.at_replica: list[FromMaster] = []
        self._piece_bytes = piece_bytes

    def to_master(self, data: Bytes) -> None:
        for start in range(0, len(data), self._piece_bytes):
            self.at_master += self.master.receive(data[start : start + self._piece_bytes])
            self.exchange()

    def to_replica(self, data: Bytes) -> None:
        for start in range(0, len(data), self._piece_bytes):
            self.at_replica += self.replica.receive(bytes(data[start : start + self._piece_bytes]))
            self.exchange()

    def exchange(self) -> None:
        """Carry what the ends say by themselves."""
        while self.master.output or self.replica.output:
            up, self.replica.output = b"".join(self.replica.output), []
            self.to_master(up)
            down, self.master.output = b"".join(self.master.output), []
            self.to_replica(down)
