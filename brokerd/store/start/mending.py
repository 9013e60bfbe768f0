"""A damaged log between two starts: what is damaged, and the bytes that belong there put in their place.

Nothing is cut and nothing is derived: that is the next start's. A log that an earlier start has opened at its damage is left
alone, since the epochs of what is behind the damage may be forgotten; it is copied from the master.
"""

from __future__ import annotations

from contextlib import closing

from brokerd.store.log.commitlog import DIRECTORY, CommitLog
from brokerd.store.log.derive import RecordShape
from brokerd.store.log.layout import file_name, file_start
from brokerd.store.settings import StoreSettings
from brokerd.store.start.checkpoint_page import PATH as PAGE_PATH
from brokerd.store.start.checkpoint_page import decode_page
from brokerd.store.start.log_recovery import Damage, find_damage
from brokerd.store.start.suspicion import SuspicionFile
from remoting.disk import Disk


class DamagedLog:
    """Blocks; its owner has the directory for itself."""

    def __init__(self, disk: Disk, settings: StoreSettings) -> None:
        self._disk = disk
        self._settings = settings

    @property
    def may_be_mended(self) -> bool:
        return SuspicionFile(self._disk).load(0) is None

    def look(self) -> tuple[RecordShape, Damage | None]:
        """The shape of the log's records, and the first damage; None when a start would find none. Raises CorruptedFile."""
        page = self._disk.read_bytes(PAGE_PATH)
        known = decode_page(page) if page is not None else None
        with closing(CommitLog(self._disk, self._settings, is_ours=known is not None)) as commitlog:
            return commitlog.shape, find_damage(commitlog, known, self._settings)

    def write(self, offset: int, content: bytes) -> None:
        """Put what belongs at the offset there, inside one file; durable when it returns. Raises StorageError."""
        start = file_start(offset, self._settings.segment_size_bytes)
        with closing(self._disk.open(f"{DIRECTORY}/{file_name(start)}")) as file:
            file.write(offset - start, (content,))
            file.sync()
