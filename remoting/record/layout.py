"""The layout of a message record, in the commitlog and on the wire: every place, length and mark of it is named here (pure).

A record is its head, the fields below at fixed places, and then: body, topicLength(1, or 2 in V2), topic, propertiesLength(2),
properties. All integers are big-endian. An IPv6 host takes 16 bytes instead of 4 and sets its bit in sysFlag; what follows it in
the head moves by 12. So there are four kinds of heads; `heads` makes the structs that read them.

In a log, what is left of a file behind its last record begins with a filler: how many bytes that are, and MAGIC_BLANK.
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import Final

from remoting.names import MAX_RETRY_TOPIC_LENGTH, MAX_TOPIC_LENGTH

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
MAGIC_BLANK: Final = 0xCBD43194
SYS_COMPRESSED: Final = 0x1
SYS_TRANSACTION_MASK: Final = 0xC
SYS_TRANSACTION_PREPARED: Final = 0x4
SYS_TRANSACTION_COMMIT: Final = 0x8
SYS_TRANSACTION_ROLLBACK: Final = 0xC
SYS_BORN_HOST_V6: Final = 0x10
SYS_STORE_HOST_V6: Final = 0x20
SYS_V6_HOSTS: Final = SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6
SYS_NEED_UNWRAP: Final = 0x40
SYS_INNER_BATCH: Final = 0x80
SYS_COMPRESSION_TYPE_MASK: Final = 0x700
MAX_BODY_BYTES: Final = 4 * 1024 * 1024
MAX_PROPERTIES_BYTES: Final = 32767
MAX_TOPIC_BYTES: Final = MAX_TOPIC_LENGTH  # names are ASCII
MAX_RETRY_TOPIC_BYTES: Final = MAX_RETRY_TOPIC_LENGTH
MAX_RECORD_BYTES: Final = MAX_BODY_BYTES + 64 * 1024
HOST_BYTES: Final = 8  # address and port
HOST_V6_BYTES: Final = 20


class Field(Enum):
    """The fields of the head, in their order: where each is in a record with IPv4 hosts, its kind as `struct` calls it, which
    hosts' bits of sysFlag move it, and for a host, which one makes it longer."""

    SIZE = (0, "I")
    MAGIC = (4, "I")
    BODY_CRC = (8, "I")
    QUEUE_ID = (12, "i")
    FLAG = (16, "i")
    QUEUE_OFFSET = (20, "q")
    PHYSICAL_OFFSET = (28, "q")
    SYS_FLAG = (36, "i")
    BORN_TIMESTAMP = (40, "q")
    BORN_HOST = (48, f"{HOST_BYTES}s", 0, SYS_BORN_HOST_V6)
    STORE_TIMESTAMP = (56, "q", SYS_BORN_HOST_V6)
    STORE_HOST = (64, f"{HOST_BYTES}s", SYS_BORN_HOST_V6, SYS_STORE_HOST_V6)
    RECONSUME_TIMES = (72, "i", SYS_V6_HOSTS)
    PREPARED_TRANSACTION_OFFSET = (76, "q", SYS_V6_HOSTS)
    BODY_LENGTH = (84, "i", SYS_V6_HOSTS)

    def __init__(self, at: int, kind: str, moved_by: int = 0, host_bit: int = 0) -> None:
        self.at = at
        self.kind = kind
        self.size = struct.calcsize(">" + kind)
        self.host_bit = host_bit
        self._moved_by = moved_by

    def place(self, sys_flag: int) -> int:
        """Where it is in a record with the hosts that sysFlag tells of."""
        return self.at + (HOST_V6_BYTES - HOST_BYTES) * (sys_flag & self._moved_by).bit_count()

    def kind_in(self, sys_flag: int) -> str:
        return f"{HOST_V6_BYTES}s" if sys_flag & self.host_bit else self.kind


def pattern(begin: int, *fields: Field, sys_flag: int = 0) -> str:
    """What `struct` calls these fields, which are in the order of the head, from the record's byte `begin` on."""
    parts, position = "", begin
    for field in fields:
        place, kind = field.place(sys_flag), field.kind_in(sys_flag)
        assert place >= position, "the fields are not in the order of the head"
        parts += f"{place - position}x{kind}" if place > position else kind
        position = place + struct.calcsize(">" + kind)
    return parts


def heads(*fields: Field) -> dict[int, struct.Struct]:
    """What takes these fields, in the order of the head, out of a record's begin, by its sysFlag's `SYS_V6_HOSTS`. That for IPv4
    hosts, 0, reads the sysFlag of every record, and what is before the hosts."""
    return {
        hosts: struct.Struct(">" + pattern(0, *fields, sys_flag=hosts))
        for hosts in (0, SYS_BORN_HOST_V6, SYS_STORE_HOST_V6, SYS_V6_HOSTS)
    }


_HEAD: Final = tuple(Field)
_UP_TO_MIDDLE: Final = _HEAD[: _HEAD.index(Field.SYS_FLAG)]
_MIDDLE: Final = _HEAD[len(_UP_TO_MIDDLE) : -1]
# For IPv4 hosts: the whole head; its middle, which the messages of a batch share; and the head around such a middle.
HEAD_V4: Final = struct.Struct(f">{pattern(0, *_HEAD)}")
HEAD_BYTES: Final = HEAD_V4.size
MIDDLE_V4: Final = struct.Struct(f">{pattern(Field.SYS_FLAG.at, *_MIDDLE)}")
HEAD_AROUND_MIDDLE: Final = struct.Struct(f">{pattern(0, *_UP_TO_MIDDLE)}{MIDDLE_V4.size}s{Field.BODY_LENGTH.kind}")
# For the records of a batch that are alike, of each one, behind size and magic: the checksum, queueId and flag, queueOffset,
# physicalOffset, and the middle with the body's length
BATCH_COLUMNS: Final = f"I8sqq{MIDDLE_V4.size + Field.BODY_LENGTH.size}s"
BORDER: Final = heads(Field.SIZE, Field.MAGIC)[0]  # what a record begins with, and what a filler is
FILLER_BYTES: Final = BORDER.size
LENGTH: Final = struct.Struct(">h")  # of the properties, and of a V2 topic
LENGTH_BYTES: Final = LENGTH.size
SHORT_TOPIC_LENGTH_BYTES: Final = 1
RECORD_OVERHEAD_BYTES: Final = HEAD_BYTES + SHORT_TOPIC_LENGTH_BYTES + LENGTH_BYTES


def record_size(
    topic_length: int,
    body_length: int,
    properties_length: int,
    born_host_length: int = HOST_BYTES,
    store_host_length: int = HOST_BYTES,
) -> int:
    """How many bytes a record takes; lengths in bytes."""
    size = RECORD_OVERHEAD_BYTES + body_length + topic_length + properties_length
    size += born_host_length - HOST_BYTES + store_host_length - HOST_BYTES
    return size + LENGTH_BYTES - SHORT_TOPIC_LENGTH_BYTES if topic_length > MAX_TOPIC_BYTES else size
