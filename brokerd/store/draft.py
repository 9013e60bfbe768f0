"""A message on its way into the log (pure)."""

from __future__ import annotations

from typing import NamedTuple

from remoting.disk import Bytes
from remoting.record.codec import Record
from remoting.record.layout import SYS_BORN_HOST_V6, SYS_STORE_HOST_V6


class Draft(NamedTuple):
    """A message to append. `queue_id` -1 lets the broker choose; `properties` is the encoded property string."""

    topic: str
    queue_id: int
    body: Bytes
    properties: bytes
    born_timestamp_ms: int
    born_host: bytes  # packed IPv4 (4) or IPv6 (16) address and port (4)
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0

    @classmethod
    def again(cls, record: Record) -> Draft:
        """What stores the message of a record once more, as it is; where it goes is for the caller to replace."""
        return cls(
            record.topic,
            record.queue_id,
            record.body,
            record.properties,
            record.born_timestamp_ms,
            record.born_host,
            record.flag,
            record.sys_flag & ~(SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6),  # a new record gets those of its own hosts
            record.reconsume_times,
            record.prepared_transaction_offset,
        )
