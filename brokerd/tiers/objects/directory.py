"""Objects as files of a directory: written whole or not at all, past the system's page cache where that is possible; short ones
may grow.

What was uploaded is hardly ever read soon, and a second copy of each message in the page cache would push out what consumers
read. Names and places are those of the library, which lists and removes the files.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import re
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar, TypeVarTuple

from brokerd.loop.forsaken import ForsakenThreads
from brokerd.native.memory import Pinned
from brokerd.tiers.objects.durable import Durable
from brokerd.tiers.objects.interface import PAST_CACHE_BYTES
from brokerd.tiers.objects.page_memory import PAGE_BYTES, PageMemory
from remoting.disk import Bytes, sync_path

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

_READ_DIRECTLY: Final = range(512 * 1024, 4 << 20)  # shorter ones are not, and longer ones are hardly ever read
_WRITE_BYTES: Final = 4 << 20  # in one call
_DRAFT_BITS: Final = 62
_THREADS: Final = 32  # they wait for the disk
# Of a file system the last 64 MiB, a 64th part of a small one, and as many names of files: who is full of messages has to write a
# manifest, and little besides, to let old ones go.
_ROOM_BYTES: Final = 64 << 20
_ROOM_FILES: Final = 4096
_ROOM_PART: Final = 64
# So the library calls a file that is being written, too, and it lists none of them
_UNFINISHED: Final = re.compile(r"#\d+$")


class DirectoryFiles:
    """Those below one directory, in threads of their own: a disk that is away makes nobody else wait, also not who stops."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._durable = Durable(root)
        self._threads = ForsakenThreads(_THREADS, "tier")
        self._memory = PageMemory()

    async def put(self, name: str, pieces: Sequence[Bytes], *, leaves_room: bool = False) -> None:
        """A new file; it has its name when its bytes are on the disk. Raises FileExistsError, OSError; `leaves_room` as in
        `require_room`."""
        await self.in_thread(self._put, name, pieces, leaves_room)

    async def append(self, name: str, at: int, pieces: Sequence[Bytes], *, leaves_room: bool = False) -> None:
        """Make a file longer that ends at `at`; it is on the disk then. Raises FileExistsError when it ends behind that,
        FileNotFoundError when before it or when there is none, OSError; after the last of these a part may be there.
        """
        await self.in_thread(self._append, name, at, pieces, leaves_room)

    def require_room(self, size: int) -> None:
        """Raises OSError, as a disk that is full, when so much more would take what is kept for manifests. For these threads."""
        there = os.statvfs(self._root)
        free_bytes, all_bytes = there.f_bavail * there.f_frsize, there.f_blocks * there.f_frsize
        # some say 0 of 0, as they do not count them
        is_full = all_bytes > 0 and free_bytes - size < min(_ROOM_BYTES, all_bytes // _ROOM_PART)
        if is_full or there.f_favail < min(_ROOM_FILES, there.f_files // _ROOM_PART):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._root))

    async def make_durable(self, name: str) -> None:
        """What a file that others wrote contains. Raises OSError."""
        await self.in_thread(sync_path, self._root / name)

    async def make_names_durable(self, name: str) -> None:
        """The file's name, and the directories that may have been made for it. Raises OSError."""
        await self.in_thread(self._durable.make, self._root / name)

    async def in_thread(self, work: Callable[[*_Ts], _T], *arguments: *_Ts) -> _T:
        """Have one of the threads do it. Raises what it raises."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    def remove_unfinished(self, directory: str, before_ms: int) -> int:
        """Files below a directory that were never given a name, as who wrote them was killed: nobody lists them. Those that were
        written to last before that time; how many. For these threads. Raises OSError."""
        removed = 0
        for parent, _, names in os.walk(self._root / directory):
            for name in filter(_UNFINISHED.search, names):
                path = os.path.join(parent, name)
                with suppress(FileNotFoundError):  # its writer is alive, and done now
                    if os.stat(path).st_mtime_ns // 1_000_000 < before_ms:
                        os.unlink(path)
                        removed += 1
        return removed

    def _put(self, name: str, pieces: Sequence[Bytes], leaves_room: bool) -> None:
        path = self._root / name
        if leaves_room:
            self._require_room(pieces)
        # one of `_UNFINISHED`
        draft = path.with_name(f"draft#{secrets.randbits(_DRAFT_BITS)}")
        descriptor = self._create(draft)
        try:
            try:
                _write(descriptor, pieces)
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
            os.link(draft, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(draft)

    def _append(self, name: str, at: int, pieces: Sequence[Bytes], leaves_room: bool) -> None:
        descriptor = self._open(name, os.O_WRONLY)
        try:
            end = os.fstat(descriptor).st_size
            if end > at:
                raise FileExistsError(errno.EEXIST, f"the file ends at {end}, behind {at}")
            if end < at:
                raise FileNotFoundError(errno.ENOENT, f"the file ends at {end}, before {at}")
            if leaves_room:
                self._require_room(pieces)
            for piece in pieces:
                _write_all(descriptor, at, memoryview(piece))
                at += len(piece)
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)

    def read(self, name: str, start: int, length: int) -> Bytes:
        """So many bytes, or what there is of them; nobody can write to them. For these threads. Raises OSError."""
        descriptor = self._open(name, os.O_RDONLY)
        try:
            found: Bytes | None = None
            if length in _READ_DIRECTLY:
                found = self._read_directly(descriptor, start, length)
            return _read_all(descriptor, start, length) if found is None else found
        finally:
            os.close(descriptor)

    def _open(self, name: str, flags: int) -> int:
        """One that is there."""
        try:
            return os.open(self._root / name, flags | os.O_CLOEXEC)
        except FileNotFoundError:
            self._require_root()
            raise

    def _require_room(self, pieces: Sequence[Bytes]) -> None:
        with suppress(FileNotFoundError):  # who opens a file there says what is the matter
            self.require_room(sum(map(len, pieces)))

    def _require_root(self) -> None:
        """Raises NotADirectoryError when the directory is away: that is another matter than a file that is."""
        if not self._root.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(self._root)) from None

    def _read_directly(self, descriptor: int, start: int, length: int) -> Bytes | None:
        """The same past the page cache; None where that is not possible."""
        skipped = start % PAGE_BYTES
        whole = -(-(skipped + length) // PAGE_BYTES) * PAGE_BYTES
        memory = self._memory.take(whole)
        room = memory[:whole]
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
            there = 0
            while there < len(room) and (more := os.preadv(descriptor, [room[there:]], start - skipped + there)):
                there += more
                if there % PAGE_BYTES:  # it cannot go on from there, which is the file's end mostly
                    break
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            return None  # not all file systems can
        finally:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
        if there < skipped + length and start - skipped + there < os.fstat(descriptor).st_size:
            return None  # some file systems, over a network, give less than there is
        return memory[skipped : min(there, skipped + length)].toreadonly()

    def _create(self, draft: Path) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            return os.open(draft, flags, 0o600)
        except FileNotFoundError:
            self._require_root()  # it is not made again: somebody took it away, or has not mounted it
            draft.parent.mkdir(parents=True, exist_ok=True)
            return os.open(draft, flags, 0o600)


def _read_all(descriptor: int, start: int, length: int) -> bytes:
    found = os.pread(descriptor, length, start)
    while len(found) < length and (more := os.pread(descriptor, length - len(found), start + len(found))):
        found += more
    return found


def _write(descriptor: int, pieces: Sequence[Bytes]) -> None:
    at = 0
    for piece in pieces:
        done = _written_directly(descriptor, at, piece)
        _write_all(descriptor, at + done, memoryview(piece)[done:])
        at += len(piece)


def _written_directly(descriptor: int, at: int, piece: Bytes) -> int:
    """How much of the piece, from its begin on, went past the page cache."""
    size = len(piece) - len(piece) % PAGE_BYTES
    if at % PAGE_BYTES or size < PAST_CACHE_BYTES:
        return 0
    with Pinned(piece) as address:
        if address % PAGE_BYTES:
            return 0
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
        _write_all(descriptor, at, memoryview(piece)[:size])
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        return 0  # not all file systems can
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    return size


def _write_all(descriptor: int, at: int, content: memoryview) -> None:
    done = 0
    while done < len(content):
        done += os.pwrite(descriptor, content[done : done + _WRITE_BYTES], at + done)
