"""The index's own checkpoint: which state of the index files is durable.

    0 offset of the log up to which the index is complete  8 name of the last index file as a number (0 without one)
    16 that file's header (40)  56 crc32 of the bytes before it

The file is replaced as a whole. What index files hold beyond it is taken from the log again.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from brokerd.store.index.layout import HEADER, Header
from remoting.checksum import crc32
from remoting.disk import Disk

PATH: Final = "index.checkpoint"
_PLACE: Final = struct.Struct(">qq")
_CRC: Final = struct.Struct(">I")


class Page(NamedTuple):
    """`last_name` is "" when there is no file; then the header says nothing."""

    offset: int
    last_name: str = ""
    header: Header = Header()


def encode_page(page: Page) -> bytes:
    content = _PLACE.pack(page.offset, int(page.last_name or 0)) + HEADER.pack(*page.header)
    return content + _CRC.pack(crc32(content))


def read_page(disk: Disk) -> Page | None:
    """The page, or None when there is none or it is damaged."""
    content = disk.read_bytes(PATH)
    size = _PLACE.size + HEADER.size
    if (
        content is None
        or len(content) != size + _CRC.size
        or _CRC.unpack_from(content, size)[0] != crc32(content[:size])
    ):
        return None
    offset, name = _PLACE.unpack_from(content)
    return Page(offset, f"{name:017d}" if name else "", Header(*HEADER.unpack_from(content, _PLACE.size)))


def write_page(disk: Disk, page: Page) -> None:
    """Durable on return."""
    disk.replace_bytes(PATH, encode_page(page))
