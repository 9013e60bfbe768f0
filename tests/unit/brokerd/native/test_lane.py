"""The lane: what the carrier's thread takes of sends, and writes to a file, is what an ordinary call would lay out; what it
leaves comes back as it came."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from brokerd.metadata.configs import TopicConfig
from brokerd.native import carrier as carriers
from brokerd.native import lane as lanes
from brokerd.native.lane import MOST_LEFT_BYTES, MOST_SENDERS, Done
from brokerd.sending.boundary import Source
from brokerd.sending.native_kernel import NativeKernel
from brokerd.store.queues.queue_offsets import QueueOffsets
from brokerd.store.run import Run
from remoting.disk import Bytes
from remoting.frame import Command, decode_frames
from tests.support.held_carrier import Held
from tests.support.native_library import native_library
from tests.unit.brokerd.sending.kernel_sends import NOW_MS, ORDINARY, OTHER, SINGLE, json_send
from tests.unit.brokerd.sending.test_native_kernel import HOST, NEXT, PEER, TOPICS, rules

FOREVER_NS: Final = 10**15
PATIENT_S: Final = 60
BEGIN: Final = 1 << 33  # of the file in the log
GOLDEN: Final = sorted((Path(__file__).parents[3] / "golden" / "sends").iterdir())


@pytest.fixture(autouse=True)
def _patiently(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who sends nothing for long stays."""
    monkeypatch.setattr(carriers, "_LOOK_S", 1000)


class Lender:
    """A connection of a pair of sockets, of which a test has the other end."""

    packed_peer = PEER

    def __init__(self, begun: bytes = b"") -> None:
        self.own, self.peer = socket.socketpair()
        self.begun = begun
        self.own.setblocking(False)
        self.peer.setblocking(False)
        self.taken = -1
        self.came_back: bytes | None = None
        self.rest = b""

    def go_away(self, _seen: int, _most_bytes: int = 0) -> tuple[int, int, bytes]:
        return self.own.fileno(), 0, self.begun

    def keep_lent(self, _ticket: int) -> None:
        pass

    def go_on_sending(self) -> None:
        pass

    def give_back(self, rest: Bytes) -> None:
        self.rest += bytes(rest)

    def come_back(self, data: Bytes) -> None:
        self.came_back = bytes(data)

    def told(self, frames: int) -> None:
        self.taken = frames

    def answers(self) -> list[Command]:
        """All that was answered so far, with what the socket did not take."""
        got = bytearray()
        with suppress(BlockingIOError):
            while more := self.peer.recv(1 << 20):
                got += more
        got += self.rest
        found: list[Command] = []
        assert decode_frames(bytes(got), found) == len(got)
        return found


class Rig:
    """A carrier's thread with a lane, and a kernel whose calls it makes."""

    def __init__(self, path: Path) -> None:
        self.carrier = Held()
        self.kernel = NativeKernel(native_library(), HOST, rules())
        self.offsets = QueueOffsets(NEXT)
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        self.path = path
        self.lenders: list[Lender] = []

    def topics(self, topics: Mapping[str, TopicConfig | None]) -> None:
        self.kernel.topics_changed(topics)

    def run(self, room: int = 1 << 24) -> Run:
        return Run(BEGIN, BEGIN + room, 1 << 24, NOW_MS, self.offsets.taking(), seals=True)

    def meet(self, data: bytes) -> None:
        """Have the library know the queues that this is for."""
        self.kernel.take(self.run(), [Source(data, 0, PEER, 1000)])

    def lend(self, run: Run, descriptor: int | None = None) -> None:
        at = self.kernel.lend(run)
        self.carrier.lane.lend(at, self.descriptor if descriptor is None else descriptor, BEGIN, FOREVER_NS)

    def lent(self) -> Run:
        """The lane is lent, and its kernel met the queue of what is sent."""
        self.meet(with_opaque(1))
        run = self.run()
        self.lend(run)
        return run

    def take_back(self, run: Run) -> Done:
        done = self.carrier.lane.take_back()
        self.kernel.take_back(run, has_failed=done.error != 0)
        return done

    def sender(self, data: bytes = b"") -> Lender:
        """One who stays, and has sent this."""
        lender = Lender()
        self.lenders.append(lender)
        if data:
            lender.peer.setblocking(True)
            lender.peer.sendall(data)
            lender.peer.setblocking(False)
        assert self.carrier.have_sender(lender, lender.told)
        return lender

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENT_S):
            while not is_so():
                await asyncio.sleep(0)

    async def back(self, lender: Lender) -> None:
        await self.until(lambda: lender.came_back is not None)

    def content(self, size: int) -> bytes:
        return os.pread(self.descriptor, size, 0)

    @property
    def frames(self) -> int:
        """So many were taken since the lane was lent."""
        return self.carrier.lane._numbers[lanes._FRAMES]

    def close(self) -> None:
        """The thread has ended, and the lane is not lent."""
        for lender in self.lenders:
            lender.own.close()
            lender.peer.close()
        os.close(self.descriptor)


@asynccontextmanager
async def rigged(tmp_path: Path, topics: Mapping[str, TopicConfig] = TOPICS) -> AsyncIterator[Rig]:
    rig = Rig(tmp_path / "file")
    rig.topics(topics)
    rig.carrier.start(asyncio.get_running_loop())
    try:
        yield rig
    finally:
        rig.carrier.stop()
        rig.close()


def frames_of(data: bytes) -> list[bytes]:
    """The whole frames in it; the last may be damaged."""
    found, at = [], 0
    while at < len(data):
        size = 4 + int.from_bytes(data[at : at + 4])
        found.append(data[at : at + size])
        at += size
    return found


def told(run: Run) -> list[Any]:
    """What a run is, but for its records."""
    units = [
        (topic, queue_id, queue_offset + n, position + n * size, size, code)
        for topic, queue_id, queue_offset, position, size, code, _, count in run.all_entries()
        for n in range(count)
    ]
    sizes: dict[str, tuple[int, int]] = {}
    for part, _ in run.parts:
        for topic, messages, size in part.tallies:
            before = sizes.get(topic, (0, 0))
            sizes[topic] = before[0] + messages, before[1] + size
    return [run.size, run.message_count, run.entry_count, units, dict(run.next_offsets), sizes]


async def compared(rig: Rig, data: bytes, cuts: tuple[int, ...] = ()) -> int:
    """Have the lane take what it takes of this, which comes in pieces: how many frames. An ordinary call takes these likewise."""
    rig.meet(data)
    run = rig.run()
    names = rig.kernel._rules.ids.next_number
    rig.lend(run)
    rig.carrier.let_go()
    lender = rig.sender()
    lender.peer.setblocking(True)
    for begin, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
        await asyncio.to_thread(lender.peer.sendall, data[begin:end])
    lender.peer.shutdown(socket.SHUT_WR)
    lender.peer.setblocking(False)
    await rig.back(lender)
    done = rig.take_back(run)
    ids = rig.kernel._rules.ids
    behind, ids.next_number = ids.next_number, names
    expected = rig.run()
    left = b"".join(frames_of(data)[: lender.taken])
    assert data[len(left) :].startswith(lender.came_back or b"")
    if lender.taken:
        [taken] = rig.kernel.take(expected, [Source(left, 0, PEER, lender.taken)])
        assert taken.position == len(left)
        assert rig.content(expected.size) == b"".join(expected.records)
        early = b"".join(taken.early.answers) if taken.early is not None else b""
        wanted: list[Command] = []
        decode_frames(b"".join(taken.answers) + early, wanted)

        def by_opaque(each: Command) -> tuple[int, str]:
            return each.opaque, str(each.ext)

        assert sorted(map(by_opaque, lender.answers())) == sorted(map(by_opaque, wanted))
        assert told(run) == told(expected)
    assert done.frames == lender.taken
    assert ids.next_number == behind
    return lender.taken


# Of what a call lays out at once: what waits, what the broker chooses the queue of, and what it has to ask for, is the loop's
LEFT: Final = ("moment", "level", "half", "no queue", "tag that seems special")
TAKEN_THOUGH: Final = ("has come", "is now", "has passed", "negative moment", "level 0", "no transaction")
LEFT_THOUGH: Final = ("names twice", "batch with a moment that has come", "moment at level 0", "half at level 0")


def is_taken(kind: str) -> bool:
    """Of the ordinary ones."""

    def is_of(words: Sequence[str]) -> bool:
        return any(word in kind for word in words)

    return not is_of(LEFT) or (is_of(TAKEN_THOUGH) and not (is_of(LEFT_THOUGH) or kind == "a moment and keys twice"))


@pytest.mark.parametrize("kind", ORDINARY)
def test_what_is_taken_is_what_an_ordinary_call_takes(kind: str, tmp_path: Path) -> None:
    async def ask() -> int:
        async with rigged(tmp_path) as rig:
            return await compared(rig, json_send(SINGLE) + ORDINARY[kind] * 3)

    assert asyncio.run(ask()) == (4 if is_taken(kind) else 1)


@pytest.mark.parametrize("kind", OTHER)
def test_what_is_no_ordinary_send_is_left_or_taken_likewise(kind: str, tmp_path: Path) -> None:
    async def ask() -> int:
        async with rigged(tmp_path) as rig:
            return await compared(rig, json_send(SINGLE) + OTHER[kind] * 3)

    assert asyncio.run(ask()) in (1, 4)


@pytest.mark.parametrize("seed", range(20))
def test_sends_of_all_kinds_in_any_pieces(seed: int, tmp_path: Path) -> None:
    """What is left is all from the first on that is not taken."""
    rng = Random(seed)
    likely = [data for kind, data in ORDINARY.items() if is_taken(kind) and len(data) < 4000]
    some = [rng.choice(likely) for _ in range(rng.choice((3, 60, 300)))]
    if rng.random() < 0.7:
        some[rng.randrange(len(some)) :] = [rng.choice([*ORDINARY.values(), *OTHER.values()])]
    data = b"".join(some)
    if rng.random() < 0.3:
        data = data[: rng.randrange(len(data))]

    async def ask() -> int:
        async with rigged(tmp_path) as rig:
            return await compared(rig, data, tuple(sorted(rng.randrange(len(data)) for _ in range(rng.randrange(9)))))

    assert asyncio.run(ask()) <= len(some)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.name)
def test_what_clients_of_the_original_wrote(path: Path, tmp_path: Path) -> None:
    """Each from any of its sends on: those that the lane takes it takes as an ordinary call does."""
    data = path.read_bytes()
    commands: list[Command] = []
    decode_frames(data, commands)
    topics = {(each.ext.get("b") or each.ext["topic"]): 4 for each in commands}
    configs = {name: TopicConfig(name, queues, queues, 6) for name, queues in topics.items()}

    async def ask() -> int:
        taken = 0
        async with rigged(tmp_path, configs) as rig:
            each = frames_of(data)
            for first in range(len(each)):
                rest = b"".join(each[first:])
                taken += await compared(rig, rest, (len(rest) // 3, len(rest) // 2))
        return taken

    assert asyncio.run(ask()) >= len(commands)


def with_opaque(opaque: int, body: bytes = b"b", queue_id: int = 0) -> bytes:
    return json_send({**SINGLE, "e": str(queue_id)}, body, opaque)


def test_everybody_is_answered_in_his_order_whoever_comes_between(tmp_path: Path) -> None:
    """As many as there are, each with more than one call takes."""

    async def ask() -> None:
        async with rigged(tmp_path) as rig:
            rig.meet(b"".join(with_opaque(1, queue_id=queue) for queue in range(4)))
            each = [b"".join(with_opaque(n, b"%d" % who, who % 4) for n in range(150)) for who in range(MOST_SENDERS)]
            lenders = [rig.sender(data[:100]) for data in each]
            one_more = Lender()
            rig.lenders.append(one_more)
            assert not rig.carrier.have_sender(one_more, one_more.told)
            present, frames = rig.run(), []
            rig.lend(present)

            def lend_again() -> None:  # a run has not room for all
                nonlocal present
                frames.append(rig.take_back(present).frames)
                assert present.message_count == frames[-1]
                rig.offsets.advance(present.taken)
                end = present.end_offset
                present = Run(end, BEGIN + (1 << 24), 1 << 24, NOW_MS, rig.offsets.taking(), seals=True)
                rig.lend(present)

            rig.carrier.lane_listener = lend_again
            rig.carrier.let_go()
            for lender, data in zip(lenders, each, strict=True):
                lender.peer.setblocking(True)
                await asyncio.to_thread(lender.peer.sendall, data[100:])
                lender.peer.setblocking(False)
            await rig.until(lambda: sum(frames) == 150 * MOST_SENDERS)
            rig.carrier.recall_senders()
            for lender in lenders:
                await rig.back(lender)
            rig.carrier.lane_listener = None
            rig.take_back(present)
            places = set()
            for who, lender in enumerate(lenders):
                answers = lender.answers()
                assert [answer.opaque for answer in answers] == list(range(150))
                offsets = [int(answer.ext["queueOffset"]) for answer in answers]
                assert offsets == sorted(offsets)
                assert {answer.ext["queueId"] for answer in answers} == {str(who % 4)}
                assert (lender.taken, lender.came_back, lender.rest) == (150, b"", b"")
                places |= {answer.ext["msgId"] for answer in answers}
            assert len(places) == 150 * MOST_SENDERS

    asyncio.run(ask())


@contextmanager
def files_end_at(size: int) -> Iterator[None]:
    """A write behind that is refused, and one across it cut."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("how", ["full", "cut", "no file"])
def test_of_what_could_not_be_written_nothing_is_answered(how: str, is_first: bool, tmp_path: Path) -> None:
    """Who sent it has it back whole; what was written before counts, with its numbers and names."""

    async def ask() -> None:
        async with rigged(tmp_path) as rig:
            nameless = json_send({**SINGLE, "e": "0", "i": "TAGS\x01t\x02"}, b"nameless")
            rig.meet(nameless + with_opaque(1, queue_id=1) + json_send({**SINGLE, "b": "U", "e": "0"}))
            names = rig.kernel._rules.ids.next_number
            rig.carrier.let_go()
            run = rig.run()
            descriptor = os.dup(rig.descriptor)
            rig.lend(run, descriptor)
            lender = rig.sender()
            if not is_first:
                lender.peer.send(nameless + with_opaque(1, queue_id=1))
                await rig.until(lambda: rig.frames == 2)
            refused = nameless + with_opaque(2, queue_id=1) * 2 + json_send({**SINGLE, "b": "U", "e": "0"}, b"x" * 500)
            expected = rig.run()
            rig.kernel._rules.ids.next_number = names
            wanted_error = {"full": errno.ENOSPC, "cut": errno.EFBIG, "no file": errno.EBADF}[how]
            limit = os.fstat(rig.descriptor).st_size + 100 if how == "cut" else resource.RLIM_INFINITY
            other = os.open(
                {"full": "/dev/full", "no file": "/dev/null"}.get(how, rig.path),
                os.O_RDONLY if how == "no file" else os.O_RDWR,
            )
            os.dup2(other, descriptor)
            os.close(other)
            with files_end_at(limit):
                lender.peer.send(refused)
                await rig.back(lender)
            done = rig.take_back(run)
            os.close(descriptor)
            assert lender.came_back == refused
            assert (lender.taken, done.frames, done.error) == (0 if is_first else 2, 0 if is_first else 2, wanted_error)
            assert len(lender.answers()) == done.frames
            if is_first:
                assert not run.size
                assert not run.parts
            else:
                rig.kernel.take(expected, [Source(nameless + with_opaque(1, queue_id=1), 0, PEER, 2)])
                assert told(run) == told(expected)
            assert done.tried_end > run.end_offset
            assert rig.kernel._rules.ids.next_number == names + (0 if is_first else 1)
            # What follows begins where that ended
            rig.offsets.advance(run.taken)
            again, plain = rig.run(), rig.run()
            [taken] = rig.kernel.take(again, [Source(refused, 0, PEER, 9)])
            assert taken.position == len(refused)
            fresh = NativeKernel(native_library(), HOST, rules())
            fresh.topics_changed(TOPICS)
            fresh._rules.ids.next_number = names + (0 if is_first else 1)
            fresh.take(plain, [Source(refused, 0, PEER, 9)])
            assert b"".join(again.records) == b"".join(plain.records)
            assert told(again) == told(plain)

    asyncio.run(ask())


def test_who_sends_while_nothing_is_lent_is_heard_once(tmp_path: Path) -> None:
    """And not again and again before the lane is lent, which it never was."""

    async def ask() -> None:
        async with rigged(tmp_path) as rig:
            heard = 0

            def hear() -> None:
                nonlocal heard
                heard += 1

            rig.carrier.lane_listener = hear
            rig.carrier.let_go()
            lender = rig.sender(with_opaque(1))
            await rig.until(lambda: heard > 0)
            for _ in range(2000):
                await asyncio.sleep(0)
            assert heard == 1
            run = rig.lent()
            await rig.until(lambda: rig.carrier.lane.has_news)
            rig.carrier.recall_senders()
            await rig.back(lender)
            assert (rig.take_back(run).frames, lender.taken, len(lender.answers())) == (1, 1, 1)

    asyncio.run(ask())


def test_who_sends_stays_until_he_sends_no_more(tmp_path: Path) -> None:
    """What was taken of him is looked at while the thread goes on."""

    async def ask() -> None:
        async with rigged(tmp_path) as rig:
            run = rig.lent()
            rig.carrier.let_go()
            lender = rig.sender()
            for opaque in range(10):
                lender.peer.sendall(with_opaque(opaque))
                await rig.until(lambda: len(lender.answers()) > 0)
                rig.carrier._senders.recall_idle()
            lender.peer.sendall(with_opaque(10))
            await rig.until(lambda: len(lender.answers()) > 0)
            assert lender.came_back is None
            for _ in range(2 * lanes._LOOKS_BETWEEN):  # what was taken since the first time is seen the second time
                rig.carrier._senders.recall_idle()
            await rig.back(lender)
            assert (rig.take_back(run).frames, lender.taken) == (11, 11)

    asyncio.run(ask())


def test_a_frame_that_is_too_long_is_left(tmp_path: Path) -> None:
    async def ask() -> None:
        async with rigged(tmp_path) as rig:
            rig.meet(with_opaque(1))
            rig.carrier.let_go()
            run = rig.run()
            rig.lend(run)
            long = with_opaque(2, b"x" * (MOST_LEFT_BYTES + 1))
            lender = rig.sender()
            lender.peer.setblocking(True)
            sending = asyncio.to_thread(lender.peer.sendall, with_opaque(1) + long)
            task = asyncio.ensure_future(sending)
            await rig.back(lender)
            got = bytearray(lender.came_back or b"")
            while len(got) < len(long):  # as the loop would
                await asyncio.sleep(0)
                try:
                    got += lender.own.recv(1 << 20)
                except BlockingIOError:
                    continue
            await task
            lender.peer.setblocking(False)
            assert bytes(got) == long
            assert (lender.taken, rig.take_back(run).frames) == (1, 1)
            assert [each.opaque for each in lender.answers()] == [1]

    asyncio.run(ask())


def test_answers_that_a_socket_does_not_take_come_back_whole(tmp_path: Path) -> None:
    """With what was not taken then, and nothing twice."""

    async def ask() -> None:
        async with rigged(tmp_path) as rig:
            run = rig.lent()
            lender = rig.sender()
            lender.own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            data = b"".join(with_opaque(n) for n in range(300))
            lender.peer.setblocking(True)
            await asyncio.to_thread(lender.peer.sendall, data)
            lender.peer.setblocking(False)
            rig.carrier.let_go()
            await rig.back(lender)
            done = rig.take_back(run)
            assert lender.rest
            assert [each.opaque for each in lender.answers()] == list(range(done.frames))
            assert data.startswith(b"".join(frames_of(data)[: done.frames]) + (lender.came_back or b""))

    asyncio.run(ask())


@pytest.mark.parametrize("seed", range(10))
def test_recalls_at_any_time_lose_nothing(seed: int, tmp_path: Path) -> None:
    """The lane is taken back, and connections come back and stay again, while they send."""
    rng = Random(seed)

    async def ask() -> None:
        async with rigged(tmp_path) as rig:
            rig.meet(with_opaque(1))
            rig.carrier.let_go()
            run, runs, position = rig.run(), [], 0
            rig.lend(run)
            lender = rig.sender()
            frames = [with_opaque(n, b"%d" % n) for n in range(400)]
            data, sent, by_loop, answered = b"".join(frames), 0, b"", 0
            while sent < len(data):
                count = lender.peer.send(data[sent : sent + rng.choice((1, 50, 900, 9000))])
                sent += count
                for _ in range(rng.randrange(4)):
                    await asyncio.sleep(0)
                if rng.random() < 0.2:
                    done = rig.take_back(run)
                    assert (run.message_count, run.entry_count > 0) == (done.frames, done.frames > 0)
                    runs.append(run)
                    position += run.size
                    rig.offsets.advance(run.taken)
                    answered += done.frames
                    run = Run(BEGIN + position, BEGIN + (1 << 24), 1 << 24, NOW_MS, rig.offsets.taking(), seals=True)
                    rig.lend(run)
            lender.peer.shutdown(socket.SHUT_WR)
            rig.carrier.recall_senders() if rng.random() < 0.5 else None
            await rig.back(lender)
            done = rig.take_back(run)
            runs.append(run)
            answered += done.frames
            by_loop = lender.came_back or b""
            assert answered == lender.taken == len(lender.answers())
            assert data[sum(map(len, frames[:answered])) :].startswith(by_loop)
            plain = Run(BEGIN, BEGIN + (1 << 24), 1 << 24, NOW_MS, QueueOffsets(NEXT).taking(), seals=True)
            if answered:
                rig.kernel.take(plain, [Source(data, 0, PEER, answered)])
            assert rig.content(plain.size) == b"".join(plain.records)
            assert sum(each.size for each in runs) == plain.size

    asyncio.run(ask())


def test_nobody_is_looked_at_while_nobody_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is looked for whenever anything happens, so it is to cost nothing however many stay."""

    async def ask() -> None:
        async with rigged(tmp_path) as rig:
            rig.carrier.let_go()
            lenders = [rig.sender() for _ in range(3)]
            looks = 0
            look = rig.carrier._senders._look

            def count(*asked: Any) -> int:
                nonlocal looks
                looks += 1
                return int(look(*asked))

            monkeypatch.setattr(rig.carrier._senders, "_look", count)
            for _ in range(5):
                rig.carrier._settle()
            assert looks == 0
            lenders[1].peer.close()
            run = rig.lent()
            await rig.back(lenders[1])
            assert looks > 0
            assert len(rig.carrier._senders) == 2
            rig.carrier.recall_senders()
            for each in lenders:
                await rig.back(each)
            rig.take_back(run)

    asyncio.run(ask())


def test_who_sends_now_and_then_stays_and_who_sends_nothing_comes_back(tmp_path: Path) -> None:
    async def ask() -> None:
        async with rigged(tmp_path) as rig:
            run = rig.lent()
            rig.carrier.let_go()
            lender, idle = rig.sender(), rig.sender()
            senders = rig.carrier._senders
            for number in range(3):
                lender.peer.send(with_opaque(number))
                await rig.until(lambda count=number + 1: rig.carrier.lane._numbers[lanes._FRAMES] == count)
                for _ in range(lanes._LOOKS_BETWEEN):
                    senders.recall_idle()
            await rig.back(idle)
            assert lender in senders
            for _ in range(lanes._LOOKS_BETWEEN):
                senders.recall_idle()
            await rig.back(lender)
            assert (rig.take_back(run).frames, lender.taken, idle.taken) == (3, 3, 0)

    asyncio.run(ask())
