"""Single fields of encoded records, for paths that decode nothing else (pure). The layout is in `layout`."""

from __future__ import annotations

import struct
from typing import Final

from remoting.disk import Bytes
from remoting.record.layout import MAGIC_V1, SYS_BORN_HOST_V6, SYS_STORE_HOST_V6

# queueOffset, physicalOffset, sysFlag at 20, and reconsumeTimes of a record with IPv4 hosts at 72
_OFFSETS: Final = struct.Struct(">qqi32xi").unpack_from
_INT: Final = struct.Struct(">i").unpack_from
_SHORT: Final = struct.Struct(">h").unpack_from
_LONG: Final = struct.Struct(">q").unpack_from
_MAGIC: Final = struct.Struct(">I").unpack_from
_OFFSETS_AT: Final = 20
_RECONSUME_AT: Final = 72  # with IPv4 hosts
_BODY_LENGTH_AT: Final = 84  # likewise
_V6: Final = SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6
_V6_EXTRA: Final = 12


def offsets_of(record: Bytes) -> tuple[int, int, int]:
    """(queue offset, physical offset, reconsume times)."""
    queue_offset, physical_offset, sys_flag, reconsume_times = _OFFSETS(record, _OFFSETS_AT)
    if sys_flag & _V6:
        reconsume_times = _INT(record, _RECONSUME_AT + _shift(sys_flag))[0]
    return queue_offset, physical_offset, reconsume_times


def queue_offset_of(record: Bytes) -> int:
    offset: int = _LONG(record, _OFFSETS_AT)[0]
    return offset


def store_timestamp_of(record: Bytes) -> int:
    sys_flag = _INT(record, 36)[0]
    timestamp: int = _LONG(record, 56 + (_V6_EXTRA if sys_flag & SYS_BORN_HOST_V6 else 0))[0]
    return timestamp


def properties_of(record: Bytes) -> bytes:
    """The property string of a whole, intact record."""
    start, length = _topic_span(record)
    position = start + length
    return bytes(record[position + 2 : position + 2 + _SHORT(record, position)[0]])


def topic_of(record: Bytes) -> str:
    start, length = _topic_span(record)
    return str(record[start : start + length], "utf-8", "surrogateescape")


def _topic_span(record: Bytes) -> tuple[int, int]:
    """Where the topic starts, and its length."""
    position = _BODY_LENGTH_AT + _shift(_INT(record, 36)[0])
    position += 4 + _INT(record, position)[0]
    if _MAGIC(record, 4)[0] == MAGIC_V1:
        return position + 1, record[position]
    return position + 2, _SHORT(record, position)[0]


def _shift(sys_flag: int) -> int:
    """How far IPv6 hosts move what follows both of them."""
    if not sys_flag & _V6:
        return 0
    return (_V6_EXTRA if sys_flag & SYS_BORN_HOST_V6 else 0) + (_V6_EXTRA if sys_flag & SYS_STORE_HOST_V6 else 0)
