"""The fake cluster of the web tests with messages and client users in it, made anew in each process."""

from __future__ import annotations

import json
import zlib
from typing import Any

from remoting.facts.timers import TimerItem, TimerStanding
from remoting.names import TIMER_TOPIC
from remoting.record.layout import SYS_COMPRESSED
from tests.browser.untidy import OFFSET, TOPIC, USER
from tests.web.fakes import FakeAccess, FakeCluster

CLIENT_USER = USER[:64]  # the longest there is
LATER = "later"  # a topic of messages that waited, and wait
LATER_DUE_MS = 1_790_000_100_000


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
            self._add_later()
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

    def _add_later(self) -> None:
        """One message that travelled in two legs and was delivered, and one that was recalled; others wait."""
        self.add_topic(LATER)
        self.add_topic(TIMER_TOPIC, 1)
        hour_ms = 3_600_000
        sent_ms = LATER_DUE_MS - 60 * hour_ms
        due = {
            "REAL_TOPIC": LATER,
            "REAL_QID": "1",
            "TIMER_OUT_MS": str(LATER_DUE_MS - 1000),
            "TIMER_DUE_MS": str(LATER_DUE_MS),
        }
        body = b'{"order": 77, "remind": true}'
        steps: list[tuple[int, dict[str, Any]]] = [
            (sent_ms, {"place": 0, "unique_key": "REMIND77", "standing": TimerStanding.OVER, "leg_ms": sent_ms + 48 * hour_ms}),
            (sent_ms + 1, {"place": 1, "unique_key": "REMIND78", "standing": TimerStanding.RECALLED}),
            (sent_ms + hour_ms, {"place": 1, "unique_key": "REMIND78", "standing": TimerStanding.MARKER, "recalled_by": "ann"}),
            (sent_ms + 48 * hour_ms, {"place": 0, "unique_key": "REMIND77", "standing": TimerStanding.OVER, "rolls": 1}),
            (sent_ms + 50 * hour_ms, {"place": 4, "unique_key": "REMIND79", "standing": TimerStanding.WAITING}),
        ]  # fmt: skip
        for offset, (stored_ms, item) in enumerate(steps):
            keys = f"customer-{item['place']}"
            properties = {"UNIQ_KEY": item["unique_key"], "KEYS": keys, **due}
            if item["place"] != offset:
                properties["TIMER_PLACE"] = str(item["place"])
            self.store(TIMER_TOPIC, 0, body, properties, at_ms=stored_ms)
            self.timers.append(
                TimerItem(
                    **{"rolls": 0, "leg_ms": None, "recalled_by": "", **item},
                    offset=offset,
                    topic=LATER,
                    queue_id=1,
                    due_ms=LATER_DUE_MS,
                    stored_ms=stored_ms,
                    born_ms=sent_ms - 3,
                    size=412,
                    keys=keys,
                )
            )
        delivered = {"UNIQ_KEY": "REMIND77", "KEYS": "customer-0", "TIMER_PLACE": "0", "TIMER_ROLL_TIMES": "1", **due}
        self.store(LATER, 1, body, delivered, at_ms=LATER_DUE_MS + 7)


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
