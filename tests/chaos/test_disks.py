"""What the scenarios about disks do to files: one bit, where it must be noticed, on a minority of copies; and calls that fail."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from brokerd.store.index.layout import HEADER, IndexShape
from brokerd.store.queues.unit_checks import BLOCK_UNITS, Check, encode
from brokerd.store.unit import UNIT, UNIT_BYTES
from remoting.record.checksum import reserve, seal
from remoting.record.codec import encode_filler, encode_record
from remoting.record.hosts import pack_host
from remoting.record.properties import encode_properties
from tests.chaos import diskfault, plan
from tests.chaos.places import covered_blocks, is_mine, items, records, units
from tests.chaos.plan import DiskRule
from tests.chaos.rot import Rot
from tests.chaos.shim import together
from tests.support.cluster import comes_true

SEGMENT = 16_384
SHIMS_MISSING = diskfault.why_not()


def test_of_every_record_one_broker_may_have_a_damaged_copy() -> None:
    owners = [[number for number in range(3) if is_mine(offset, number, 3)] for offset in range(0, 1 << 20, 77)]
    assert all(len(each) == 1 for each in owners)
    assert set(Counter(owner for (owner,) in owners)) == {0, 1, 2}
    assert all(is_mine(offset, 0, 1) for offset in range(0, 1 << 20, 77)), "one that stands alone owns all"


def a_record(offset: int, number: int, *, has_checksum: bool) -> bytes:
    properties = encode_properties({"KEYS": "k"})
    record = encode_record(
        topic=b"Orders",
        queue_id=0,
        queue_offset=number,
        physical_offset=offset,
        body=b"b" * (100 + number % 50),
        properties=reserve(properties) if has_checksum else properties,
        born_timestamp_ms=1,
        born_host=pack_host("127.0.0.1", 1),
        store_timestamp_ms=2,
        store_host=pack_host("127.0.0.1", 2),
    )
    return seal(record) if has_checksum else record


def a_file(start: int) -> tuple[bytes, list[int]]:
    """A file of the log whose every third record has no checksum, with a filler; and where the others are."""
    content, places, number = b"", [], 0
    while len(content) < SEGMENT - 1000:
        has_checksum = number % 3 > 0
        if has_checksum:
            places.append(len(content))
        content += a_record(start + len(content), number, has_checksum=has_checksum)
        number += 1
    return content + encode_filler(SEGMENT - len(content)), places


def test_only_records_with_a_checksum_are_changed() -> None:
    content, places = a_file(SEGMENT)
    found = records(content, SEGMENT, SEGMENT)
    assert len(places) > 40
    assert [at for at, _ in found] == places[: len(found)]
    assert len(found) >= len(places) - 1, "all but perhaps the one before the filler"
    assert records(bytes(SEGMENT), 0, SEGMENT) == []


def test_units_and_their_checks_and_items_of_the_index() -> None:
    content = b"".join(UNIT.pack(1000 * n, 100, 7) for n in range(5)) + bytes(10 * UNIT_BYTES)
    assert [at for at, _ in units(content, 3000)] == [0, UNIT_BYTES, 2 * UNIT_BYTES]
    checks = encode([Check(BLOCK_UNITS, 1), Check(BLOCK_UNITS, 2), Check(5, 3)])
    assert [at for at, _ in covered_blocks(checks + bytes(80))] == [0, 8], "a block that is not full is written again"
    shape = IndexShape(10, 20)
    header = HEADER.pack(1, 2, 3, 4, 2, 3)
    assert [at for at, _ in items(header + bytes(1000), shape)] == [shape.item_at(1), shape.item_at(2)]


def test_a_bit_changes_and_nothing_else(tmp_path: Path) -> None:
    for start in (0, SEGMENT):
        path = tmp_path / "commitlog" / f"{start:020d}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(a_file(start)[0])
    sound = {path: path.read_bytes() for path in (tmp_path / "commitlog").iterdir()}
    rot = Rot(tmp_path, random.Random(1), SEGMENT, (0, 1))
    changes = [rot.change(plan.LOG, SEGMENT + 2000) for _ in range(20)]
    found = [each for each in changes if each is not None]
    assert len(found) == len(changes)
    for path, content in sound.items():
        now = path.read_bytes()
        differing = {at for at, (one, other) in enumerate(zip(content, now, strict=True)) if one != other}
        assert differing == {each.position for each in found if each.path == path}
    for each in found:
        assert (each.right ^ each.wrong).bit_count() == 1
        assert int(each.path.name) + each.position < SEGMENT + 2000
        assert each.is_there
        assert not each.is_repaired
    for path, content in sound.items():
        path.write_bytes(content)
    assert all(each.is_repaired for each in found)


def test_there_may_be_nothing_to_change(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    rot = Rot(tmp_path, random.Random(1), SEGMENT, (0, 1))
    kinds = {*plan.OF_A_STOPPED_BROKER, *plan.OF_A_RUNNING_BROKER, plan.EPOCHS}
    assert {kind: rot.change(kind, 1 << 30) for kind in kinds} == dict.fromkeys(kinds)


def test_a_checkpoint_and_a_raft_log_rot_anywhere(tmp_path: Path) -> None:
    (tmp_path / "raft").mkdir()
    (tmp_path / "raft" / "log-00000001").write_bytes(b"older")
    newest = tmp_path / "raft" / "log-00000002"
    newest.write_bytes(bytes(500))
    (tmp_path / "checkpoint").write_bytes(bytes(4096))
    rot = Rot(tmp_path, random.Random(1), SEGMENT, (0, 1))
    for kind, path, size in ((plan.RAFT, newest, 500), (plan.CHECKPOINT, tmp_path / "checkpoint", 68)):
        for _ in range(5):
            change = rot.change(kind, 0)
            assert change is not None
            assert (change.path, change.position < size) == (path, True)


def test_several_shims_are_loaded_together() -> None:
    assert together([]) == {}
    assert together([{"LD_PRELOAD": "a", "A": "1"}, {"LD_PRELOAD": "b", "B": "2"}]) == {
        **{"LD_PRELOAD": "a:b", "A": "1", "B": "2"}
    }


@pytest.mark.skipif(SHIMS_MISSING is not None, reason=str(SHIMS_MISSING))
@pytest.mark.parametrize(
    ("rule", "says", "hits"),
    [
        (DiskRule("/log/", ("read",), "EIO"), "EIO wrote synced grew", 1),
        (DiskRule("/log/", ("write",), "ENOSPC"), "read ENOSPC synced grew", 1),
        (DiskRule("/log/", ("sync",), "EIO"), "read wrote EIO grew", 1),
        (DiskRule("/log/", ("grow",), "ENOSPC"), "read wrote synced ENOSPC", 1),
        (DiskRule("/log/", ("read", "write")), "short short synced grew", 2),
        (DiskRule("/log/", ("read", "write"), every=2), "read short synced grew", 1),
        (DiskRule("/other/", ("read", "write", "sync", "grow"), "EIO"), "read wrote synced grew", 0),
        (None, "read wrote synced grew", 0),
    ],
    ids=str,
)
def test_chosen_calls_on_chosen_files_fail(tmp_path: Path, rule: DiskRule | None, says: str, hits: int) -> None:
    program = """
import errno, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
def tried(what, call, wanted):
    try:
        return what if call() == wanted else "short"
    except OSError as error:
        return errno.errorcode[error.errno]
print(
    tried("read", lambda: len(os.pread(fd, 8, 0)), 8),
    tried("wrote", lambda: os.pwritev(fd, [b"1234", b"5678"], 0), 8),
    tried("synced", lambda: os.fdatasync(fd), None),
    tried("grew", lambda: os.ftruncate(fd, 9), None),
)
"""
    (tmp_path / "log").mkdir()
    path = tmp_path / "log" / "file"
    path.write_bytes(b"01234567")
    fault = diskfault.DiskFault(tmp_path, "b0")
    if rule is not None:
        fault.fail(rule)
    command = [sys.executable, "-c", program, str(path)]
    done = subprocess.run(command, env=fault.environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == says.split()
    assert fault.hits == hits
    fault.obey()
    done = subprocess.run(command, env=fault.environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["read", "wrote", "synced", "grew"]


@pytest.mark.skipif(SHIMS_MISSING is not None, reason=str(SHIMS_MISSING))
def test_calls_wait_until_the_disk_obeys_again(tmp_path: Path) -> None:
    program = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
os.pwrite(fd, b"x", 0)
print("wrote", flush=True)
os.fdatasync(fd)
print("synced", flush=True)
"""
    path = tmp_path / "file"
    path.touch()
    fault = diskfault.DiskFault(tmp_path, "b0")
    fault.fail(DiskRule("/", ("sync",), stands=True))
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, env=fault.environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "wrote\n"
        assert comes_true(lambda: fault.hits == 1, 30)
        assert process.poll() is None
        fault.obey()
        assert process.stdout.read() == "synced\n"
    assert process.returncode == 0
