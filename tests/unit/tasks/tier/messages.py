"""Messages as they come in real topics: packed, from IPv6 hosts, without properties, without a body, of retry topics."""

from __future__ import annotations

import zlib

from remoting.record.codec import encode_record
from remoting.record.hosts import pack_host
from remoting.record.properties import encode_properties

DAY_MS = 86_400_000
BEGIN_MS = 20_000 * DAY_MS


def untidy(topic: str, queue_id: int, offset: int, at_ms: int, padding: int = 0) -> bytes:
    """The record of one; which kind follows from the offset."""
    properties = {"KEYS": f"k{offset} l", "TAGS": "t", "UNIQ_KEY": f"{offset:032X}", "trace": "ü" * (offset % 4)}
    body, sys_flag = f"body {offset} ".encode() + b"." * padding, 0
    match offset % 6:
        case 0:
            body, sys_flag = zlib.compress(body * 20), 0x1
        case 1:
            properties = {}
        case 2:
            body = b""
        case 3:
            sys_flag, body = 0x1, b"this says that it is packed"
    is_v6 = offset % 5 == 2
    return encode_record(
        topic=topic.encode(),
        queue_id=queue_id,
        queue_offset=offset,
        physical_offset=1000 + 500 * offset,
        body=body,
        sys_flag=sys_flag,
        properties=encode_properties(properties),
        born_timestamp_ms=at_ms - 5,
        born_host=pack_host("fe80::1" if is_v6 else "10.0.0.1", 4000),
        store_timestamp_ms=at_ms,
        store_host=pack_host("fe80::2" if offset % 7 == 3 else "10.0.0.2", 10911),
        reconsume_times=offset % 3,
    )
