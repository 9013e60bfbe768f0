"""Twins of `remoting.disk.Disk`: one in memory, and one that loses power, refuses writes and rots.

`MemoryDisk` is a disk that never fails. `FaultyDisk` keeps two images of every file, what a reader sees and what would survive
a power loss, and the writes between them:

- `crash()` is a power loss: every write and every change of size that no sync covered is kept, dropped or torn at 512-byte
  sectors, each on its own, by the seeded generator; then all open segments are dead and the tree can be opened again.
- `kill()` is the death of the process alone: everything written stays, open segments are dead.
- `lose_power_at(n)` raises `PowerLost` in the n-th sync point from now on. A sync point is a segment's sync, and the creation,
  replacement or removal of a file (durable on return by the seam's contract); it takes effect or not, by chance, and everything
  fails after it until `crash()`.
- `in_the_middle` is asked at each write what another thread does when a part of the bytes has reached the file and the rest has
  not; None = nothing, and the write is one.
- `fail_sync_at(n)` makes the n-th sync fail with EIO as Linux does: what was unsynced stays readable, is lost at the next
  power loss, and a later sync does not save it. `fail_write_at(n)` fails a write with EIO, `capacity_bytes` with ENOSPC,
  both after a part of the bytes reached the file; a small file is then not replaced at all. `flip_bit` rots one bit in both
  images. `spoil_page` makes a page that fails with EIO until it is written whole.

Everything is decided by the generator that the caller passes, in the order of the calls, so one seed is one story. `counters`
says what was injected; a test asserts on it that the faults it is about did happen.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from remoting.disk import Bytes, DiskUsage, Held
from remoting.errors import StorageError

SECTOR_BYTES = 512
PAGE_BYTES = 4096
_ENDLESS_BYTES = 1 << 40

_Change = tuple[int, bytes] | int  # (position, bytes written), or the new size of a truncate


class PowerLost(Exception):
    """The machine stopped at a sync point. Nothing on the disk works until `FaultyDisk.crash()`."""


@dataclass(slots=True)
class Counters:
    """What a disk did and what was done to it."""

    writes: int = 0
    syncs: int = 0
    sync_points: int = 0
    crashes: int = 0
    kills: int = 0
    power_losses: int = 0
    kept: int = 0
    dropped: int = 0
    torn: int = 0
    sync_errors: int = 0
    write_errors: int = 0
    no_space_errors: int = 0
    bit_flips: int = 0


class SparseBytes:
    """A file's content: `size` bytes of which only a written prefix is held in memory; the rest reads as zeros."""

    __slots__ = ("held", "size")

    def __init__(self, size: int = 0) -> None:
        self.held = bytearray()
        self.size = size

    def write(self, position: int, content: Bytes) -> None:
        held, end = self.held, position + len(content)
        if len(held) < position:
            held.extend(bytes(position - len(held)))
        held[position:end] = content
        if end > self.size:
            self.size = end

    def read(self, position: int, length: int) -> bytes:
        if length <= 0:
            return b""
        held, end = self.held, position + length
        if end <= len(held):
            return bytes(held[position:end])
        content = bytes(held[position:])
        return content + bytes(max(0, min(end, self.size) - position - len(content)))

    def resize(self, size: int) -> None:
        del self.held[size:]
        self.size = size

    def copy(self) -> SparseBytes:
        twin = SparseBytes(self.size)
        twin.held = bytearray(self.held)
        return twin


@dataclass(slots=True, eq=False)
class MemoryFile:
    """One file, the same only as itself: what readers see, what is on the platter, and the changes in between, oldest first."""

    seen: SparseBytes
    platter: SparseBytes
    unsynced: list[_Change] = field(default_factory=list)
    generation: int = 0
    modified_ms: int | None = None


class MemorySegment:
    """`FileSegment` over a `MemoryFile`."""

    def __init__(self, disk: MemoryDisk, path: str, file: MemoryFile) -> None:
        self._disk = disk
        self._path = path
        self._file = file
        self._generation = disk.generation
        self._open = True
        self.descriptor = -1

    @property
    def path(self) -> str:
        return self._path

    @property
    def size_bytes(self) -> int:
        return self._file.seen.size

    def write(self, position: int, buffers: Sequence[Bytes]) -> int:
        disk = self._disk
        if not self._open or self._generation != disk.generation or disk.is_off:
            self._check()
        content = b"".join(buffers)
        disk.write_file(self._path, self._file, position, content)
        return len(content)

    def read(self, position: int, length: int) -> bytes:
        disk = self._disk
        if not self._open or self._generation != disk.generation or disk.is_off:
            self._check()
        if disk.bad_pages:
            disk.check_readable(self._path, position, length)
        held, end = self._file.seen.held, position + length
        if end <= len(held) and length > 0:
            return bytes(held[position:end])
        return self._file.seen.read(position, length)

    def map(self) -> MemoryView:
        self._check()
        return MemoryView(self, self._file)

    def hold(self) -> Held:
        raise AssertionError("there is no descriptor")

    def truncate(self, size_bytes: int) -> None:
        self._check()
        self._disk.resize_file(self._file, size_bytes)

    def sync(self) -> None:
        self._check()
        self._disk.sync_file(self._path, self._file)

    def close(self) -> None:
        self._open = False

    def _check(self) -> None:
        disk = self._disk
        assert self._open, f"{self._path} was closed"
        assert self._generation == disk.generation, f"{self._path} was opened before the last crash"
        if disk.is_off:
            disk.check_power()


class MemoryView:
    """`FileView` of a file in memory."""

    def __init__(self, segment: MemorySegment, file: MemoryFile) -> None:
        self._segment = segment
        self._file = file

    def __getitem__(self, part: slice) -> bytes:
        start, stop = part.start, part.stop
        if start is None or stop is None or not 0 <= start <= stop <= self._file.seen.size:
            start, stop, _ = part.indices(self._file.seen.size)
        return self._segment.read(start, stop - start)

    def memory(self) -> memoryview:
        self._segment.read(0, 0)  # refuses as every read of the file does
        return memoryview(self._file.seen.held).toreadonly()

    def close(self) -> None:
        """Nothing is held."""


class MemoryDisk:
    """`Disk` in memory, without faults. `used_bytes` counts bytes that were really written, as sparse files do."""

    def __init__(self, *, capacity_bytes: int = _ENDLESS_BYTES) -> None:
        self.capacity_bytes = capacity_bytes
        self.counters = Counters()
        self.wall_ms: Callable[[], int | None] | None = None  # the machine's clock, if it has one
        self.is_off = False  # without power
        self.bad_pages: set[tuple[str, int]] = set()
        self.generation = 0
        self.files: dict[str, MemoryFile] = {}
        self._directories: set[str] = {""}
        self._lock = threading.RLock()  # one thread may sync while another writes

    # -- the seam ----------------------------------------------------------------------------------------------------------

    def names(self, directory: str) -> list[str]:
        self.check_power()
        prefix = f"{directory}/" if directory else ""
        inside = {path[len(prefix) :] for path in [*self.files, *self._directories] if path.startswith(prefix)}
        return sorted({name.split("/")[0] for name in inside if name})

    def exists(self, path: str) -> bool:
        self.check_power()
        return path in self.files or path in self._directories

    def open(self, path: str, *, create: bool = False, size_bytes: int = 0) -> MemorySegment:
        self.check_power()
        with self._lock:
            file = self.files.get(path)
            if not create:
                if file is None:
                    raise _refused("open", path, errno.ENOENT)
                return MemorySegment(self, path, file)
            if file is None or file.seen.size < size_bytes:
                with self.sync_point(f"create {path}") as happens:
                    if happens:
                        file = self._create(path, size_bytes)
            assert file is not None
            return MemorySegment(self, path, file)

    def remove(self, path: str) -> None:
        self.check_power()
        with self._lock:
            inside = sorted(name for name in self.files if name == path or name.startswith(f"{path}/"))
            for name in inside:
                with self.sync_point(f"remove {name}") as happens:
                    if happens:
                        del self.files[name]
            self._directories -= {name for name in self._directories if name == path or name.startswith(f"{path}/")}

    def read_bytes(self, path: str) -> bytes | None:
        self.check_power()
        file = self.files.get(path)
        return None if file is None else file.seen.read(0, file.seen.size)

    def replace_bytes(self, path: str, content: bytes) -> None:
        self.check_power()
        with self._lock, self.sync_point(f"replace {path}") as happens:
            if happens:
                self._make_directories(path)
                file = MemoryFile(SparseBytes(), SparseBytes())
                file.seen.write(0, content)
                file.platter.write(0, content)
                self._stamp(file)
                self.files[path] = file

    def modified_ms(self, path: str) -> int | None:
        file = self.files.get(path)
        return None if file is None else file.modified_ms

    def usage(self) -> DiskUsage:
        return DiskUsage(self.capacity_bytes, max(0, self.capacity_bytes - self.used_bytes))

    def close(self) -> None:
        """Give the tree free; nothing to do in memory."""

    # -- what segments call, and the faulty twin changes -------------------------------------------------------------------

    @property
    def is_small(self) -> bool:
        """Whether it could become full at all: looking at every file for every write takes time."""
        return self.capacity_bytes < _ENDLESS_BYTES

    @property
    def used_bytes(self) -> int:
        return sum([len(file.seen.held) for file in self.files.values()])

    def check_power(self) -> None:
        """Raise when the machine is off; this disk always has power."""

    def check_readable(self, path: str, position: int, length: int) -> None:
        """Raise for what cannot be read; on this disk everything can be."""

    def sync_point(self, what: str) -> SyncPoint:
        return SyncPoint(self, what)

    def reach_sync_point(self) -> tuple[bool, bool]:
        """Count the point; returns whether it takes effect and whether power is lost in it."""
        self.counters.sync_points += 1
        return True, False

    def write_file(self, path: str, file: MemoryFile, position: int, content: bytes) -> None:
        self._put(file, position, content)

    def _put(self, file: MemoryFile, position: int, content: bytes) -> None:
        with self._lock:
            self.counters.writes += 1
            file.seen.write(position, content)
            file.unsynced.append((position, content))
            if self.wall_ms is not None:
                file.modified_ms = self.wall_ms()

    def resize_file(self, file: MemoryFile, size: int) -> None:
        with self._lock:
            file.seen.resize(size)
            file.unsynced.append(size)
            self._stamp(file)

    def _stamp(self, file: MemoryFile) -> None:
        if self.wall_ms is not None:
            file.modified_ms = self.wall_ms()

    def sync_file(self, path: str, file: MemoryFile) -> None:
        with self._lock:
            happens, power_is_lost = self.reach_sync_point()
            self.counters.syncs += 1
            if happens:
                platter = file.platter
                for change in file.unsynced:
                    if isinstance(change, int):
                        platter.resize(change)
                    else:
                        platter.write(*change)
                file.unsynced.clear()
        if power_is_lost:
            raise PowerLost(f"sync {path}")

    def _create(self, path: str, size_bytes: int) -> MemoryFile:
        self._make_directories(path)
        file = self.files.get(path)
        if file is None:
            file = self.files[path] = MemoryFile(SparseBytes(), SparseBytes())
        for change in file.unsynced:  # creation syncs the whole file
            _apply(file.platter, change)
        file.unsynced.clear()
        for image in (file.seen, file.platter):
            if image.size < size_bytes:
                image.resize(size_bytes)
        return file

    def _make_directories(self, path: str) -> None:
        parts = path.split("/")[:-1]
        for count in range(1, len(parts) + 1):
            self._directories.add("/".join(parts[:count]))


class SyncPoint:
    """`with disk.sync_point(what) as happens:` runs one durable change and loses power after it when it is due."""

    def __init__(self, disk: MemoryDisk, what: str) -> None:
        self._disk = disk
        self._what = what
        self._power_lost = False

    def __enter__(self) -> bool:
        happens, self._power_lost = self._disk.reach_sync_point()
        return happens

    def __exit__(self, *_error: object) -> None:
        if self._power_lost:
            raise PowerLost(self._what)


class FaultyDisk(MemoryDisk):
    """`Disk` in memory that fails as told; without orders it behaves like `MemoryDisk`."""

    def __init__(self, rng: Random, *, capacity_bytes: int = _ENDLESS_BYTES) -> None:
        super().__init__(capacity_bytes=capacity_bytes)
        self._rng = rng
        self._lose_power_in: int | None = None
        self._fail_sync_in: int | None = None
        self._fail_write_in: int | None = None
        self.in_the_middle: Callable[[str], Callable[[], None] | None] | None = None
        self.stands = False
        self.met_standing: Callable[[], None] | None = None  # told of a sync that is not one of those who wait
        self._when_it_goes_on: list[Callable[[], None]] = []

    # -- orders ------------------------------------------------------------------------------------------------------------

    def lose_power_at(self, sync_point: int) -> None:
        """Lose power in the given sync point from now, 1 being the next one."""
        self._lose_power_in = sync_point

    def fail_sync_at(self, sync: int) -> None:
        """Fail the given sync of a segment from now with EIO, 1 being the next one."""
        self._fail_sync_in = sync

    def fail_write_at(self, write: int) -> None:
        """Fail the given write from now with EIO, 1 being the next one."""
        self._fail_write_in = write

    def stand(self) -> None:
        """Take writes, and end no sync until `go_on`. Nobody waits in here: see `waits`."""
        self.stands = True

    def go_on(self) -> None:
        """The syncs that wait end."""
        self.stands = False
        waiting, self._when_it_goes_on = self._when_it_goes_on, []
        for each in waiting:
            each()

    def waits(self, sync: Callable[[], None]) -> bool:
        """For a thread that is about to sync: whether it has to wait, and is done when the disk goes on."""
        if self.stands:
            self._when_it_goes_on.append(sync)
        return self.stands

    def no_more_faults(self) -> None:
        """Take back the orders that have not come true yet."""
        self._lose_power_in = self._fail_sync_in = self._fail_write_in = None

    def crash(self) -> None:
        """Lose power (if it was not lost already) and come back with what the platters hold."""
        self.counters.crashes += 1
        for path in sorted(self.files):
            file = self.files[path]
            for change in file.unsynced:
                self._survive(file.platter, change)
            file.seen = file.platter.copy()
            file.unsynced.clear()
        self._lose_power_in = self._fail_sync_in = self._fail_write_in = None
        self._come_back()

    def kill(self) -> None:
        """End the process and nothing else: the page cache keeps every write, and orders stay."""
        self.counters.kills += 1
        self._come_back()

    def flip_bit(self, path: str, position: int, bit: int) -> None:
        """Rot one bit of a file, in what readers see and on the platter."""
        file = self.files[path]
        assert 0 <= position < file.seen.size
        assert 0 <= bit < 8
        self.counters.bit_flips += 1
        for image in (file.seen, file.platter):
            image.write(position, bytes([image.read(position, 1)[0] ^ (1 << bit)]))

    def spoil_page(self, path: str, position: int) -> None:
        """Refuse to read the page with the position, and to change a part of it, as Linux does over a bad sector."""
        self.bad_pages.add((path, position // PAGE_BYTES))

    # -- faults ------------------------------------------------------------------------------------------------------------

    def check_readable(self, path: str, position: int, length: int) -> None:
        if self.bad_pages and any((path, page) in self.bad_pages for page in _pages(position, length)):
            raise _refused("read", path, errno.EIO)

    def check_power(self) -> None:
        if self.is_off:
            raise PowerLost("the power is off")

    def reach_sync_point(self) -> tuple[bool, bool]:
        self.counters.sync_points += 1
        if self.stands and self.met_standing is not None:
            self.met_standing()
        if self._lose_power_in is None:
            return True, False
        self._lose_power_in -= 1
        if self._lose_power_in != 0:
            return True, False
        self._lose_power_in = None
        self.is_off = True
        self.counters.power_losses += 1
        return self._rng.random() < 0.5, True

    def write_file(self, path: str, file: MemoryFile, position: int, content: bytes) -> None:
        if self.bad_pages:
            self._replace_sectors(path, position, len(content))
        if self._fail_write_in is not None:
            self._fail_write_in -= 1
            if self._fail_write_in == 0:
                self._fail_write_in = None
                self.counters.write_errors += 1
                self._write_some(file, position, content, self._rng.randrange(len(content) + 1))
                raise _refused("write", path, errno.EIO)
        if self.capacity_bytes < _ENDLESS_BYTES:
            growth = position + len(content) - max(position, len(file.seen.held))
            if growth > 0 and self.used_bytes + growth > self.capacity_bytes:
                self.counters.no_space_errors += 1
                fitting = len(content) - growth + max(0, self.capacity_bytes - self.used_bytes)
                self._write_some(file, position, content, min(fitting, len(content)))
                raise _refused("write", path, errno.ENOSPC)
        act = self.in_the_middle(path) if self.in_the_middle is not None else None
        if act is None or len(content) < 2:
            self._put(file, position, content)
            return
        middle = len(content) // 2
        self._put(file, position, content[:middle])
        act()
        self._put(file, position + middle, content[middle:])

    def _replace_sectors(self, path: str, position: int, length: int) -> None:
        """The disk puts another sector in the place of a bad one that is written whole; it refuses to write a part of one."""
        for page in _pages(position, length):
            if (path, page) in self.bad_pages:
                if position > page * PAGE_BYTES or position + length < (page + 1) * PAGE_BYTES:
                    raise _refused("write", path, errno.EIO)
                self.bad_pages.remove((path, page))

    def replace_bytes(self, path: str, content: bytes) -> None:
        # The old content stays until the new one is whole, so there must be room for both.
        if self.is_small and self.used_bytes + len(content) > self.capacity_bytes:
            self.check_power()
            self.counters.no_space_errors += 1
            raise _refused("replace", path, errno.ENOSPC)
        super().replace_bytes(path, content)

    def resize_file(self, file: MemoryFile, size: int) -> None:
        """What is cut off has other sectors when it is written again."""
        self.bad_pages = {
            (path, page) for path, page in self.bad_pages if self.files[path] is not file or page * PAGE_BYTES < size
        }
        super().resize_file(file, size)

    def sync_file(self, path: str, file: MemoryFile) -> None:
        if self._fail_sync_in is not None:
            self._fail_sync_in -= 1
            if self._fail_sync_in == 0:
                self._fail_sync_in = None
                self.counters.sync_errors += 1
                file.unsynced.clear()  # the kernel marks the pages clean: readable, never written
                raise _refused("sync", path, errno.EIO)
        super().sync_file(path, file)

    def _write_some(self, file: MemoryFile, position: int, content: bytes, length: int) -> None:
        if length > 0:
            self._put(file, position, content[:length])

    def _survive(self, platter: SparseBytes, change: _Change) -> None:
        fate = self._rng.randrange(3)
        if fate == 0:
            self.counters.kept += 1
            _apply(platter, change)
        elif fate == 1 or isinstance(change, int):
            self.counters.dropped += 1
        else:
            self.counters.torn += 1
            for position, sector in _sectors(*change):
                if self._rng.random() < 0.5:
                    platter.write(position, sector)

    def _come_back(self) -> None:
        self.generation += 1
        self.is_off = False
        self._when_it_goes_on.clear()


def _pages(position: int, length: int) -> range:
    return range(position // PAGE_BYTES, -(-(position + length) // PAGE_BYTES))


def _sectors(position: int, content: bytes) -> Iterator[tuple[int, bytes]]:
    start = position
    while start < position + len(content):
        end = min((start // SECTOR_BYTES + 1) * SECTOR_BYTES, position + len(content))
        yield start, content[start - position : end - position]
        start = end


def _apply(image: SparseBytes, change: _Change) -> None:
    if isinstance(change, int):
        image.resize(change)
    else:
        image.write(*change)


def _refused(what: str, path: str, number: int) -> StorageError:
    error = StorageError(f"cannot {what} {path}: {os.strerror(number)}")
    error.__cause__ = OSError(number, os.strerror(number))
    return error
