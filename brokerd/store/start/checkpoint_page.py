"""The store checkpoint: one page that says how far the files of the store are durable, and the `abort` file.

    0 physicMsgTimestamp  8 logicsMsgTimestamp  16 indexMsgTimestamp  24 masterFlushedOffset  32 confirmPhyOffset   (RocketMQ's)
    40 flushedOffset  48 queuesOffset  56 recheckOffset  64 crc32 of the bytes before it                             (ours)

All are 8-byte integers but the CRC (4). Only positions that are already durable are ever written, so whatever version of the
page survives a crash is true, if perhaps behind. The page fits one sector and is overwritten in place. When another program
wrote RocketMQ's part, the CRC no longer fits and our positions count as unknown: the whole log is then read at start.

`abort` exists while a store is open; when it is there at start, the last run did not end cleanly.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from operator import attrgetter

from remoting.checksum import crc32
from remoting.disk import Disk, FileSegment

PATH = "checkpoint"
ABORT_PATH = "abort"
SIZE_BYTES = 4096

_PAGE = struct.Struct(">8q")
_CRC = struct.Struct(">I")


@dataclass(slots=True)
class Positions:
    """What the page holds. `flushed_offset` is the last record boundary known durable in the commitlog; the consume queues
    hold, durably, everything derived from before `queues_offset`. A start verifies the log from the record boundary
    `recheck_offset`, some way before both."""

    physic_timestamp_ms: int = 0
    logics_timestamp_ms: int = 0
    index_timestamp_ms: int = 0
    master_flushed_offset: int = 0
    confirm_offset: int = 0
    flushed_offset: int = 0
    queues_offset: int = 0
    recheck_offset: int = 0


_FIELDS = attrgetter(*(each.name for each in fields(Positions)))


def encode_page(positions: Positions) -> bytes:
    """The used bytes of the page."""
    page = _PAGE.pack(*_FIELDS(positions))  # after every sync of the log, so without a detour
    return page + _CRC.pack(crc32(page))


def decode_page(page: bytes) -> Positions | None:
    """The positions, or None when the page is not one that we sealed."""
    if len(page) < _PAGE.size + _CRC.size:
        return None
    (crc,) = _CRC.unpack_from(page, _PAGE.size)
    if crc != crc32(page[: _PAGE.size]):
        return None
    positions = Positions(*_PAGE.unpack_from(page))
    return positions if min(_FIELDS(positions)) >= 0 else None


class Checkpoint:
    """The open page. Its caller serialises the writes of its threads."""

    def __init__(self, disk: Disk) -> None:
        content = disk.read_bytes(PATH)
        found = decode_page(content) if content is not None else None
        self.known = found is not None
        self.positions = found or Positions()
        self._file: FileSegment = disk.open(PATH, create=True, size_bytes=SIZE_BYTES)

    def write(self, *, durable: bool) -> None:
        """Write the page. Without `durable` it survives the end of the process, and a power loss once the system got to it."""
        self._file.write(0, (encode_page(self.positions),))
        if durable:
            self._file.sync()
            self.known = True

    def close(self) -> None:
        self._file.close()
