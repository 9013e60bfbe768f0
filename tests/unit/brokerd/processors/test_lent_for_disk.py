"""A broker whose clients have what they send taken by the carrier's thread, and answered when the disk has it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from brokerd.native import carrier as carriers
from brokerd.replication.roles.effects import Role
from brokerd.sending import lending
from remoting import codes
from remoting.transport import taking
from tests.support.sending_broker import Broker, Peer, lend_for_long, on_both_loops, places_of, serving

LONG_S = 1000


@pytest.fixture(autouse=True)
def _densely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who sends stays soon, though the test is slow, and until somebody wants him back."""
    monkeypatch.setattr(taking, "_DENSE_FOR_DISK_S", LONG_S)
    monkeypatch.setattr(taking, "_OFTEN", 1)
    monkeypatch.setattr(taking, "_LONG", 0)
    monkeypatch.setattr(carriers, "_LOOK_S", LONG_S)
    lend_for_long(monkeypatch)


def durable(broker: Broker) -> int:
    syncs = broker.lending._syncs
    assert syncs is not None
    return syncs._syncs.done


@asynccontextmanager
async def held(broker: Broker, peers: list[Peer]) -> AsyncIterator[None]:
    """Each of the peers sent a message that is in the log, while no sync begins."""
    await broker.until(lambda: broker.is_lent)
    with broker.store.commitlog.turns.contents:  # which who syncs gives up, and waits for
        frames, end = broker.taken_meanwhile, broker.store.commitlog.end_offset
        for peer in peers:
            peer.send(b"held")
        await broker.until(lambda: broker.taken_meanwhile == frames + len(peers))
        yield
        broker.store.settle()
        assert broker.store.commitlog.end_offset > end
        assert broker.store.commitlog.flushed_offset < broker.store.commitlog.end_offset


@on_both_loops
async def test_what_is_answered_is_durable_and_seen(directory: Path) -> None:
    async with serving(directory, waits_for_disk=True) as broker:
        peers = await broker.staying(3)
        [reader] = await broker.connected()
        for _ in range(30):
            for peer in peers:
                peer.send(b"body")
            answers = [await peer.answer() for peer in peers]
            assert {answer.code for answer in answers} == {codes.SUCCESS}
            assert max(places_of(answers)) < durable(broker)
            reader.ask(codes.GET_MAX_OFFSET, {"topic": "T", "queueId": 0})
            newest = max(int(answer.ext["queueOffset"]) for answer in answers)
            assert int((await reader.answer()).ext["offset"]) == newest + 1
        await broker.all_back()
        assert broker.taken > 60
        assert broker.store.commitlog.flushed_offset == broker.store.commitlog.end_offset
        assert all(connection._in_flight == 0 for connection in broker.server.connections)


@on_both_loops
async def test_what_waits_is_answered_where_its_connection_is(directory: Path) -> None:
    async with serving(directory, waits_for_disk=True) as broker:
        peers = await broker.staying(2)
        async with held(broker, peers):
            broker.sends.meaning_changes()
            assert not broker.carrier.has_senders
        for peer in peers:
            assert (await peer.answer()).code == codes.SUCCESS
        assert all(connection._in_flight == 0 for connection in broker.server.connections)
        assert sum(broker.core.counters.puts.counts) == sum(peer.opaque for peer in peers), (
            "how long each took is known"
        )


@on_both_loops
async def test_a_person_sees_what_waits_for_the_disk_wherever_it_waits(directory: Path) -> None:
    async with serving(directory, waits_for_disk=True) as broker:
        peers = await broker.staying(2)
        sends, begin_ns = broker.sends, time.monotonic_ns()
        assert sends.waiting_elsewhere == (0, 0)
        async with held(broker, peers):
            await broker.until(lambda: sends.waiting_elsewhere[0] == len(peers))
            await broker.until(lambda: sends.waiting_elsewhere[1] >= 20)
            assert sends.waiting_elsewhere[1] <= (time.monotonic_ns() - begin_ns) / 1e6
            broker.carrier.recall_senders()
            await broker.until(lambda: not broker.carrier.has_senders)
            assert sends.waiting_elsewhere == (0, 0)
            assert broker.replica.acks is not None
            assert len(broker.replica.acks) == len(peers), "they are counted there"
        for peer in peers:
            assert (await peer.answer()).code == codes.SUCCESS


@on_both_loops
async def test_what_waits_when_the_role_is_lost_is_unknown(directory: Path) -> None:
    async with serving(directory, waits_for_disk=True) as broker:
        peers = await broker.staying(2)
        async with held(broker, peers):
            broker.replica.become(Role.FENCED)
        for peer in peers:
            answer = await peer.answer()
            assert answer.code == codes.SERVICE_NOT_AVAILABLE
        assert not broker.carrier.has_senders


@on_both_loops
async def test_who_waits_for_too_long_is_told_so(directory: Path) -> None:
    """As the replica says: it is stored here, and may not be durable."""
    async with serving(directory, waits_for_disk=True) as broker:
        [peer] = await broker.staying()
        async with held(broker, [peer]):
            broker.carrier.recall_senders()
            await broker.until(lambda: bool(broker.replica.acks))
            broker.replica.expire()
            assert (await peer.answer()).code == codes.FLUSH_DISK_TIMEOUT
        assert (await peer.sent()).code == codes.SUCCESS


def test_who_stays_comes_back_when_nobody_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As while others need the files, or the disk stands still."""
    monkeypatch.setattr(lending, "_MOST_MISSED", 4)

    async def ask() -> None:
        async with serving(tmp_path, waits_for_disk=True) as broker:
            [peer] = await broker.staying()
            with broker.store.commitlog.turns.contents:
                broker.store.settle()
                await broker.until(lambda: not broker.carrier.has_senders)
                assert not broker.is_lent
            assert (await peer.sent()).code == codes.SUCCESS

    asyncio.run(ask())


def test_sends_go_on_in_the_next_file(tmp_path: Path) -> None:
    async def ask() -> None:
        async with serving(tmp_path, segment_bytes=1 << 21, waits_for_disk=True) as broker:
            peers = await broker.staying(2)
            for _ in range(60):
                for peer in peers:
                    peer.send(b"x" * 50_000)
                for peer in peers:
                    assert (await peer.answer()).code == codes.SUCCESS
            await broker.all_back()
            assert len(broker.store.commitlog.segment_starts()) >= 3
            assert broker.taken > 20

    asyncio.run(ask())
