"""The keys of many records put into the last file of the index at once, by `brokerd/native/keys.c`.

What it leaves is for `postings.py` and `IndexFile.put`, which say what is right.
"""

from __future__ import annotations

import ctypes
from typing import Final

from brokerd.native.library import Library
from brokerd.native.memory import Pinned
from brokerd.store.index.layout import ITEM, Header, IndexShape

_ROOM: Final = 1 << 14  # items of one call


class _File(ctypes.Structure):
    """`struct index_file` of keys.c."""

    _fields_ = (
        ("slots", ctypes.c_void_p),
        ("slot_count", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("pages", "items")),
        *((name, ctypes.c_int64) for name in ("room", "count", "items_end", "begin_timestamp_ms")),
        *((name, ctypes.c_int64) for name in ("next_item", "slots_used", "end_timestamp_ms", "end_offset")),
    )


class NativeItems:
    """By the library."""

    def __init__(self, library: Library) -> None:
        number, pointer = ctypes.c_int64, ctypes.c_void_p
        self._put = library.function("native_put_keys", number, pointer, pointer, number, number, number)
        self._items = bytearray(_ROOM * ITEM.size)
        self._view = memoryview(self._items)
        self._file = _File(items=ctypes.addressof(ctypes.c_char.from_buffer(self._items)), room=_ROOM)
        self._file_at = ctypes.addressof(self._file)

    def put(
        self,
        header: Header,
        shape: IndexShape,
        slots: memoryview,
        pages: bytearray,
        records: tuple[bytes | int, int, int, int],
    ) -> tuple[Header, memoryview, int]:
        """Put keys into the slots of a file that has items, and note which pages of these changed: the header that it has then,
        the items to go behind its others, until the next call, and where in the records that ended. These are bytes, or their
        address, how many there are, which offset of the log they begin at, and how large its files are."""
        file = self._file
        file.slot_count, file.items_end, file.count = shape.slots, shape.items, 0
        file.begin_timestamp_ms, file.next_item, file.slots_used = (
            header.begin_timestamp_ms,
            header.next_item,
            header.slots_used,
        )
        file.end_timestamp_ms, file.end_offset = header.end_timestamp_ms, header.end_offset
        with Pinned(slots) as file.slots, Pinned(pages) as file.pages:
            end: int = self._put(self._file_at, *records)
        found = header._replace(
            end_timestamp_ms=file.end_timestamp_ms,
            end_offset=file.end_offset,
            slots_used=file.slots_used,
            next_item=file.next_item,
        )
        return found, self._view[: file.count * ITEM.size], end
