"""Connections that stay with the carrier's thread: clients get what they would get from the loop, whatever they ask, and whatever
happens to sockets, files and rules meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
import uvloop

from brokerd.consuming.read_place import PullSettings
from brokerd.native import carrier as carriers
from brokerd.native import stays
from brokerd.native.stays import MOST_STAYS
from brokerd.processors.pulling.checks import FLAG_COMMIT, FLAG_SUBSCRIPTION, FLAG_SUSPEND
from remoting import codes, frame
from remoting.frame import Command
from remoting.record.codec import decode_records
from remoting.transport import taking
from tests.support.client_bytes import encode_compact
from tests.support.pulled_broker import (
    PATIENT_S,
    QUEUES,
    Broker,
    Counted,
    Peer,
    check,
    on_both_loops,
    serving,
    stay_for_long,
)
from tests.support.pulls import pull_fields, pull_frame
from tests.support.remoting_broker import RemotingBroker
from tests.unit.brokerd.store.stores import dispatch_all, draft, put

Answer = tuple[int, int, str, bytes, str | None]
ANOTHER_TOPIC = {
    **{"topic": "t", "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"},
    **{"topicFilterType": "MULTI_TAG", "topicSysFlag": "0", "order": "false"},
}
FEW = 3  # messages of an answer, where many are to be had of what is seen at once


@pytest.fixture(autouse=True)
def _in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    stay_for_long(monkeypatch)


@asynccontextmanager
async def staying(directory: Path, messages: int = 400) -> AsyncIterator[tuple[Broker, Peer]]:
    """A client whose connection stays."""
    async with serving(directory, messages=messages) as broker:
        [peer] = await broker.connected(1)
        await stay(broker, peer)
        yield broker, peer


async def stay(broker: Broker, peer: Peer, queue_id: int = 0) -> None:
    """Pull until the connection stays, and is answered there."""
    begun = broker.carrier.begun
    async with asyncio.timeout(PATIENT_S):
        while broker.carrier.begun == begun:
            peer.pull(0, 0, queue_id, maxMsgNums=FEW)
            check(await peer.answer(), broker.expected(0, queue_id, FEW), FEW)
    peer.pull(1, 1, queue_id, maxMsgNums=FEW)
    check(await peer.answer(), broker.expected(1, queue_id, FEW), 1 + FEW)
    assert len(broker.carrier._stays) >= 1


async def stay_and_commit(broker: Broker, peer: Peer, offset: int) -> None:
    """With the last pull, which is answered there."""
    begun = broker.carrier.begun
    while broker.carrier.begun == begun:
        peer.pull(1, 0, maxMsgNums=FEW, sysFlag=FLAG_SUBSCRIPTION | FLAG_COMMIT)
        await peer.answer()
    peer.pull(1, offset, maxMsgNums=FEW, sysFlag=FLAG_SUBSCRIPTION | FLAG_COMMIT, commitOffset=offset)
    await peer.answer()


async def asked_and_compared(broker: Broker, peer: Peer, offset: int) -> None:
    peer.pull(offset, offset, maxMsgNums=FEW)
    answer = await peer.answer()
    assert answer.opaque == offset
    check(answer, broker.expected(offset, 0, FEW), offset + FEW)


@on_both_loops
async def test_everybody_gets_what_the_store_reads_and_it_is_counted(directory: Path) -> None:
    async with serving(directory, messages=400) as broker:
        rng = Random(1)
        peers = await broker.connected(5)
        counted = broker.inner.counters.out_messages
        given = given_bytes = 0
        places = dict.fromkeys(peers, 0)
        for turn in range(500):
            asked = []
            for number, peer in enumerate(peers):
                count = (1, 2, 3, 8, 8)[number]
                offset = places[peer] = (rng.randrange(380) if rng.random() < 0.05 else places[peer] + count) % 380
                flags = FLAG_SUBSCRIPTION | (
                    FLAG_COMMIT if number else 0
                )  # of who reads the same, one says how far he is
                peer.pull(turn, offset, number % QUEUES, maxMsgNums=count, sysFlag=flags)
                asked.append((peer, number % QUEUES, offset, count))
            for peer, queue_id, offset, count in asked:
                answer = await peer.answer()
                assert answer.opaque == turn
                count = broker.count_of(offset, queue_id, count)
                check(answer, broker.expected(offset, queue_id, count), offset + count)
                assert (answer.ext["minOffset"], answer.ext["maxOffset"]) == ("0", "400")
                given += count
                given_bytes += len(answer.body)
        told = await broker.all_back()
        counters = broker.inner.counters
        assert (counters.out_messages - counted, counters.out_bytes) == (given, given_bytes)
        assert counters.statistics.broker_get.times == sum(counters.reads.counts) == 5 * 500
        assert sum(each.answers for each in told) > 500
        for _, queue_id, offset, count in asked[1:-1]:  # which nobody else reads
            count = broker.count_of(offset, queue_id, count)
            assert broker.inner.progress.pulled.get("g", "t", queue_id) == offset + count
        assert all(connection._in_flight == 0 for connection in broker.server.connections)


@on_both_loops
async def test_what_pulls_carry_of_offsets_is_committed(directory: Path) -> None:
    async with serving(directory, messages=400) as broker:
        [peer] = await broker.connected(1)
        for offset in range(40):
            peer.pull(1, offset, maxMsgNums=1, sysFlag=FLAG_SUBSCRIPTION | FLAG_COMMIT, commitOffset=offset)
            await peer.answer()
        told = await broker.all_back()
        assert sum(each.answers for each in told) > 20
        assert max(kind.commit_offset for each in told for kind in each.kinds) == 39
        broker.inner.turns.run(100)
        assert broker.inner.progress.consumer_offset("g", "t", 0) == 39


@on_both_loops
async def test_what_pulls_carried_counts_when_it_is_settled(directory: Path) -> None:
    """Behind that nothing may be recorded any more; and the client goes on."""
    async with serving(directory, messages=400) as broker:
        [peer] = await broker.connected(1)
        for turn in range(3):
            begun = broker.carrier.begun
            for offset in range(100 * turn, 100 * turn + 20):
                peer.pull(1, offset, maxMsgNums=1, sysFlag=FLAG_SUBSCRIPTION | FLAG_COMMIT, commitOffset=offset)
                await peer.answer()
            assert broker.carrier.begun > begun
            assert broker.carrier._stays
            broker.inner.pull.settle()
            broker.inner.metadata.commits.flush()
            assert broker.inner.progress.consumer_offset("g", "t", 0) == offset
            assert broker.inner.progress.pulled.get("g", "t", 0) == offset + 1
            assert not broker.carrier._stays
        assert len(broker.carrier.stays) == broker.carrier.begun


@on_both_loops
async def test_of_two_who_commit_the_last_one_counts(directory: Path) -> None:
    """Whoever of them stays, and however the other one says it."""
    queue = {"consumerGroup": "g", "topic": "t", "queueId": 0}
    async with serving(directory, messages=400) as broker:
        one, other = await broker.connected(2)
        for how in range(3):
            await stay_and_commit(broker, one, 30)
            if how == 0:
                for _ in range(10):
                    other.pull(1, 40, maxMsgNums=1, sysFlag=FLAG_SUBSCRIPTION | FLAG_COMMIT, commitOffset=40 + how)
                    await other.answer()
            elif how == 1:
                broker.inner.ask(codes.UPDATE_CONSUMER_OFFSET, {**queue, "commitOffset": 40 + how})
            else:
                broker.inner.metadata.commits.set_all({("g", "t", 0): 40 + how}, lambda _: None)
            await broker.all_back()
            broker.inner.turns.run(100)
            assert broker.inner.progress.consumer_offset("g", "t", 0) == 40 + how
        assert not broker.inner.metadata.commits.elsewhere


@on_both_loops
async def test_an_offset_from_before_a_reset_does_not_come_behind_it(directory: Path) -> None:
    """Though another client of the group hears of the reset before anything else is done."""
    async with serving(directory, messages=400) as broker:
        waits, reads = await broker.connected(2)
        waits.pull(77, 400, sysFlag=FLAG_SUBSCRIPTION | FLAG_SUSPEND)
        await broker.until(lambda: broker.inner.pull.waiting_count == 1)
        await stay_and_commit(broker, reads, 30)
        broker.inner.answer(
            codes.INVOKE_BROKER_TO_RESET_OFFSET, {"group": "g", "topic": "t", "timestamp": 0, "isForce": "true"}
        )
        assert (await waits.answer()).code == codes.PULL_OFFSET_MOVED
        await broker.until(lambda: not broker.carrier._stays and len(broker.carrier.stays) == broker.carrier.begun)
        broker.inner.turns.run(100)
        assert broker.inner.progress.consumer_offset("g", "t", 0) == 0


@on_both_loops
async def test_a_reset_that_another_group_was_not_told_yet_is_nothing_to_who_reads(directory: Path) -> None:
    """Nobody of that group may ever come."""
    async with serving(directory, messages=400) as broker:
        broker.inner.group("h")
        broker.inner.answer(
            codes.INVOKE_BROKER_TO_RESET_OFFSET, {"group": "h", "topic": "t", "timestamp": 0, "isForce": "true"}
        )
        [peer] = await broker.connected(1)
        for offset in range(40):
            await asked_and_compared(broker, peer, offset)
        assert sum(each.answers for each in await broker.all_back()) > 20
        peer.pull(1, 30, consumerGroup="h")
        assert (await peer.answer()).code == codes.PULL_OFFSET_MOVED


def test_a_connection_comes_back_though_what_was_done_cannot_be_told(tmp_path: Path) -> None:
    async def ask() -> None:
        async with staying(tmp_path) as (broker, peer):
            asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
            broker.inner.pull._counters = None
            broker.carrier.recall_stays()
            peer.pull(2, 0, 900)
            assert (await peer.answer()).code == codes.INVALID_PARAMETER

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("code", "fields", "is_kept"),
    [
        (codes.DELETE_TOPIC_IN_BROKER, {"topic": "t"}, False),
        (codes.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g", "cleanOffset": "true"}, False),
        (codes.UPDATE_AND_GET_GROUP_FORBIDDEN, {"group": "g", "topic": "t", "readable": "false"}, True),
        (codes.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g", "cleanOffset": "false"}, True),
        (codes.UPDATE_AND_CREATE_TOPIC, ANOTHER_TOPIC, True),
    ],
    ids=["topic", "group", "forbidden", "group, not its offsets", "topic changed"],
)
def test_what_pulls_carried_does_not_outlive_what_was_deleted(
    code: int, fields: dict[str, str], is_kept: bool, tmp_path: Path
) -> None:
    """A topic of the same name would be read from there on, and what lies before it would be read by nobody. Who may not pull any
    more has done what he says."""

    async def ask() -> None:
        async with serving(tmp_path, messages=400) as broker:
            [peer] = await broker.connected(1)
            begun = broker.carrier.begun
            while broker.carrier.begun == begun:
                peer.pull(0, 0, sysFlag=FLAG_SUBSCRIPTION | FLAG_COMMIT, maxMsgNums=FEW)
                await peer.answer()
            for offset in (30, 31):
                peer.pull(1, offset, sysFlag=FLAG_SUBSCRIPTION | FLAG_COMMIT, commitOffset=offset, maxMsgNums=FEW)
                await peer.answer()
            broker.inner.answer(code, fields)
            [told] = await broker.all_back()
            assert told.kinds[0].commit_offset == 31
            broker.inner.turns.run(100)
            assert broker.inner.progress.consumer_offset("g", "t", 0) == (31 if is_kept else None)
            if not is_kept:
                assert broker.inner.progress.pulled.get("g", "t", 0) is None

    asyncio.run(ask())


def any_request(rng: Random, opaque: int) -> bytes:
    """What a client sends that pulls densely, mostly: a pull like the one before, almost one, or another request."""
    offset = rng.choice((opaque % 90, 0, 395, 399, 400, 5000, -1))
    match rng.randrange(50):
        case 0:
            return pull_frame(opaque, offset, maxMsgNums=rng.choice((0, 1, 40)))
        case 1:
            return pull_frame(opaque, offset, subscription=rng.choice(("x", "nobody")))
        case 2:
            return pull_frame(opaque, offset, maxMsgNums=FEW, commitOffset=rng.choice((-2, "x", 7)))
        case 3:
            return pull_frame(opaque, offset, queueId=rng.choice((0, 3, 900)))
        case 4:
            texts = {name: str(value) for name, value in pull_fields(offset, maxMsgNums=FEW).items()}
            return encode_compact(Command(codes.PULL_MESSAGE, opaque, texts))
        case 5:
            return frame.encode_request(codes.PULL_MESSAGE, opaque, {"topic": "nowhere"})
        case 6:
            return frame.encode_request(12345, opaque, {"a": "b"}, rng.randbytes(rng.choice((0, 3000))))
        case 7:
            return pull_frame(opaque, offset, maxMsgNums=FEW, more="x" * rng.choice((100, 3000)))
        case 8:
            return pull_frame(opaque, offset, maxMsgNums=FEW)
    return pull_frame(opaque, opaque % 90, maxMsgNums=FEW)


def a_script(seed: int) -> list[tuple[list[bytes], int]]:
    """Bursts of a client's requests, each in pieces, and how many answers are to come before the next. The last is damaged."""
    rng, opaque = Random(seed), 0
    script = []
    for turn in range(100):
        count = rng.choice((1, 1, 1, 2, 9))
        requests = [any_request(rng, opaque + n) for n in range(count)]
        opaque += count
        if turn < 20:  # until the connection stays
            requests = [pull_frame(opaque, turn, maxMsgNums=FEW)]
        burst = bytearray(b"".join(requests))
        if turn == 99:
            burst[rng.randrange(len(burst))] ^= 1 << rng.randrange(8)
        cut = rng.randrange(len(burst)) if rng.random() < 0.3 else len(burst)
        script.append(([bytes(burst[:cut]), bytes(burst[cut:])], len(requests) if turn < 99 else 1 << 30))
    return script


async def answered(broker: Broker, script: list[tuple[list[bytes], int]]) -> list[list[Answer]]:
    """What is answered to each burst, in the order of opaques, until the connection is closed."""
    [peer] = await broker.connected(1)
    got = bytearray()
    found: list[list[Answer]] = []
    for pieces, count in script:
        for piece in filter(None, pieces):
            peer.writer.write(piece)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        if count == 1 << 30:
            peer.writer.write_eof()
        answers: list[Command] = []
        async with asyncio.timeout(PATIENT_S):
            while len(answers) < count:
                try:
                    more = await peer.reader.read(1 << 20)
                except ConnectionResetError:  # closed with more to read, and what was on its way may be lost
                    return found
                got += more
                answers.clear()
                taken = frame.decode_frames(bytes(got), answers)
                if not more:
                    break
        found.append(sorted((each.opaque, each.code, str(each.ext), bytes(each.body), each.remark) for each in answers))
        answers.clear()  # which are views of it
        del got[:taken]
    return found


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_asked_is_answered_as_by_the_loop(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "_LONG", 0)  # who asked for something else stays again soon

    async def ask(*, has_thread: bool, messages: int) -> tuple[list[list[list[Answer]]], int]:
        async with serving(tmp_path, Counted(has_thread=has_thread), messages=messages) as broker:
            scripts = [a_script(1000 * seed + number) for number in range(12)]
            found = await asyncio.gather(*(answered(broker, script) for script in scripts))
            await broker.until(lambda: not broker.server.connections)
            return found, sum(each.answers for each in await broker.all_back())

    got, many = asyncio.run(ask(has_thread=True, messages=400))
    expected, none = asyncio.run(ask(has_thread=False, messages=0))  # from files that are there, and so not mapped
    for number, (some, others) in enumerate(zip(got, expected, strict=True)):
        assert min(len(some), len(others)) >= 99
        for turn, (one, other) in enumerate(zip(some, others, strict=False)):
            assert one == other, (number, turn)
    assert none == 0
    assert many > 300


@on_both_loops
async def test_the_rest_of_an_answer_that_a_socket_does_not_take_comes_before_others(directory: Path) -> None:
    async with serving(directory, messages=100, body_bytes=4000) as broker:
        peers = await broker.connected(3)
        for peer in peers:
            await stay(broker, peer)
        broker.narrow()
        for opaque in range(30):
            for peer in peers:
                peer.pull(opaque, opaque, maxMsgNums=FEW)
        for peer in peers:
            for opaque, answer in enumerate(await peer.answers(30)):
                assert answer.opaque == opaque
                check(answer, broker.expected(opaque, 0, FEW), opaque + FEW)
        assert any(each.written < each.length for each in await broker.all_back())
        assert all(connection._in_flight == 0 for connection in broker.server.connections)


@on_both_loops
async def test_a_record_that_rots_is_not_given_out(directory: Path) -> None:
    async with staying(directory) as (broker, peer):
        before = broker.expected(24, 0, 1)
        broker.damage(0, 25)
        peer.pull(9, 24, maxMsgNums=FEW)
        check(await peer.answer(), before, 25)
        peer.pull(10, 25, maxMsgNums=FEW)
        answer = await peer.answer()
        assert answer.code == codes.SYSTEM_ERROR
        assert "damaged" in (answer.remark or "")
        assert {suspicion.queue_offset for suspicion in broker.suspicions} == {25}
        await asked_and_compared(broker, peer, 26)


@on_both_loops
async def test_the_log_is_cut_when_nobody_stays(directory: Path) -> None:
    """Who looked at a page that is gone would end the process."""
    async with staying(directory, 60) as (broker, peer):
        [(keep, _, _)] = broker.store.read_units("t", 0, 2, 1)
        waited = broker.carrier.waited
        broker.store.truncate(keep)
        assert broker.carrier.waited == waited + 1
        assert not broker.carrier._stays
        put(broker.store, *(draft(b"new", topic="t") for _ in range(3)))
        dispatch_all(broker.store)
        peer.pull(3, 0)
        assert [record.body for record in decode_records((await peer.answer()).body)][2:] == [b"new"] * 3


@on_both_loops
async def test_a_file_that_leaves_the_log_is_there_until_who_stays_is_back(directory: Path) -> None:
    async with staying(directory) as (broker, peer):
        assert len(broker.store.commitlog._segments) >= 2
        expected = broker.expected(8, 0, FEW)
        broker.store.mark_flushed(broker.store.sync())
        broker.store.commitlog.forget_oldest()()
        peer.pull(2, 8, maxMsgNums=FEW)
        check(await peer.answer(), expected, 8 + FEW)
        await broker.all_back()
        peer.pull(3, 8, maxMsgNums=FEW)
        assert (await peer.answer()).code == codes.PULL_OFFSET_MOVED


@on_both_loops
async def test_who_reads_through_all_files_gets_all_and_then_waits(directory: Path) -> None:
    async with serving(directory, messages=400) as broker:
        assert len(broker.store.commitlog._segments) == 2
        peers = await broker.connected(2)
        for offset in range(0, 400, 4):
            for peer in peers:
                peer.pull(offset, offset, maxMsgNums=4, sysFlag=FLAG_SUBSCRIPTION | FLAG_SUSPEND)
            for peer in peers:
                check(await peer.answer(), broker.expected(offset, 0, 4), offset + 4)
        for peer in peers:
            peer.pull(400, 400, maxMsgNums=4, sysFlag=FLAG_SUBSCRIPTION | FLAG_SUSPEND)
        await broker.until(lambda: broker.inner.pull.waiting_count == 2)
        broker.fill(5)
        broker.inner.pull.wake("t", 0)
        broker.inner.turns.run()
        for peer in peers:
            check(await peer.answer(), broker.expected(400, 0, 4), 404)
        assert sum(each.answers for each in await broker.all_back()) > 150


def be_a_replica(broker: RemotingBroker) -> None:
    """One that gives out nothing, as its settings say."""
    broker.is_master, broker.is_master_known = False, True
    broker.pull_settings.change(PullSettings(slave_read=False))


CHANGES: dict[str, tuple[Callable[[Broker], object], int]] = {
    "topic not readable": (lambda broker: broker.inner.topic("t", queues=QUEUES, perm=2), codes.NO_PERMISSION),
    "group disabled": (lambda broker: broker.inner.group("g", consume_enable=False), codes.NO_PERMISSION),
    "group forbidden": (
        lambda broker: broker.inner.answer(
            codes.UPDATE_AND_GET_GROUP_FORBIDDEN, {"group": "g", "topic": "t", "readable": "false"}
        ),
        codes.NO_PERMISSION,
    ),
    "topic deleted": (
        lambda broker: broker.inner.answer(codes.DELETE_TOPIC_IN_BROKER, {"topic": "t"}),
        codes.TOPIC_NOT_EXIST,
    ),
    "another setting": (lambda broker: be_a_replica(broker.inner), codes.SYSTEM_BUSY),
    "reset": (
        lambda broker: broker.inner.answer(
            codes.INVOKE_BROKER_TO_RESET_OFFSET, {"group": "g", "topic": "t", "timestamp": 0, "isForce": "true"}
        ),
        codes.PULL_OFFSET_MOVED,
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changed_counts_at_once(change: str, tmp_path: Path) -> None:
    async def ask() -> None:
        async with staying(tmp_path) as (broker, peer):
            act, code = CHANGES[change]
            act(broker)
            peer.pull(2, 2, maxMsgNums=FEW)
            assert (await peer.answer()).code == code

    asyncio.run(ask())


@on_both_loops
async def test_who_waited_on_the_same_connection_is_answered(directory: Path) -> None:
    """By the loop, which has it back for that; and it stays again."""
    async with serving(directory, messages=400) as broker:
        [peer] = await broker.connected(1)
        for turn in range(3):
            peer.pull(77, 400 + turn, 1, sysFlag=FLAG_SUBSCRIPTION | FLAG_SUSPEND)
            await broker.until(lambda: broker.inner.pull.waiting_count == 1)
            await stay(broker, peer)
            broker.fill(1)
            dispatch_all(broker.store)
            broker.inner.pull._polling.arrived("t", 1)
            broker.inner.turns.run()
            answer = await peer.answer()
            assert answer.opaque == 77
            check(answer, broker.expected(400 + turn, 1), 401 + turn)
        assert all(connection._in_flight == 0 for connection in broker.server.connections)


def test_who_is_wanted_back_before_he_is_there_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taking, "_OFTEN", 0)
    monkeypatch.setattr(taking, "_LONG", 0)

    async def ask() -> None:
        async with serving(tmp_path, messages=400) as broker:
            peers = await broker.connected(3)
            for offset in range(300):
                for peer in peers[: 1 + offset % 3]:
                    peer.pull(offset, offset, maxMsgNums=FEW)
                for peer in peers[: 1 + offset % 3]:
                    count = broker.count_of(offset, 0, FEW)
                    check(await peer.answer(), broker.expected(offset, 0, FEW), offset + count)
                    broker.carrier.recall_stays() if offset % 2 else broker.carrier.finish_all()
            assert broker.carrier.begun > 300

    uvloop.run(ask())


@on_both_loops
async def test_what_is_told_a_client_comes_between_its_answers(directory: Path) -> None:
    async with staying(directory) as (broker, peer):
        [connection] = broker.server.connections
        for turn in range(20):
            peer.pull(1, turn, maxMsgNums=FEW)
            assert connection.notify(codes.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"})
            got = await peer.answers(2)
            assert sorted(each.code for each in got) == [0, codes.NOTIFY_CONSUMER_IDS_CHANGED]


@on_both_loops
async def test_who_sends_no_more_gets_what_waits_for_the_thread(directory: Path) -> None:
    async with serving(directory, Counted(is_held=True), messages=100, body_bytes=4000) as broker:
        first, second = await broker.connected(2)
        for peer in (second, first):
            peer.pull(0, 0, maxMsgNums=1)
            await peer.answer()
        second.pull(1, 0, maxMsgNums=FEW)
        await broker.until(lambda: broker.carrier.carried == 1)
        second.writer.write(frame.encode_request(12345, 2, {}))
        await broker.until(lambda: bool(broker.carrier._waiting))
        second.writer.write_eof()
        answers = await second.answers(2)
        check(answers[0], broker.expected(0, 0, FEW), FEW)
        assert answers[1].code == codes.REQUEST_CODE_NOT_SUPPORTED
        assert await second.reader.read() == b""


@on_both_loops
async def test_who_is_gone_while_he_stays_is_found_out(directory: Path) -> None:
    async with serving(directory, messages=400) as broker:
        ended, reset, other = await broker.connected(3)
        for peer in (ended, reset, other):
            await stay(broker, peer)
        ended.writer.write_eof()
        reset.writer.transport.abort()
        await broker.until(lambda: len(broker.server.connections) == 1)
        await asked_and_compared(broker, other, 5)


@on_both_loops
async def test_a_connection_that_is_closed_here_is_closed(directory: Path) -> None:
    async with serving(directory, messages=400) as broker:
        one, two = await broker.connected(2)
        await stay(broker, one)
        await stay(broker, two)
        first, second = sorted(broker.server.connections, key=lambda each: each.peer_port)
        first.abort()
        second.close()
        await broker.until(lambda: not broker.server.connections)
        assert (await one.reader.read(), await two.reader.read()) == (b"", b"")
        assert not broker.carrier._stays


@on_both_loops
async def test_more_than_may_stay_are_served(directory: Path) -> None:
    async with serving(directory, messages=400) as broker:
        peers = await broker.connected(MOST_STAYS + 5)
        for offset in range(30):
            for peer in peers:
                peer.pull(offset, offset, maxMsgNums=FEW)
            for peer in peers:
                check(await peer.answer(), broker.expected(offset, 0, FEW), offset + FEW)
        assert len(broker.carrier._stays) == MOST_STAYS


def test_who_asks_no_more_is_back_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what he was to read from is let go."""
    monkeypatch.setattr(carriers, "_LOOK_S", 0.001)

    async def ask() -> None:
        async with serving(tmp_path, messages=400) as broker:
            [peer] = await broker.connected(1)
            while not broker.carrier.begun:
                peer.pull(0, 0, maxMsgNums=FEW)
                await peer.answer()
            await broker.until(lambda: not broker.carrier._stays and len(broker.carrier.stays) == broker.carrier.begun)
            await asked_and_compared(broker, peer, 9)

    asyncio.run(ask())


def test_what_comes_too_late_is_the_loops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stays, "LONGEST_NS", 0)

    async def ask() -> None:
        async with serving(tmp_path, messages=400) as broker:
            [peer] = await broker.connected(1)
            for offset in range(200):
                await asked_and_compared(broker, peer, offset)
            told = await broker.all_back()
            assert {each.answers for each in told} == {0}
            assert len(told) <= 4, "who gains nothing by it is seldom there"

    asyncio.run(ask())


@on_both_loops
async def test_what_is_put_for_who_stays_waits_for_what_precedes_it(directory: Path) -> None:
    """Of which the socket takes a part, and the thread does nothing yet."""
    async with serving(directory, Counted(is_held=True), messages=100, body_bytes=4000) as broker:
        first, second = await broker.connected(2)
        broker.narrow()
        for peer in (second, second, second, second, first):
            peer.pull(0, 0, maxMsgNums=1)
            await peer.answer()
        second.writer.write(b"".join(pull_frame(opaque, opaque, maxMsgNums=FEW) for opaque in range(2)))
        await broker.until(lambda: broker.carrier.begun == 1)
        assert broker.carrier.carried == 2
        second.pull(2, 2, maxMsgNums=FEW)
        broker.carrier.let_go()
        for opaque, answer in enumerate(await second.answers(3)):
            assert answer.opaque == opaque
            check(answer, broker.expected(opaque, 0, FEW), opaque + FEW)
        assert broker.carrier.missed > 0
        [told] = await broker.all_back()
        assert told.answers == 0


@on_both_loops
async def test_who_stays_when_the_broker_stops_is_given_back(directory: Path) -> None:
    async with staying(directory) as (broker, _peer):
        broker.carrier.stop()
        assert not broker.carrier._stays
        await broker.until(lambda: len(broker.carrier.stays) == broker.carrier.begun)
