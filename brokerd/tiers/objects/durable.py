"""Names of files made durable, and of all that leads to them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from remoting.disk import sync_path

_MANY: Final = 100_000  # directories that are remembered


class Durable:
    """Below one root. Called by several threads. A directory whose name is durable is not asked for again."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[Path, int] = {}  # by their inodes: another one may have come to the place

    def make(self, path: Path) -> None:
        """The name of the file, which is new, and the directories that may have been made for it. Raises OSError."""
        sync_path(path.parent)
        made: dict[Path, int] = {}
        for directory in path.parents:
            if directory == self._root:
                break
            inode = directory.stat().st_ino
            if self._known.get(directory) == inode:
                break  # so are all above it
            sync_path(directory.parent)
            made[directory] = inode
        if len(self._known) > _MANY:
            self._known.clear()
        self._known.update(made)
