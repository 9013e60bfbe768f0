"""One copy of a log in the stories of rot: a disk, and while it runs a store with the start and the repairs of the daemons."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

from brokerd.composition.mending import Mender, start_mended
from brokerd.repair.fetch import fetch_pieces
from brokerd.repair.repairer import Repairer, Sources
from brokerd.repair.scrubber import Machine, Scrubber
from brokerd.repair.serve import RangeServer
from brokerd.repair.settings import ScrubSettings
from brokerd.replication.epochs.epoch_file import EpochFile
from brokerd.replication.epochs.epoch_list import EpochList
from brokerd.store.log.derive import NO_RULES
from brokerd.store.log.verified_reads import VerifiedReads
from brokerd.store.scrub.inspection import Inspector
from brokerd.store.scrub.log_files import LogFiles
from brokerd.store.start.mending import DamagedLog
from brokerd.store.store import MessageStore
from remoting.errors import CorruptedFile, DamagedRange, StorageError
from remoting.settings import Live
from tests.sim.loop import SimLoop
from tests.sim.world import Action, Node, World
from tests.support.disks import FaultyDisk, PowerLost
from tests.unit.brokerd.repair.peers import GROUP, SECRET, Peers
from tests.unit.brokerd.store.stores import SETTINGS, SHAPE, make_store

_HURRY: Final = 1000  # of the scrubber's clocks: a story lasts a fraction of a second


class Copy(Node):
    """One replica: a disk, and while it runs a store with its scrubber."""

    def __init__(self, world: World, name: str, peers: Peers) -> None:
        super().__init__(world, name)
        self.disk = FaultyDisk(world.random(f"disk of {name}"))
        self.peers = peers
        self.refusal: CorruptedFile | None = None
        self.lost = False  # whether its start cannot tell that its log has everything
        self.is_reconciled = False  # with the log of the present master
        self.is_open = False
        self.is_scrubbing = False
        self.repaired = 0
        self._rng = world.random(name)

    @property
    def is_up(self) -> bool:
        return self.is_running and self.is_open

    def start(self) -> None:
        self.begin_life()
        self.is_open = self.is_reconciled = self.is_scrubbing = False
        self.refusal = None
        self._loop = SimLoop(self, self._rng)
        self._loop.spawn(self._start())

    async def _start(self) -> None:
        try:
            self.store = await start_mended(self._open, self._mend)
        except CorruptedFile as error:
            self.refusal = error
            self.end("refuses to start")
            return
        except PowerLost:
            self.end("loses power while it starts", with_power=True)
            return
        store = self.store
        self.epochs = EpochList(EpochFile(self.disk).load()[0].entries)
        self.epochs.drop_beyond(store.commitlog.end_offset)
        self.lost = store.suspicion is not None or store.gave_up_durable
        self.reads = VerifiedReads(store.commitlog)
        self.scrubber = self._make_scrubber()
        self.peers.servers[self.name] = RangeServer((SECRET,), GROUP, store.commitlog, lambda: self.epochs.entries)
        self.is_open = True

    def _open(self, ask_first: bool) -> MessageStore:
        store = make_store(self.disk)
        try:
            store.load(ask_first=ask_first)
        except CorruptedFile:
            store.abandon()
            raise
        return store

    async def _mend(self, met: DamagedRange | None) -> bool:
        epochs = EpochFile(self.disk).load()[0].entries
        others = [each for each in self.peers.servers if each != self.name]
        return await Mender(DamagedLog(self.disk, SETTINGS), epochs, self.peers.asking(), others).mend(met) > 0

    def _make_scrubber(self) -> Scrubber:
        store, peers = self.store, self.peers

        def fetch(peer: str, start: int, end: int) -> AsyncIterator[tuple[int, bytes]]:
            return fetch_pieces(peers.asking(), peer, start, end, shape=SHAPE, epochs=self.epochs.entries)

        def wall_ms() -> int:
            return int(self.world.now_ms * _HURRY)

        files = LogFiles(self.disk, SETTINGS.segment_size_bytes)
        sources = Sources(fetch, lambda: [each for each in peers.servers if each != self.name], wall_ms)
        inspector = Inspector(store.commitlog, store.queues, store.index, NO_RULES, lambda _: 0)
        machine = Machine(self.disk, lambda: self.world.now_ms * _HURRY / 1000, lambda: 0.0, wall_ms)
        repairer = Repairer(store.commitlog, files, sources)
        return Scrubber(store, inspector, repairer, Live(ScrubSettings(round_ms=1000)), machine)

    def scrub(self) -> None:
        """One step of the scrubber, which takes its time."""
        if not self.is_scrubbing:
            self.is_scrubbing = True
            self._loop.spawn(self._step())

    async def _step(self) -> None:
        with suppress(StorageError):  # it comes again, as the daemon's does
            await self.scrubber.step()
        self.repaired += self.scrubber.repairer.ledger.ranges_repaired
        self.is_scrubbing = False

    def guarded(self, action: Action) -> Action:
        def run() -> None:
            try:
                action()
            except PowerLost:
                if self.is_running:
                    self.end("loses power", with_power=True)

        return run

    def replace(self) -> None:
        """Another machine with an empty disk takes its place."""
        assert not self.is_running
        self.world.note(f"{self.name} is replaced by a machine with an empty disk")
        self.disk = FaultyDisk(self.world.random(f"disk of {self.name} {self.life}"))

    def end(self, how: str, *, with_power: bool = False) -> None:
        self.world.note(f"{self.name} {how}")
        self.end_life()
        self.is_open = False
        self.peers.servers.pop(self.name, None)
        if with_power:
            self.disk.crash()
        else:
            self.disk.kill()

    def flush(self) -> None:
        mark = self.store.sync()
        self.store.note_flushed(mark)
        self.store.mark_flushed(mark)

    @property
    def durable(self) -> int:
        log = self.store.commitlog
        return min(log.flushed_offset, log.complete_offset)
