"""A broker on a port that takes sends as a running one does, with its log in files, and clients that send to it densely.

Its clock stands, so that two brokers that are sent the same store the same; it acknowledges at once until a test says otherwise.
"""

from __future__ import annotations

import asyncio
import socket
from array import array
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from brokerd.composition.handlers import build_retry, build_sends
from brokerd.consuming.queue_locks import QueueLocks
from brokerd.consuming.read_place import PullSettings, ReadPlace
from brokerd.members.registry import ClientRegistry
from brokerd.metadata.configs import GroupConfig, TopicConfig
from brokerd.native import carrier as carriers
from brokerd.native.lane import MOST_SENDERS
from brokerd.native.syncs import NativeSyncs
from brokerd.processors.offsets.committed import OffsetProcessor
from brokerd.processors.pulling.checks import PullChecks
from brokerd.processors.pulling.pull import PullProcessor
from brokerd.processors.registry import each
from brokerd.replication.required_set.ack_queue import AckQueue
from brokerd.replication.roles.effects import Role
from brokerd.sending import lending
from brokerd.sending.lending import SendLending
from brokerd.store.log.flusher import Flusher
from brokerd.store.log.syncs_in_c import SyncsInC
from brokerd.store.run import Run
from brokerd.store.settings import StoreSettings
from remoting import codes, frame
from remoting.disk import LocalDisk
from remoting.frame import Command
from remoting.record.codec import Record, decode_record
from remoting.record.layout import BORDER, MAGIC_BLANK
from remoting.settings import Live
from remoting.transport import taking
from remoting.transport.connection import Intake
from remoting.transport.limits import ConnectionLimits
from remoting.transport.server import Place, RemotingServer, ServerLimits
from remoting.transport.watch import UnfinishedSettings, Watch
from tests.support.alone import AloneBroker
from tests.support.held_carrier import Held
from tests.support.native_library import native_library
from tests.support.open_guard import yes
from tests.support.pulls import pull_frame
from tests.support.turns import Turns
from tests.unit.brokerd.sending.kernel_sends import FIELDS, PROPERTIES, json_send
from tests.unit.brokerd.store.stores import STORE_HOST

LONG_S = 1000
PATIENT_S = 60
NOW_MS = 1_700_000_000_000
FOREVER_NS = 10**15
QUEUES = 4


class LoopTurns(Turns):
    """The running loop's turns, and a wall clock that stands."""

    def __init__(self) -> None:
        super().__init__(NOW_MS)
        self._loop = asyncio.get_running_loop()

    def time(self) -> float:
        return self._loop.time()

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> Any:
        return self._loop.call_soon(callback, *args)

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Any:
        return self._loop.call_later(delay, callback, *args)


class Lending(Held):
    """A carrier that counts who stayed for sends, and what of theirs was taken there."""

    def __init__(self, *, has_thread: bool = True, is_held: bool = False) -> None:
        super().__init__(has_thread=has_thread)
        self.begun = 0
        self.taken: list[int] = []  # of those who are back
        if not is_held:
            self.let_go()

    def have_sender(self, connection: Any, told: Callable[[int], None]) -> bool:
        def note(frames: int) -> None:
            self.taken.append(frames)
            told(frames)

        stays = super().have_sender(connection, note)
        self.begun += stays
        return stays


class Peer:
    """A client: what it sends, and what it is answered, by opaque."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.opaque = 0
        self.got = bytearray()

    def send(self, body: bytes = b"body", queue_id: int = 0, topic: str = "T", *, oneway: bool = False) -> int:
        """Send a message; its opaque."""
        self.opaque += 1
        self.writer.write(send_frame(self.opaque, body, queue_id, topic, oneway=oneway))
        return self.opaque

    def ask(self, code: int, fields: dict[str, Any], body: bytes = b"") -> int:
        self.opaque += 1
        self.writer.write(
            frame.encode_request(code, self.opaque, {name: str(value) for name, value in fields.items()}, body)
        )
        return self.opaque

    def pull(self, offset: int, queue_id: int = 0, topic: str = "T", **changes: object) -> int:
        self.opaque += 1
        self.writer.write(pull_frame(self.opaque, offset, topic=topic, queueId=queue_id, **changes))
        return self.opaque

    async def answers(self, count: int = 1) -> list[Command]:
        """The next ones, in the order in which they come."""
        found: list[Command] = []
        async with asyncio.timeout(PATIENT_S):
            while len(found) < count:
                more = await self.reader.read(1 << 20)
                if not more:
                    raise ConnectionResetError(f"closed behind {len(found)} of {count} answers")
                self.got += more
                taken = frame.decode_frames(bytes(self.got), found)
                del self.got[:taken]
        assert len(found) == count, "more was answered than asked"
        return found

    async def answer(self) -> Command:
        [answer] = await self.answers()
        return answer

    async def sent(self, body: bytes = b"body", queue_id: int = 0, topic: str = "T") -> Command:
        """The answer to a message that is sent now."""
        opaque = self.send(body, queue_id, topic)
        answer = await self.answer()
        assert answer.opaque == opaque
        return answer


def send_frame(opaque: int, body: bytes, queue_id: int = 0, topic: str = "T", *, oneway: bool = False) -> bytes:
    """An ordinary send."""
    fields = {**FIELDS, "b": topic, "e": str(queue_id), "i": PROPERTIES.format(opaque, "t")}
    return json_send(fields, body, opaque, flag=2 if oneway else 0)


class Broker:
    """With `waits_for_disk` it acknowledges what is durable, as its flusher says."""

    def __init__(
        self, directory: Path, carrier: Lending, segment_bytes: int = 1 << 22, *, waits_for_disk: bool = False
    ) -> None:
        self.carrier = carrier
        self.directory = directory
        self.disk = LocalDisk(directory)
        self.turns = turns = LoopTurns()
        library = native_library()
        self.alone = AloneBroker(
            self.disk,
            turns,
            StoreSettings(segment_size_bytes=segment_bytes),
            STORE_HOST,
            library=library,
        )
        self.core = core = self.alone.core
        self.store = core.store
        self.replica = self.alone.replica
        self.store.commitlog.turns.looks.enders.append(carrier.finish_all)
        self.flusher: Flusher | None = None
        syncs = self._wait_for_disk() if waits_for_disk else None
        retry = build_retry(core, QueueLocks())
        self.sends, self.send_turns = build_sends(
            core,
            retry,
            STORE_HOST,
            lambda done: done(),
            turns,
            make_topics=True,
            library=library,
            carrier=carrier,
            syncs=syncs,
        )
        clients = ClientRegistry(turns.monotonic_ms, turns.wall_ms, yes)
        pull_settings = Live(PullSettings())
        place = ReadPlace(
            pull_settings, *(lambda: True,) * 3, lambda: self.store.commitlog.end_offset, 1 << 30, core.cold_line
        )
        checks = PullChecks(core.metadata, clients, lambda: True)
        self.pulls = PullProcessor(checks, core.progress.pulled, self.store, core.counters, turns, place)
        self.pulls.go_behind(core.take_sends)
        core.arrival_listeners.append(self.pulls.arrived)
        offsets = OffsetProcessor(
            core.metadata,
            core.progress.consumer_offset,
            self.store,
            core.pop.starts,
            lambda: core.metadata.data_version(1),
        )
        handlers = {
            codes.SEND_MESSAGE: self.sends.handle_long_names,
            codes.SEND_MESSAGE_V2: self.sends.handle,
            codes.SEND_BATCH_MESSAGE: self.sends.handle,
            codes.PULL_MESSAGE: each(self.pulls.handle),
            codes.GET_MAX_OFFSET: each(offsets.maximum),
        }
        intake = Intake(Watch(UnfinishedSettings()), carrier=carrier, catch_up=self.sends.catch_up)
        limits = ServerLimits(ConnectionLimits(), intake=intake)
        self.server = RemotingServer(Place("127.0.0.1", 0), handlers, limits=limits, taker=self.sends)
        self.peers: list[Peer] = []
        self.runs: list[Run] = []  # that were taken back
        self.replica.become(Role.MASTER)
        self.topic("T")
        self.core.metadata.put_group(GroupConfig("g"), lambda _error: None)

    def _wait_for_disk(self) -> SyncsInC:
        self.store.commitlog.write_ahead()
        syncs = SyncsInC(self.store.commitlog, NativeSyncs(native_library()))
        self.flusher = Flusher(self.store, in_c=syncs)
        self.flusher.listeners.append(self.replica.on_flushed)
        self.replica.acks = AckQueue(1 << 20)
        self.alone.request_flush = self.flusher.request
        self.flusher.start()
        return syncs

    @property
    def lending(self) -> SendLending:
        assert self.sends._lending is not None
        return self.sends._lending

    @property
    def taken(self) -> int:
        """Frames that were taken by the thread, of those who are back."""
        return sum(self.carrier.taken)

    @property
    def taken_meanwhile(self) -> int:
        """Frames, of those who stay, however often the lane was lent."""
        frames = array("q", bytes(8 * MOST_SENDERS))
        self.carrier._senders._count_frames(self.carrier.lane.at, frames.buffer_info()[0])
        return sum(frames)

    def topic(self, name: str, queues: int = QUEUES, perm: int = 6) -> None:
        self.core.metadata.put_topic(TopicConfig(name, queues, queues, perm), _is_done)

    def delete_topic(self, name: str) -> None:
        self.core.metadata.delete_topic(name, _is_done)

    def next_offset(self, queue_id: int = 0, topic: str = "T") -> int:
        return self.store.queue_offsets.next(topic, queue_id)

    async def connected(self, count: int = 1) -> list[Peer]:
        peers = [Peer(*await asyncio.open_connection("127.0.0.1", self.server.port)) for _ in range(count)]
        self.peers += peers
        await self.until(lambda: len(self.server.connections) >= len(self.peers))
        return peers

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENT_S):
            while not is_so():
                await asyncio.sleep(0)

    async def staying(self, count: int = 1, *, queue_id: int = 0) -> list[Peer]:
        """Clients whose connections stay, and are answered there: each sent something that was taken by the thread."""
        peers = await self.connected(count)
        for peer in peers:
            await self.stay(peer, queue_id)
        return peers

    async def stay(self, peer: Peer, queue_id: int = 0) -> None:
        """Send until the connection stays and the lane is lent."""
        begun = self.carrier.begun
        async with asyncio.timeout(PATIENT_S):
            while self.carrier.begun == begun:
                assert (await peer.sent(queue_id=queue_id)).code == codes.SUCCESS
        await self.until(lambda: self.is_lent)

    @property
    def is_lent(self) -> bool:
        return self.lending._lent is not None

    async def all_back(self) -> None:
        """Nobody stays any more, and it is known what was taken."""
        self.carrier.recall_senders()
        await self.until(lambda: not self.carrier.has_senders and len(self.carrier.taken) == self.carrier.begun)

    def records(self) -> list[Record]:
        """All of the log, in order."""
        self.store.settle()
        log, found = self.store.commitlog, []
        for start in log.segment_starts():
            content = log.read(start, log.segment_size_bytes)
            at = 0
            while at < len(content):
                size, magic = BORDER.unpack_from(content, at)
                if magic == MAGIC_BLANK:
                    break
                found.append(decode_record(content[at : at + size]))
                at += size
        return found

    def sent_records(self, topic: str = "T") -> list[Record]:
        return [each for each in self.records() if each.topic == topic]

    def narrow(self) -> None:
        """From now on sockets take little of what nobody reads."""
        for connection in self.server.connections:
            own = connection._transport.get_extra_info("socket")
            own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)


def _is_done(error: Exception | None) -> None:
    assert error is None, error


@asynccontextmanager
async def serving(
    directory: Path,
    carrier: Lending | None = None,
    *,
    segment_bytes: int = 1 << 22,
    waits_for_disk: bool = False,
) -> AsyncIterator[Broker]:
    broker = Broker(directory, carrier or Lending(), segment_bytes, waits_for_disk=waits_for_disk)
    broker.carrier.start(asyncio.get_running_loop())
    await broker.server.start()
    try:
        yield broker
    finally:
        broker.sends.end_lending()
        broker.core.close()
        await broker.server.close()
        broker.carrier.stop()
        for peer in broker.peers:
            peer.writer.transport.abort()
            with suppress(OSError):
                await peer.writer.wait_closed()
        assert not broker.carrier.has_senders
        if broker.flusher is not None:
            await broker.flusher.stop()
        broker.store.close()
        broker.disk.close()


def stay_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who sends stays soon, though the test is slow, and until somebody wants him back."""
    monkeypatch.setattr(taking, "_DENSE_S", LONG_S)
    monkeypatch.setattr(taking, "_DENSE_FOR_DISK_S", LONG_S)
    monkeypatch.setattr(taking, "_OFTEN", 1)
    monkeypatch.setattr(taking, "_LONG", 0)
    monkeypatch.setattr(carriers, "_LOOK_S", LONG_S)


def lend_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lane stays lent until somebody wants it, and nobody is told of what was taken before somebody asks. It is lent again
    however long the flusher has no processor."""
    monkeypatch.setattr(lending, "_LENT_NS", FOREVER_NS)
    monkeypatch.setattr(lending, "_PAUSE_S", 1e9)  # it counts from when the machine began, too
    monkeypatch.setattr(lending, "_COUNTED", 1 << 60)
    monkeypatch.setattr(lending, "_MOST_MISSED", 1 << 60)


def on_both_loops(test: Callable[[Path], Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test with asyncio's loop, whose transports are in Python, and with the broker's own."""

    @pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
    def each_loop(run: Callable[[Coroutine[Any, Any, None]], None], tmp_path: Path) -> None:
        run(test(tmp_path / "data"))

    each_loop.__name__, each_loop.__doc__ = test.__name__, test.__doc__
    return each_loop


def places_of(answers: Sequence[Command]) -> list[int]:
    """Where in the log the messages are that were answered."""
    return [int(message_id[-16:], 16) for each_one in answers for message_id in each_one.ext["msgId"].split(",")]
