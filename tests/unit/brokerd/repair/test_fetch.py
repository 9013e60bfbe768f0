"""A range of the log from another broker: what comes is what was there, or an error."""

from __future__ import annotations

import random

import pytest

from brokerd.repair.fetch import fetch_pieces, fetch_range
from brokerd.repair.log_range import NoCommonEpoch
from brokerd.replication.epochs.epoch_list import EpochEntry
from brokerd.store.store import MessageStore
from remoting import codes
from remoting.errors import ConnectionLost, ProtocolError, RequestError
from tests.support.disks import FaultyDisk, MemoryDisk
from tests.unit.brokerd.repair.peers import EPOCHS, Peers, serving
from tests.unit.brokerd.store.stores import SEGMENT_BYTES, draft, log_bytes, open_store, payloads, put, sync

PEER = "peer:1"


def filled(disk: MemoryDisk | None = None, count: int = 40) -> MessageStore:
    """A store whose log has more than one file; all of it durable."""
    store = open_store(disk or MemoryDisk())
    for body in payloads(count):
        put(store, draft(body))
    sync(store)
    return store


def places(store: MessageStore) -> list[int]:
    return [unit[0] for unit in store.read_units("TopicA", 0, 0, 1000)]


async def fetch(peers: Peers, store: MessageStore, start: int, end: int) -> bytes:
    return await fetch_range(peers.asking(), PEER, start, end, shape=store.commitlog.shape, epochs=EPOCHS)


async def test_a_record_comes_as_it_is_there() -> None:
    store = filled()
    at = places(store)
    peers = Peers({PEER: serving(store)})
    assert await fetch(peers, store, at[3], at[4]) == log_bytes(store)[at[3] : at[4]]
    assert await fetch(peers, store, at[3], at[9]) == log_bytes(store)[at[3] : at[9]]


async def test_a_range_to_the_end_of_its_file_ends_with_a_filler() -> None:
    store = filled()
    last = max(place for place in places(store) if place < SEGMENT_BYTES)
    found = await fetch(Peers({PEER: serving(store)}), store, last, SEGMENT_BYTES)
    assert 8 < len(found) < SEGMENT_BYTES - last
    assert found == log_bytes(store)[last : last + len(found)]
    filler_at = last + len(found) - 8
    assert await fetch(Peers({PEER: serving(store)}), store, filler_at, SEGMENT_BYTES) == found[-8:]


async def test_a_large_range_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brokerd.repair.log_range.MOST_ANSWER_BYTES", 500)
    store = filled()
    at, peers = places(store), Peers({PEER: serving(store)})
    asking, shape = peers.asking(), store.commitlog.shape
    pieces = [piece async for piece in fetch_pieces(asking, PEER, at[0], at[12], shape=shape, epochs=EPOCHS)]
    assert len(pieces) > 3
    assert b"".join(piece for _, piece in pieces) == log_bytes(store)[: at[12]]
    assert [offset for offset, _ in pieces] == sorted({offset for offset, _ in pieces})


async def test_a_record_that_is_longer_than_an_answer_comes_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brokerd.repair.log_range.MOST_ANSWER_BYTES", 50)
    store = filled()
    at = places(store)
    assert await fetch(Peers({PEER: serving(store)}), store, at[0], at[2]) == log_bytes(store)[: at[2]]


async def test_a_range_must_end_where_a_record_ends() -> None:
    store = filled()
    at, peers = places(store), Peers({PEER: serving(store)})
    for start, end in ((at[3], at[4] - 1), (at[3], at[5] - 1), (at[3] + 1, at[4])):
        with pytest.raises(RequestError):
            await fetch(peers, store, start, end)


async def test_what_is_not_there_or_not_durable_is_refused() -> None:
    store = filled()
    end = store.commitlog.end_offset
    put(store, draft(b"not durable yet"))
    with pytest.raises(RequestError) as refused:
        await fetch(Peers({PEER: serving(store)}), store, end, store.commitlog.end_offset)
    assert refused.value.code == codes.QUERY_NOT_FOUND
    with pytest.raises(RequestError):
        await fetch(Peers({PEER: serving(store)}), store, places(store)[0], 2 * SEGMENT_BYTES)


@pytest.mark.parametrize(
    ("mine", "its"),
    [
        ([EpochEntry(1, 0)], [EpochEntry(2, 0)]),
        ([EpochEntry(1, 0)], [EpochEntry(1, 0), EpochEntry(2, 300)]),
        ([EpochEntry(1, 0), EpochEntry(3, 300)], [EpochEntry(1, 0), EpochEntry(2, 300)]),
        ([EpochEntry(1, 0), EpochEntry(3, 300)], [EpochEntry(1, 0), EpochEntry(3, 400)]),
    ],
)
async def test_a_range_of_another_epoch_is_refused(mine: list[EpochEntry], its: list[EpochEntry]) -> None:
    store = filled()
    at = places(store)
    peers = Peers({PEER: serving(store, its)})
    with pytest.raises(RequestError, match="epoch"):
        await fetch_range(peers.asking(), PEER, at[3], at[4], shape=store.commitlog.shape, epochs=mine)


async def test_a_range_across_epochs_is_common_when_its_end_is() -> None:
    store = filled()
    at = places(store)
    epochs = [EpochEntry(1, 0), EpochEntry(2, at[3])]
    peers = Peers({PEER: serving(store, [*epochs, EpochEntry(4, at[9])])})
    found = await fetch_range(peers.asking(), PEER, at[1], at[6], shape=store.commitlog.shape, epochs=epochs)
    assert found == log_bytes(store)[at[1] : at[6]]
    with pytest.raises(RequestError, match="epoch"):
        await fetch_range(peers.asking(), PEER, at[8], at[10], shape=store.commitlog.shape, epochs=epochs)


async def test_nobody_is_asked_for_what_no_epoch_is_known_of() -> None:
    store = filled()
    at = places(store)
    peers = Peers({PEER: serving(store)})
    with pytest.raises(NoCommonEpoch):
        await fetch_range(
            peers.asking(), PEER, at[1], at[2], shape=store.commitlog.shape, epochs=[EpochEntry(1, at[5])]
        )
    assert not peers.asked


@pytest.mark.parametrize("byte", range(4, 100, 7))
async def test_what_is_damaged_there_is_not_given(byte: int) -> None:
    disk = FaultyDisk(random.Random(1))
    store = filled(disk)
    at = places(store)
    disk.flip_bit("commitlog/" + "0" * 20, at[3] + 84 + byte, 2)
    peers = Peers({PEER: serving(store)})
    if store.commitlog.record_at(at[3]) is None:
        with pytest.raises(RequestError, match="damaged"):
            await fetch(peers, store, at[3], at[4])
        with pytest.raises(RequestError, match="damaged"):
            await fetch(peers, store, at[1], at[5])
    assert await fetch(peers, store, at[4], at[5]) == log_bytes(store)[at[4] : at[5]]


async def test_only_brokers_of_the_group_that_know_the_secret_are_answered() -> None:
    store = filled()
    at, peers = places(store), Peers({PEER: serving(store, keys=(b"new", b"old"))})
    shape = store.commitlog.shape
    for key in (b"new", b"old"):
        assert await fetch_range(peers.asking(key), PEER, at[0], at[1], shape=shape, epochs=EPOCHS)
    for asking in (peers.asking(b"guess"), peers.asking(b"new", b"cluster#broker-b")):
        with pytest.raises(RequestError) as refused:
            await fetch_range(asking, PEER, at[0], at[1], shape=shape, epochs=EPOCHS)
        assert refused.value.code == codes.NO_PERMISSION


async def test_an_answer_that_was_changed_on_its_way_is_not_believed() -> None:
    store = filled()
    at, peers = places(store), Peers({PEER: serving(store)})
    peers.changes.append(("000003", b"999999"))
    with pytest.raises(ProtocolError, match="secret"):
        await fetch(peers, store, at[3], at[4])


async def test_a_peer_that_is_away_is_told_as_such() -> None:
    store = filled()
    at = places(store)
    with pytest.raises(ConnectionLost):
        await fetch(Peers({}), store, at[3], at[4])
