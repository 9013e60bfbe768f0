"""Replicas of one group with the same log on disks that rot, each with a scrubber that asks the others."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

from brokerd.repair.fetch import fetch_pieces
from brokerd.repair.ledger import DamageLedger
from brokerd.repair.repairer import Repairer, Sources
from brokerd.repair.scrubber import Machine, Scrubber
from brokerd.repair.settings import ScrubSettings
from brokerd.store.log.derive import NO_RULES
from brokerd.store.scrub.inspection import Inspector
from brokerd.store.scrub.log_files import LogFiles
from brokerd.store.settings import StoreSettings
from brokerd.store.store import MessageStore
from remoting.record.properties import encode_properties
from remoting.settings import Live
from tests.support.disks import FaultyDisk
from tests.unit.brokerd.repair.peers import EPOCHS, Peers, copy_log, serving
from tests.unit.brokerd.store.stores import SETTINGS, Clock, draft, make_store, open_store, put


class Broker:
    """One replica: its disk, store and scrubber."""

    def __init__(self, name: str, disk: FaultyDisk, store: MessageStore, peers: Peers) -> None:
        self.name, self.disk, self.store = name, disk, store
        self.clock = Clock()
        self.time_s = 0.0
        self.settings = Live(ScrubSettings())
        self.peers = peers
        peers.servers[name] = serving(store)
        self.make_scrubber()

    def make_scrubber(self) -> None:
        files = LogFiles(self.disk, self.store.commitlog.segment_size_bytes)
        sources = Sources(self._fetch, lambda: [each for each in self.peers.servers if each != self.name], self.clock)
        store = self.store
        inspector = Inspector(store.commitlog, store.queues, store.index, NO_RULES, lambda _topic: 0)
        machine = Machine(self.disk, lambda: self.time_s, lambda: 0.0, self.clock)
        repairer = Repairer(store.commitlog, files, sources)
        self.scrubber = Scrubber(store, inspector, repairer, self.settings, machine)

    def _fetch(self, peer: str, start: int, end: int) -> AsyncIterator[tuple[int, bytes]]:
        asking, shape = self.peers.asking(), self.store.commitlog.shape
        return fetch_pieces(asking, peer, start, end, shape=shape, epochs=EPOCHS)

    @property
    def ledger(self) -> DamageLedger:
        return self.scrubber.repairer.ledger

    async def round(self) -> None:
        """One whole round, begun now."""
        self.clock.now_ms += self.settings.value.round_ms
        before = self.scrubber.rounds
        for _ in range(10_000):
            await self.scrubber.step()
            if self.scrubber.rounds > before:
                return
        raise AssertionError("the round does not end")

    def log_path(self, offset: int) -> tuple[str, int]:
        """The file of the log that holds the offset, and where in it."""
        size = self.store.commitlog.segment_size_bytes
        return f"commitlog/{offset - offset % size:020d}", offset % size

    def rot(self, offset: int, bit: int = 0) -> None:
        """Flip a bit of the log."""
        path, position = self.log_path(offset)
        self.disk.flip_bit(path, position, bit)

    def rot_file(self, path: str, position: int, bit: int = 0) -> None:
        self.disk.flip_bit(path, position, bit)

    def shown(self, directory: str) -> dict[str, bytes]:
        """What readers see below a directory."""
        return {
            path: file.seen.read(0, file.seen.size)
            for path, file in self.disk.files.items()
            if path.startswith(f"{directory}/")
        }

    def files(self, directory: str) -> dict[str, bytes]:
        """What the platters hold below a directory."""
        return {
            path: file.platter.read(0, file.platter.size)
            for path, file in self.disk.files.items()
            if path.startswith(f"{directory}/")
        }


def make_group(
    messages: int = 60, settings: StoreSettings = SETTINGS, names: tuple[str, ...] = ("m", "r1", "r2")
) -> list[Broker]:
    """A master and its replicas, all with the same messages, everything durable."""
    peers = Peers({})
    disks = [FaultyDisk(random.Random(n)) for n in range(len(names))]
    master = open_store(disks[0], settings=settings)
    for n in range(messages):
        put(master, draft(b"body-%03d " % n + b"." * (n % 50), queue_id=n % 2, properties=props(n)))
    stores = [master]
    master.checkpoint()
    for disk in disks[1:]:
        replica = make_store(disk, settings=settings)
        replica.load()
        copy_log(master, replica)
        stores.append(replica)
    brokers = [Broker(name, disk, store, peers) for name, disk, store in zip(names, disks, stores, strict=True)]
    for broker in brokers:
        take_index(broker.store)
        broker.store.checkpoint(closing=True)
    return brokers


def props(n: int) -> bytes:
    return encode_properties({"TAGS": f"t{n % 3}", "UNIQ_KEY": f"U{n:04d}", "KEYS": f"k{n}"})


def take_index(store: MessageStore) -> None:
    """Have the index read all that was dispatched."""
    assert store.index is not None
    while store.index.take(store.dispatch_offset, 1 << 16):
        pass
