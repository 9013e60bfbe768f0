"""One file of the commitlog, and its mapping."""

from __future__ import annotations

import mmap

from remoting.disk import FileSegment, LocalSegment


class Segment:
    """One file of the log and the range of offsets it holds."""

    __slots__ = ("end", "file", "start", "view")

    def __init__(self, start: int, size: int, file: FileSegment) -> None:
        self.start = start
        self.end = start + size
        self.file = file
        self.view: mmap.mmap | None = None

    def map(self) -> None:
        if self.view is None and isinstance(self.file, LocalSegment):
            self.view = mmap.mmap(self.file.descriptor, self.end - self.start, prot=mmap.PROT_READ)

    def unmap(self) -> None:
        if self.view is not None:
            self.view.close()
            self.view = None

    def close(self) -> None:
        self.unmap()
        self.file.close()
