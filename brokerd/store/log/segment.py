"""One file of the commitlog, and how it is read: through its mapping, or from its descriptor."""

from __future__ import annotations

from mmap import mmap

from brokerd.native.memory import Pinned
from remoting.disk import FileSegment, FileView, Held


class Segment:
    """One file of the log and the range of offsets it holds. `is_new`: this process has made it."""

    __slots__ = ("_address", "end", "file", "is_new", "start", "view")

    def __init__(self, start: int, size: int, file: FileSegment, *, is_new: bool) -> None:
        self.start = start
        self.end = start + size
        self.file = file
        self.is_new = is_new
        self.view: FileView | None = None
        self._address = 0

    def map(self) -> None:
        if self.view is None:
            self.view = self.file.map()

    def address(self) -> int:
        """Where in memory its mapping is; 0 where that may change, or without one."""
        view: object = self.view
        if not self._address and isinstance(view, mmap):
            with memoryview(view) as memory, Pinned(memory) as self._address:
                pass  # it stays there as long as it is mapped
        return self._address

    def hold(self) -> Held:
        """Have what it is read from now stay until that is released, also when the file leaves the log."""
        return self.file.hold() if self.view is None else self.view.memory()

    def unmap(self) -> None:
        if self.view is not None:
            self.view.close()
            self.view = None
            self._address = 0

    def close(self) -> None:
        self.unmap()
        self.file.close()
