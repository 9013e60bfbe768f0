"""The files of a Raft node: crashes at every write keep what was promised, damage is found, foreign directories are refused."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from controllerd.raft.codec import encode_configuration
from controllerd.raft.core import Compaction
from controllerd.raft.log import LostLog
from controllerd.raft.log_file import RaftLogFile, Recovered, WriteRefused
from controllerd.raft.messages import Entry, EntryKind, HardState, Persist, Snapshot
from controllerd.raft.quorum import Configuration
from remoting.disk import Disk, LocalDisk
from remoting.errors import CorruptedFile, SettingsError, StorageError
from tests.support.disks import FaultyDisk, MemoryDisk, PowerLost

VOTERS = ("n0", "n1", "n2")
MEMBERS = Configuration.of(VOTERS)


def entry(index: int, term: int) -> Entry:
    return Entry(index, term, f"{term}.{index}".encode() * 20)


def write(*entries: Entry, term: int, vote: str | None = None, commit: int = 0) -> Persist:
    return Persist(HardState(term, vote, commit), None, entries)


def opened(disk: Disk, node: str = "n0") -> tuple[RaftLogFile, Recovered]:
    file = RaftLogFile(disk, "group", node, VOTERS)
    return file, file.open()


def held(recovered: Recovered) -> tuple[Entry, ...]:
    log = recovered.log
    return log.slice(log.first_index, log.last_index + 1, 1 << 30)


def test_everything_comes_back(tmp_path: Path) -> None:
    disk = LocalDisk(tmp_path / "data")
    file, recovered = opened(disk)
    assert recovered.hard_state == HardState()
    file.persist(write(term=1, vote="n2"))
    file.persist(write(entry(1, 1), entry(2, 1), term=1, vote="n2", commit=1))
    file.persist(write(entry(2, 2), entry(3, 2), term=2))
    file.close()
    _, recovered = opened(disk)
    assert recovered.hard_state == HardState(2, None, 0)
    assert held(recovered) == (entry(1, 1), entry(2, 2), entry(3, 2))


def test_compaction_and_writes_behind_it(tmp_path: Path) -> None:
    disk = LocalDisk(tmp_path / "data")
    file, _ = opened(disk)
    file.persist(write(*(entry(index, 1) for index in range(1, 8)), term=1, commit=6))
    before = file.size_bytes
    snapshot = Snapshot(6, 1, MEMBERS, b"state at six")
    file.compact(Compaction(snapshot, HardState(1, "n1", 6), 5, 1, (entry(6, 1), entry(7, 1))))
    assert file.size_bytes < before
    file.persist(write(entry(8, 1), term=1, commit=7))
    file.close()
    _, recovered = opened(disk)
    assert recovered.log.snapshot == snapshot
    assert recovered.log.applied == 6
    assert recovered.log.committed == 7
    assert held(recovered) == (entry(6, 1), entry(7, 1), entry(8, 1))
    assert [name for name in disk.names("raft") if name.startswith("log")] == ["log-00000003"]


def test_a_received_snapshot_replaces_the_log() -> None:
    disk = MemoryDisk()
    file, _ = opened(disk)
    file.persist(write(entry(1, 1), entry(2, 1), term=1))
    snapshot = Snapshot(9, 3, MEMBERS, b"state at nine")
    file.persist(Persist(HardState(4, None, 9), snapshot, (entry(10, 4),)))
    _, recovered = opened(disk)
    assert recovered.log.snapshot == snapshot
    assert recovered.hard_state == HardState(4, None, 9)
    assert held(recovered) == (entry(10, 4),)


_HISTORY = [
    write(term=1, vote="n0"),
    write(entry(1, 1), entry(2, 1), term=1, vote="n0"),
    write(entry(2, 2), term=2, vote="n1", commit=1),
    Compaction(Snapshot(1, 1, MEMBERS, b"one"), HardState(2, "n1", 1), 1, 1, (entry(2, 2),)),
    write(entry(3, 3), entry(4, 3), term=3, commit=2),
    Persist(HardState(5, None, 9), Snapshot(9, 4, MEMBERS, b"nine"), (entry(10, 5),)),
    write(entry(11, 5), term=5, commit=10),
    Compaction(Snapshot(10, 5, MEMBERS, b"ten"), HardState(6, "n2", 10), 10, 5, (entry(11, 5),)),
]


def _replay(file: RaftLogFile, step: Persist | Compaction) -> None:
    file.persist(step) if isinstance(step, Persist) else file.compact(step)


def _known(recovered: Recovered) -> tuple[HardState, int, tuple[Entry, ...]]:
    # The commit index may be older than the last one known; everything else is as it was.
    state = HardState(recovered.hard_state.term, recovered.hard_state.vote)
    return state, recovered.log.snapshot.index if recovered.log.snapshot else 0, held(recovered)


def _state_after(count: int) -> tuple[HardState, int, tuple[Entry, ...]]:
    disk = MemoryDisk()
    file, _ = opened(disk)
    for step in _HISTORY[:count]:
        _replay(file, step)
    return _known(opened(disk)[1])


def test_power_loss_at_every_sync_keeps_what_was_written() -> None:
    states = [_state_after(count) for count in range(len(_HISTORY) + 1)]
    crashes = 0
    for seed in range(40):
        for sync_point in range(1, 40):
            crashes += _crash_at(sync_point, seed, states)
    assert crashes > 500


def _crash_at(sync_point: int, seed: int, states: list[tuple[HardState, int, tuple[Entry, ...]]]) -> bool:
    disk = FaultyDisk(random.Random(seed))
    disk.lose_power_at(sync_point)
    done = 0
    try:
        file, _ = opened(disk)
        for step in _HISTORY:
            _replay(file, step)
            done += 1
    except PowerLost:
        pass
    else:
        return False
    disk.crash()
    file, recovered = opened(disk)
    known = _known(recovered)
    if known not in states[done : done + 2]:
        # Half of a step that takes several writes (term first, then snapshot, then log): what was promised before it is there.
        state, snapshot_index, entries = known
        before, after = states[done], states[min(done + 1, len(states) - 1)]
        assert snapshot_index in (before[1], after[1])
        assert state in (before[0], after[0])
        assert snapshot_index == after[1] or entries == before[2]
        assert set(entries) <= set(before[2]) | set(after[2])
        assert not entries or entries[-1] in (before[2][-1], after[2][-1])
    file.persist(write(entry(recovered.log.last_index + 1, 9), term=9))
    assert opened(disk)[1].hard_state.term == 9
    return True


def test_a_received_snapshot_decides_nothing_about_the_log_that_it_replaces() -> None:
    """The entries here are of a leader that lost; a snapshot up to a later index must not make them look decided."""
    crashes = 0
    for sync_point in range(1, 12):
        for seed in range(8):
            disk = FaultyDisk(random.Random(seed))
            file, _ = opened(disk)
            file.persist(write(*(entry(index, 1) for index in range(1, 8)), term=1, commit=2))
            disk.lose_power_at(sync_point)
            try:
                file.persist(Persist(HardState(3, None, 5), Snapshot(5, 3, MEMBERS, b"five"), ()))
            except PowerLost:
                crashes += 1
                disk.crash()
                _, recovered = opened(disk)
                if recovered.log.snapshot is None:
                    assert (recovered.log.committed, recovered.hard_state.term) in ((2, 1), (2, 3))
                else:
                    assert (recovered.log.committed, held(recovered)) == (5, ())
    assert crashes > 15


def test_a_torn_last_write_is_dropped_and_overwritten() -> None:
    disk = MemoryDisk()
    file, _ = opened(disk)
    file.persist(write(entry(1, 1), term=1))
    file.persist(write(entry(2, 1), term=1))
    disk.open("raft/log-00000001").truncate(file.size_bytes - 7)
    disk.remove("raft/seal")  # which a loss of power may leave older than the log, or take away
    file, recovered = opened(disk)
    assert held(recovered) == (entry(1, 1),)
    file.persist(write(entry(2, 2), term=2))
    assert held(opened(disk)[1]) == (entry(1, 1), entry(2, 2))


def test_a_hole_in_the_middle_is_refused() -> None:
    disk = FaultyDisk(random.Random(1))
    file, _ = opened(disk)
    position = file.size_bytes
    file.persist(write(entry(1, 1), term=1))
    file.persist(write(entry(2, 1), term=1))
    disk.flip_bit("raft/log-00000001", position + 60, 3)
    with pytest.raises(LostLog, match="it was durable"):
        opened(disk)
    disk.remove("raft/seal")
    with pytest.raises(LostLog, match="before a whole record"):
        opened(disk)


@pytest.mark.parametrize("position", [0, 5, 13, 30])
def test_a_damaged_header_or_snapshot_is_refused(position: int) -> None:
    disk = FaultyDisk(random.Random(1))
    file, _ = opened(disk)
    file.persist(write(entry(1, 1), term=1, commit=1))
    file.compact(Compaction(Snapshot(1, 1, MEMBERS, b"state"), HardState(1, None, 1), 1, 1, ()))
    disk.flip_bit("raft/snapshot", position, 0)
    with pytest.raises(CorruptedFile, match="checksum"):
        opened(disk)
    disk.flip_bit("raft/snapshot", position, 0)
    disk.flip_bit("raft/log-00000002", position, 0)
    with pytest.raises(CorruptedFile):
        opened(disk)


def test_a_missing_snapshot_is_refused() -> None:
    disk = MemoryDisk()
    file, _ = opened(disk)
    file.persist(write(entry(1, 1), term=1, commit=1))
    file.compact(Compaction(Snapshot(1, 1, MEMBERS, b"state"), HardState(1, None, 1), 1, 1, ()))
    disk.remove("raft/snapshot")
    with pytest.raises(CorruptedFile, match="no snapshot"):
        opened(disk)


def test_the_directory_of_another_node_is_refused() -> None:
    disk = MemoryDisk()
    opened(disk, "n0")
    with pytest.raises(SettingsError, match="belongs to controller 'n0'"):
        opened(disk, "n1")
    with pytest.raises(SettingsError, match="group 'group'"):
        RaftLogFile(disk, "other", "n0", VOTERS).open()
    with pytest.raises(SettingsError, match="was made of n0, n1, n2 and is now said to be n0, n9"):
        RaftLogFile(disk, "group", "n0", ("n9", "n0")).open()


def test_a_missing_identity_is_refused() -> None:
    disk = MemoryDisk()
    opened(disk)
    disk.remove("raft/identity")
    with pytest.raises(CorruptedFile, match="identity is missing"):
        opened(disk)


def test_a_failed_sync_stops_the_node_and_what_it_left_readable_is_durable_before_it_counts() -> None:
    """Linux forgets that pages are dirty when their write fails: they can be read, and are gone after a power loss."""
    disk = FaultyDisk(random.Random(1))
    file, _ = opened(disk)
    disk.fail_sync_at(1)
    with pytest.raises(StorageError) as failure:
        file.persist(write(entry(1, 1), term=1, vote="n2"))
    assert not isinstance(failure.value, WriteRefused), "a failed sync is never tried again"
    disk.kill()
    _, recovered = opened(disk)
    assert held(recovered) == (entry(1, 1),), "this test is about what is still readable"
    disk.crash()
    _, after = opened(disk)
    assert (after.hard_state, held(after)) == (recovered.hard_state, held(recovered))
    assert disk.counters.sync_errors == 1


@pytest.mark.parametrize("fault", ["EIO", "ENOSPC"])
def test_a_refused_write_leaves_nothing_behind_and_may_be_tried_again(fault: str) -> None:
    refused = 0
    for seed in range(30):
        disk = FaultyDisk(random.Random(seed))
        file, _ = opened(disk)
        file.persist(write(entry(1, 1), term=1))
        for attempt in (write(entry(2, 1), entry(3, 1), term=1), write(entry(2, 2), term=2)):
            if fault == "EIO":
                disk.fail_write_at(1)
            else:
                disk.capacity_bytes = disk.used_bytes + seed
            with pytest.raises(WriteRefused, match="raft/log-"):
                file.persist(attempt)
            refused += 1
            disk.capacity_bytes = 1 << 40
        file.persist(write(entry(2, 3), term=3))
        disk.crash() if seed % 2 else disk.kill()
        _, recovered = opened(disk)
        assert held(recovered) == (entry(1, 1), entry(2, 3))
        assert disk.counters.write_errors + disk.counters.no_space_errors == 2
    assert refused == 60


@pytest.mark.parametrize("step", [step for step in _HISTORY if isinstance(step, Compaction) or step.snapshot])
def test_a_refused_replacement_leaves_the_log_as_it_was(step: Persist | Compaction) -> None:
    """At each of the files that a compaction or a received snapshot puts in place; the node goes on, or starts anew."""
    place = _HISTORY.index(step)
    for failing in (1, 2):
        for goes_on in (True, False):
            disk = _RefusingDisk(random.Random(1))
            file, _ = opened(disk)
            for earlier in _HISTORY[:place]:
                _replay(file, earlier)
            disk.refuse_replacement_at(failing)
            with pytest.raises(WriteRefused):
                _replay(file, step)
            assert disk.refused == 1
            if goes_on:
                for later in _HISTORY[place:]:
                    _replay(file, later)
                assert _known(opened(disk)[1]) == _state_after(len(_HISTORY))
            else:
                disk.crash()
                state, _, entries = _known(opened(disk)[1])
                before, after = _state_after(place), _state_after(place + 1)
                assert state in (before[0], after[0])
                assert entries in (before[2], after[2], ())


class _RefusingDisk(FaultyDisk):
    """Refuses to put one whole file in place."""

    refused = 0
    _countdown = 0

    def refuse_replacement_at(self, count: int) -> None:
        self._countdown = count

    def replace_bytes(self, path: str, content: bytes) -> None:
        self._countdown -= 1
        if self._countdown == 0:
            self.refused += 1
            raise StorageError(f"cannot replace {path}: No space left on device")
        super().replace_bytes(path, content)


def test_the_log_says_who_the_members_are_once_it_does() -> None:
    disk = MemoryDisk()
    file, _ = opened(disk)
    founded = Entry(1, 1, encode_configuration(replace(MEMBERS, cluster="c1")), EntryKind.MEMBERSHIP)
    file.persist(write(founded, term=1, commit=1))
    recovered = RaftLogFile(disk, "group", "n0", ("n0", "n9")).open()
    assert recovered.founders == MEMBERS


def test_a_node_that_joins_knows_of_no_members() -> None:
    disk = MemoryDisk()
    assert RaftLogFile(disk, "group", "n7", ()).open().founders == Configuration()
    assert RaftLogFile(disk, "group", "n7", VOTERS).open().founders == Configuration(), "it was not among the founders"
    disk = MemoryDisk()
    opened(disk)
    with pytest.raises(SettingsError, match="is now said to be a group to join"):
        RaftLogFile(disk, "group", "n0", ()).open()
