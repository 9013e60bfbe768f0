"""The layout of a message record, in the commitlog and on the wire (pure).

One record, all integers big-endian (offsets for IPv4 hosts):

    0 totalSize  4 magic  8 bodyCRC  12 queueId  16 flag  20 queueOffset(8)  28 physicalOffset(8)  36 sysFlag
    40 bornTimestamp(8)  48 bornHost ip+port(4)  56 storeTimestamp(8)  64 storeHost ip+port(4)  72 reconsumeTimes
    76 preparedTransactionOffset(8)  84 bodyLength, body  topicLength(1 or 2), topic  propertiesLength(2), properties

An IPv6 host takes 16 bytes instead of 4 and sets its bit in sysFlag, which shifts what follows it.
"""

from __future__ import annotations

import struct
from typing import Final

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
SYS_NEED_UNWRAP: Final = 0x40
SYS_INNER_BATCH: Final = 0x80
SYS_COMPRESSION_TYPE_MASK: Final = 0x700
RECORD_OVERHEAD_BYTES: Final = 91
MAX_BODY_BYTES: Final = 4 * 1024 * 1024
MAX_PROPERTIES_BYTES: Final = 32767
MAX_TOPIC_BYTES: Final = 127
MAX_RETRY_TOPIC_BYTES: Final = 255
MAX_RECORD_BYTES: Final = MAX_BODY_BYTES + 64 * 1024
# everything before the body of a record whose hosts are IPv4
HEAD_V4: Final = struct.Struct(">IIIiiqqiqIIqIIiqi")


def record_size(
    topic_length: int, body_length: int, properties_length: int, born_host_length: int = 8, store_host_length: int = 8
) -> int:
    """How many bytes a record takes; lengths in bytes."""
    size = RECORD_OVERHEAD_BYTES + body_length + topic_length + properties_length
    size += born_host_length - 8 + store_host_length - 8
    return size + 1 if topic_length > MAX_TOPIC_BYTES else size
