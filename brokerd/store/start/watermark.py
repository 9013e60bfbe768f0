"""The watermark: a record in the log that says how far the log was confirmed when it was appended (pure).

It stands in queue 0 of a system topic as JSON, `{"v":1,"confirmed":N}`, and nobody reads it but a start that finds damage: a
watermark behind the damage tells for certain whether what is missing had been acknowledged. The checkpoint's page says less,
since it is written without a sync.
"""

from __future__ import annotations

from typing import Final

import orjson

from remoting.errors import LogboomError
from remoting.record.codec import decode_record

TOPIC: Final = "rmq_sys_logboom_watermark"
KIND: Final = "confirmed"


def encode_watermark(confirmed: int) -> bytes:
    """The body of the record."""
    return orjson.dumps({"v": 1, "confirmed": confirmed})


def confirmed_by(record: bytes) -> int:
    """What an intact record of the topic says; -1 for one that cannot be understood."""
    try:
        confirmed = orjson.loads(decode_record(record).body)["confirmed"]
    except (LogboomError, ValueError, KeyError, TypeError):
        return -1
    return confirmed if isinstance(confirmed, int) else -1
