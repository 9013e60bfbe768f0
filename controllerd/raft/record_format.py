"""The records of a Raft log file, and what a damaged one means (pure)

    record    magic "LBR2" · sequence u64 · length u32 · crc32 u32 (of sequence, length and payload)
              · crc32 u32 (of the 20 bytes before it) · payload · "LBRE"
    formerly  magic "LBRL" · sequence u64 · length u32 · crc32 u32 (of sequence, length and payload) · payload

The header has a checksum of its own, so that a length is known or known to be damaged, and a record begins and ends with bytes
that are never zero. Payloads hold no sector of zeros (names, numbers and JSON). So a flipped bit anywhere in a record is told
from a torn write without any other witness (`remoting/torn_write.py`): a sector of it that was not written is all zeros, however
little of the record lies in it.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from controllerd.raft.codec import Reader
from remoting.errors import CorruptedFile
from remoting.torn_write import SECTOR_BYTES, has_unwritten_sector, is_torn

_MAGIC: Final = b"LBR2"
_FORMER_MAGIC: Final = b"LBRL"
_END: Final = b"LBRE"
_RECORD: Final = struct.Struct(">4sQII")
_CHECKED: Final = struct.Struct(">QI")
_CRC: Final = struct.Struct(">I")
_HEAD_BYTES: Final = _RECORD.size + _CRC.size
_MAX_RECORD_BYTES: Final = 256 << 20


def encode_record(sequence: int, payload: list[bytes]) -> list[bytes]:
    """A record as buffers."""
    length = sum(map(len, payload))
    crc = zlib.crc32(_CHECKED.pack(sequence, length))
    for buffer in payload:
        crc = zlib.crc32(buffer, crc)
    head = _RECORD.pack(_MAGIC, sequence, length, crc)
    return [head, _CRC.pack(zlib.crc32(head)), *payload, _END]


class Records:
    """The whole records of a log file, in order. It ends before a torn one; damage of any other kind is refused."""

    def __init__(self, path: str, content: bytes, sealed_bytes: int = 0) -> None:
        """Up to `sealed_bytes` all of the content is known to have been durable."""
        self._path = path
        self._content = content
        self._sealed_bytes = sealed_bytes
        self.position = 0
        self.sequence = 0

    def next(self) -> Reader | None:
        """The next payload, or None at the end. Raises CorruptedFile."""
        found = _whole_record(self._content, self.position)
        if found is None:
            self._check_end()
            return None
        sequence, payload, end = found
        if sequence != self.sequence:
            raise CorruptedFile(f"{self._path} has record {sequence} at {self.position} instead of {self.sequence}")
        self.position = end
        self.sequence += 1
        return Reader(payload)

    def _check_end(self) -> None:
        if self.position < self._sealed_bytes:
            raise CorruptedFile(
                f"{self._path} is damaged at {self.position}: up to {self._sealed_bytes} it was durable, and this controller may "
                "have promised what is lost"
            )
        if self.position == len(self._content):
            return
        whole = self._next_whole_record()
        if whole is not None:
            raise CorruptedFile(
                f"{self._path} is damaged at {self.position}, before a whole record at {whole}: what this controller promised is "
                "lost"
            )
        if not _is_torn_record(self._content, self.position):
            raise CorruptedFile(
                f"{self._path} is damaged at {self.position}: its last record was written whole and was changed since, so what "
                "this controller promised may be lost"
            )

    def _next_whole_record(self) -> int | None:
        for magic in (_MAGIC, _FORMER_MAGIC):
            position = self.position - 1
            while (position := self._content.find(magic, position + 1)) >= 0:
                if _whole_record(self._content, position) is not None:
                    return position
        return None


def _whole_record(content: bytes, position: int) -> tuple[int, memoryview, int] | None:
    """Sequence, payload and end of the record at a position, if one is there whole."""
    if len(content) - position < _RECORD.size:
        return None
    magic, sequence, length, crc = _RECORD.unpack_from(content, position)
    start = position + (_RECORD.size if magic == _FORMER_MAGIC else _HEAD_BYTES)
    end = start + length
    if length > _MAX_RECORD_BYTES or end > len(content):
        return None
    if magic == _MAGIC:
        if not _is_head_whole(content, position) or content[end : end + len(_END)] != _END:
            return None
        after = end + len(_END)
    elif magic == _FORMER_MAGIC:
        after = end
    else:
        return None
    payload = memoryview(content)[start:end]
    if crc != zlib.crc32(payload, zlib.crc32(_CHECKED.pack(sequence, length))):
        return None
    return sequence, payload, after


def _is_head_whole(content: bytes, position: int) -> bool:
    end = position + _RECORD.size
    head = content[position:end]
    return len(content) >= end + _CRC.size and _CRC.unpack_from(content, end) == (zlib.crc32(head),)


def _is_torn_record(content: bytes, position: int) -> bool:
    rest = memoryview(content)[position:]
    if len(rest) < _RECORD.size:
        return True
    magic, _, length, _ = _RECORD.unpack_from(content, position)
    if magic == _FORMER_MAGIC:
        return is_torn(rest, position, _RECORD.size + length)  # its length has no checksum, so this is the best guess
    if len(rest) < _HEAD_BYTES:
        return True
    if _is_head_whole(content, position):
        return is_torn(rest, position, _HEAD_BYTES + length + len(_END), least_bytes=1)
    sectors_end = -(-(position + _HEAD_BYTES) // SECTOR_BYTES) * SECTOR_BYTES
    return has_unwritten_sector(rest[: sectors_end - position], position, least_bytes=1)
