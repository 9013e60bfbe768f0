"""Connections that go round several queues and stay with the carrier's thread: each queue has its own place, and its offsets."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from brokerd.consuming.read_place import PullSettings
from brokerd.native.stays import MOST_KINDS
from brokerd.processors.pulling.checks import FLAG_COMMIT, FLAG_SUBSCRIPTION
from remoting import codes
from tests.support.pulled_broker import PATIENT_S, QUEUES, Broker, Peer, check, on_both_loops, serving, stay_for_long

FLAGS = FLAG_SUBSCRIPTION | FLAG_COMMIT
FEW = 3


@pytest.fixture(autouse=True)
def _in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    stay_for_long(monkeypatch)


@on_both_loops
async def test_who_goes_round_several_queues_stays_for_all_of_them(directory: Path) -> None:
    """Each has its own place, and what is committed of it."""
    async with serving(directory, messages=400) as broker:
        [peer] = await broker.connected(1)
        for offset in range(60):
            for queue_id in range(QUEUES):
                at = offset + 10 * queue_id
                peer.pull(queue_id, at, queue_id, maxMsgNums=1, sysFlag=FLAGS, commitOffset=at)
                check(await peer.answer(), broker.expected(at, queue_id, 1), at + 1)
        told = await broker.all_back()
        assert sum(each.answers for each in told) > 30 * QUEUES
        assert any(len(each.kinds) == QUEUES and all(kind.answers for kind in each.kinds) for each in told)
        broker.inner.turns.run(100)
        for queue_id in range(QUEUES):
            assert broker.inner.progress.consumer_offset("g", "t", queue_id) == 59 + 10 * queue_id
            assert broker.inner.progress.pulled.get("g", "t", queue_id) == 60 + 10 * queue_id
        counters = broker.inner.counters
        assert counters.out_messages == counters.statistics.broker_get.times == 60 * QUEUES
        assert not broker.inner.metadata.commits.elsewhere


@on_both_loops
async def test_of_two_whose_rounds_meet_each_offset_is_one_stays_at_a_time(directory: Path) -> None:
    async with serving(directory, messages=400) as broker:
        peers = await broker.connected(2)
        for offset in range(60):
            for queue_id in range(QUEUES):
                for peer in peers:
                    peer.pull(0, offset, queue_id, maxMsgNums=1, sysFlag=FLAGS, commitOffset=offset)
                    check(await peer.answer(), broker.expected(offset, queue_id, 1), offset + 1)
        await broker.all_back()
        broker.inner.turns.run(100)
        offsets = [broker.inner.progress.consumer_offset("g", "t", queue_id) for queue_id in range(QUEUES)]
        assert offsets == [59] * QUEUES
        assert not broker.inner.metadata.commits.elsewhere


async def go_round(broker: Broker, peer: Peer, *queue_ids: int) -> None:
    """Ask for a message of each in turn until the connection stays for all of them."""
    begun = broker.carrier.begun
    async with asyncio.timeout(PATIENT_S):
        while broker.carrier.begun == begun:
            for queue_id in queue_ids:
                peer.pull(0, 0, queue_id, maxMsgNums=1, sysFlag=FLAGS)
                await peer.answer()


async def commit(peer: Peer, queue_id: int, offset: int) -> None:
    """With a pull."""
    peer.pull(0, offset, queue_id, maxMsgNums=1, sysFlag=FLAGS, commitOffset=offset)
    await peer.answer()


@on_both_loops
async def test_what_another_connection_stays_for_is_none_of_what_one_stays_for_besides(directory: Path) -> None:
    """Though it asked for that, too: what the other one says of offsets meanwhile would be lost."""
    async with serving(directory, messages=400) as broker:
        one, other = await broker.connected(2)
        await commit(other, 1, 5)
        await go_round(broker, one, 0, 1)
        await go_round(broker, other, 2)
        await commit(one, 1, 40)
        told = await broker.all_back()
        assert max(kind.commit_offset for each in told for kind in each.kinds) == 40
        broker.inner.turns.run(100)
        assert broker.inner.progress.consumer_offset("g", "t", 1) == 40
        await go_round(broker, one, 0, 1)
        await go_round(broker, other, 2)
        await commit(one, 1, 50)
        await commit(other, 1, 60)
        await broker.all_back()
        broker.inner.turns.run(100)
        assert broker.inner.progress.consumer_offset("g", "t", 1) == 60
        assert not broker.inner.metadata.commits.elsewhere


@on_both_loops
async def test_who_is_to_be_told_of_a_reset_of_one_queue_is_told_while_others_are_read(directory: Path) -> None:
    queue = {"group": "g", "topic": "t", "queueId": 1, "timestamp": 0, "isForce": "true"}
    async with serving(directory, messages=400) as broker:
        [peer] = await broker.connected(1)
        for _ in range(2):
            await go_round(broker, peer, 0, 1)
            broker.inner.answer(codes.INVOKE_BROKER_TO_RESET_OFFSET, queue)
            await go_round(broker, peer, 0)
            peer.pull(5, 100, 1, maxMsgNums=1, sysFlag=FLAGS, commitOffset=100)
            answer = await peer.answer()
            assert (answer.code, answer.ext["nextBeginOffset"]) == (codes.PULL_OFFSET_MOVED, "0")
            await broker.all_back()
            broker.inner.turns.run(100)
            assert broker.inner.progress.consumer_offset("g", "t", 1) == 0


@on_both_loops
async def test_of_two_ways_to_ask_for_a_queue_the_one_that_was_last_counts(directory: Path) -> None:
    async with serving(directory, messages=400) as broker:
        [peer] = await broker.connected(1)
        for _ in range(2):  # with the second one it stands what is wanted
            peer.pull(0, 0, maxMsgNums=2, sysFlag=FLAGS)
            await peer.answer()
        await go_round(broker, peer, 0)
        for offset, count in ((40, 2), (50, 1)):
            peer.pull(0, offset, maxMsgNums=count, sysFlag=FLAGS, commitOffset=offset)
            check(await peer.answer(), broker.expected(offset, 0, count), offset + count)
        await broker.all_back()
        broker.inner.turns.run(100)
        assert broker.inner.progress.consumer_offset("g", "t", 0) == 50
        assert broker.inner.progress.pulled.get("g", "t", 0) == 51


@on_both_loops
async def test_where_to_read_on_is_for_each_queue_what_the_settings_say_now(directory: Path) -> None:
    async with serving(directory, messages=400) as broker:
        broker.inner.group("g", read_broker_id=3)
        [peer] = await broker.connected(1)
        broker.inner.pull_settings.change(PullSettings(slave_read=False))
        await go_round(broker, peer, 0, 1)
        for slave_read, expected in ((True, "3"), (False, "0")):
            broker.inner.pull_settings.change(PullSettings(slave_read=slave_read))
            await go_round(broker, peer, 0)
            for queue_id in (1, 0):
                peer.pull(1, 3, queue_id, maxMsgNums=1, sysFlag=FLAGS)
                assert (await peer.answer()).ext["suggestWhichBrokerId"] == expected
            told = (await broker.all_back())[-1]
            assert [kind.answers for kind in told.kinds] == [1, 1]


@on_both_loops
async def test_a_queue_that_is_read_no_more_is_forgotten_and_no_more_than_some_are_kept(directory: Path) -> None:
    async with serving(directory, messages=400) as broker:
        [peer] = await broker.connected(1)
        [connection] = broker.server.connections
        for count in range(1, MOST_KINDS + 6):
            peer.pull(count, count, count % QUEUES, maxMsgNums=count)
            await peer.answer()
        assert len(connection.density.kinds) == MOST_KINDS
        for offset in range(8 * MOST_KINDS * 4):
            peer.pull(offset, offset % 300, maxMsgNums=FEW)
            await peer.answer()
            if offset % (4 * MOST_KINDS) == 4 * MOST_KINDS - 1:
                await broker.all_back()
        assert len(connection.density.kinds) < MOST_KINDS // 2
