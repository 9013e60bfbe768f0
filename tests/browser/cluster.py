"""The fake cluster of the web tests with messages and client users in it, made anew in each process."""

from __future__ import annotations

import json
import zlib

from remoting.facts.timers import TimerItem, TimerStanding
from remoting.record.layout import SYS_COMPRESSED
from tests.browser.untidy import OFFSET, TOPIC, USER
from tests.web.fakes import FakeAccess, FakeCluster

CLIENT_USER = USER[:64]  # the longest there is


class SeededCluster(FakeCluster):
    """Its topic `orders` has messages with text, JSON, bytes and a compressed body; the other has a long name, and long keys."""

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
            self.add_topic(TOPIC, 24)
            for number in range(30):
                properties = {
                    "KEYS": f"{number}" + "k" * 300,
                    "TAGS": "t" * 90,
                    "p" * 90: "v" * 300,
                    "UNIQ_KEY": "A" * 64,
                }
                self.store(TOPIC, 0, b"x" * 3000, properties)
            self.timers.extend(
                TimerItem(
                    offset=OFFSET + number,
                    place=OFFSET,
                    standing=TimerStanding.WAITING,
                    topic=TOPIC,
                    queue_id=3,
                    unique_key="A" * 64,
                    due_ms=1_790_000_000_000,
                    stored_ms=1_780_000_000_000,
                    born_ms=1_780_000_000_000,
                    size=4_000_000,
                    keys="k" * 300,
                    rolls=12,
                )
                for number in range(20)
            )


class SeededAccess(FakeAccess):
    """It has one client user, with a permission."""

    def __init__(self) -> None:
        super().__init__()
        if not hasattr(FakeAccess, "machine"):
            FakeAccess.clear()
            self.create_user(CLIENT_USER, "a long secret", "Normal", "enable")
            resource = f"Topic:{TOPIC}"
            entry = {
                "resource": resource,
                "actions": ["Pub", "Sub"],
                "sourceIps": ["192.168.100.0/24"] * 9,
                "decision": "Allow",
            }
            self.put_permission(CLIENT_USER, entry)
