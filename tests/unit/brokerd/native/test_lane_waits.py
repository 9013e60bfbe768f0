"""The lane where answers wait for syncs, which are made here one by one, by hand."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from brokerd.native import carrier as carriers
from brokerd.native.lane import MOST_WAITING
from brokerd.native.stays import Waiting
from brokerd.native.syncs import Ending, NativeSyncs
from remoting import frame
from remoting.disk import Bytes
from remoting.frame import Command
from remoting.transport.carrying import Lender as AnyLender
from tests.support.native_library import native_library
from tests.unit.brokerd.native.test_lane import BEGIN, FOREVER_NS, Lender, Rig, with_opaque
from tests.unit.brokerd.sending.kernel_sends import SINGLE, json_send
from tests.unit.brokerd.sending.test_native_kernel import TOPICS

ROOM: Final = 1 << 24
MUCH: Final = b"x" * 9000  # behind so much it goes on reading before the sync
LONG: Final = b"x" * (100 << 10)


@pytest.fixture(autouse=True)
def _patiently(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who sends nothing for long stays: nothing here happens because time is up."""
    monkeypatch.setattr(carriers, "_LOOK_S", 1000)


class Waiter(Lender):
    """One who may have something to send meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.out: list[Bytes] = []
        self.given_back: list[bytes] = []

    def take_out(self) -> list[Bytes]:
        out, self.out = self.out, []
        return out

    def give_back(self, rest: Bytes) -> None:
        self.given_back.append(bytes(rest))
        super().give_back(rest)

    def read_some(self) -> bytes:
        with suppress(BlockingIOError):
            return self.peer.recv(1 << 20)
        return b""


class Waits(Rig):
    """A rig whose answers wait for `serve`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.syncs = NativeSyncs(native_library())
        self.syncs.leave()  # so one sync is made in a call, or none where none is wanted
        self.waiting: list[tuple[AnyLender, Waiting]] = []
        self.carrier.waiting_listener = lambda lender, waiting: self.waiting.append((lender, waiting))
        self.waited: list[float] = []  # ms, of each message
        self.present = self.run()

    def begin(self) -> None:
        """Lend the lane, and let the thread go."""
        self.meet(b"".join(with_opaque(1, queue_id=queue) for queue in range(4)))
        self.present = self.run()
        at = self.kernel.lend(self.present)
        self.carrier.lane.lend(at, self.descriptor, BEGIN, FOREVER_NS, self.syncs.at)
        self.carrier.let_go()

    def note_waited(self) -> None:
        for waited_ms, messages in self.carrier.lane.waited():
            self.waited += [waited_ms] * messages

    def serve(self, descriptor: int | None = None) -> Ending:
        return self.syncs.serve(0, self.descriptor if descriptor is None else descriptor, BEGIN, BEGIN + ROOM)

    def waiter(self) -> Waiter:
        lender = Waiter()
        self.lenders.append(lender)
        assert self.carrier.have_sender(lender, lender.told)
        return lender

    async def taken(self, count: int) -> None:
        await self.until(lambda: self.frames == count)

    async def took(self, lender: Lender, data: bytes) -> None:
        """He sends a message, which is taken."""
        count = self.frames + 1
        lender.peer.send(data)
        await self.taken(count)

    async def answered(self, lender: Waiter, count: int) -> list[Command]:
        got, found = bytearray(), list[Command]()

        def all_came() -> bool:
            got.extend(lender.read_some())
            del got[: frame.decode_frames(bytes(got), found)]
            return len(found) >= count

        await self.until(all_came)
        assert not got
        return found

    async def recalled(self, lender: Lender) -> None:
        self.carrier.recall_senders()
        await self.back(lender)


@asynccontextmanager
async def rigged(tmp_path: Path) -> AsyncIterator[Waits]:
    rig = Waits(tmp_path / "file")
    rig.topics(TOPICS)
    rig.carrier.start(asyncio.get_running_loop())
    try:
        yield rig
    finally:
        rig.carrier.stop()
        rig.take_back(rig.present)
        rig.syncs.close()
        rig.close()


def on_rig(test: Callable[[Waits], Awaitable[None]]) -> Callable[[Path], None]:
    async def ask(tmp_path: Path) -> None:
        async with rigged(tmp_path) as rig:
            rig.begin()
            await test(rig)

    def run(tmp_path: Path) -> None:
        asyncio.run(ask(tmp_path))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def opaques(answers: list[Command]) -> list[int]:
    return [each.opaque for each in answers]


def decoded(data: bytes) -> list[Command]:
    found: list[Command] = []
    assert frame.decode_frames(data, found) == len(data)
    return found


@on_rig
async def test_an_answer_leaves_behind_the_sync_and_not_before(rig: Waits) -> None:
    waiters = [rig.waiter(), rig.waiter()]
    for number, each in enumerate(waiters):
        await rig.took(each, with_opaque(10 + number, MUCH))
    assert rig.syncs.done == 0
    for each in waiters:
        await rig.recalled(each)  # so all that was to be sent was
    assert [each.read_some() for each in waiters] == [b"", b""]
    assert [(lender, opaques(decoded(each.answers)), each.requests) for lender, each in rig.waiting] == [
        (waiters[0], [10], 1),
        (waiters[1], [11], 1),
    ]
    assert BEGIN < rig.waiting[0][1].end < rig.waiting[1][1].end
    again = rig.waiter()
    await rig.took(again, with_opaque(12))
    assert rig.serve() is Ending.LEFT
    assert rig.syncs.done > rig.waiting[1][1].end
    assert opaques(await rig.answered(again, 1)) == [12]
    assert [messages for _, messages in rig.carrier.lane.waited()] == [1]
    assert list(rig.carrier.lane.waited()) == []


@on_rig
async def test_a_sync_that_failed_answers_nobody(rig: Waits) -> None:
    waiter = rig.waiter()
    await rig.took(waiter, with_opaque(10))
    read_end, write_end = os.pipe()
    with pytest.raises(OSError, match="Invalid argument"):
        rig.serve(write_end)
    os.close(read_end)
    os.close(write_end)
    assert rig.syncs.done == 0
    await rig.recalled(waiter)
    assert waiter.read_some() == b""
    assert [opaques(decoded(each.answers)) for _, each in rig.waiting] == [[10]]


@on_rig
async def test_what_was_durable_before_a_cut_answers_nothing_behind_it(rig: Waits) -> None:
    waiter = rig.waiter()
    await rig.took(waiter, with_opaque(10))
    rig.serve()
    await rig.answered(waiter, 1)
    rig.syncs.set_back(BEGIN)
    assert rig.syncs.done == BEGIN
    assert rig.serve() is Ending.LEFT
    assert rig.syncs.done == BEGIN, "there is nothing to sync"
    await rig.took(waiter, with_opaque(11))
    await rig.recalled(waiter)
    assert waiter.read_some() == b""
    assert [opaques(decoded(each.answers)) for _, each in rig.waiting] == [[11]]


@on_rig
async def test_passes_that_wait_are_bounded_and_answered_in_their_order(rig: Waits) -> None:
    waiter = rig.waiter()
    for number in range(MOST_WAITING):
        await rig.took(waiter, with_opaque(number, MUCH))
    waiter.peer.send(with_opaque(MOST_WAITING, MUCH))
    await rig.recalled(waiter)
    assert len(rig.waiting) == MOST_WAITING
    assert [opaques(decoded(each.answers)) for _, each in rig.waiting] == [[number] for number in range(MOST_WAITING)]
    ends = [each.end for _, each in rig.waiting]
    assert ends == sorted(ends)
    assert rig.frames == MOST_WAITING


@on_rig
async def test_the_ring_of_passes_goes_round(rig: Waits) -> None:
    """While some always wait."""
    waiter = rig.waiter()
    for number in range(3 * MOST_WAITING):
        await rig.took(waiter, with_opaque(number, MUCH))
        if number % 40 == 39:
            rig.serve()
    rig.serve()
    assert opaques(await rig.answered(waiter, 3 * MOST_WAITING)) == list(range(3 * MOST_WAITING))
    await rig.recalled(waiter)
    assert rig.waiting == []


def other(number: int, body: bytes = b"") -> bytes:
    return frame.encode_response(0, number, None, body)


def pass_on(rig: Waits, waiter: Waiter, content: bytes) -> None:
    waiter.out.append(content)
    assert rig.carrier.keeps(waiter, 0)


@on_rig
async def test_what_the_loop_answers_waits_for_no_sync(rig: Waits) -> None:
    waiter = rig.waiter()
    await rig.took(waiter, with_opaque(10, MUCH))
    pass_on(rig, waiter, other(99))
    assert opaques(await rig.answered(waiter, 1)) == [99]
    rig.serve()
    assert opaques(await rig.answered(waiter, 1)) == [10]


@on_rig
async def test_who_does_not_read_what_the_loop_answers_comes_back_with_the_rest(rig: Waits) -> None:
    """Though he sends nothing more, and nobody wants him."""
    waiter = rig.waiter()
    waiter.own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    await rig.took(waiter, with_opaque(10, MUCH))
    pass_on(rig, waiter, other(99, LONG))
    await rig.back(waiter)
    [rest] = waiter.given_back
    assert 0 < len(rest) < len(LONG)
    waiter.rest = b""
    got = bytearray()
    while more := waiter.read_some():
        got += more
    assert bytes(got) + rest == other(99, LONG)
    assert [opaques(decoded(each.answers)) for _, each in rig.waiting] == [[10]]


@on_rig
async def test_what_is_passed_on_beyond_the_bound_comes_back_whole(rig: Waits) -> None:
    waiter = rig.waiter()
    waiter.own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    await rig.took(waiter, with_opaque(10, MUCH))
    pieces = [other(90 + number, LONG) for number in range(5)]
    for each in pieces:
        pass_on(rig, waiter, each)
        if waiter not in rig.carrier._senders:
            break
    await rig.back(waiter)
    rig.carrier.finish_all()
    got = bytearray()
    while more := waiter.read_some():
        got += more
    found = sorted(opaques(decoded(bytes(got) + waiter.rest + b"".join(map(bytes, waiter.out)))))
    assert found == list(range(90, 90 + len(found)))
    assert [opaques(decoded(each.answers)) for _, each in rig.waiting] == [[10]]


@on_rig
async def test_nothing_is_passed_on_to_who_stays_in_anothers_place(rig: Waits) -> None:
    waiter = rig.waiter()
    await rig.took(waiter, with_opaque(10))
    sender = rig.carrier._senders._of[waiter]
    content = other(99)
    await rig.recalled(waiter)
    later = rig.waiter()
    assert rig.carrier._senders._of[later].number == sender.number
    waiter.rest = b""
    rig.carrier._senders._of[waiter] = sender  # as it was when that was put
    first, rig.carrier._put = rig.carrier._put, rig.carrier._put + 1
    batch = carriers._Batch(first, first + 1, [waiter], carriers.array("q", (0, len(content))), content)
    rig.carrier._batches.append(batch)
    rig.carrier._kept_bytes += len(content)
    rig.carrier._senders.pass_on(waiter, content)
    del rig.carrier._senders._of[waiter]
    await rig.until(lambda: waiter.rest == content)
    await rig.took(later, with_opaque(11))
    rig.serve()
    assert opaques(await rig.answered(later, 1)) == [11]


def test_who_waits_for_his_connection_has_all_back_that_was_passed_on(tmp_path: Path) -> None:
    """As who closes it has to send that."""

    async def ask() -> None:
        for number in range(200):
            directory = tmp_path / str(number)
            directory.mkdir()
            async with rigged(directory) as rig:
                rig.begin()
                waiter = rig.waiter()
                await rig.took(waiter, with_opaque(10, MUCH))
                for n in range(20):
                    pass_on(rig, waiter, other(100 + n))
                rig.carrier.finish(1)
                assert opaques(sorted(waiter.answers(), key=lambda each: each.opaque)) == list(range(100, 120))

    asyncio.run(ask())


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_message_is_timed_once_however_many_wait(comes_back: bool, tmp_path: Path) -> None:
    """Those of a pass are with whose answers leave first."""

    async def ask() -> None:
        async with rigged(tmp_path) as rig:
            waiters = [rig.waiter(), rig.waiter()]
            oneway = json_send(SINGLE, opaque=9, flag=2)
            waiters[0].peer.send(oneway + with_opaque(10) + with_opaque(11))
            waiters[1].peer.send(with_opaque(12) + oneway)
            rig.begin()  # so one pass takes them all
            await rig.taken(5)
            if comes_back:
                for each in waiters:
                    await rig.recalled(each)
            else:
                rig.serve()
                assert opaques(await rig.answered(waiters[0], 2)) == [10, 11]
                assert opaques(await rig.answered(waiters[1], 1)) == [12]
            rig.note_waited()
            timed = [(each.requests, each.messages) for _, each in rig.waiting]
            assert (timed, len(rig.waited)) == (([(2, 5), (1, 0)], 0) if comes_back else ([], 5))

    asyncio.run(ask())


@on_rig
async def test_a_message_for_whom_nobody_waits_is_timed_at_once(rig: Waits) -> None:
    waiter = rig.waiter()
    await rig.took(waiter, json_send(SINGLE, opaque=9, flag=2))
    await rig.took(waiter, with_opaque(10, MUCH))
    await rig.recalled(waiter)
    rig.note_waited()
    assert len(rig.waited) == 1
    assert rig.waited[0] < 0.001
    assert [each.messages for _, each in rig.waiting] == [1]


@on_rig
async def test_how_long_each_message_waited_is_known_to_a_sixteenth(rig: Waits) -> None:
    """Not as a mean of all that one sync answers."""
    waiter, spans = rig.waiter(), list[tuple[int, int]]()
    for number in range(20):
        begin_ns = time.monotonic_ns()
        await rig.took(waiter, with_opaque(number, MUCH))
        spans.append((begin_ns, time.monotonic_ns()))
        await rig.until(lambda: time.monotonic_ns() > spans[-1][1] + 1_000_000)
    begin_ns = time.monotonic_ns()
    rig.serve()
    await rig.answered(waiter, 20)
    end_ns = time.monotonic_ns()
    rig.note_waited()
    for waited_ms, (before_ns, behind_ns) in zip(sorted(rig.waited), reversed(spans), strict=True):
        assert (begin_ns - behind_ns) / 1e6 * 15 / 16 <= waited_ms <= (end_ns - before_ns) / 1e6 * 17 / 16


@on_rig
async def test_who_asks_sees_what_waits_and_since_when(rig: Waits) -> None:
    one, other = rig.waiter(), rig.waiter()
    asked = rig.carrier.waiting_senders
    assert asked() == (0, 0)
    times = [time.monotonic_ns()]
    for number, each in enumerate((one, other, one, other)):
        await rig.took(each, with_opaque(10 + number, MUCH))
        times.append(time.monotonic_ns())
        if number == 1:
            await rig.until(lambda: asked()[0] == 2)
            assert times[0] < asked()[1] < times[1], "the first counts"
            rig.serve()
            await rig.answered(one, 1)
            await rig.answered(other, 1)
            assert asked() == (0, 0)
    await rig.until(lambda: asked()[0] == 2)
    assert times[2] < asked()[1] < times[3]
    await rig.took(one, with_opaque(20, MUCH))
    await rig.until(lambda: asked()[0] == 3)
    assert times[2] < asked()[1] < times[3], "he waits for the earlier one yet"
    await rig.recalled(one)  # and what waits of both is counted by the loop
    assert asked() == (0, 0)
    assert len(rig.waiting) == 3
    again = rig.waiter()
    assert asked() == (0, 0), "whoever had his place before"
    await rig.took(again, with_opaque(30))
    await rig.until(lambda: asked()[0] == 1)
    assert asked()[1] > times[4]


@on_rig
async def test_what_still_waits_behind_a_sync_counts_since_it_came(rig: Waits) -> None:
    waiter = rig.waiter()
    await rig.took(waiter, with_opaque(10, MUCH))
    end, begin_ns = BEGIN + os.fstat(rig.descriptor).st_size, time.monotonic_ns()
    await rig.took(waiter, with_opaque(11, MUCH))
    rig.syncs.set_back(end)  # so that is synced and no more
    rig.serve()
    assert opaques(await rig.answered(waiter, 1)) == [10]
    count, since_ns = rig.carrier.waiting_senders()
    assert count == 1
    assert since_ns > begin_ns
