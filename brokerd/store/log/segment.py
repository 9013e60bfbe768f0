"""One file of the commitlog, and its mapping."""

from __future__ import annotations

from remoting.disk import FileSegment, FileView


class Segment:
    """One file of the log and the range of offsets it holds. `is_new`: this process has made it."""

    __slots__ = ("end", "file", "is_new", "start", "view")

    def __init__(self, start: int, size: int, file: FileSegment, *, is_new: bool) -> None:
        self.start = start
        self.end = start + size
        self.file = file
        self.is_new = is_new
        self.view: FileView | None = None

    def map(self) -> None:
        if self.view is None:
            self.view = self.file.map()

    def unmap(self) -> None:
        if self.view is not None:
            self.view.close()
            self.view = None

    def close(self) -> None:
        self.unmap()
        self.file.close()
