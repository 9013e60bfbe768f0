"""A start on a damaged log: what is damaged is asked of others first, and only what they have intact is put in its place."""

from __future__ import annotations

from random import Random
from typing import Any, cast

import orjson
import pytest

from brokerd.composition.mending import Mender, living_peers, start_mended
from brokerd.repair.serve import RangeServer
from brokerd.replication.epochs.epoch_list import EpochEntry
from brokerd.store.start.log_recovery import SuspectLog
from brokerd.store.start.mending import DamagedLog
from brokerd.store.store import MessageStore
from remoting.errors import ConnectionLost, CorruptedFile, DamagedRange, RequestError
from remoting.transport.client import RemotingClient
from tests.support.disks import FaultyDisk, MemoryDisk
from tests.unit.brokerd.repair.peers import Peers, copy_log, serving
from tests.unit.brokerd.store.stores import (
    SEGMENT_BYTES,
    SETTINGS,
    bodies,
    dispatch_all,
    draft,
    log_bytes,
    make_store,
    open_store,
    put,
    sync,
)
from tests.unit.brokerd.store.test_suspicion import flip

EPOCHS = (EpochEntry(1, 0), EpochEntry(4, 3000))


class Case:
    """A disk after a loss of power, and a replica that has the same log; `proven`: the page says how much was durable."""

    def __init__(self, *, proven: bool = False, messages: int = 30) -> None:
        self.disk = FaultyDisk(Random(5))
        store = open_store(self.disk)
        put(store, draft(b"first"))
        store.checkpoint()
        results = [put(store, draft(b"acked-%d" % n + b"." * 150))[0] for n in range(messages)]
        self.places = [each.physical_offset for each in results]
        sync(store)
        self.log = log_bytes(store)
        self.replica = make_store(MemoryDisk())
        self.replica.load()
        copy_log(store, self.replica)
        if proven:
            store.checkpoint()
        self.disk.files["checkpoint"].unsynced.clear()
        self.disk.crash()

    def serving(self, epochs: tuple[EpochEntry, ...] = EPOCHS) -> RangeServer:
        return serving(self.replica, epochs)

    def start(self) -> MessageStore:
        store = make_store(self.disk)
        store.load(ask_first=True)
        return store

    async def mend(self, servers: dict[str, RangeServer], *names: str, met: DamagedRange | None = None) -> int:
        """How many bytes were written, asking those of these names."""
        self.peers = Peers(servers)
        mender = Mender(DamagedLog(self.disk, SETTINGS), EPOCHS, self.peers.asking(), names or tuple(servers))
        return await mender.mend(met)


@pytest.mark.parametrize("proven", [False, True])
async def test_rotten_records_are_put_right_before_the_start(proven: bool) -> None:
    case = Case(proven=proven)
    for at in (case.places[2] + 100, case.places[3] + 3, case.places[20] + 120):
        flip(case.disk, at)
    with pytest.raises(CorruptedFile) as refused:
        case.start()
    assert isinstance(refused.value, SuspectLog) != proven
    assert not case.disk.exists("suspicion")
    assert await case.mend({"peer": case.serving()})
    store = case.start()
    assert store.suspicion is None
    assert log_bytes(store) == case.log


@pytest.mark.parametrize("place", [1, 5, 30, 100])
@pytest.mark.parametrize("proven", [False, True])
async def test_the_last_record_is_put_right_when_its_size_is_known(proven: bool, place: int) -> None:
    """By its own first bytes, or by the page; otherwise the log is suspect, and the record is copied from the master."""
    case = Case(proven=proven)
    flip(case.disk, case.places[-1] + place)
    with pytest.raises(CorruptedFile):
        case.start()
    mended = await case.mend({"peer": case.serving()})
    if proven or place > 4:
        assert mended
        assert log_bytes(case.start()) == case.log
    else:
        assert not mended
        with pytest.raises(SuspectLog):
            case.start()


@pytest.mark.parametrize("proven", [False, True])
@pytest.mark.parametrize("file", [0, 1])
async def test_what_cannot_be_read_at_a_start_is_put_right(proven: bool, file: int) -> None:
    case = Case(proven=proven)
    case.disk.spoil_page(f"commitlog/{file * SEGMENT_BYTES:020d}", 0)
    with pytest.raises(CorruptedFile) as refused:
        case.start()
    assert isinstance(refused.value, SuspectLog) != (proven or not file)
    while await case.mend({"peer": case.serving()}):
        pass
    assert not case.disk.bad_pages
    assert log_bytes(case.start()) == case.log


@pytest.mark.parametrize("proven", [False, True])
async def test_an_end_that_cannot_be_read_is_not_taken_for_torn(proven: bool) -> None:
    """Where the log ended is not known then, unless the page says so: the rest is copied from the master."""
    case = Case(proven=proven)
    case.disk.spoil_page(f"commitlog/{len(case.log) - len(case.log) % SEGMENT_BYTES:020d}", 0)
    with pytest.raises(CorruptedFile) as refused:
        case.start()
    assert isinstance(refused.value, SuspectLog) != proven
    if proven:
        assert await case.mend({"peer": case.serving()})
        assert log_bytes(case.start()) == case.log
    else:
        store = make_store(case.disk)
        store.load()
        assert store.suspicion is not None


@pytest.mark.parametrize("present", [None, 0, 5, 1000, 2048, SEGMENT_BYTES - 1])
@pytest.mark.parametrize("file", [0, 1])
async def test_a_file_that_is_short_or_missing_is_made_whole(present: int | None, file: int) -> None:
    case = Case(proven=True, messages=50)
    path = f"commitlog/{file * SEGMENT_BYTES:020d}"
    if present is None and not file:
        path = f"commitlog/{SEGMENT_BYTES:020d}"  # the first one may have gone by its age
    if present is None:
        case.disk.remove(path)
    else:
        case.disk.open(path).truncate(present)
    case.disk.kill()
    with pytest.raises(CorruptedFile, match="restore"):
        case.start()
    mended = await case.mend({"peer": case.serving()})
    assert mended or present == SEGMENT_BYTES - 1, "behind a filler nothing has to be asked for"
    assert log_bytes(case.start()) == case.log


async def test_files_that_were_taken_for_one_another_are_made_whole() -> None:
    """Nothing in them says where what is damaged ends; that the log goes on behind them does."""
    case = Case(proven=True)
    assert len(case.log) > 2 * SEGMENT_BYTES
    first, second = (case.disk.open(f"commitlog/{number * SEGMENT_BYTES:020d}") for number in (0, 1))
    contents = [file.read(0, SEGMENT_BYTES) for file in (first, second)]
    first.write(0, (contents[1],))
    second.write(0, (contents[0],))
    for file in (first, second):
        file.sync()
    with pytest.raises(CorruptedFile):
        case.start()
    assert await case.mend({"peer": case.serving()})
    store = case.start()
    dispatch_all(store)
    assert store.commitlog.end_offset == len(case.log)
    assert bodies(store) == [b"first", *(b"acked-%d" % n + b"." * 150 for n in range(30))]


async def test_a_short_file_that_nobody_has_stays_as_it_is() -> None:
    case = Case(proven=True)
    path = f"commitlog/{0:020d}"
    case.disk.open(path).truncate(1000)
    case.disk.kill()
    before = case.disk.read_bytes(path)
    assert not await case.mend({"peer": case.serving((EpochEntry(3, 0),))})
    assert case.disk.read_bytes(path) == before
    with pytest.raises(CorruptedFile, match="restore the file"):
        case.start()


async def test_a_filler_is_put_right() -> None:
    case = Case()
    filler = max(at for at in case.places if at < SETTINGS.segment_size_bytes)
    filler += int.from_bytes(case.log[filler : filler + 4], "big")
    flip(case.disk, filler + 5)
    with pytest.raises(SuspectLog):
        case.start()
    assert await case.mend({"peer": case.serving()})
    assert log_bytes(case.start()) == case.log


async def test_a_record_that_a_start_meets_far_before_the_end_is_put_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read of system topics is older than what a start looks at."""
    monkeypatch.setattr("brokerd.store.start.durable_positions._RECHECK_BYTES", 0)
    case = Case()
    store = make_store(case.disk)
    store.load()
    dispatch_all(store)
    for _ in range(3):
        store.checkpoint()
    store.close()
    flip(case.disk, case.places[1] + 100)
    size = case.places[2] - case.places[1]
    case.start().abandon()
    assert not await case.mend({"peer": case.serving()})
    assert await case.mend({"peer": case.serving()}, met=DamagedRange(case.places[1], size)) == size
    assert log_bytes(case.start()) == case.log
    assert not await case.mend({"peer": case.serving()}, met=DamagedRange(case.places[1], size))


async def test_who_has_it_damaged_too_or_does_not_answer_is_passed_over() -> None:
    case, other = Case(), Case()
    flip(case.disk, case.places[2] + 100)
    bad_disk = cast(MemoryDisk, other.disk)
    flip(other.disk, other.places[2] + 110)
    rotten = make_store(bad_disk)
    rotten.load()
    servers = {"bad": serving(rotten, EPOCHS), "good": case.serving()}
    assert not await case.mend(servers, "silent", "bad")
    with pytest.raises(SuspectLog):
        case.start()
    assert not case.disk.exists("suspicion")
    assert await case.mend(servers, "silent", "bad", "good")
    assert case.peers.asked.count("silent") == 1, "who does not answer is not asked again"
    assert log_bytes(case.start()) == case.log


async def test_what_another_epoch_wrote_there_is_not_taken() -> None:
    case = Case()
    flip(case.disk, case.places[20] + 100)
    assert not await case.mend({"peer": case.serving((EpochEntry(1, 0), EpochEntry(3, 3000)))})
    assert not await case.mend({"peer": case.serving((*EPOCHS, EpochEntry(5, case.places[20])))})
    assert await case.mend({"peer": case.serving((*EPOCHS, EpochEntry(5, case.places[25])))})


async def test_a_log_that_was_opened_at_its_damage_is_left_to_its_master() -> None:
    """Its epoch list may have been cut with it: bytes behind the damage would stand under an epoch that did not write them."""
    case = Case()
    flip(case.disk, case.places[2] + 100)
    store = make_store(case.disk)
    store.load()
    assert store.suspicion is not None
    case.disk.kill()
    assert not await case.mend({"peer": case.serving()})
    assert case.start().suspicion is not None, "nobody is asked twice"


async def test_what_is_durable_of_a_log_that_is_suspect_is_put_right() -> None:
    case = Case()
    flip(case.disk, case.places[5] + 100)
    store = make_store(case.disk)
    store.load()
    rest = case.log[case.places[5] :]
    store.append_replicated(case.places[5], rest[: case.places[20] - case.places[5]])
    sync(store)
    store.checkpoint()
    assert store.suspicion is not None
    case.disk.kill()
    for at in (3, 10):
        flip(case.disk, case.places[at] + 100)
    with pytest.raises(CorruptedFile, match="had been durable"):
        case.start()
    assert await case.mend({"peer": case.serving()})
    assert log_bytes(case.start()) == case.log[: case.places[20]]


async def test_what_a_crash_has_torn_is_asked_of_nobody() -> None:
    case = Case(proven=True)
    assert not await case.mend({"peer": case.serving()})
    assert not case.peers.asked


class Starts:
    """Starts that go wrong, one after the other, until one does not; and what is asked of peers in between."""

    def __init__(self, *errors: CorruptedFile, mends: tuple[bool, ...]) -> None:
        self.errors = list(errors)
        self.mends = list(mends)
        self.told: list[bool | DamagedRange | None] = []

    def start(self, ask_first: bool) -> str:
        self.told.append(ask_first)
        if self.errors:
            raise self.errors.pop(0)
        return "started"

    async def mend(self, met: DamagedRange | None) -> bool:
        self.told.append(met)
        return self.mends.pop(0)


REFUSED, SUSPECT, MET = CorruptedFile("refused"), SuspectLog("suspect"), DamagedRange(100, 50)


@pytest.mark.parametrize(
    ("starts", "told"),
    [
        (Starts(mends=()), [True]),
        (Starts(REFUSED, mends=(True,)), [True, None, True]),
        (Starts(SUSPECT, mends=(False,)), [True, None, False]),
        (Starts(SUSPECT, SUSPECT, mends=(True, False)), [True, None, True, None, False]),
        (Starts(CorruptedFile("a system topic", MET), mends=(True,)), [True, MET, True]),
    ],
)
async def test_a_start_is_tried_again_when_something_was_mended(
    starts: Starts, told: list[bool | DamagedRange | None]
) -> None:
    assert await start_mended(starts.start, starts.mend) == "started"
    assert starts.told == told


async def test_a_start_that_refuses_what_nobody_can_mend_ends() -> None:
    starts = Starts(REFUSED, REFUSED, mends=(True, False))
    with pytest.raises(CorruptedFile, match="refused"):
        await start_mended(starts.start, starts.mend)
    assert starts.told == [True, None, True, None]


async def test_damage_that_is_met_again_after_it_was_mended_ends_the_start() -> None:
    starts = Starts(CorruptedFile("a system topic", MET), CorruptedFile("a system topic", MET), mends=(True, True))
    with pytest.raises(CorruptedFile, match="a system topic"):
        await start_mended(starts.start, starts.mend)
    assert starts.told == [True, MET, True]


class Controllers:
    """What each address answers."""

    def __init__(self, answers: dict[str, bytes | Exception]) -> None:
        self.answers = answers

    async def call(self, address: str, *_: object, **__: object) -> object:
        answer = self.answers[address]
        if isinstance(answer, Exception):
            raise answer
        return type("Answer", (), {"body": answer})()


def told(*replicas: dict[str, Any]) -> bytes:
    return orjson.dumps({"groups": [{"clusterName": "c", "brokerName": "b", "replicas": list(replicas)}]})


async def test_the_living_are_asked_for_at_whichever_controller_knows() -> None:
    controllers = Controllers(
        {
            "c1": ConnectionLost("no"),
            "c2": RequestError(1, "not now"),
            "c3": b"{",
            "c4": told({"brokerId": 2, "address": "x:1", "alive": None}),
            "c5": told(
                {"brokerId": 1, "address": "me:1", "alive": True},
                {"brokerId": 2, "address": "x:1", "alive": True},
                {"brokerId": 3, "address": "y:1", "alive": False},
                {"brokerId": 4, "address": "z:1", "alive": True},
            ),
        }
    )
    client = cast(RemotingClient, controllers)
    assert await living_peers(client, ["c1", "c2", "c3", "c4", "c5"], "b", "me:1") == ["x:1", "z:1"]
    assert await living_peers(client, ["c5"], "other", "me:1") == []
    assert await living_peers(client, ["c1", "c4"], "b", "me:1") == []
