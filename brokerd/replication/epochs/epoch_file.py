"""Keeps the epoch list and the highest master epoch ever seen on disk.

`epochFileCheckpoint` has the original's format, so that a store directory can change hands; the highest epoch has a small file of
its own, because a replica must remember an epoch that it accepted before the first byte of that epoch reached it. Both are
replaced atomically and durably. Whoever calls `save_*` may act on the new value when the call returned, never before.
"""

from __future__ import annotations

from brokerd.replication.epochs.epoch_list import EpochEntry, EpochList, decode_epochs, encode_epochs
from brokerd.replication.kept_files import damaged
from remoting.checksum import crc32
from remoting.disk import SmallFiles
from remoting.errors import CorruptedFile
from remoting.invariants import monotonic

EPOCH_FILE = "epochFileCheckpoint"
MASTER_EPOCH_FILE = "masterEpochSeen"
_BACKUP_FILE = EPOCH_FILE + ".bak"


class EpochFile:
    """The two files in the root of a broker's store."""

    def __init__(self, disk: SmallFiles) -> None:
        self._disk = disk
        self._master_epoch = 0

    def load(self) -> tuple[EpochList, int]:
        """The epoch list and the highest master epoch seen (0 = none yet). Raises CorruptedFile."""
        epochs = EpochList(self._load_entries())
        self._master_epoch = max(self._load_master_epoch(), epochs.last_epoch, 0)
        return epochs, self._master_epoch

    def save_entries(self, entries: tuple[EpochEntry, ...]) -> None:
        self._disk.replace_bytes(EPOCH_FILE, encode_epochs(entries))
        # A backup exists only in a directory that the original wrote. It is one change behind from now on, and a list that
        # lacks an entry labels bytes wrongly, so it must not be found later.
        self._disk.remove(_BACKUP_FILE)

    def save_master_epoch(self, epoch: int) -> None:
        self._master_epoch = monotonic(self._master_epoch, epoch, "the persisted master epoch")
        digits = str(epoch).encode("ascii")
        self._disk.replace_bytes(MASTER_EPOCH_FILE, b"%s %d\n" % (digits, crc32(digits)))

    def _load_entries(self) -> list[EpochEntry]:
        content, backup = (self._disk.read_bytes(path) for path in (EPOCH_FILE, _BACKUP_FILE))
        try:
            if content:
                return decode_epochs(content, EPOCH_FILE)
        except CorruptedFile as error:
            if not backup:
                raise damaged(EPOCH_FILE, str(error).removeprefix(f"{EPOCH_FILE}: ")) from error
        return decode_epochs(backup, _BACKUP_FILE) if backup else []

    def _load_master_epoch(self) -> int:
        content = self._disk.read_bytes(MASTER_EPOCH_FILE)
        if content is None:
            return 0
        digits, _, checksum = content.strip().partition(b" ")
        if not digits.isdigit() or checksum != str(crc32(digits)).encode("ascii"):
            raise damaged(MASTER_EPOCH_FILE, "it does not fit its checksum")
        return int(digits)
