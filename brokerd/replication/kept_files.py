"""Small files that a running broker knows by heart: what a disk changes of them meanwhile is written again.

Epochs, identity and incarnation are read at a start and from then on only written. A bit that flips in one of them would keep the
next start from knowing what the log's bytes are, or who this is, though the process that runs knows it. So it looks now and then.
"""

from __future__ import annotations

import logging

from remoting.disk import SmallFiles
from remoting.errors import CorruptedFile, StorageError

log = logging.getLogger(__name__)


def damaged(path: str, why: str) -> CorruptedFile:
    """The refusal of a start that met such a file, with what can be done."""
    return CorruptedFile(
        f"{path} is damaged: {why}. Restore it from a copy of this data directory; or, while another replica of the group lives, "
        "move the directory away and start: the broker comes back with another id and copies the log"
    )


class KeptFiles:
    """`SmallFiles` over a disk, with `mend`. One thread uses it."""

    def __init__(self, disk: SmallFiles) -> None:
        self._disk = disk
        self._known: dict[str, bytes] = {}

    def read_bytes(self, path: str) -> bytes | None:
        """What was read or written last: the disk is asked once."""
        if path in self._known:
            return self._known[path]
        content = self._disk.read_bytes(path)
        if content is not None:
            self._known[path] = content
        return content

    def replace_bytes(self, path: str, content: bytes) -> None:
        self._disk.replace_bytes(path, content)
        self._known[path] = content

    def remove(self, path: str) -> None:
        self._disk.remove(path)
        self._known.pop(path, None)

    def mend(self) -> int:
        """Write again what is not what was read or written last; how many files. What the disk refuses is tried the next time."""
        return sum(self._mend_one(path, content) for path, content in self._known.items())

    def _mend_one(self, path: str, content: bytes) -> bool:
        try:
            if self._disk.read_bytes(path) == content:
                return False
        except StorageError as error:
            log.error("the disk does not give %s: %s", path, error)
        try:
            self._disk.replace_bytes(path, content)
        except StorageError as error:
            log.error("%s is damaged, and cannot be written again: %s", path, error)
            return False
        log.error("%s was changed on the disk, and is written again as this process knows it", path)
        return True
