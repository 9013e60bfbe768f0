"""A start on a damaged log: what is damaged is asked of others first, and only what they have intact is put in its place."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random

import pytest

from brokerd.composition.mending import Fetch, Wanted, living_peers, mend
from brokerd.replication.controllers.session import BrokerNames
from brokerd.replication.epochs.epoch_file import EpochFile
from brokerd.replication.epochs.epoch_list import EpochEntry
from brokerd.store.log.derive import intact_record_at
from brokerd.store.start.log_recovery import SuspectLog
from remoting.errors import ConnectionLost, CorruptedFile, RequestError
from tests.support.disks import FaultyDisk
from tests.unit.brokerd.store.stores import SETTINGS, draft, log_bytes, make_store, open_store, put, sync
from tests.unit.brokerd.store.test_suspicion import flip

EPOCHS = (EpochEntry(1, 0), EpochEntry(4, 3000))


def damaged(*, proven: bool, messages: int = 30) -> tuple[FaultyDisk, list[int], bytes]:
    """A disk after a loss of power; `proven`: the page says how much was durable. The messages' places, and the log."""
    disk = FaultyDisk(Random(5))
    EpochFile(disk).save_entries(EPOCHS)
    store = open_store(disk)
    put(store, draft(b"first"))
    store.checkpoint()
    places = [put(store, draft(b"acked-%d" % n + b"." * 150))[0].physical_offset for n in range(messages)]
    sync(store)
    log = log_bytes(store)
    if proven:
        store.checkpoint()
    disk.files["checkpoint"].unsynced.clear()
    disk.crash()
    return disk, places, log


class Peer:
    """Somebody with an intact log, as far as it goes; gives what ends where its own records do."""

    def __init__(self, log: bytes) -> None:
        self.log = log
        self.asked: list[tuple[str, int, int]] = []

    def fetch(self) -> Fetch:
        async def fetch(peer: str, wanted: Wanted) -> AsyncIterator[tuple[int, bytes]]:
            self.asked.append((peer, wanted.start, wanted.end))
            assert wanted.epochs == EPOCHS
            position = wanted.start
            while position < wanted.end:
                record = intact_record_at(lambda at, length: self.log[at : at + length], position, wanted.shape)
                if record is None:
                    raise RequestError(17, "not here")
                yield position, record
                position += len(record)
            if position != wanted.end:
                raise RequestError(17, "no record ends there")

        return fetch


@pytest.mark.parametrize("proven", [False, True])
async def test_rotten_records_are_put_right_before_the_start(proven: bool) -> None:
    disk, places, log = damaged(proven=proven)
    for at in (places[2] + 100, places[3] + 3, places[20] + 120):
        flip(disk, at)
    with pytest.raises(CorruptedFile):
        make_store(disk).load(ask_first=True)
    assert not disk.exists("suspicion")
    assert await mend(disk, SETTINGS, ["peer"], Peer(log).fetch())
    store = make_store(disk)
    store.load(ask_first=True)
    assert store.suspicion is None
    assert log_bytes(store) == log


def make_and_load(disk: FaultyDisk):  # type: ignore[no-untyped-def]
    store = make_store(disk)
    store.load(ask_first=True)
    return store


async def test_who_has_it_damaged_too_or_does_not_answer_is_passed_over() -> None:
    disk, places, log = damaged(proven=False)
    flip(disk, places[2] + 100)
    rotten = bytearray(log)
    rotten[places[2] + 110] ^= 4
    good, bad = Peer(log).fetch(), Peer(bytes(rotten)).fetch()

    async def fetch(peer: str, wanted: Wanted) -> AsyncIterator[tuple[int, bytes]]:
        if peer == "silent":
            raise ConnectionLost("nobody is there")
        async for piece in (good if peer == "good" else bad)(peer, wanted):
            yield piece

    assert not await mend(disk, SETTINGS, ["silent", "bad"], fetch)
    with pytest.raises(SuspectLog):
        make_and_load(disk)
    assert not await mend(disk, SETTINGS, [], fetch)
    assert await mend(disk, SETTINGS, ["silent", "bad", "good"], fetch)
    assert log_bytes(make_and_load(disk)) == log


async def test_a_log_that_was_opened_at_its_damage_is_left_to_its_master() -> None:
    """Its epoch list may have been cut with it: bytes behind the damage would stand under an epoch that did not write them."""
    disk, places, log = damaged(proven=False)
    flip(disk, places[2] + 100)
    store = make_store(disk)
    store.load()
    assert store.suspicion is not None
    disk.kill()
    assert not await mend(disk, SETTINGS, ["peer"], Peer(log).fetch())
    again = make_and_load(disk)
    assert again.suspicion is not None, "nobody is asked twice"


async def test_a_whole_log_needs_nobody() -> None:
    disk, _, log = damaged(proven=False)
    peer = Peer(log)
    assert await mend(disk, SETTINGS, ["peer"], peer.fetch())
    assert peer.asked == []


class Controllers:
    """What each address answers."""

    def __init__(self, answers: dict[str, bytes | Exception]) -> None:
        self.answers = answers

    async def call(self, address: str, *_: object, **__: object) -> object:
        answer = self.answers[address]
        if isinstance(answer, Exception):
            raise answer
        return type("Answer", (), {"body": answer})()


async def test_the_living_are_asked_for_at_whichever_controller_knows() -> None:
    told = (
        b'{"replicasInfoTable":{"b":{"inSyncReplicas":[{"brokerId":1,"alive":true,"brokerAddress":"me:1"},'
        b'{"brokerId":2,"alive":true,"brokerAddress":"x:1"}],"notInSyncReplicas":[{"brokerId":3,"alive":false,'
        b'"brokerAddress":"y:1"},{"brokerId":4,"alive":true,"brokerAddress":"z:1"}]}}}'
    )
    names = BrokerNames("c", "b", "me:1", "", "")
    controllers = Controllers(
        {"c1": ConnectionLost("no"), "c2": RequestError(2007, "not the leader"), "c3": told, "c4": b"{"}
    )
    assert await living_peers(controllers, ["c1", "c2", "c4", "c3"], names) == ["x:1", "z:1"]  # type: ignore[arg-type]
    assert await living_peers(controllers, ["c1", "c4"], names) == []  # type: ignore[arg-type]
