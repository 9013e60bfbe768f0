"""A Raft node's files rot, are torn, vanish: what was torn is dropped, and everything else is never forgotten in silence."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

import orjson
import pytest

from controllerd.raft import identity
from controllerd.raft.codec import encode_configuration
from controllerd.raft.core import Compaction
from controllerd.raft.log import LostLog
from controllerd.raft.log_file import RaftLogFile, Recovered
from controllerd.raft.messages import Entry, EntryKind, HardState, Persist, Snapshot
from controllerd.raft.quorum import Configuration
from remoting.errors import CorruptedFile
from remoting.torn_write import SECTOR_BYTES
from tests.support.disks import FaultyDisk, MemoryDisk, PowerLost
from tests.unit.controllerd.raft.former_files import former_log

VOTERS = ("n0", "n1", "n2")
SEAL = "raft/seal"
IDENTITY = "raft/identity"


def entry(index: int, term: int, size: int = 10) -> Entry:
    return Entry(index, term, (f"{term}.{index} " * size).encode())


def write(*entries: Entry, term: int, vote: str | None = None, commit: int = 0) -> Persist:
    return Persist(HardState(term, vote, commit), None, entries)


def opened(disk: MemoryDisk, name: str = "n0", voters: tuple[str, ...] = VOTERS) -> tuple[RaftLogFile, Recovered]:
    file = RaftLogFile(disk, "group", name, voters)
    return file, file.open()


def log_path(disk: MemoryDisk) -> str:
    return next(f"raft/{name}" for name in reversed(disk.names("raft")) if name.startswith("log-"))


def bits(disk: MemoryDisk, path: str, start: int, end: int | None = None) -> Iterator[tuple[int, int]]:
    yield from ((byte, bit) for byte in range(start, end or disk.files[path].seen.size) for bit in range(8))


def with_record(*, term: int = 7, vote: str = "n1", size: int = 10) -> tuple[FaultyDisk, int]:
    """A disk whose log ends in a record of everything that is promised, and where that begins."""
    disk = FaultyDisk(random.Random(1))
    file, _ = opened(disk)
    file.persist(write(entry(1, 1), term=1))
    start = file.size_bytes
    file.persist(write(entry(2, 5, size), entry(3, term, size), term=term, vote=vote))
    return disk, start


@pytest.mark.parametrize("size", [1, 10, 150])
@pytest.mark.parametrize("sealed", [True, False])
def test_no_flipped_bit_of_the_last_record_is_taken_for_a_torn_write(size: int, sealed: bool) -> None:
    """With and without its seal: after a loss of power that may be older, and the record must speak for itself."""
    disk, start = with_record(size=size)
    if not sealed:
        disk.remove(SEAL)
    disk.kill()
    path = log_path(disk)
    for byte, bit in bits(disk, path, start):
        disk.flip_bit(path, byte, bit)
        with pytest.raises(LostLog, match="promise"):
            opened(disk)
        disk.flip_bit(path, byte, bit)
    assert opened(disk)[1].hard_state == HardState(7, "n1", 0)


def test_a_vote_is_a_record_as_well() -> None:
    disk = FaultyDisk(random.Random(1))
    file, _ = opened(disk)
    start = file.size_bytes
    file.persist(write(term=7, vote="n2"))
    disk.remove(SEAL)
    disk.kill()
    path = log_path(disk)
    for byte, bit in bits(disk, path, start):
        disk.flip_bit(path, byte, bit)
        with pytest.raises(LostLog):
            opened(disk)
        disk.flip_bit(path, byte, bit)
    assert opened(disk)[1].hard_state.vote == "n2"


@pytest.mark.parametrize("padding", range(0, SECTOR_BYTES, 37))
def test_every_tear_of_the_last_write_is_dropped_and_the_node_goes_on(padding: int) -> None:
    """Each set of sectors that can be missing, wherever in its sector the record begins."""
    disk = FaultyDisk(random.Random(1))
    file, _ = opened(disk)
    file.persist(Persist(HardState(1, None, 0), None, (Entry(1, 1, b"p" * (1 + padding)),)))
    start, path = file.size_bytes, log_path(disk)
    before = disk.files[path].seen.read(0, start)
    sealed = disk.read_bytes(SEAL)
    file.persist(write(entry(2, 1, 170), term=2, vote="n1"))
    whole = disk.files[path].seen.read(0, 1 << 20)
    edges = sorted({start, *range(-(-start // SECTOR_BYTES) * SECTOR_BYTES, len(whole), SECTOR_BYTES), len(whole)})
    parts = list(itertools.pairwise(edges))
    assert 2 <= len(parts) <= 5
    identity_bytes = disk.read_bytes(IDENTITY)
    assert sealed is not None
    assert identity_bytes is not None
    for kept in range(2 ** len(parts) - 1):
        torn = bytearray(before)
        for number, (begin, end) in enumerate(parts):
            if kept >> number & 1:
                torn.extend(bytes(begin - len(torn)))
                torn[begin:end] = whole[begin:end]
        for longer in (bytes(torn), bytes(torn).ljust(len(whole), b"\0")):
            crashed = MemoryDisk()
            crashed.replace_bytes(path, longer)
            crashed.replace_bytes(SEAL, sealed)
            crashed.replace_bytes(IDENTITY, identity_bytes)
            file, recovered = opened(crashed)
            assert (recovered.hard_state, recovered.log.last_index) == (HardState(1, None, 0), 1)
            file.persist(write(term=3, vote="n2"))
            assert opened(crashed)[1].hard_state.vote == "n2"


def test_what_was_durable_cannot_be_cut_off() -> None:
    """Shorter than its seal, by a whole record or a part of one: nobody tears what was synced."""
    for cut in (1, 30, None):
        disk, start = with_record()
        disk.kill()
        segment = disk.open(log_path(disk))
        segment.truncate(start if cut is None else segment.size_bytes - cut)
        segment.sync()
        with pytest.raises(LostLog, match="it was durable"):
            opened(disk)


def test_a_seal_that_rots_promises_nothing_and_harms_nothing() -> None:
    disk, _ = with_record()
    disk.kill()
    for byte, bit in bits(disk, SEAL, 0):
        disk.flip_bit(SEAL, byte, bit)
        _, recovered = opened(disk)
        assert recovered.hard_state.vote == "n1"


def test_no_flipped_bit_of_the_identity_makes_another_one() -> None:
    disk, _ = with_record()
    disk.kill()
    for byte, bit in bits(disk, IDENTITY, 0):
        disk.flip_bit(IDENTITY, byte, bit)
        with pytest.raises(LostLog, match="raft/identity"):
            opened(disk)
        disk.flip_bit(IDENTITY, byte, bit)
    assert opened(disk)[1].hard_state.vote == "n1"


def test_no_flipped_bit_anywhere_is_forgotten() -> None:
    disk, _ = with_record()
    file, _ = opened(disk)
    snapshot = Snapshot(2, 5, Configuration.of(VOTERS), b"state")
    file.compact(Compaction(snapshot, HardState(7, "n1", 2), 1, 1, (entry(2, 5), entry(3, 7))))
    file.persist(write(entry(4, 8), term=8, vote="n2", commit=3))
    disk.kill()
    for path in (log_path(disk), "raft/snapshot"):
        for byte, bit in bits(disk, path, 0):
            disk.flip_bit(path, byte, bit)
            with pytest.raises(LostLog):
                opened(disk)
            disk.flip_bit(path, byte, bit)
    assert opened(disk)[1].hard_state == HardState(8, "n2", 3)


def _without_log(disk: MemoryDisk) -> None:
    disk.remove(log_path(disk))


def _without_snapshot(disk: MemoryDisk) -> None:
    file, recovered = opened(disk)
    file.compact(Compaction(Snapshot(1, 1, Configuration.of(VOTERS), b"s"), recovered.hard_state, 1, 1, ()))
    disk.remove("raft/snapshot")


def _without_log_and_seal(disk: MemoryDisk) -> None:
    disk.remove(log_path(disk))
    disk.remove(SEAL)


def _with_an_older_log(disk: MemoryDisk) -> None:
    older = disk.read_bytes(log_path(disk))
    assert older is not None
    path = log_path(disk)
    opened(disk)[0].persist(write(term=9, vote="n2"))
    disk.remove(log_path(disk))
    disk.replace_bytes(path, older)


@pytest.mark.parametrize("lose", [_without_log, _without_snapshot, _without_log_and_seal, _with_an_older_log])
def test_files_that_vanish_are_missed(lose: Callable[[MemoryDisk], None]) -> None:
    disk, _ = with_record()
    lose(disk)
    disk.kill()
    with pytest.raises(LostLog):
        opened(disk)


def test_who_lost_its_log_comes_back_as_another_incarnation_and_as_no_other() -> None:
    disk, _ = with_record()
    _without_log(disk)
    file = RaftLogFile(disk, "group", "n0", VOTERS)
    with pytest.raises(LostLog, match="the raft log is missing") as lost:
        file.open()
    asked = file.renounce(str(lost.value))
    assert asked.next_id.startswith("n0~")
    disk.crash()
    with pytest.raises(LostLog, match="the raft log is missing"):
        RaftLogFile(disk, "group", "n0", VOTERS).open()
    file = RaftLogFile(disk, "group", "n0", VOTERS)
    assert file.renounce("again").next_id == asked.next_id, "whoever asks again asks for the same"
    file.begin_anew()
    disk.crash()
    file, recovered = opened(disk)
    assert recovered.identity.node_id == asked.next_id
    assert (recovered.hard_state, recovered.log.last_index, recovered.founders) == (HardState(), 0, Configuration())
    file.persist(write(entry(1, 4), term=4))
    disk.crash()
    assert opened(disk)[1].log.last_index == 1
    disk.remove(IDENTITY)
    with pytest.raises(CorruptedFile, match="restore it"):
        opened(disk)


def test_power_that_fails_while_it_begins_anew_changes_nothing() -> None:
    for sync_point in range(1, 9):
        for seed in range(4):
            disk, _ = with_record()
            disk = _twin(disk, seed)
            _without_log(disk)
            file = RaftLogFile(disk, "group", "n0", VOTERS)
            next_id = file.renounce("lost").next_id
            disk.lose_power_at(sync_point)
            try:
                file.begin_anew()
                file.open()
            except PowerLost:
                disk.crash()
            else:
                disk.crash()
            try:
                _, recovered = opened(disk)
            except LostLog:
                assert identity.read(disk).next_id == next_id
            else:
                assert (recovered.identity.node_id, recovered.log.last_index) == (next_id, 0)


def _twin(disk: FaultyDisk, seed: int) -> FaultyDisk:
    twin = FaultyDisk(random.Random(seed))
    for path, file in disk.files.items():
        twin.replace_bytes(path, file.seen.read(0, file.seen.size))
    return twin


def test_damaged_files_still_tell_whom_to_ask() -> None:
    disk = FaultyDisk(random.Random(1))
    file, _ = opened(disk)
    members = Configuration(VOTERS, cluster="c", addresses=(("n0", "a:1"), ("n1", "b:1"), ("n2", "c:1")))
    file.persist(write(Entry(1, 1, encode_configuration(members), EntryKind.MEMBERSHIP), term=1))
    start = file.size_bytes
    file.persist(write(entry(2, 1), term=1))
    disk.flip_bit(log_path(disk), start + 40, 1)
    assert file.readable_members() == {"n0": "a:1", "n1": "b:1", "n2": "c:1"}


def test_a_directory_of_the_release_before_is_opened_and_upgraded() -> None:
    """Its identity has three fields and no checksum, its records have no checksum of their header, and nothing is sealed."""
    disk = FaultyDisk(random.Random(1))
    disk.replace_bytes(IDENTITY, orjson.dumps({"group": "group", "node": "n0", "voters": list(VOTERS)}))
    whole = former_log(write(entry(1, 1), term=1), write(entry(2, 2), term=2, vote="n1"))
    disk.replace_bytes("raft/log-00000004", whole)
    _, recovered = opened(disk)
    assert (recovered.hard_state, recovered.log.last_index) == (HardState(2, "n1", 0), 2)
    assert (
        disk.read_bytes(
            "raft/log-00000005",
        )[:4]
        == b"LBR2"
    )
    assert opened(disk)[1].hard_state == HardState(2, "n1", 0)

    torn = FaultyDisk(random.Random(1))
    torn.replace_bytes(IDENTITY, orjson.dumps({"group": "group", "node": "n0", "voters": list(VOTERS)}))
    torn.replace_bytes("raft/log-00000004", whole[:-3])
    assert opened(torn)[1].hard_state == HardState(1, None, 0)

    rotten = FaultyDisk(random.Random(1))
    rotten.replace_bytes(IDENTITY, orjson.dumps({"group": "group", "node": "n0", "voters": list(VOTERS)}))
    rotten.replace_bytes("raft/log-00000004", whole)
    rotten.flip_bit("raft/log-00000004", len(whole) - 3, 0)
    with pytest.raises(LostLog):
        opened(rotten)
