"""Connections that go round several queues and stay with the carrier's thread: each queue has its own place, and its offsets."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerd.native.stays import MOST_KINDS
from brokerd.processors.pulling.checks import FLAG_COMMIT, FLAG_SUBSCRIPTION
from tests.support.pulled_broker import QUEUES, check, on_both_loops, serving, stay_for_long

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
