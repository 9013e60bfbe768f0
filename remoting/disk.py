"""The seam between everything that keeps files and the disk.

Commitlog, consume queues, epoch file, Raft log and identity files reach their bytes through `Disk` and `FileSegment` only, so
that the same code runs on a real directory, in memory, and on a disk that loses what was not synced. Three rules give those
twins one contract:

- bytes written are visible to `read` at once and durable only after `sync` of the same segment returned;
- creating, replacing and removing a file is durable when the call returns (the directory is synced);
- an error from `sync` is final: the caller must stop writing (the kernel may have dropped the dirty pages).

Calls block; a shell runs `sync` in a helper thread. Two threads may use one segment at the same time when one of them only syncs.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from remoting.errors import SettingsError, StorageError
from remoting.reserve import Reserve, open_private

Bytes = bytes | bytearray | memoryview


def is_unchanging(data: Bytes) -> bool:
    """Bytes, or a part of them; others may be changed by their owners."""
    return type(data) is bytes or (isinstance(data, memoryview) and type(data.obj) is bytes)


def is_small_part(data: Bytes) -> bool:
    """Of something that stays in memory with it and is more than twice as long."""
    return isinstance(data, memoryview) and memoryview(data.obj).nbytes > 2 * data.nbytes


_IOV_MAX = 1024
_OPEN = os.O_RDWR | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Space of the file system that holds the tree, in bytes; `free_bytes` is what an unprivileged process may use."""

    total_bytes: int
    free_bytes: int


class Held(Protocol):
    """What somebody reads from, which is there until he lets it go."""

    def release(self) -> None: ...


class FileView(Protocol):
    """A file's bytes as they are now, also those that are written later. Not to be used once it, or its file, was closed."""

    def __getitem__(self, part: slice, /) -> bytes: ...

    def memory(self) -> memoryview:
        """The same without a copy. Release it before anything is written: what is exported cannot grow. A helper thread may look
        at it, also after `close`, while the file is not cut."""

    def close(self) -> None:
        """What somebody looks at yet goes when nobody does any more."""


class FileSegment(Protocol):
    """One open file. Positions and sizes are bytes from its start."""

    @property
    def path(self) -> str:
        """The path relative to the disk's root, for messages."""

    @property
    def size_bytes(self) -> int:
        """The file's present length."""

    @property
    def descriptor(self) -> int:
        """The system's number of the open file, for who syncs it by himself; -1 where that is not all there is to a sync."""

    def write(self, position: int, buffers: Sequence[Bytes]) -> int:
        """Write the buffers one after the other at `position`, growing the file if needed; return the bytes written (all)."""

    def read(self, position: int, length: int) -> bytes:
        """Return up to `length` bytes at `position`, fewer only at the end of the file."""

    def map(self) -> FileView:
        """A view of the file at its present size, for readers that come often. Raises StorageError where the system has no room
        for it: it takes a descriptor of its own."""

    def hold(self) -> Held:
        """Have the descriptor stay open, also behind `close`, until that is released. Any thread that does not close it. Raises
        StorageError when it was closed."""

    def truncate(self, size_bytes: int) -> None:
        """Cut or grow (with zeros) the file to the size; durable after `sync`."""

    def sync(self) -> None:
        """Make all bytes written so far durable (fdatasync)."""

    def close(self) -> None:
        """Release the file; later calls on the segment are programming errors, but for this one, which does nothing then."""


class SmallFiles(Protocol):
    """The part of a `Disk` that small files need which are replaced as a whole."""

    def remove(self, path: str) -> None:
        """Remove a file, or an empty or full directory; nothing happens when it is not there."""

    def read_bytes(self, path: str) -> bytes | None:
        """The whole content of a small file, or None when it is not there."""

    def replace_bytes(self, path: str, content: bytes) -> None:
        """Put a small file in place atomically and durably: after a crash it is either the old or the new one, whole."""


class Disk(SmallFiles, Protocol):
    """A directory tree that belongs to one process. Paths are relative, with `/` between names."""

    def names(self, directory: str) -> list[str]:
        """The sorted names in a directory; empty when it does not exist."""

    def exists(self, path: str) -> bool: ...

    def open(self, path: str, *, create: bool = False, size_bytes: int = 0) -> FileSegment:
        """Open a file for reading and writing; with `create` make it (and its directories) with that many zero bytes."""

    def modified_ms(self, path: str) -> int | None:
        """When a file was last written, by this machine's clock of that moment; None when it is not there, or nobody noted it."""

    def usage(self) -> DiskUsage: ...


class _MappedFile(mmap.mmap):
    def memory(self) -> memoryview:
        return memoryview(self)

    def close(self) -> None:
        with contextlib.suppress(BufferError):  # it goes with the last one who looks
            super().close()


_HOLDING = threading.Lock()  # counts, and decides who closes


class _Hold:
    __slots__ = ("_let_go",)

    def __init__(self, let_go: Callable[[], None]) -> None:
        self._let_go: Callable[[], None] | None = let_go

    def release(self) -> None:
        let_go, self._let_go = self._let_go, None
        if let_go is not None:
            let_go()


class LocalSegment:
    """`FileSegment` on a real file: pread, pwritev and fdatasync on one descriptor."""

    __slots__ = ("_descriptor", "_holds", "_path", "_size_bytes", "_to_close")

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._holds = 0
        self._to_close = -1  # a descriptor, by the last one who holds it, who takes it from here
        self._size_bytes = os.fstat(descriptor).st_size

    @property
    def path(self) -> str:
        return self._path

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    @property
    def descriptor(self) -> int:
        return self._descriptor

    def write(self, position: int, buffers: Sequence[Bytes]) -> int:
        start = position
        try:
            for first in range(0, len(buffers), _IOV_MAX):
                position += self._write_some(position, buffers[first : first + _IOV_MAX])
        except OSError as error:
            raise StorageError(f"cannot write {self._path} at {position}: {error.strerror}") from error
        if position > self._size_bytes:
            self._size_bytes = position
        return position - start

    def _write_some(self, position: int, buffers: Sequence[Bytes]) -> int:
        wanted = sum(map(len, buffers))
        written = os.pwritev(self._descriptor, buffers, position)
        if written == wanted:
            return written
        rest = memoryview(b"".join(buffers))
        while written < wanted:
            written += os.pwrite(self._descriptor, rest[written:], position + written)
        return written

    def read(self, position: int, length: int) -> bytes:
        try:
            content = os.pread(self._descriptor, length, position)
            while 0 < len(content) < length:
                more = os.pread(self._descriptor, length - len(content), position + len(content))
                if not more:
                    break
                content += more
        except OSError as error:
            raise StorageError(f"cannot read {self._path} at {position}: {error.strerror}") from error
        return content

    def map(self) -> FileView:
        try:
            return _MappedFile(self._descriptor, self._size_bytes, prot=mmap.PROT_READ)
        except OSError as error:
            raise StorageError(f"cannot map {self._path}: {error.strerror}") from error

    def truncate(self, size_bytes: int) -> None:
        try:
            os.ftruncate(self._descriptor, size_bytes)
        except OSError as error:
            raise StorageError(f"cannot set the size of {self._path}: {error.strerror}") from error
        self._size_bytes = size_bytes

    def sync(self) -> None:
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise StorageError(f"cannot sync {self._path}: {error.strerror}") from error

    def hold(self) -> Held:
        with _HOLDING:
            if self._descriptor < 0:
                raise StorageError(f"{self._path} was closed")
            self._holds += 1
        return _Hold(self._let_go)

    def _let_go(self) -> None:
        to_close = -1
        with _HOLDING:
            self._holds -= 1
            if not self._holds:
                to_close, self._to_close = self._to_close, -1
        if to_close >= 0:
            os.close(to_close)

    def close(self) -> None:
        with _HOLDING:
            descriptor, self._descriptor = self._descriptor, -1
            if self._holds and descriptor >= 0:
                self._to_close, descriptor = descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class LocalDisk:
    """`Disk` on a real directory, held by advisory locks so that two processes never share one, RocketMQ's included."""

    def __init__(self, root: Path) -> None:
        """Make the directory if needed and lock it.

        Raises SettingsError when it cannot be used or another process holds it.
        """
        self._root = root
        self._prefix = (
            f"{root}/"  # paths are put together as text: ten thousand queues are thousands of files at a time
        )
        try:
            root.mkdir(parents=True, exist_ok=True)
            self._lock_descriptor = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SettingsError(
                f"cannot use the data directory {root}: {error.strerror}; choose another one"
            ) from error
        try:
            fcntl.flock(self._lock_descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(self._lock_descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)  # the one that RocketMQ takes
        except OSError as error:
            os.close(self._lock_descriptor)
            raise SettingsError(
                f"{root} is in use by another running process; stop it or choose another directory"
            ) from error
        self._reserve = Reserve(root)

    def close(self) -> None:
        """Give the directory free; segments must be closed before."""
        os.close(self._lock_descriptor)

    def full_path(self, path: str) -> str:
        """Where a file of the tree is, for who opens it by itself."""
        return self._prefix + path

    def names(self, directory: str) -> list[str]:
        try:
            return sorted(os.listdir(self._prefix + directory))
        except FileNotFoundError:
            return []

    def exists(self, path: str) -> bool:
        return os.path.exists(self._prefix + path)

    def open(self, path: str, *, create: bool = False, size_bytes: int = 0) -> LocalSegment:
        try:
            descriptor = self._create(self._root / path, size_bytes) if create else os.open(self._prefix + path, _OPEN)
        except OSError as error:
            raise StorageError(f"cannot open {self._prefix}{path}: {error.strerror}") from error
        return LocalSegment(path, descriptor)

    def _create(self, target: Path, size_bytes: int) -> int:
        self._make_directories(target.parent)
        descriptor = os.open(target, _OPEN | os.O_CREAT, 0o600)
        try:
            if os.fstat(descriptor).st_size < size_bytes:
                os.ftruncate(descriptor, size_bytes)
            os.fsync(descriptor)
            sync_path(target.parent)
        except OSError:
            os.close(descriptor)  # on a full disk this is tried again and again
            raise
        return descriptor

    def remove(self, path: str) -> None:
        target = self._root / path
        try:
            if target.is_dir():
                for name in os.listdir(target):
                    self.remove(f"{path}/{name}")
                target.rmdir()
            elif target.exists():
                target.unlink(missing_ok=True)  # another thread may remove a directory that it is in
            else:
                return
            sync_path(target.parent)
        except OSError as error:
            raise StorageError(f"cannot remove {target}: {error.strerror}") from error

    def read_bytes(self, path: str) -> bytes | None:
        try:
            return (self._root / path).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"cannot read {self._root / path}: {error.strerror}") from error

    def replace_bytes(self, path: str, content: bytes) -> None:
        target = self._root / path
        temporary = target.with_name(target.name + ".new")
        try:
            self._make_directories(target.parent)
            self._write_small(temporary, content)
            os.replace(temporary, target)
            sync_path(target.parent)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise StorageError(f"cannot replace {target}: {error.strerror}") from error
        self._reserve.refill()

    def _write_small(self, path: Path, content: bytes) -> None:
        try:
            with open(path, "wb", opener=open_private) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self._reserve.write(path, content):
                raise

    def modified_ms(self, path: str) -> int | None:
        try:
            return os.stat(self._root / path).st_mtime_ns // 1_000_000
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"cannot look at {self._root / path}: {error.strerror}") from error

    def usage(self) -> DiskUsage:
        status = os.statvfs(self._root)
        return DiskUsage(status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize)

    def _make_directories(self, directory: Path) -> None:
        if directory.is_dir():
            return
        self._make_directories(directory.parent)
        directory.mkdir(exist_ok=True)
        sync_path(directory.parent)


def sync_path(path: Path) -> None:
    """Have on the disk what a file contains, or which names a directory has. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
