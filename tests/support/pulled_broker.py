"""A broker on a port that answers pulls as a running one does, with its log in files and a carrier that is watched."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
import uvloop

from brokerd.native import carrier as carriers
from brokerd.native import stays
from brokerd.native.carrier import CARRIED
from brokerd.native.stays import Told
from brokerd.native.wanted import BEHIND
from brokerd.processors.pulling.laid_out import AnswerLayout
from brokerd.store.settings import StoreSettings
from brokerd.store.store_reads import Suspicion
from remoting import codes, frame
from remoting.disk import LocalDisk
from remoting.frame import Command
from remoting.transport import taking
from remoting.transport.connection import Intake
from remoting.transport.limits import ConnectionLimits
from remoting.transport.server import Place, RemotingServer, ServerLimits
from remoting.transport.watch import UnfinishedSettings, Watch
from tests.support.held_carrier import Held
from tests.support.native_library import native_library
from tests.support.pulls import pull_frame
from tests.support.remoting_broker import RemotingBroker, remoting_master
from tests.unit.brokerd.store.stores import draft, open_store, put

PATIENT_S = 60
LONG_S = 1000
SEGMENT_BYTES = 1 << 20
QUEUES = 4
LARGE = 1000  # of a body: more than eight of these are a large answer
Run = Callable[[Coroutine[Any, Any, None]], None]


class Counted(Held):
    """One that counts what its thread and the loop send, and what came back; its thread begins at once unless it is held.
    `stays` is what was done in those that are over, and `begun` how many there were."""

    def __init__(self, *, has_thread: bool = True, is_held: bool = False) -> None:
        super().__init__(has_thread=has_thread)
        self.carried = self.sent = self.missed = 0
        self.behind = 0  # of the carried ones
        self.begun = 0
        self.stays: list[Told] = []
        self.before_again: Callable[[], None] | None = None
        if not is_held:
            self.let_go()

    def give(self, *args: Any) -> int:
        done = super().give(*args)
        self.carried += done == CARRIED
        self.behind += done == CARRIED and args[1].numbers[BEHIND] >= 0
        self.sent += done >= 0
        return done

    def have_stay(self, connection: Any, asked: Any, kinds: Any, told: Callable[[Told], None]) -> bool:
        def note(each: Told) -> None:
            self.stays.append(each)
            told(each)

        stays = super().have_stay(connection, asked, kinds, note)
        self.begun += stays
        return stays

    def _give_back(self, number: int, written: int) -> Any:
        self.missed += 1
        if self.before_again is not None:
            self.before_again()
        return super()._give_back(number, written)


class Peer:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def pull(self, opaque: int, offset: int, queue_id: int = 0, **changes: object) -> None:
        self.writer.write(pull_frame(opaque, offset, queueId=queue_id, **changes))

    async def answers(self, count: int = 1) -> list[Command]:
        found: list[Command] = []
        async with asyncio.timeout(PATIENT_S):
            while len(found) < count:
                size = int.from_bytes(await self.reader.readexactly(4))
                frame.decode_frames(size.to_bytes(4) + await self.reader.readexactly(size), found)
        return found

    async def answer(self) -> Command:
        [answer] = await self.answers()
        return answer


class Broker:
    """One on a port, with a log in files; everybody's pulls are answered as in a running broker."""

    def __init__(self, directory: Path, carrier: Counted) -> None:
        self.carrier = carrier
        self.disk = LocalDisk(directory)
        settings = StoreSettings(segment_size_bytes=SEGMENT_BYTES)
        self.store = open_store(self.disk, settings=settings, library=native_library())
        self.directory = directory
        self.suspicions: list[Suspicion] = []
        self.store.damage_listeners.append(self.suspicions.append)
        self.store.commitlog.turns.looks.enders.append(carrier.finish_all)
        self.inner: RemotingBroker = remoting_master()
        self.inner.topic("t", queues=QUEUES)
        self.inner.pull._reads = self.store
        self.inner.pull.lay_out_by(AnswerLayout(native_library(), carrier))
        intake = Intake(Watch(UnfinishedSettings()), quick=self.inner.quick, carrier=carrier)
        limits = ServerLimits(ConnectionLimits(), intake=intake)
        self.server = RemotingServer(
            Place("127.0.0.1", 0), self.inner.handlers, limits=limits, closed=self.inner.pull.connection_closed
        )
        self.peers: list[Peer] = []

    def fill(self, count: int = 100, body_bytes: int = LARGE, tags: Sequence[str] = ("x",)) -> None:
        """So many messages in each queue, those of several between one another; with these tags in turn."""
        rng = Random(1)
        for number in range(count):
            tag = tags[number % len(tags)]
            put(
                self.store,
                *(draft(rng.randbytes(body_bytes), topic="t", queue_id=queue, tag=tag) for queue in range(QUEUES)),
            )

    def count_of(self, offset: int, queue_id: int = 0, count: int = 32) -> int:
        """How many messages an answer has that may have so many: those up to the end of the file that has the first."""
        files = [place // SEGMENT_BYTES for place, *_ in self.store.read_units("t", queue_id, offset, count)]
        return files.count(files[0])

    def expected(self, offset: int, queue_id: int = 0, count: int = 32) -> bytes:
        count = self.count_of(offset, queue_id, count)
        return bytes(self.store.read_joined("t", queue_id, offset, count, 1 << 20).body)

    async def connected(self, count: int) -> list[Peer]:
        peers = [Peer(*await asyncio.open_connection("127.0.0.1", self.server.port)) for _ in range(count)]
        self.peers += peers
        async with asyncio.timeout(PATIENT_S):
            while len(self.server.connections) < len(self.peers):
                await asyncio.sleep(0)
        return peers

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENT_S):
            while not is_so():
                await asyncio.sleep(0)

    async def all_back(self) -> list[Told]:
        """What was done in all stays so far; nobody stays any more."""
        self.carrier.recall_stays()
        await self.until(lambda: len(self.carrier.stays) == self.carrier.begun)
        return self.carrier.stays

    def narrow(self) -> None:
        """From now on sockets take little of what nobody reads."""
        for connection in self.server.connections:
            own = connection._transport.get_extra_info("socket")
            own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

    def damage(self, queue_id: int, offset: int) -> None:
        """Change a byte of a message's body, on the disk under the broker."""
        [unit] = self.store.read_units("t", queue_id, offset, 1)
        place = unit[0] + 200
        path = self.directory / "commitlog" / f"{place - place % SEGMENT_BYTES:020d}"
        descriptor = os.open(path, os.O_RDWR)
        at = place % SEGMENT_BYTES
        os.pwrite(descriptor, bytes((os.pread(descriptor, 1, at)[0] ^ 4,)), at)
        os.close(descriptor)


@asynccontextmanager
async def serving(
    directory: Path,
    carrier: Counted | None = None,
    *,
    messages: int = 0,
    body_bytes: int = LARGE,
    tags: Sequence[str] = ("x",),
) -> AsyncIterator[Broker]:
    """With so many messages in each queue."""
    broker = Broker(directory, carrier or Counted())
    broker.fill(messages, body_bytes, tags)
    broker.carrier.start(asyncio.get_running_loop())
    await broker.server.start()
    try:
        yield broker
    finally:
        await broker.server.close()
        broker.carrier.stop()
        for peer in broker.peers:
            peer.writer.transport.abort()
            with suppress(OSError):
                await peer.writer.wait_closed()
    assert not broker.carrier._batches
    assert not broker.carrier._answers
    broker.store.close()
    broker.disk.close()


def stay_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers have the library; stays begin though the test is slow, and do not end by time."""
    monkeypatch.setattr(RemotingBroker, "library", native_library())
    monkeypatch.setattr(stays, "LONGEST_NS", LONG_S * 10**9)
    monkeypatch.setattr(taking, "_DENSE_S", LONG_S)
    monkeypatch.setattr(carriers, "_LOOK_S", LONG_S)


def on_both_loops(test: Callable[[Path], Coroutine[Any, Any, None]]) -> Callable[[Run, Path], None]:
    """The test with asyncio's loop, whose transports are in Python, and with the broker's own."""

    @pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
    def each(run: Run, tmp_path: Path) -> None:
        run(test(tmp_path / "data"))

    each.__name__, each.__doc__ = test.__name__, test.__doc__
    return each


def check(answer: Command, expected: bytes, next_offset: int) -> None:
    assert answer.code == codes.SUCCESS
    assert bytes(answer.body) == expected
    assert answer.ext["nextBeginOffset"] == str(next_offset)
