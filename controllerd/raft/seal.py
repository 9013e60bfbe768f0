"""How much of the Raft log is durable for certain: `raft/seal`, one small record beside the log

    magic "LBRS" · generation u64 · length u64 · crc32 u32 (of what is before it)

Written in place after each sync of the log, and never synced itself: it costs no wait, outlives the process, and after a loss of
power it may be older than the log, or unreadable, but never ahead of it. So a log that ends before its seal has lost something
that was promised; what is behind the seal judges for itself (`record_format`). Only `log_file` uses this.
"""

from __future__ import annotations

import logging
import struct
import zlib
from dataclasses import dataclass
from typing import Final

from controllerd.raft.identity import DIRECTORY
from remoting.disk import Disk, FileSegment
from remoting.errors import StorageError

log = logging.getLogger(__name__)

PATH: Final = f"{DIRECTORY}/seal"
_MAGIC: Final = b"LBRS"
_SEAL: Final = struct.Struct(">4sQQ")
_CRC: Final = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Sealed:
    """Up to `length` the log of this generation was durable. Generation 0: nothing is known."""

    generation: int = 0
    length: int = 0


class Seal:
    """The open seal of one node."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._segment: FileSegment | None = None

    def read(self) -> Sealed:
        """What is sealed; nothing is when there is no seal, or it is damaged."""
        content = self._disk.read_bytes(PATH) or b""
        body = content[: _SEAL.size]
        if len(content) != _SEAL.size + _CRC.size or content[_SEAL.size :] != _CRC.pack(zlib.crc32(body)):
            return Sealed()
        magic, generation, length = _SEAL.unpack(body)
        return Sealed(generation, length) if magic == _MAGIC else Sealed()

    def open(self, sealed: Sealed) -> None:
        """Begin anew with this, durably. Raises StorageError."""
        self.close()
        self._disk.replace_bytes(PATH, _encode(sealed))
        self._segment = self._disk.open(PATH)

    def write(self, sealed: Sealed) -> None:
        """Note what a sync made durable. A disk that refuses this leaves an older seal, or none, and that is no harm."""
        assert self._segment is not None, "the seal is not open"
        try:
            self._segment.write(0, [_encode(sealed)])
        except StorageError as error:
            log.warning("the raft log is durable up to %d, and %s does not say so: %s", sealed.length, PATH, error)

    def close(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None


def _encode(sealed: Sealed) -> bytes:
    body = _SEAL.pack(_MAGIC, sealed.generation, sealed.length)
    return body + _CRC.pack(zlib.crc32(body))
