"""The Raft examples in docs/ON_DISK.md are the bytes that the code reads and writes."""

from __future__ import annotations

from controllerd.raft.codec import encode_configuration
from controllerd.raft.core import Compaction
from controllerd.raft.log_file import RaftLogFile
from controllerd.raft.messages import Entry, EntryKind, HardState, Persist, Snapshot
from controllerd.raft.quorum import Configuration
from controllerd.records.decision import Decision
from controllerd.records.entry import encode_entry
from controllerd.state.features import LevelRaised
from controllerd.state.machine import ControllerMachine
from controllerd.state.subjects import FEATURES
from tests.support.disks import MemoryDisk
from tests.unit.brokerd.store.test_on_disk import examples
from tests.unit.controllerd.records.newer import NEWER

MEMBERS = Configuration(
    ("n0", "n1"), learners=("n2",), addresses=(("n2", "127.0.0.1:9878"),), retired=("n3",), cluster="c0ffee"
)
RAISED = encode_entry(FEATURES, Decision((LevelRaised(2),)), 1)


def machine() -> ControllerMachine:
    """Of a version that reads level 2."""
    newer = ControllerMachine(subjects=NEWER)
    newer.apply(RAISED)
    return newer


ENTRIES = (
    Entry(1, 1, b"", EntryKind.EMPTY),
    Entry(2, 1, encode_configuration(MEMBERS), EntryKind.MEMBERSHIP),
    Entry(3, 1, RAISED),
)
SNAPSHOT = Snapshot(3, 1, MEMBERS, machine().snapshot())
IDENTITY = (
    b'{"group":"logboom","node":"n0","voters":["n0","n1"],"incarnation":"","begun":true,"next":"","reason":"",'
    b'"lives":["76d1d5e6"],"check":1932253062}'
)
SEAL = bytes.fromhex("4c42525300000000000000010000000000000142ce6209e1")


def opened(disk: MemoryDisk) -> RaftLogFile:
    file = RaftLogFile(disk, "logboom", "n0", ("n0", "n1"), lambda: "76d1d5e6")
    file.open()
    return file


def test_what_is_written() -> None:
    disk = MemoryDisk()
    file = opened(disk)
    assert disk.read_bytes("raft/identity") == IDENTITY
    file.persist(Persist(HardState(1, "n0", 0), None, ENTRIES))
    assert disk.read_bytes("raft/log-00000001") == examples()["raft log"]
    assert disk.read_bytes("raft/seal") == SEAL
    file.compact(Compaction(SNAPSHOT, HardState(1, "n0", 3), 3, 1, ()))
    assert disk.read_bytes("raft/snapshot") == examples()["raft snapshot"]
    assert disk.names("raft") == ["identity", "log-00000002", "seal", "snapshot"]


def test_what_is_read() -> None:
    disk = MemoryDisk()
    disk.replace_bytes("raft/identity", IDENTITY)
    disk.replace_bytes("raft/log-00000001", examples()["raft log"])
    recovered = RaftLogFile(disk, "logboom", "n0", ("n0", "n1")).open()
    assert recovered.log.slice(1, 4, 1 << 20) == ENTRIES
    assert (recovered.hard_state, recovered.founders) == (HardState(1, "n0", 0), Configuration.of(("n0", "n1")))
    disk.replace_bytes("raft/snapshot", examples()["raft snapshot"])
    assert RaftLogFile(disk, "logboom", "n0", ("n0", "n1")).open().log.snapshot == SNAPSHOT
