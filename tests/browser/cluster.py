"""The fake cluster of the web tests with messages in it, made anew in each process."""

from __future__ import annotations

import json
import zlib

from remoting.record.layout import SYS_COMPRESSED
from tests.web.fakes import FakeCluster


class SeededCluster(FakeCluster):
    """Its topic `orders` has messages with text, JSON, bytes and a compressed body."""

    def __init__(self) -> None:
        if "orders" not in self.topics:
            self.add_topic("orders")
            for number in range(45):
                body = json.dumps(
                    {"order": 1000 + number, "amount": round(number * 3.7, 2), "currency": "EUR", "lines": [number]}
                )
                self.store(
                    "orders", 1, body.encode(), {"KEYS": f"order-{number}", "TAGS": "paid" if number % 3 else "open"}
                )
            self.store("orders", 1, b"plain text, one line: gr\xc3\xbc\xc3\x9fe", {"TAGS": "note"})
            self.store("orders", 1, bytes(range(256)), {"KEYS": "binary"})
            self.store("orders", 1, zlib.compress(b"packed " * 400), {"KEYS": "packed"}, sys_flag=SYS_COMPRESSED)
