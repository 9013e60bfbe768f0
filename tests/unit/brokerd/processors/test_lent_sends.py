"""Connections whose sends the carrier's thread takes, while it has the end of the log."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from brokerd.native.lane import MOST_LEFT_BYTES
from brokerd.replication.roles.effects import Role
from brokerd.sending.outcomes import SendOutcome
from brokerd.store.put_status import PutStatus
from brokerd.store.run import Run
from remoting import codes
from remoting.frame import Command
from remoting.record.properties import decode_properties
from remoting.transport import taking
from tests.support.sending_broker import (
    QUEUES,
    Broker,
    Peer,
    lend_for_long,
    on_both_loops,
    places_of,
    send_frame,
    serving,
    stay_soon,
)
from tests.unit.brokerd.sending.kernel_sends import FIELDS, json_send
from tests.unit.brokerd.store.stores import draft


@pytest.fixture(autouse=True)
def _densely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who sends stays soon, though the test is slow, and until somebody wants him back."""
    stay_soon(monkeypatch)
    lend_for_long(monkeypatch)


@on_both_loops
async def test_what_is_answered_is_in_the_log_at_its_place(directory: Path) -> None:
    async with serving(directory) as broker:
        peers = await broker.staying(3)
        sent: dict[int, bytes] = {}
        for turn in range(50):
            bodies = [b"%d of %d" % (turn, number) * (1 + turn) for number in range(3)]
            for number, peer in enumerate(peers):
                peer.send(bodies[number], number)
            for body, peer in zip(bodies, peers, strict=True):
                answer = await peer.answer()
                assert answer.code == codes.SUCCESS
                [place] = places_of([answer])
                sent[place] = body
        await broker.all_back()
        found = {record.physical_offset: record.body for record in broker.sent_records()}
        assert sent.items() <= found.items()
        assert broker.taken >= 100
        for queue_id in range(3):
            offsets = [each.queue_offset for each in broker.sent_records() if each.queue_id == queue_id]
            assert offsets == list(range(broker.next_offset(queue_id)))


@on_both_loops
async def test_who_asks_behind_an_answer_sees_what_was_answered(directory: Path) -> None:
    """On another connection, while nobody else had it be seen."""
    async with serving(directory) as broker:
        [peer] = await broker.staying()
        [reader] = await broker.connected()
        for _ in range(20):
            answer = await peer.sent(b"new")
            offset = int(answer.ext["queueOffset"])
            reader.ask(codes.GET_MAX_OFFSET, {"topic": "T", "queueId": 0})
            assert (await reader.answer()).ext["offset"] == str(offset + 1)
            answer = await peer.sent(b"new")
            reader.pull(offset + 1)
            assert (await reader.answer()).ext["nextBeginOffset"] == str(offset + 2)
            await broker.until(lambda: broker.is_lent)
        assert sum(await taken_of(broker)) >= 40


async def taken_of(broker: Broker) -> list[int]:
    await broker.all_back()
    return broker.carrier.taken


def nameless(opaque: int, topic: str = "T", **more: object) -> bytes:
    """A send whose message gets its name here."""
    return json_send({**FIELDS, "b": topic, "e": "0", "i": "TAGS\x01t\x02", **more}, b"nameless", opaque)


@on_both_loops
async def test_no_two_messages_get_the_same_name(directory: Path) -> None:
    """Though the loop names some before it takes the lane back."""
    async with serving(directory) as broker:
        [peer] = await broker.staying()
        for turn in range(10):
            await broker.until(lambda: broker.is_lent)
            for number in range(3):
                peer.writer.write(nameless(3 * turn + number))
            await peer.answers(3)
            outcomes: list[SendOutcome] = []
            replied = draft(b"nameless", topic="T", properties=b"TAGS\x01t\x02")
            broker.core.sender.send([replied], outcomes.extend)  # as of one who replies
            assert [each.status for each in outcomes] == [PutStatus.PUT_OK]
        await broker.all_back()
        assert broker.taken >= 30
        names = [
            decode_properties(each.properties)["UNIQ_KEY"] for each in broker.records() if each.body == b"nameless"
        ]
        assert len(names) == 40
        assert len(set(names)) == 40


def test_who_cannot_lend_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a lane that was not lent."""

    async def ask() -> None:
        async with serving(tmp_path) as broker:
            asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
            [peer] = await broker.staying()

            def broken(_run: Run) -> None:
                raise ZeroDivisionError

            with monkeypatch.context() as patched:
                patched.setattr(broker.send_turns.kernel, "lend", broken)
                broker.store.settle()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                assert not broker.is_lent
            [other] = await broker.connected()
            assert (await other.sent()).code == codes.SUCCESS
            assert (await peer.sent()).code == codes.SUCCESS

    asyncio.run(ask())


@on_both_loops
async def test_nobody_is_served_later_for_ever_than_those_before_him(directory: Path) -> None:
    """With more to take than a call has room for."""
    async with serving(directory) as broker:
        count, most = 12, 400
        peers = await broker.connected(count)
        for peer in peers:
            await broker.stay(peer)
        begin = len(broker.sent_records())
        # All of it is there before any of it is taken
        lend, broker.carrier.lane.lend = broker.carrier.lane.lend, lambda *_: None
        broker.store.settle()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for number, peer in enumerate(peers):
            peer.writer.write(b"".join(send_frame(n, b"of %02d" % number) for n in range(most)))
            await peer.writer.drain()
        broker.carrier.lane.lend = lend
        broker.lending._lent = None
        broker.lending._soon()
        for peer in peers:
            await peer.answers(most)
        await broker.all_back()
        order = [each.body for each in broker.sent_records()[begin:]]
        last_of_first = max(place for place, body in enumerate(order) if body == b"of 00")
        assert all(order.index(b"of %02d" % number) < last_of_first for number in range(count))


def write_elsewhere(broker: Broker, path: str, flags: int = os.O_RDWR) -> Callable[[], None]:
    """From the next time on that the lane is lent, what is taken is written to this; until what is returned is called."""
    lane = broker.carrier.lane
    lend, descriptor = lane.lend, os.open(path, flags)
    lane.lend = lambda at, _, *others: lend(at, descriptor, *others)

    def stop() -> None:
        lane.lend = lend
        os.close(descriptor)

    broker.store.settle()
    return stop


@on_both_loops
async def test_on_a_full_disk_nothing_is_answered_that_is_not_stored(directory: Path) -> None:
    """The loop tells why, with nobody's help; and when there is room again everything goes on where it was."""
    async with serving(directory) as broker:
        peer, other, idle = await broker.staying(3)
        stop = write_elsewhere(broker, "/dev/full")
        await broker.until(lambda: broker.is_lent)
        before, end = broker.next_offset(), broker.store.commitlog.end_offset
        await broker.until(lambda: broker.is_lent)
        # what a write left behind the end
        segment = broker.store.commitlog.file_to_lend
        assert segment is not None
        os.pwrite(segment.file.descriptor, b"x" * 50, end - segment.start)
        for each in (peer, other):
            each.send(b"refused" * 20)
        for each in (peer, other):
            assert (await each.answer()).code == codes.SERVICE_NOT_AVAILABLE
        assert broker.store.is_full
        stop()
        assert broker.store.commitlog.end_offset == end
        assert broker.next_offset() == before
        assert os.pread(segment.file.descriptor, 100, end - segment.start) == bytes(100)
        assert (await idle.sent()).code == codes.SERVICE_NOT_AVAILABLE
        broker.store.set_full(False)
        for number, each in enumerate((peer, other, idle)):
            assert (await each.sent()).ext["queueOffset"] == str(before + number)
        await broker.stay(peer)
        assert b"refused" * 20 not in [each.body for each in broker.sent_records()]


def test_a_disk_that_refuses_a_write_ends_the_broker_with_all_that_was_answered(tmp_path: Path) -> None:
    async def ask() -> None:
        async with serving(tmp_path / "data") as broker:
            failures: list[object] = []
            broker.store.failure_listeners.append(failures.append)
            [peer] = await broker.staying()
            answered = [await peer.sent(b"%d" % number) for number in range(5)]
            broker.store.settle()
            stop = write_elsewhere(broker, "/dev/null", os.O_RDONLY)
            await broker.until(lambda: broker.is_lent)
            peer.send(b"refused")
            assert (await peer.answer()).code == codes.SERVICE_NOT_AVAILABLE
            stop()
            assert len(failures) == 1
            assert broker.store.refusal is not None
        async with serving(tmp_path / "data") as broker:
            found = {each.physical_offset: each.body for each in broker.sent_records()}
            assert [found[place] for place in places_of(answered)] == [b"%d" % number for number in range(5)]
            assert b"refused" not in found.values()

    asyncio.run(ask())


@pytest.mark.parametrize("is_told", [False, True])
def test_what_was_answered_is_there_when_the_process_dies(is_told: bool, tmp_path: Path) -> None:
    """Though nobody took note of it."""

    async def ask() -> None:
        async with serving(tmp_path / "data") as broker:
            peers = await broker.staying(2)
            answered: list[Command] = []
            for number in range(30):
                answered += [await peer.sent(b"%d" % number, number % QUEUES) for peer in peers]
            if is_told:
                broker.sends.catch_up()
            shutil.copytree(tmp_path / "data", tmp_path / "copy")  # as it would be left
        async with serving(tmp_path / "copy") as broker:
            found = {each.physical_offset: (each.body, each.queue_offset) for each in broker.sent_records()}
            wanted = [
                (b"%d" % number, int(answered[2 * number + n].ext["queueOffset"]))
                for number in range(30)
                for n in (0, 1)
            ]
            assert [found[place] for place in places_of(answered)] == wanted
            for queue_id in range(QUEUES):
                count = sum(each.queue_id == queue_id for each in broker.sent_records())
                assert broker.next_offset(queue_id) == count

    asyncio.run(ask())


def test_note_that_cannot_be_taken_of_what_was_answered_ends_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the next append would write over it."""

    async def ask() -> None:
        async with serving(tmp_path) as broker:
            failures: list[object] = []
            broker.store.failure_listeners.append(failures.append)
            [peer] = await broker.staying()
            await peer.sent(b"answered")
            with monkeypatch.context() as patched:
                patched.setattr(broker.send_turns.kernel, "take_back", lambda *_, **__: 1 // 0)
                with pytest.raises(ZeroDivisionError):
                    broker.store.settle()
            assert len(failures) == 1
            assert (await peer.sent()).code == codes.SERVICE_NOT_AVAILABLE

    asyncio.run(ask())


CUTS = {
    "settle": lambda broker: broker.store.settle(),
    "finish": lambda broker: broker.carrier.finish_all(),
    "recall": lambda broker: broker.carrier.recall_senders(),
    "catch up": lambda broker: broker.sends.catch_up(),
    "append": lambda broker: broker.store.append_messages([draft(b"own", topic="T", queue_id=1)]),
    "full": lambda broker: (broker.store.set_full(True), broker.store.set_full(False)),
    "cut": lambda broker: broker.store.truncate(broker.core.record_log.end_offset),
    "topic": lambda broker: broker.topic("V"),
    "numbers": lambda broker: broker.next_offset(),
    "step down": lambda broker: (broker.replica.become(Role.REPLICA), broker.replica.become(Role.MASTER)),
}


@pytest.mark.parametrize("how", CUTS)
def test_whoever_wants_the_end_of_the_log_has_it_whole(how: str, tmp_path: Path) -> None:
    """While clients send as fast as they can; what they are answered holds."""

    async def ask() -> None:
        async with serving(tmp_path, segment_bytes=1 << 23) as broker:
            peers = await broker.staying(3)
            begin = broker.taken
            done = [False] * 3
            places: dict[int, bytes] = {}

            async def send(number: int, peer: Peer) -> None:
                for turn in range(40):
                    bodies = [b"%d %d %d" % (number, turn, n) for n in range(10)]
                    for body in bodies:
                        peer.send(body, number)
                    answers = await peer.answers(10)
                    assert {answer.code for answer in answers} == {codes.SUCCESS}
                    places.update(zip(places_of(answers), bodies, strict=True))
                done[number] = True

            tasks = [asyncio.ensure_future(send(number, peer)) for number, peer in enumerate(peers)]
            while not all(done):
                CUTS[how](broker)
                for _ in range(50):
                    await asyncio.sleep(0)
                for task in tasks:
                    if task.done():
                        await task
            await broker.all_back()
            found = {each.physical_offset: each.body for each in broker.sent_records()}
            assert len(places) == 1200
            assert places.items() <= found.items()
            for queue_id in range(QUEUES):
                offsets = [each.queue_offset for each in broker.sent_records() if each.queue_id == queue_id]
                assert offsets == list(range(broker.next_offset(queue_id)))
            assert broker.taken > begin

    asyncio.run(ask())


@on_both_loops
async def test_who_is_always_amid_a_frame_stays_with_what_came_of_it(directory: Path) -> None:
    """As who has much in flight."""
    async with serving(directory) as broker:
        [peer] = await broker.connected()
        bodies = [b"%d" % number * (1 + 150 * number) for number in range(100)]
        frames = [send_frame(opaque, body) for opaque, body in enumerate(bodies)]
        halves = [(each[: len(each) // 2], each[len(each) // 2 :]) for each in frames]
        peer.writer.write(halves[0][0])
        for (_, second), (first, _) in zip(halves, [*halves[1:], (b"", b"")], strict=True):
            peer.writer.write(second + first)
            await peer.answer()
        await broker.all_back()
        assert broker.taken >= 50
        assert [each.body for each in broker.sent_records()] == bodies


@on_both_loops
async def test_who_is_amid_a_frame_that_is_too_long_for_the_thread_does_not_stay(directory: Path) -> None:
    async with serving(directory) as broker:
        [peer] = await broker.connected()
        await peer.sent()  # the first is not dense
        short, long = send_frame(2, b"short"), send_frame(3, bytes(MOST_LEFT_BYTES))
        peer.writer.write(short + long[:1000])
        assert (await peer.answer()).opaque == 2
        assert broker.carrier.begun == 0
        peer.writer.write(long[1000:])
        assert (await peer.answer()).opaque == 3


@on_both_loops
async def test_who_has_answers_that_are_put_off_has_them_and_stays(directory: Path) -> None:
    """As while reading is paused."""
    async with serving(directory) as broker:
        [peer] = await broker.connected()
        [connection] = broker.server.connections
        answer = connection.respond_encoded

        def put_off(frames: bytes, count: int) -> None:
            connection.put_off_answers()
            answer(frames, count)

        connection.respond_encoded = put_off
        for _ in range(2):  # the first is not dense
            assert (await peer.sent()).code == codes.SUCCESS
        assert broker.carrier.begun == 1


@on_both_loops
async def test_of_a_topic_that_is_gone_or_closed_nothing_more_is_taken(directory: Path) -> None:
    async with serving(directory) as broker:
        [peer] = await broker.staying()
        broker.topic("T", perm=4)
        assert (await peer.sent()).code == codes.NO_PERMISSION
        broker.topic("T", perm=6)
        await broker.stay(peer)
        broker.delete_topic("T")
        assert (await peer.sent()).code == codes.TOPIC_NOT_EXIST
        broker.topic("T")
        assert (await peer.sent()).ext["queueOffset"] == "0"


@on_both_loops
async def test_who_closes_in_the_middle_loses_nothing_that_he_sent_whole(directory: Path) -> None:
    """One-way, so nobody tells him; and half a frame goes with him."""
    async with serving(directory) as broker:
        peers = await broker.staying(2)
        for number, peer in enumerate(peers):
            frames = [send_frame(n, b"%d last %d" % (number, n), number, oneway=True) for n in range(500)]
            peer.writer.write(b"".join(frames) + frames[0][:100])
            peer.writer.write_eof()

        def sent() -> list[bytes]:
            return [each.body for each in broker.sent_records() if b"last" in each.body]

        await broker.until(lambda: not broker.server.connections and len(sent()) >= 1000)
        for number in range(2):
            wanted = [b"%d last %d" % (number, n) for n in range(500)]
            assert [each for each in sent() if each.startswith(b"%d" % number)] == wanted


@on_both_loops
async def test_answers_that_nobody_reads_come_when_he_does(directory: Path) -> None:
    async with serving(directory) as broker:
        [peer] = await broker.staying()
        broker.narrow()
        before = peer.opaque
        for number in range(3000):
            peer.send(b"%d" % number)
        answers = await peer.answers(3000)
        assert [each.opaque for each in answers] == list(range(before + 1, before + 3001))
        await broker.all_back()
        assert broker.taken > 10
        assert all(connection._in_flight == 0 for connection in broker.server.connections)


@on_both_loops
async def test_nobody_comes_and_goes_at_the_end_of_a_file(directory: Path) -> None:
    """What is left of it is too little to be lent."""
    async with serving(directory, segment_bytes=1 << 21) as broker:
        [peer] = await broker.connected()
        log = broker.store.commitlog
        while log.segment_remaining() > 1 << 20:
            assert (await peer.sent(b"x" * 50_000)).code == codes.SUCCESS
            broker.store.settle()
        await broker.all_back()
        begun = broker.carrier.begun
        for _ in range(10):
            assert (await peer.sent()).code == codes.SUCCESS
        assert broker.carrier.begun == begun
        while len(log.segment_starts()) == 1:
            assert (await peer.sent(b"x" * 50_000)).code == codes.SUCCESS
        for _ in range(2):
            assert (await peer.sent()).code == codes.SUCCESS
        assert broker.carrier.begun > begun


def test_who_sent_little_while_he_stayed_is_left_alone_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "_LONG", 30)

    async def ask() -> None:
        async with serving(tmp_path) as broker:
            [peer] = await broker.staying()
            for _ in range(5):
                await peer.sent()
            await broker.all_back()
            assert 2 < broker.taken < 10
            for _ in range(29):
                await peer.sent()
            assert broker.carrier.begun == 1
            await broker.stay(peer)

    asyncio.run(ask())
