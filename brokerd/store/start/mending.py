"""A damaged log between two starts: what is damaged, and the bytes that belong there put in their place.

Nothing is cut and nothing is derived: that is the next start's. What a log has behind the damage that an earlier start has opened
it at is left alone, since the epochs of that may be forgotten; it is copied from the master.

`composition/mending` owns it, in a helper thread, and has the directory for itself.
"""

from __future__ import annotations

from contextlib import closing

from brokerd.store.log.bad_sectors import write_over
from brokerd.store.log.commitlog import DIRECTORY, CommitLog
from brokerd.store.log.derive import RecordShape
from brokerd.store.log.layout import file_name, file_start
from brokerd.store.settings import StoreSettings
from brokerd.store.start.checkpoint_page import ABORT_PATH, decode_page
from brokerd.store.start.checkpoint_page import PATH as PAGE_PATH
from brokerd.store.start.log_recovery import Damage, find_damage, guess_ends
from brokerd.store.start.suspicion import SuspicionFile
from remoting.disk import Disk
from remoting.errors import DamagedRange


class DamagedLog:
    """Blocks."""

    def __init__(self, disk: Disk, settings: StoreSettings) -> None:
        self._disk = disk
        self._settings = settings

    def look(self, met: DamagedRange | None) -> tuple[RecordShape, Damage | None]:
        """The shape of the log's records, and what is damaged: at the place that a start has met, or, without one, where a start
        would end the log. None when a start would find nothing there. Raises StorageError."""
        page = self._disk.read_bytes(PAGE_PATH)
        known = decode_page(page) if page is not None else None
        with closing(CommitLog(self._disk, self._settings, is_ours=known is not None)) as commitlog:
            if met is not None:
                return commitlog.shape, self._look_at(commitlog, met.offset)
            clean = not self._disk.exists(ABORT_PATH)
            damage = find_damage(commitlog, known, self._settings, clean=clean)
            if damage is not None and SuspicionFile(self._disk).load(0) is not None:
                proven = known.flushed_offset if known is not None else 0
                damage = Damage(damage.start, [end for end in damage.ends if end <= proven])
            return commitlog.shape, damage

    def _look_at(self, commitlog: CommitLog, offset: int) -> Damage | None:
        if commitlog.record_at(offset) is not None:
            return None
        return Damage(offset, guess_ends(commitlog, offset))

    def write(self, offset: int, content: bytes) -> None:
        """Put what belongs at the offset there, inside one file; durable when it returns. Raises StorageError."""
        start = file_start(offset, self._settings.segment_size_bytes)
        with closing(self._disk.open(f"{DIRECTORY}/{file_name(start)}")) as file:
            write_over(file, offset - start, content, file.size_bytes)
            file.sync()
