"""The checkpoint of the timer files, `config/timercheck`: what of them is durable (pure, but for reading and replacing it).

A page of 4096 bytes that begins as the original's does, which reads no more than 56 bytes of it:

    0 lastReadTime(8)  8 timerLogEnd(8)  16 queueOffset(8)  24 queueOffset(8)  32 stateVersion(8)  40 timestamp(8)  48 counter(8)
    56 tag(8) "LOGBOOM1"  64 offset of the commitlog up to which the files are complete (8)
    72 the cursor that was passed: due(8), queue offset(8)  88 offset of the commitlog behind the record that says so (8)
    96 messages in slots from `lastReadTime` on (8)  104 slots of the wheel (4)  108 bytes of a timer-log file (4)
    112 first file (8)  120 number of files (4)  124 for each file the latest slot of its records (8)
    4072 the last entry of the queue that the files were followed to: offset in the commitlog(8), code(8), size(4); 0: not known
    4092 CRC-32 of the bytes before it

`lastReadTime` is the slot of the passed cursor, or the next one when nothing in that slot is behind the cursor: what the original
delivers from. It rewrites its 56 bytes in place, so that the CRC fails: then the files are made again from the queue. The page is
replaced as a whole.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from brokerd.store.unit import Unit
from brokerd.timers.codes import SLOT_MS, Key, slot_of
from brokerd.timers.files.layout import Shape
from remoting.checksum import crc32
from remoting.disk import SmallFiles

PATH: Final = "config/timercheck"
PAGE_BYTES: Final = 4096
_TAG: Final = b"LOGBOOM1"
_HEAD: Final = struct.Struct(">qqqqqqq8sqqqqqiiqi")
_LAST: Final = struct.Struct(">qqi")
_CRC: Final = struct.Struct(">I")
_ROOM_BYTES: Final = PAGE_BYTES - _HEAD.size - _LAST.size - _CRC.size
MOST_FILES: Final = _ROOM_BYTES // 8


class Page(NamedTuple):
    """`end` is the position behind the last durable record; `latest_slots_ms` of the log's files, from `first_file` on. `last` is
    the entry before `applied`, by which these files are known for those of another queue; None when nobody noted it."""

    offset: int
    applied: int
    end: int
    passed: Key
    known_at: int
    messages: int
    shape: Shape
    first_file: int
    latest_slots_ms: tuple[int, ...]
    counter: int = 0
    timestamp_ms: int = 0
    is_slot_done: bool = False  # nothing of the cursor's slot is behind it
    last: Unit | None = None


def encode_page(page: Page) -> bytes:
    files = page.latest_slots_ms
    head = _HEAD.pack(
        max(0, slot_of(page.passed.due_ms)) + (SLOT_MS if page.is_slot_done else 0),
        page.end,
        page.applied,
        page.applied,
        0,
        page.timestamp_ms,
        page.counter,
        _TAG,
        page.offset,
        *page.passed,
        page.known_at,
        page.messages,
        *page.shape,
        page.first_file,
        len(files),
    )
    content = (head + struct.pack(f">{len(files)}q", *files)).ljust(PAGE_BYTES - _LAST.size - _CRC.size, b"\0")
    physical_offset, size, code = (0, 0, 0) if page.last is None else page.last
    content += _LAST.pack(physical_offset, code, size)
    return content + _CRC.pack(crc32(content))


def decode_page(content: bytes) -> Page | None:
    """None when it is not as we wrote it."""
    body = content[: -_CRC.size]
    if len(content) != PAGE_BYTES or content[-_CRC.size :] != _CRC.pack(crc32(body)):
        return None
    _, end, applied, _, _, timestamp_ms, counter, tag, offset, *rest = _HEAD.unpack_from(body)
    due_ms, at, known_at, messages, slots, file_bytes, first_file, count = rest
    if tag != _TAG or not 0 <= count <= MOST_FILES:
        return None
    latest = struct.unpack_from(f">{count}q", body, _HEAD.size)
    shape = Shape(slots, file_bytes)
    passed = Key(due_ms, at)
    physical_offset, code, size = _LAST.unpack_from(body, len(body) - _LAST.size)
    last = (physical_offset, size, code) if size else None
    page = Page(offset, applied, end, passed, known_at, messages, shape, first_file, latest, counter, timestamp_ms)
    return page._replace(last=last)


def complete_up_to(content: bytes) -> int:
    """The offset of the commitlog up to which the files were complete when we wrote the page, whoever wrote into its begin since.

    0 when it never was ours.
    """
    if len(content) < _HEAD.size:
        return 0
    fields = _HEAD.unpack_from(content)
    return int(fields[8]) if fields[7] == _TAG else 0


def read_page(disk: SmallFiles) -> Page | None:
    """None when there is none, or another program wrote it."""
    content = disk.read_bytes(PATH)
    return None if content is None else decode_page(content)


def write_page(disk: SmallFiles, page: Page) -> None:
    """Durable on return."""
    disk.replace_bytes(PATH, encode_page(page))
