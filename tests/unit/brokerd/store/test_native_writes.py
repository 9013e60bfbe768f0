"""Units of many queues that C writes are in files as Python writes them, with what covers them."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from brokerd.native.library import Library
from brokerd.store.queues.consume_queue import QueueFiles
from brokerd.store.queues.consume_queues import ConsumeQueues
from brokerd.store.queues.native_writes import NativeWrites, UnitsOf
from brokerd.store.queues.unit_checks import Check
from brokerd.store.settings import StoreSettings
from brokerd.store.unit import UNIT, UNIT_BYTES
from remoting.checksum import crc32
from remoting.disk import LocalDisk
from remoting.errors import StorageError
from tests.chaos.diskfault import DiskFault, why_not
from tests.chaos.plan import DiskRule
from tests.chaos.shim import together
from tests.support.disks import FaultyDisk
from tests.support.native_library import native_library

FILE_UNITS = 300  # not a multiple of a block's
ROOT = Path(__file__).resolve().parents[4]
SHIMS_MISSING = why_not()


@pytest.fixture
def library() -> Library:
    return native_library()


def files_in(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("0*") if path.is_file()}


def made(root: Path) -> tuple[LocalDisk, QueueFiles]:
    disk = LocalDisk(root)
    return disk, QueueFiles(disk, FILE_UNITS, 100)


@pytest.mark.parametrize("seed", range(8))
def test_both_write_the_same(tmp_path: Path, library: Library, seed: int) -> None:
    """From any unit on, in order, again and over one another, also on into the next file and with a damaged check before."""
    (disk, native_files), (other, twin) = made(tmp_path / "native"), made(tmp_path / "twin")
    native, random = NativeWrites(library, disk, native_files), Random(seed)
    ends = [random.choice((0, 5, 127, 128, 290)) for _ in range(5)]
    for turn in range(8):
        several = []
        for queue in range(5):
            first = max(0, ends[queue] - random.choice((0, 0, 0, 3)))
            count = random.choice((1, 2, 127, 128, 129, 260))
            several.append(UnitsOf(f"consumequeue/T/{queue}", first, random.randbytes(count * UNIT_BYTES)))
            ends[queue] = first + count
        if turn == 4:
            for each in sorted((tmp_path).rglob("queueChecks/T/0/*")):
                each.write_bytes(bytes([each.read_bytes()[0] ^ 1]) + each.read_bytes()[1:])
        native.write(several)
        for directory, first, units in several:
            twin.write(directory, first, units)
        assert files_in(tmp_path / "native") == files_in(tmp_path / "twin")
    native_files.close()
    twin.close()
    disk.close()
    other.close()


def test_a_short_file_and_missing_checks_are_left_to_python(tmp_path: Path, library: Library) -> None:
    (disk, native_files), (other, twin) = made(tmp_path / "native"), made(tmp_path / "twin")
    native = NativeWrites(library, disk, native_files)

    def write(first: int) -> None:
        part = UnitsOf("consumequeue/T/0", first, bytes(range(UNIT_BYTES)))
        native.write([part])
        twin.write(*part)
        found = files_in(tmp_path / "native")
        assert found == files_in(tmp_path / "twin")
        assert {len(content) for content in found.values()} == {FILE_UNITS * UNIT_BYTES, 3 * 8}

    write(0)
    for first, harm in enumerate((lambda path: os.truncate(path, UNIT_BYTES), Path.unlink), 1):
        for path in tmp_path.rglob("consumequeue/T/0/0*" if first == 1 else "queueChecks/T/0/0*"):
            harm(path)
        write(first)
    native_files.close()
    twin.close()
    disk.close()
    other.close()


def test_what_the_disk_refuses_is_said_with_its_reason(tmp_path: Path, library: Library) -> None:
    """No file may grow beyond a limit of the process, which is like a disk that refuses."""
    disk = LocalDisk(tmp_path)
    files = QueueFiles(disk, FILE_UNITS, 100)
    native = NativeWrites(library, disk, files)
    native.write([UnitsOf("consumequeue/T/0", 0, bytes(UNIT_BYTES))])
    handler, limits = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200 * UNIT_BYTES, limits[1]))
        with pytest.raises(StorageError, match=f"cannot write units of .*/0: {os.strerror(errno.EFBIG)}") as raised:
            native.write([UnitsOf("consumequeue/T/0", 250, bytes(UNIT_BYTES))])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert isinstance(raised.value.__cause__, OSError)
    assert raised.value.__cause__.errno == errno.EFBIG
    files.close()
    disk.close()


_UNDER_FAULTS = """
import sys
from pathlib import Path
from brokerd.store.queues.consume_queue import QueueFiles
from brokerd.store.queues.native_writes import NativeWrites, UnitsOf
from remoting.disk import LocalDisk
from remoting.errors import StorageError
from tests.support.native_library import native_library

disk = LocalDisk(Path(sys.argv[1]))
files = QueueFiles(disk, 300, 100)
native = NativeWrites(native_library(), disk, files)
try:
    native.write([UnitsOf(f"consumequeue/T/{n}", 1, bytes([n + 1]) * 20 * 200) for n in range(3)])
except StorageError as error:
    print(error, error.is_out_of_space)
else:
    read = [files.read_checked(f"consumequeue/T/{n}", 1, 200) for n in range(3)]
    print(read == [bytes([n + 1]) * 20 * 200 for n in range(3)], files.checks("consumequeue/T/2", 0, 0, 2))
"""
_COVERED = crc32(bytes([3]) * 20 * 127, crc32(bytes(20))), crc32(bytes([3]) * 20 * 73)


@pytest.mark.skipif(SHIMS_MISSING is not None, reason=str(SHIMS_MISSING))
@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (DiskRule("/consumequeue/T/1/", ("write",), "EIO"), "cannot write units of consumequeue/T/1: {EIO} False"),
        (DiskRule("/consumequeue/T/1/", ("write",), "ENOSPC"), "cannot write units of consumequeue/T/1: {ENOSPC} True"),
        (DiskRule("/consumequeue/T/2/", ("sync",), "EIO"), "cannot write units of consumequeue/T/2: {EIO} False"),
        (DiskRule("/queueChecks/T/0/", ("write",), "EIO"), "cannot write units of consumequeue/T/0: {EIO} False"),
        (DiskRule("/queueChecks/T/0/", ("read",), "EIO"), "cannot write units of consumequeue/T/0: {EIO} False"),
        (DiskRule("/consumequeue/", ("write",)), f"True {[Check(128, _COVERED[0]), Check(73, _COVERED[1])]}"),
        (DiskRule("/queueChecks/", ("read", "write")), f"True {[Check(128, _COVERED[0]), Check(73, _COVERED[1])]}"),
    ],
    ids=str,
)
def test_calls_that_fail_are_said_and_short_ones_go_on(tmp_path: Path, rule: DiskRule, says: str) -> None:
    """The same calls that fail in Python's writes fail in these, so scenarios with failing disks reach them."""
    native_library()
    disk, files = made(tmp_path / "data")
    for n in range(3):
        files.write(f"consumequeue/T/{n}", 0, bytes(UNIT_BYTES))
    files.close()
    disk.close()
    fault = DiskFault(tmp_path, "b0")
    fault.fail(rule)
    command = [sys.executable, "-c", _UNDER_FAULTS, str(tmp_path / "data")]
    preloaded = [{"LD_PRELOAD": os.environ["LD_PRELOAD"]}] if "LD_PRELOAD" in os.environ else []  # of a sanitized build
    environ = os.environ | together([*preloaded, fault.environment])
    done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, check=True)
    wanted = says.format(EIO=os.strerror(errno.EIO), ENOSPC=os.strerror(errno.ENOSPC)) if "{" in says else says
    assert done.stdout.strip() == wanted
    assert fault.hits > 0


def test_paths_that_are_too_long_are_left_to_python(tmp_path: Path, library: Library) -> None:
    """The system has none of these either: what Python says of it is said."""
    disk, files = made(tmp_path)
    with pytest.raises(StorageError, match=os.strerror(errno.ENAMETOOLONG)):
        NativeWrites(library, disk, files).write([UnitsOf(f"consumequeue/{'T/' * 3000}0", 0, bytes(UNIT_BYTES))])
    files.close()
    disk.close()


def test_what_was_read_before_a_write_is_read_again(tmp_path: Path, library: Library) -> None:
    """As when damaged units are written once more: who reads on remembers whole stretches."""
    disk = LocalDisk(tmp_path)
    files = QueueFiles(disk, 3000, 100)
    native, stretch = NativeWrites(library, disk, files), bytes(range(UNIT_BYTES)) * 1024
    files.write("consumequeue/T/0", 0, stretch)
    assert files.read_run("consumequeue/T/0", 0, 1024) == stretch
    native.write([UnitsOf("consumequeue/T/0", 0, stretch[::-1])])
    assert files.read_run("consumequeue/T/0", 0, 128) == stretch[::-1][: 128 * UNIT_BYTES]
    files.close()
    disk.close()


def test_any_other_disk_has_its_own_writes(library: Library) -> None:
    """Those that lose what was not synced, or refuse, see every write."""
    queues = ConsumeQueues(FaultyDisk(Random(1)), StoreSettings(), library=library)
    assert queues.begin_write().native is None
    queues.close()


def test_a_store_writes_many_queues_in_c_which_the_next_start_finds(tmp_path: Path, library: Library) -> None:
    disk = LocalDisk(tmp_path)
    queues = ConsumeQueues(disk, StoreSettings(), library=library)
    for turn in range(3):
        queues.apply([("T", n, turn, 1000 * (200 * turn + n), 100, n, 0, 1) for n in range(200)], {})
        write = queues.begin_write()
        assert write.native is not None
        write.run()
        queues.finish_write(write)
    for n in range(200):
        queue = queues.table[("T", n)]
        units = queue.read_written(0, 3)
        assert units == b"".join(UNIT.pack(1000 * (200 * turn + n), 100, n) for turn in range(3))
        queue.rest()
        assert queue.read_checked(0, 3) == units
        assert not queues.unproven(queue, 0)
    queues.close()
    disk.close()


def test_a_queue_that_was_cut_meanwhile_is_passed_over(tmp_path: Path, library: Library) -> None:
    disk = LocalDisk(tmp_path)
    queues = ConsumeQueues(disk, StoreSettings(), library=library)
    queues.apply([("T", n, 0, 1000 * n, 100, n, 0, 1) for n in range(100)], {})
    write = queues.begin_write()
    queues.truncate(99_000)
    write.run()
    queues.finish_write(write)
    assert not (tmp_path / "consumequeue/T/99").exists()
    assert (tmp_path / "consumequeue/T/98").exists()
    queues.close()
    disk.close()
