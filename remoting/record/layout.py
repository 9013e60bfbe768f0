"""The layout of a message record, in the commitlog and on the wire: every place, length and mark of it is named here (pure).

A record is its head, the fields below at fixed places, and then: body, topicLength(1, or 2 in V2), topic, propertiesLength(2),
properties. All integers are big-endian. An IPv6 host takes 16 bytes instead of 4 and sets its bit in sysFlag; what follows it in
the head moves by 12. So there are four kinds of heads; `heads` makes the structs that read them.

In a log, what is left of a file behind its last record begins with a filler: how many bytes that are, and MAGIC_BLANK.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

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
MAX_TOPIC_BYTES: Final = 127
MAX_RETRY_TOPIC_BYTES: Final = 255
MAX_RECORD_BYTES: Final = MAX_BODY_BYTES + 64 * 1024
HOST_BYTES: Final = 8  # address and port
HOST_V6_BYTES: Final = 20


class Field(NamedTuple):
    """A field of the head: where it is in a record with IPv4 hosts, its kind as `struct` calls it, which hosts' bits of sysFlag
    move it, and for a host, which one makes it longer."""

    at: int
    kind: str
    moved_by: int = 0
    host_bit: int = 0

    @property
    def size(self) -> int:
        """Its bytes, for IPv4 hosts."""
        return struct.calcsize(">" + self.kind)

    def place(self, sys_flag: int) -> int:
        """Where it is in a record with the hosts that sysFlag tells of."""
        return self.at + (HOST_V6_BYTES - HOST_BYTES) * (sys_flag & self.moved_by).bit_count()

    def kind_in(self, sys_flag: int) -> str:
        return f"{HOST_V6_BYTES}s" if sys_flag & self.host_bit else self.kind


SIZE: Final = Field(0, "I")
MAGIC: Final = Field(4, "I")
BODY_CRC: Final = Field(8, "I")
QUEUE_ID: Final = Field(12, "i")
FLAG: Final = Field(16, "i")
QUEUE_OFFSET: Final = Field(20, "q")
PHYSICAL_OFFSET: Final = Field(28, "q")
SYS_FLAG: Final = Field(36, "i")
BORN_TIMESTAMP: Final = Field(40, "q")
BORN_HOST: Final = Field(48, f"{HOST_BYTES}s", 0, SYS_BORN_HOST_V6)
STORE_TIMESTAMP: Final = Field(56, "q", SYS_BORN_HOST_V6)
STORE_HOST: Final = Field(64, f"{HOST_BYTES}s", SYS_BORN_HOST_V6, SYS_STORE_HOST_V6)
RECONSUME_TIMES: Final = Field(72, "i", SYS_V6_HOSTS)
PREPARED_TRANSACTION_OFFSET: Final = Field(76, "q", SYS_V6_HOSTS)
BODY_LENGTH: Final = Field(84, "i", SYS_V6_HOSTS)
_MIDDLE: Final = (
    *(SYS_FLAG, BORN_TIMESTAMP, BORN_HOST, STORE_TIMESTAMP, STORE_HOST),
    *(RECONSUME_TIMES, PREPARED_TRANSACTION_OFFSET),
)
HEAD: Final = (SIZE, MAGIC, BODY_CRC, QUEUE_ID, FLAG, QUEUE_OFFSET, PHYSICAL_OFFSET, *_MIDDLE, BODY_LENGTH)


def pattern(begin: int, *fields: Field, sys_flag: int = 0) -> str:
    """What `struct` calls these fields, which are in the order of the head, from the record's byte `begin` on."""
    parts, position = "", begin
    for field in fields:
        place, kind = field.place(sys_flag), field.kind_in(sys_flag)
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


def _with_hosts_as_numbers(kinds: str) -> struct.Struct:
    """A struct of IPv4 addresses and ports, not of hosts' bytes."""
    return struct.Struct(">" + kinds.replace(f"{HOST_BYTES}s", "II"))


# For IPv4 hosts: the whole head; its middle, which the messages of a batch share; and the head around such a middle.
HEAD_V4: Final = _with_hosts_as_numbers(pattern(0, *HEAD))
MIDDLE_V4: Final = _with_hosts_as_numbers(pattern(SYS_FLAG.at, *_MIDDLE))
HEAD_AROUND_MIDDLE: Final = struct.Struct(
    f">{pattern(0, SIZE, MAGIC, BODY_CRC, QUEUE_ID, FLAG, QUEUE_OFFSET, PHYSICAL_OFFSET)}{MIDDLE_V4.size}si"
)
HEAD_BYTES: Final = HEAD_V4.size
# Between the last byte of one record and the first field that differs in the next one of its size
BORDER: Final = heads(SIZE, MAGIC)[0]
FILLER_BYTES: Final = BORDER.size
LENGTH: Final = struct.Struct(">h")  # of the properties, and of a V2 topic
BODY_LENGTH_ALONE: Final = struct.Struct(">" + BODY_LENGTH.kind)
SHORT_TOPIC_LENGTH_BYTES: Final = 1
RECORD_OVERHEAD_BYTES: Final = HEAD_BYTES + SHORT_TOPIC_LENGTH_BYTES + LENGTH.size


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
    return size + LENGTH.size - SHORT_TOPIC_LENGTH_BYTES if topic_length > MAX_TOPIC_BYTES else size
